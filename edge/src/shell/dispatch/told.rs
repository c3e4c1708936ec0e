//! What the nodes' side tells admission: providers, nodes, and when leases of a node are over.
//!
//! Leaves every rule to [`crate::core::admission`], and what a call means there to [`crate::core::providers`]. Invariant: a provider's link is there as long as the core may give a
//! lease of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use umbel_wire::{Connection, Generation, NodeId};

use super::{Dispatch, LeaseId, Link, NotTaken};
use crate::core::admission::Admission;
use crate::core::providers;
use crate::core::registry::Call;

impl Dispatch {
    /// One thing that the registry tells. A provider comes up with the `connection` of the call's generation, on which its
    /// streams are opened; without it the call is of a connection that is over, and nothing comes up.
    ///
    /// # Errors
    /// If there are too many, or the generation is old; the provider is not served then.
    pub(crate) fn tell(&self, call: &Call, connection: Option<&Connection>) -> Result<(), NotTaken> {
        if connection.is_none() && matches!(call, Call::Up { .. }) {
            return Ok(());
        }
        self.change(|state, now| {
            let up = providers::apply(&mut state.admission, now, call)?;
            match (call, up.zip(connection)) {
                (Call::Up { node, generation, engine, .. }, Some((index, connection))) => {
                    let link = Link {
                        connection: connection.clone(),
                        generation: *generation,
                        node_id: *node,
                        provider_id: providers::id(*node, &engine.name).into(),
                        model: Arc::from(engine.model.as_str()),
                    };
                    state.links.insert(index, Arc::new(link));
                }
                (Call::Down { node, engine }, _) => {
                    let provider_id = providers::id(*node, engine);
                    state.links.retain(|_, link| *link.provider_id != *provider_id);
                }
                // An older generation than the one in force ends only what is its own.
                (Call::Lost { node, generation }, _) => {
                    state.links.retain(|_, link| link.generation != *generation || link.node_id != *node);
                }
                _ => {}
            }
            Ok(())
        })
    }

    /// Providers that are wanted and not there yet: requests for the models of those that come wait.
    pub(crate) fn expect(&self, expected: Vec<providers::Expected>) {
        self.change(|state, now| {
            providers::expect(&mut state.admission, now, &mut state.expected, expected);
        });
    }

    /// The leases that a returning node says it still carries, before it is ready. Returns those that it must
    /// end; leases of an older generation that it does not name end here.
    pub(crate) fn carried(&self, node_id: NodeId, generation: Generation, leases: &[u64]) -> Vec<u64> {
        let named: Vec<LeaseId> = leases.iter().map(|lease| LeaseId(*lease)).collect();
        let cancel = self.change(|state, now| state.admission.carried(now, node_id, generation, &named));
        cancel.into_iter().map(|lease| lease.0).collect()
    }

    /// Resolves when no lease of the node is left.
    pub(crate) async fn drained(&self, node_id: NodeId) {
        self.watch(|admission| admission.node_in_flight(node_id) == 0).await;
    }

    /// Resolves when no lease at all is left and nobody waits.
    pub(crate) async fn idle(&self) {
        self.watch(|admission| {
            let counts = admission.lease_counts();
            counts.waiting == 0 && counts.in_flight() == 0
        })
        .await;
    }

    async fn watch(&self, done: impl Fn(&Admission) -> bool) {
        let _watching = Watching::new(&self.watchers);
        loop {
            let changed = self.changed.notified();
            if done(&self.lock().admission) {
                return;
            }
            changed.await;
        }
    }

    pub(super) fn tell_watchers(&self) {
        if self.watchers.load(Ordering::Acquire) > 0 {
            self.changed.notify_waiters();
        }
    }
}

/// Counts those who wait for leases to end, so that nobody is notified for nothing.
struct Watching<'a>(&'a AtomicUsize);

impl<'a> Watching<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
