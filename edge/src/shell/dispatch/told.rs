//! What the nodes' side tells admission: providers, nodes, and when leases of a node are over.
//!
//! Leaves every rule to [`crate::core::admission`]. Invariant: a provider's link is there as long as the core may give a
//! lease of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use umbel_wire::{Generation, NodeId};

use super::{Dispatch, LeaseId, Link, NotTaken, ProviderSpec, ProviderState, ProviderUp};
use crate::core::admission::Admission;

impl Dispatch {
    /// Declares a stored provider of a node that is away: it counts as wanted while the node is eligible and
    /// not draining.
    ///
    /// # Errors
    /// If there are too many; it is not served then.
    pub(crate) fn declare(&self, spec: ProviderSpec) -> Result<(), NotTaken> {
        self.change(|state, now| state.admission.declare(now, spec).map(|_| ()))
    }

    /// The node no longer declares this provider, or is decommissioned.
    pub(crate) fn undeclare(&self, provider_id: &str) {
        self.change(|state, now| {
            state.admission.undeclare(now, provider_id);
            state.links.retain(|_, link| &*link.provider_id != provider_id);
        });
    }

    /// A node reported a provider over its connection. Call [`Dispatch::node_ready`] with `false` before, when
    /// the connection is registered, and with `true` when the node is complete.
    ///
    /// # Errors
    /// If there are too many, or the generation is old; it is not served then.
    pub(crate) fn provider_up(&self, up: ProviderUp) -> Result<(), NotTaken> {
        self.change(|state, now| {
            let provider_id = Arc::clone(&up.spec.provider_id);
            let node_id = up.spec.node_id;
            let model = Arc::from(up.spec.model.as_str());
            let index = state.admission.provider_up(now, up.spec, up.generation, up.state)?;
            let link =
                Link { connection: up.connection, generation: up.generation, node_id, provider_id, model };
            state.links.insert(index, Arc::new(link));
            Ok(())
        })
    }

    /// A provider's state changed; `cause` is one sentence. Ignored for an older generation.
    pub(crate) fn provider_state(
        &self,
        provider_id: &str,
        generation: Generation,
        provider_state: ProviderState,
        cause: &str,
    ) {
        tracing::debug!(provider_id, generation = generation.0, state = ?provider_state, cause, "provider state");
        self.change(|state, now| {
            state.admission.provider_state(now, provider_id, generation, provider_state);
        });
    }

    /// Whether a node's connection may be given work: false when it is registered and while the node is stale
    /// or offline, true once it is complete. Ignored for an older generation.
    pub(crate) fn node_ready(&self, node_id: NodeId, generation: Generation, ready: bool) {
        self.change(|state, now| state.admission.node_ready(now, node_id, generation, ready));
    }

    /// Starts or ends draining a node.
    pub(crate) fn node_draining(&self, node_id: NodeId, draining: bool) {
        self.change(|state, now| state.admission.node_draining(now, node_id, draining));
    }

    /// Whether a node may be given application traffic. False until told otherwise.
    pub(crate) fn node_eligible(&self, node_id: NodeId, eligible: bool) {
        self.change(|state, now| state.admission.node_eligible(now, node_id, eligible));
    }

    /// A node left the site for good.
    pub(crate) fn node_gone(&self, node_id: NodeId) {
        self.change(|state, _| state.admission.node_gone(node_id));
    }

    /// A node's connection of this generation is gone: its leases end. An older generation than the one in
    /// force ends only its own leases.
    pub(crate) fn node_lost(&self, node_id: NodeId, generation: Generation) {
        self.change(|state, now| {
            state.admission.node_lost(now, node_id, generation);
            state.links.retain(|_, link| link.generation != generation || link.node_id != node_id);
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
