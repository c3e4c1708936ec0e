//! Commands on their way to an edge: sent once, waited for by all who ask for the same, audited before and after.
//!
//! The operation and its arguments are the edge's business; here only its class counts, and that reading is neither
//! remembered nor audited. Invariant: a command that was sent goes on when its caller goes away, and its end is
//! audited once, by whichever way it becomes known.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use umbel_contracts::method;
use umbel_contracts::objects::{CommandObject, CommandRequestBody};
use umbel_contracts::operations::{Class, LARGEST_METADATA, check_size};
use umbel_contracts::proto::control::{EdgeCommandRequest, EdgeCommandResponse};
use umbel_contracts::serve::{Caller, CommandCall};
use umbel_store::{CommitError, Owed};
use umbel_wire::error::{Code, Error};
use umbel_wire::{clock, contained};

use super::delimited::malformed;
use super::plane::{Link, Plane};
use super::status::call;
use crate::core::audit::Detail;
use crate::core::commands::{Begin, Broken, Ended, Key, PendingRow, digest, lost};

/// An edge answers within a second, with the outcome or with `accepted`; the rest is for a slow link.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// Relays a command and answers with its end, or with what is known when the caller's waiting time is over.
pub(crate) async fn command(
    plane: &Arc<Plane>,
    caller: &Caller,
    edge_id: &str,
    class: Class,
    asked: CommandCall,
) -> Result<CommandObject, Error> {
    let link = plane.link(edge_id)?;
    let request = request(caller, &asked)?;
    let operation = asked.body.operation.clone();
    if class == Class::Read {
        let answer = send(plane, &link, request).await.map_err(Broken::into_error);
        plane.metrics.relayed(class, answer.as_ref().err().map(|error| error.code));
        let answer = answer?;
        return Ok(CommandObject { operation: Some(operation), ..answer });
    }
    let key: Key = (link.edge_id.clone(), asked.command_id.clone());
    let until = Instant::now() + asked.wait;
    let begin = plane.commands().begin(clock::now(), &key, row(plane, caller, &link, &asked))?;
    let answer = match begin {
        Begin::Join => join(plane, &key).await?,
        Begin::Again => sent(plane, link, key.clone(), (class, request), None).await?,
        Begin::Send(row) => sent(plane, link, key.clone(), (class, request), Some(row)).await?,
    };
    let answer = CommandObject { operation: Some(operation), ..answer };
    if answer.phase.is_end() || asked.wait.is_zero() {
        return Ok(answer);
    }
    Ok(wait_for_end(plane, &key, until).await.unwrap_or(answer))
}

fn row(plane: &Plane, caller: &Caller, link: &Link, asked: &CommandCall) -> PendingRow {
    let body = &asked.body;
    PendingRow {
        edge_id: link.edge_id.to_string(),
        command_id: asked.command_id.clone(),
        operation: body.operation.clone(),
        digest: digest(body),
        actor: caller.actor.clone(),
        correlation_id: caller.correlation_id.clone(),
        asked_at_unix_ms: plane.clock.now().unix_ms(),
        detail: Detail {
            edge: link.edge_id.to_string(),
            selector: body.target_selector.clone(),
            args: body.args.iter().flatten().map(|(name, _)| name.clone()).collect(),
            reason: body.reason.clone(),
            took_ms: None,
        },
    }
}

/// The message for the edge.
fn request(caller: &Caller, asked: &CommandCall) -> Result<EdgeCommandRequest, Error> {
    let CommandRequestBody {
        operation,
        target_selector,
        args,
        reason,
        dry_run,
        confirm,
        deadline_ms,
        client,
    } = asked.body.clone();
    let args = args.unwrap_or_default();
    check_size(&args).map_err(|says| Error::new(Code::TooLarge, "ARGS_TOO_LARGE", says))?;
    let args_json = serde_json::to_vec(&args).unwrap_or_default();
    // Each value is short by its own bound, so that all together stay within the contract's.
    let quarter = LARGEST_METADATA / 4 - 16;
    let cut = |text: &str| text.chars().take(quarter / 4).collect::<String>();
    let metadata = BTreeMap::from([
        ("actor".to_owned(), cut(&caller.actor)),
        ("role".to_owned(), caller.role.as_str().to_owned()),
        ("correlation_id".to_owned(), cut(&caller.correlation_id)),
        ("client".to_owned(), cut(&client)),
    ]);
    Ok(EdgeCommandRequest {
        command_id: asked.command_id.clone(),
        operation,
        target_selector,
        args_json,
        reason,
        dry_run,
        confirm,
        metadata,
        deadline_ms: deadline_ms.unwrap_or(0),
    })
}

/// Stores and audits the request before it is sent; one that cannot be audited is not sent.
async fn record_request(plane: &Plane, key: &Key, row: &PendingRow) -> Result<(), Error> {
    plane.metrics.audited.inc();
    let written = contained(plane.commit(row.requested())).await.unwrap_or_else(|broken| Err(broken.into()));
    if written.is_err() {
        plane.commands().forget(key);
        plane.commands_moved();
    }
    written.map(drop)
}

/// Stores `row`, if it is not stored yet, and sends, in a task of its own: the caller's going away ends neither.
async fn sent(
    plane: &Arc<Plane>,
    link: Link,
    key: Key,
    (class, request): (Class, EdgeCommandRequest),
    row: Option<Box<PendingRow>>,
) -> Result<CommandObject, Error> {
    let (tell, told) = oneshot::channel();
    let plane = Arc::clone(plane);
    tokio::spawn(async move {
        if let Some(row) = row
            && let Err(error) = record_request(&plane, &key, &row).await
        {
            // A caller that went away has no use for the refusal.
            let _ = tell.send(Err(error));
            return;
        }
        let answer = contained(send(&plane, &link, request)).await;
        // Whoever asked for the same waits for this: nobody knows what came of it.
        let answer = answer.unwrap_or_else(|broken| Err(Broken::Unknown(broken.into())));
        let ended = plane.commands().came(clock::now(), &key, &answer);
        plane.commands_moved();
        let answer = answer.map_err(Broken::into_error);
        plane.metrics.relayed(class, answer.as_ref().err().map(|error| error.code));
        // A caller that went away has no use for the answer.
        let _ = tell.send(answer);
        if let Some(ended) = ended {
            record_end(&plane, ended).await;
        }
    });
    told.await.unwrap_or_else(|_| Err(malformed()))
}

/// Asks the edge, once, and waits for its one answer.
pub(super) async fn send(
    plane: &Plane,
    link: &Link,
    request: EdgeCommandRequest,
) -> Result<CommandObject, Broken> {
    let command_id = request.command_id.clone();
    let mut answer: Option<EdgeCommandResponse> = None;
    let message = request.encode_to_vec();
    call(plane, &link.connection, method::EDGE_COMMAND, message, ANSWER_WITHIN, |said| {
        answer = Some(said);
        Ok(())
    })
    .await?;
    answer
        .filter(|answer| answer.command_id == command_id)
        .and_then(|answer| CommandObject::from_proto(link.edge_id.as_str(), answer))
        .ok_or_else(|| Broken::Unknown(malformed()))
}

/// Waits for the answer to the same command that another caller sent.
async fn join(plane: &Plane, key: &Key) -> Result<CommandObject, Error> {
    let mut changed = plane.commands_changed.subscribe();
    let until = Instant::now() + ANSWER_WITHIN;
    while plane.commands().in_flight(key) {
        if !matches!(timeout_at(until, changed.changed()).await, Ok(Ok(()))) {
            break;
        }
    }
    plane.commands().show(key).ok_or_else(lost)
}

/// Waits for a command's end, which its events bring.
async fn wait_for_end(plane: &Plane, key: &Key, until: Instant) -> Option<CommandObject> {
    let mut changed = plane.commands_changed.subscribe();
    loop {
        let known = plane.commands().show(key);
        if known.as_ref().is_none_or(|command| command.phase.is_end()) {
            return known;
        }
        let moved = plane.drain.run_until_cancelled(timeout_at(until, changed.changed())).await;
        if !matches!(moved, Some(Ok(Ok(())))) {
            return known;
        }
    }
}

/// Audits a command's end and forgets that it is pending. If that cannot be written now it is pending still, and the
/// next start or connection of the edge tells it again.
pub(super) async fn record_end(plane: &Plane, ended: Ended) {
    plane.metrics.audited.inc();
    plane.metrics.ended(&ended.outcome);
    let (commit, row) = (ended.finished(), ended.row);
    let kept = match plane.store().commit(commit.clone()).await {
        // It has ended, whatever the disk says.
        Err(CommitError::ReadOnly(_)) => plane.store().owe(Owed::new().with(commit)).map(drop),
        other => other.map(drop),
    };
    if let Err(error) = kept {
        tracing::error!(edge = %row.edge_id, command = %row.command_id, "the end of a command is not audited: {error}");
    }
}
