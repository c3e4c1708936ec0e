//! The control planes that this site joined: one kept connection to each, and what they may ask.
//!
//! Owns the links (one directory under STATE/control-planes each), the heartbeat and the two streams that a
//! control plane opens. Leaves readings and commands to their own parts. Invariant: the site needs none of them;
//! each is independent of the others, and none can ask for more than the operations that the hello named.

mod link;
pub(crate) mod membership;
mod note;
mod renewal;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};
use umbel_contracts::objects::CommandEventObject;
use umbel_contracts::proto::control::{CommandError, CommandProgress, EdgeCommandEvent};

use self::membership::Membership;
use crate::shell::commands::Commands;

/// How soon a control plane that was joined while the edge runs is dialed.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Keeps a connection to every joined control plane, and takes up new ones, until it is cancelled.
pub(crate) async fn keep(commands: Arc<Commands>, directory: PathBuf, shutdown: CancellationToken) {
    // Each with the token that its identity came of: an edge that enrolled anew does not wait with the old one.
    // Whatever ends this ends them, too.
    let mut links: HashMap<String, (String, DropGuard)> = HashMap::new();
    // A directory that is not usable is told once, not at each look.
    let mut told: HashMap<String, String> = HashMap::new();
    loop {
        // Off the thread that serves the site: the disk may take its time.
        let looked = directory.clone();
        let Ok(found) = tokio::task::spawn_blocking(move || membership::all(&looked)).await else {
            tokio::time::sleep(LOOK_EVERY).await;
            continue;
        };
        let expiries = &commands.site.expiries;
        let joined = |name: &str| found.iter().any(|(found, _)| found == name);
        expiries.retain("control-plane/", joined);
        commands.site.events.keep_heard(joined);
        for membership in found.iter().filter_map(|(_, found)| found.as_ref().ok()) {
            expiries.set(&format!("control-plane/{}", membership.name), membership.not_after);
        }
        links.retain(|name, (token, _)| {
            // What cannot be read says nothing of what is in use.
            let same = |found: &Membership| found.token_id == *token;
            found.iter().any(|(found, now)| found == name && now.as_ref().map_or(true, same))
        });
        for (name, membership) in found {
            if links.contains_key(&name) {
                continue;
            }
            match membership {
                Ok(membership) => {
                    told.remove(&name);
                    let cancel = shutdown.child_token();
                    links.insert(name, (membership.token_id.clone(), cancel.clone().drop_guard()));
                    let role = Arc::new(link::Role::new(Arc::clone(&commands), membership));
                    tokio::spawn(commands.site.parts.clone().kept("control plane link", move || {
                        umbel_wire::keep_connected(role.clone(), cancel.clone())
                    }));
                }
                Err(error) => {
                    if told.get(&name) != Some(&error) {
                        tracing::error!(control_plane = %name, "it cannot be dialed: {error}");
                        told.insert(name, error);
                    }
                }
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// A step of a command as it travels.
pub(crate) fn command_event(event: &CommandEventObject) -> EdgeCommandEvent {
    EdgeCommandEvent {
        command_id: event.command_id.clone(),
        sequence: event.sequence,
        phase: event.phase.to_proto().into(),
        message: event.message.clone(),
        progress: event.progress.as_ref().map(|progress| CommandProgress {
            done: progress.done,
            total: progress.total,
            unit: progress.unit.clone(),
        }),
        error: event.error.as_ref().map(|error| CommandError {
            code: error.code.clone(),
            reason: error.reason.clone(),
            message: error.message.clone(),
        }),
        result_json: event
            .result
            .as_ref()
            .and_then(|result| serde_json::to_vec(result).ok())
            .unwrap_or_default(),
        at_unix_ms: event.at.as_millisecond(),
    }
}
