//! What operators want of single engines, beyond the life of an agent: stopped ones stay stopped.
//!
//! Owns who is stopped, in memory and on the disk; leaves ending and starting to an engine's driver. Invariant: an engine that
//! an operator stopped is started by nobody but an operator, also by an agent that starts anew; one that is gone is forgotten.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use tokio::task::spawn_blocking;
use umbel_contracts::proto::node::{EngineAction, EngineOutput};

use super::{Engines, Host};

impl Engines {
    /// Does what an operator wants of an engine: stops it, or starts it anew. Running requests get `drain`.
    ///
    /// # Errors
    /// Why not: one sentence.
    pub(crate) async fn control(
        &self,
        name: &str,
        action: EngineAction,
        drain: Duration,
    ) -> Result<(), &'static str> {
        let engine = self.by_name(name).ok_or("this node has no such engine")?;
        engine.control(action, drain)?;
        self.host.park(name, action == EngineAction::Stop);
        let host = Arc::clone(&self.host);
        // If it cannot be written it holds until the agent ends, which is told in the log.
        let _ = spawn_blocking(move || host.write_parked()).await;
        Ok(())
    }

    /// An engine that was not there is to be loaded: what was wanted of another one of its name, which an agent before may have
    /// had no time to forget, is not its own.
    pub(crate) fn begins_anew(&self, name: &str) {
        self.host.forget_parked(name);
    }

    /// What an engine wrote after the cursor, also one that is gone since.
    pub(crate) async fn output(&self, name: &str, cursor: &str, lines: usize) -> Option<EngineOutput> {
        match self.by_name(name) {
            Some(engine) => Some(engine.output(cursor, lines).await),
            None => self.host.gone.of(name, cursor, lines),
        }
    }
}

impl Host {
    pub(super) fn is_parked(&self, name: &str) -> bool {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

    /// Whether anything is different.
    fn park(&self, name: &str, parked: bool) -> bool {
        let mut all = self.parked.lock().unwrap_or_else(PoisonError::into_inner);
        if parked { all.insert(name.to_owned()) } else { all.remove(name) }
    }

    /// Blocks on the disk.
    fn write_parked(&self) {
        // Held until it stands there, so that the newest is written last; who is stopped can be asked meanwhile.
        let _writing = self.parking.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.parked.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.state.set_parked(&all);
    }

    /// An engine is gone: the next one of its name is another.
    pub(super) fn forget_parked(self: &Arc<Self>, name: &str) {
        if self.park(name, false) {
            let host = Arc::clone(self);
            drop(spawn_blocking(move || host.write_parked()));
        }
    }
}
