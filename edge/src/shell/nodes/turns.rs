//! One at a time for each name: claims of one token, or by one key, stand in a row.
//!
//! A claim is one conditional write anyhow; this keeps sixty rivals from signing and writing what cannot win, and lets
//! the same host's second try find what its first one made. Invariant: a name is kept only while somebody holds it or
//! waits for it, so there are at most as many as there are connections.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as Queue, OwnedMutexGuard};

/// Everybody's turns.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<String, Arc<Queue<()>>>>);

/// The turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    name: String,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits for its turn.
    pub(crate) async fn take(&self, name: String) -> Turn<'_> {
        let queue = {
            let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(names.entry(name.clone()).or_default())
        };
        // From here on its drop tidies up, also when it is given up while it waits.
        let mut turn = Turn { turns: self, name, guard: None };
        turn.guard = Some(queue.lock_owned().await);
        turn
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.guard = None;
        let mut names = self.turns.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The map's own is the last one: nobody holds it or waits.
        if names.get(&self.name).is_some_and(|queue| Arc::strong_count(queue) == 1) {
            names.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn one_at_a_time_and_nothing_is_left() {
        let turns = Turns::default();
        let first = turns.take("a".into()).await;
        let other = turns.take("b".into()).await;
        assert!(turns.take("a".into()).now_or_never().is_none(), "it is taken");
        drop(other);
        let (third, ()) = tokio::join!(turns.take("a".into()), async { drop(first) });
        drop(third);
        assert!(turns.0.lock().unwrap().is_empty());
    }
}
