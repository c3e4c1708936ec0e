//! What became of commands: asked for at their edge, told to those who follow, and settled when an edge is back.
//!
//! The edge keeps commands, so that this works after a restart of the control plane, too.

use std::sync::Arc;

use futures_util::stream::unfold;
use tokio::sync::watch;
use umbel_contracts::objects::{CommandEventObject, CommandObject};
use umbel_contracts::operations::{CommandShow, CommandStateResult, Operation};
use umbel_contracts::proto::control::EdgeCommandRequest;
use umbel_contracts::serve::Feed;
use umbel_wire::clock;
use umbel_wire::error::{Code, Error};

use super::plane::{Link, Plane, to_the_end};
use super::relay::{record_end, send};
use crate::core::audit::timestamp;
use crate::core::commands::{Broken, Key};

/// Where a command stands, by its edge's word if the edge can be asked.
pub(crate) async fn show(
    plane: &Arc<Plane>,
    edge_id: &str,
    command_id: &str,
) -> Result<CommandObject, Error> {
    let key = key(plane, edge_id, command_id)?;
    let told = match plane.link(edge_id) {
        Ok(link) => ask(plane, &link, &key).await,
        Err(error) => Err(error),
    };
    match told {
        Ok(command) => Ok(command),
        // What this process saw itself still counts.
        Err(error) => plane.commands().show(&key).ok_or(error),
    }
}

fn key(plane: &Plane, edge_id: &str, command_id: &str) -> Result<Key, Error> {
    let (edge_id, _) = plane.fleet().edges.find(edge_id).map(|(edge_id, known)| (edge_id, known.position))?;
    Ok((edge_id, command_id.to_owned()))
}

/// Asks the edge for one command and takes what it says into the index.
async fn ask(plane: &Arc<Plane>, link: &Link, key: &Key) -> Result<CommandObject, Error> {
    let request = EdgeCommandRequest {
        command_id: uuid::Uuid::new_v4().to_string(),
        operation: CommandShow::NAME.to_owned(),
        args_json: serde_json::json!({ "command_id": key.1 }).to_string().into_bytes(),
        ..EdgeCommandRequest::default()
    };
    let answer = send(plane, link, request).await.map_err(Broken::into_error)?;
    if let Some(error) = answer.error {
        return Err(Error::new(
            Code::from_name(&error.code).unwrap_or(Code::Internal),
            error.reason,
            error.message,
        ));
    }
    let state: CommandStateResult = answer
        .result
        .and_then(|result| serde_json::from_value(result).ok())
        .ok_or_else(super::delimited::malformed)?;
    let command = CommandObject {
        command_id: key.1.clone(),
        edge_id: key.0.to_string(),
        operation: Some(state.operation),
        phase: state.phase,
        error: state.error,
        result: state.result,
        replayed: false,
    };
    let ended = plane.commands().answered(clock::now(), key, &command);
    plane.commands_moved();
    if let Some(ended) = ended {
        let plane = Arc::clone(plane);
        // Whoever asked may go away before that is written.
        to_the_end(async move {
            record_end(&plane, ended).await;
            Ok(())
        })
        .await?;
    }
    Ok(command)
}

/// An edge is back: asks it for every command whose end is not known.
pub(crate) async fn settle(plane: Arc<Plane>, link: Link) {
    let open = plane.commands().open(&link.edge_id);
    for command_id in open {
        let key = (link.edge_id.clone(), command_id);
        let told = ask(&plane, &link, &key).await;
        if matches!(&told, Err(error) if error.code == Code::NotFound) {
            let ended = plane.commands().vanished(clock::now(), &key);
            plane.commands_moved();
            if let Some(ended) = ended {
                record_end(&plane, ended).await;
            }
        }
        if link.connection.is_closed() {
            return;
        }
    }
}

/// The steps of a command, from the first that is known to its end.
pub(crate) async fn follow(
    plane: &Arc<Plane>,
    edge_id: &str,
    command_id: &str,
) -> Result<Feed<CommandEventObject>, Error> {
    let key = key(plane, edge_id, command_id)?;
    // Before the edge is asked, so that the steps it tells because of that are kept: the last one may come with its
    // answer or before it.
    if plane.commands().follow(&key)? {
        let _asking = Asking { plane, key: &key };
        let told = ask(plane, &plane.link(edge_id)?, &key).await;
        // A step that came meanwhile is as good as the answer.
        if plane.commands().show(&key).is_none() {
            told?;
        }
    }
    let changed = plane.commands_changed.subscribe();
    let follower = Follower { plane: Arc::clone(plane), key, changed, cursor: 0, begun: false, over: false };
    Ok(Box::pin(unfold(follower, |mut follower| async move {
        let step = follower.next().await?;
        Some((step, follower))
    })))
}

/// A follower asks the edge where a command stands, until this is dropped.
struct Asking<'a> {
    plane: &'a Plane,
    key: &'a Key,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.plane.commands().asked(self.key);
        self.plane.commands_moved();
    }
}

struct Follower {
    plane: Arc<Plane>,
    key: Key,
    changed: watch::Receiver<u64>,
    cursor: u64,
    begun: bool,
    over: bool,
}

impl Follower {
    async fn next(&mut self) -> Option<CommandEventObject> {
        while !self.over {
            self.changed.borrow_and_update();
            let step = self.plane.commands().steps_after(&self.key, self.cursor).into_iter().next();
            if let Some(step) = step {
                self.cursor = step.sequence;
                self.over = step.phase.is_end();
                self.begun = true;
                return Some(step);
            }
            let known = self.plane.commands().show(&self.key);
            match known {
                // The end came with an answer and not as a step, or nothing was told of it yet.
                Some(command) if command.phase.is_end() || !self.begun => {
                    self.begun = true;
                    self.over = command.phase.is_end();
                    return Some(self.step(command));
                }
                Some(_) => {}
                None if self.plane.commands().operation(&self.key).is_none() => return None,
                None => {}
            }
            let changed = self.changed.changed();
            self.plane.drain.run_until_cancelled(changed).await?.ok()?;
        }
        None
    }

    fn step(&self, command: CommandObject) -> CommandEventObject {
        CommandEventObject {
            command_id: command.command_id,
            sequence: if self.over { self.cursor + 1 } else { self.cursor },
            phase: command.phase,
            message: String::new(),
            progress: None,
            error: command.error,
            result: command.result,
            at: timestamp(self.plane.clock.now().unix_ms()),
        }
    }
}
