//! Who owns an identity: one connection at a time, each with a generation that only grows.
//!
//! Owns: the arbitration of a second connection with the same identity (contracts/edge-node.md, "Generations").
//! Leaves to others: probing the old connection, closing it, checking the credential (the caller does so under the
//! same lock, immediately before [`Slots::knock`] and [`Slots::probed`], so that a revocation cannot slip between).
//! Invariant: an identity has at most one owner; a generation is given once; only [`Slots::clear`] with the owner's
//! own generation, or [`Slots::evict`], empties a slot, so a late close of an older connection changes nothing.
//!
//! ```text
//!            knock, empty, or same instance with a higher attempt: Accept (the old one drains)
//!   owned  --knock, other instance--> probing --no byte--> owned by the newcomer (the old one is superseded)
//!     ^                                  |  `--any byte--> owned by the old one, newcomer is DUPLICATE_IDENTITY
//!     `------ the probe's limit ends ----'      (a third newcomer meanwhile: Busy)
//! ```

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use crate::error::{Code, Error};
use crate::ids::{Attempt, Generation, InstanceId};

/// How long a probe may hold a slot before the next newcomer may start one: the probe's own 1 s and room for a busy
/// process. Only a prober that vanished without a word ever meets it.
pub const PROBE_HOLDS: Duration = Duration::from_secs(5);
/// A newcomer that meets a probe tries again after this.
pub const BUSY_RETRY: Duration = Duration::from_secs(1);
/// A copied identity tries again after this.
pub const DUPLICATE_RETRY: Duration = Duration::from_secs(30);

/// The connection that owns an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner<H> {
    /// The number that everything of this connection carries.
    pub generation: Generation,
    /// The process at the other end.
    pub instance: InstanceId,
    /// Which dial of that process this is.
    pub attempt: Attempt,
    /// Whatever the caller needs to reach the connection.
    pub handle: H,
}

/// Proof that its holder is the one that probes a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe(u64);

/// The answer to a newcomer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Knock<H> {
    /// It is registered as the owner. The superseded one, if any, drains.
    Accept(Accepted<H>),
    /// Ask `old` for a sign of life without holding the lock, then call [`Slots::probed`].
    Probe {
        /// To be handed back.
        probe: Probe,
        /// The connection that still owns the identity.
        old: Owner<H>,
    },
    /// Refused; nothing changed.
    Refuse(Refusal),
}

/// A newcomer that is now the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted<H> {
    /// The newcomer's number.
    pub generation: Generation,
    /// The owner until now.
    pub superseded: Option<Owner<H>>,
}

/// Why a newcomer may not own the identity now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another newcomer is being judged.
    Busy,
    /// A later dial of the same process is the owner.
    Late,
    /// The owner is alive and another process: a copied state directory.
    Duplicate,
}

impl Refusal {
    /// What the newcomer is told.
    #[must_use]
    pub fn error(self) -> Error {
        match self {
            Self::Busy => Error::new(
                Code::Conflict,
                "IDENTITY_BUSY",
                "another connection with this identity is being judged; try again",
            )
            .with_retry_after(BUSY_RETRY),
            Self::Late => Error::new(
                Code::Conflict,
                "SUPERSEDED",
                "a later connection of the same process is already accepted",
            )
            .with_retry_after(BUSY_RETRY),
            Self::Duplicate => Error::new(
                Code::Conflict,
                "DUPLICATE_IDENTITY",
                "another process with this identity is connected and alive; if this host was cloned or its state \
                 directory copied, remove the copy and enroll this host with a token of its own",
            )
            .with_retry_after(DUPLICATE_RETRY),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Probing {
    probe: Probe,
    /// The owner when the probe began; the verdict is about that one only.
    of: Generation,
    since: Instant,
}

#[derive(Debug)]
struct Slot<H> {
    owner: Option<Owner<H>>,
    probing: Option<Probing>,
}

/// Every identity's slot at one acceptor. Holds an entry only while an identity is owned or being judged.
#[derive(Debug)]
pub struct Slots<K, H> {
    highest: Generation,
    probes: u64,
    slots: HashMap<K, Slot<H>>,
}

impl<K: Clone + Eq + Hash, H: Clone> Slots<K, H> {
    /// `above` is the high-water mark of earlier processes: every generation given here is higher.
    #[must_use]
    pub fn new(above: Generation) -> Self {
        Self { highest: above, probes: 0, slots: HashMap::new() }
    }

    /// The highest generation given so far, for the high-water mark on disk.
    #[must_use]
    pub const fn highest(&self) -> Generation {
        self.highest
    }

    /// A newcomer whose credential was found good under the same lock.
    pub fn knock(
        &mut self,
        now: Instant,
        id: &K,
        instance: InstanceId,
        attempt: Attempt,
        handle: H,
    ) -> Knock<H> {
        let probing = self.slots.get(id).and_then(|slot| slot.probing);
        if probing.is_some_and(|probing| now.saturating_duration_since(probing.since) < PROBE_HOLDS) {
            return Knock::Refuse(Refusal::Busy);
        }
        match self.owner(id) {
            Some(old) if old.instance == instance && attempt <= old.attempt => Knock::Refuse(Refusal::Late),
            Some(old) if old.instance != instance => {
                let old = old.clone();
                self.probes += 1;
                let probe = Probe(self.probes);
                if let Some(slot) = self.slots.get_mut(id) {
                    slot.probing = Some(Probing { probe, of: old.generation, since: now });
                }
                Knock::Probe { probe, old }
            }
            _ => Knock::Accept(self.register(id, instance, attempt, handle)),
        }
    }

    /// The probe that [`Slots::knock`] asked for has ended. `answered`: any byte came from the old connection.
    /// The newcomer's credential was checked again under the same lock.
    pub fn probed(
        &mut self,
        id: &K,
        probe: Probe,
        answered: bool,
        instance: InstanceId,
        attempt: Attempt,
        handle: H,
    ) -> Result<Accepted<H>, Refusal> {
        let slot = self.slots.get_mut(id).ok_or(Refusal::Busy)?;
        let probing = slot.probing.filter(|probing| probing.probe == probe).ok_or(Refusal::Busy)?;
        slot.probing = None;
        let same_owner = slot.owner.as_ref().is_some_and(|owner| owner.generation == probing.of);
        if answered && same_owner {
            return Err(Refusal::Duplicate);
        }
        Ok(self.register(id, instance, attempt, handle))
    }

    /// The newcomer went away, or its credential was revoked, while it probed.
    pub fn abandon(&mut self, id: &K, probe: Probe) {
        if let Some(slot) = self.slots.get_mut(id) {
            slot.probing = slot.probing.filter(|probing| probing.probe != probe);
        }
        self.forget_if_empty(id);
    }

    /// Compare-and-clear: a connection ended. `Some` only if it was the owner; then, and only then, the identity is
    /// disconnected.
    pub fn clear(&mut self, id: &K, generation: Generation) -> Option<Owner<H>> {
        let slot = self.slots.get_mut(id)?;
        let owner = slot.owner.take_if(|owner| owner.generation == generation);
        self.forget_if_empty(id);
        owner
    }

    /// A revocation: whoever owns the identity no longer does, and a running probe comes to nothing.
    pub fn evict(&mut self, id: &K) -> Option<Owner<H>> {
        self.slots.remove(id).and_then(|slot| slot.owner)
    }

    /// The owner, if there is one.
    #[must_use]
    pub fn owner(&self, id: &K) -> Option<&Owner<H>> {
        self.slots.get(id).and_then(|slot| slot.owner.as_ref())
    }

    /// Whether `generation` is the owner's: the test that every report and timer must pass.
    #[must_use]
    pub fn is_current(&self, id: &K, generation: Generation) -> bool {
        self.owner(id).is_some_and(|owner| owner.generation == generation)
    }

    /// Every owned identity, in no order.
    pub fn owners(&self) -> impl Iterator<Item = (&K, &Owner<H>)> {
        self.slots.iter().filter_map(|(id, slot)| slot.owner.as_ref().map(|owner| (id, owner)))
    }

    fn register(&mut self, id: &K, instance: InstanceId, attempt: Attempt, handle: H) -> Accepted<H> {
        self.highest = Generation(self.highest.0 + 1);
        let generation = self.highest;
        let owner = Owner { generation, instance, attempt, handle };
        let before = self.slots.insert(id.clone(), Slot { owner: Some(owner), probing: None });
        Accepted { generation, superseded: before.and_then(|slot| slot.owner) }
    }

    fn forget_if_empty(&mut self, id: &K) {
        if self.slots.get(id).is_some_and(|slot| slot.owner.is_none() && slot.probing.is_none()) {
            self.slots.remove(id);
        }
    }
}

#[cfg(test)]
mod tests;
