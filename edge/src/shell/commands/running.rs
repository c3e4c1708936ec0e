//! One command that runs: where it stands, who follows it, how it is told to stop.
//!
//! Owns its latest step and the control planes that asked for it, a bounded number. Leaves its begin and its end to
//! [`super::Commands`]. Invariant: a follower that is slow misses steps in between, never the last one.

use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use umbel_contracts::objects::CommandEventObject;

use super::lock;
use crate::core::commands::CommandRow;

/// Control planes that follow one command.
const FOLLOWERS: usize = 16;

/// One that runs.
pub(crate) struct Running {
    pub(super) step: watch::Sender<CommandEventObject>,
    pub(crate) cancel: CancellationToken,
    pub(super) row: Mutex<CommandRow>,
    pub(super) origins: Mutex<Vec<String>>,
}

impl Running {
    pub(super) fn new(first: CommandEventObject, row: CommandRow) -> Self {
        Self {
            step: watch::Sender::new(first),
            cancel: CancellationToken::new(),
            row: Mutex::new(row),
            origins: Mutex::default(),
        }
    }

    // True if this control plane did not follow it before.
    pub(super) fn follow(&self, origin: Option<String>) -> bool {
        let mut origins = lock(&self.origins);
        match origin {
            Some(origin) if !origins.contains(&origin) && origins.len() < FOLLOWERS => {
                origins.push(origin);
                true
            }
            _ => false,
        }
    }

    /// Its steps from the latest one on.
    pub(crate) fn steps(&self) -> watch::Receiver<CommandEventObject> {
        self.step.subscribe()
    }

    /// The end if it comes in time, else the latest step.
    pub(super) async fn end(&self, wait: Duration) -> CommandEventObject {
        let mut steps = self.steps();
        let ended = tokio::time::timeout(wait, steps.wait_for(|event| event.phase.is_end())).await;
        if let Ok(Ok(event)) = ended {
            return event.clone();
        }
        self.step.borrow().clone()
    }
}
