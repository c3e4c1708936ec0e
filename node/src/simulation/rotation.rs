//! A simulated node's keys and certificates: the steps of the wire's rotation with a moment between any two.
//!
//! Owns what stands in the state directory of them. Leaves the order to the core. Invariant: each step is one write, one
//! request or one dial, and the process may be killed after any.

use std::time::{Duration, Instant};

use prost::Message;
use umbel_contracts::proto::node::{NodeCredentialRequest, NodeCredentialResponse};
use umbel_contracts::{bounds, method};
use umbel_wire::KeyHash;
use umbel_wire::rotation::{Dials, Held, Pending, Shows, Step, next};
use umbel_wire::simulation::Call;

use super::{LinkId, Node, NodeDisk};

/// Between two steps, so that a kill can come between them.
const STEP: Duration = Duration::from_millis(20);
/// What the edge or the disk refused is tried again after this.
const LATER: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_secs(10);

/// What this process knows of its rotation.
#[derive(Default)]
pub(super) struct Rotation {
    wanted: bool,
    dials: Dials,
    asking: Option<Call>,
    step_at: Option<Instant>,
}

impl Rotation {
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.step_at
    }
}

/// A certificate that was given and not yet accepted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) key: [u8; 32],
    pub(super) not_after: i64,
}

impl NodeDisk {
    fn held(&self) -> Held {
        let pending = self.pending.map(|kept| match Some(kept.key) == self.key {
            true => Pending::Adopted,
            false => Pending::OfSpare,
        });
        Held { spare_key: self.spare.is_some(), pending }
    }

    /// Keys that it could show, in lower-case hexadecimal.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        let pending = self.pending.filter(|kept| self.spare == Some(kept.key)).map(|kept| kept.key);
        self.key.into_iter().chain(pending).map(|key| KeyHash(key).to_string()).collect()
    }
}

impl Node {
    /// The key of the next dial, with the end of its certificate.
    pub(super) fn shows(&mut self) -> Option<([u8; 32], i64)> {
        let own = |kept: &Kept| self.disk.spare == Some(kept.key) && self.disk.key != Some(kept.key);
        let pending = self.disk.pending.filter(own);
        let shows = self.rotation.dials.next(pending.is_some());
        let pending = pending.filter(|_| shows == Shows::Pending);
        match pending {
            Some(kept) => Some((kept.key, kept.not_after)),
            None => Some((self.disk.key?, self.disk.not_after)),
        }
    }

    /// The edge wants a new certificate.
    pub(super) fn rotate(&mut self, now: Instant) {
        self.rotation.wanted = true;
        self.rotation.step_at.get_or_insert(now + STEP);
    }

    /// A dial failed. True if the other certificate is to be tried at once.
    pub(super) fn credential_failed(&mut self, rejected: bool) -> bool {
        self.rotation.dials.failed(rejected)
    }

    /// The edge has accepted a connection.
    pub(super) fn credential_accepted(&mut self, now: Instant) {
        let rotation = &mut self.rotation;
        rotation.dials.accepted();
        rotation.asking = None;
        rotation.step_at = Some(now + STEP);
    }

    /// Goes one step on.
    pub(super) fn go_on(&mut self, now: Instant) {
        if self.rotation.step_at.is_none_or(|at| at > now) {
            return;
        }
        self.rotation.step_at = None;
        let said = self.rotation.dials.said();
        let Some(step) = next(self.disk.held(), self.rotation.wanted, said) else { return };
        if self.disk.full && !matches!(step, Step::Ask | Step::Show) {
            self.rotation.step_at = Some(now + LATER);
            return;
        }
        match step {
            Step::MakeKey => {
                let mut key = [0; 32];
                for part in key.chunks_mut(8) {
                    part.copy_from_slice(&self.random().to_be_bytes());
                }
                self.disk.spare = Some(key);
            }
            Step::Ask => return self.ask(now),
            Step::Show => {
                if self.dial_at.is_none() {
                    self.dial_at = Some(now);
                }
                return;
            }
            Step::Adopt => {
                if let Some(kept) = self.disk.pending {
                    self.disk.spare = self.disk.key.replace(kept.key);
                    self.disk.not_after = kept.not_after;
                }
            }
            Step::DropKey => self.disk.spare = None,
            Step::DropPending => {
                self.disk.pending = None;
                self.rotation.dials.renewed();
                self.rotation.wanted = false;
            }
        }
        self.rotation.step_at = Some(now + STEP);
    }

    fn ask(&mut self, now: Instant) {
        let (Some(link), Some(key), None) = (self.current, self.disk.spare, self.rotation.asking) else {
            return;
        };
        let Some(entry) = self.links.get_mut(&link) else { return };
        let message = NodeCredentialRequest { signing_request: key.to_vec() }.encode_to_vec();
        match entry.end.request(now, method::NODE_CREDENTIAL, message, TIMEOUT) {
            Ok(call) => self.rotation.asking = Some(call),
            Err(_) => self.rotation.step_at = Some(now + LATER),
        }
    }

    /// The answer to a request for a certificate. False: it is another's answer.
    pub(super) fn credential_given(
        &mut self,
        link: LinkId,
        call: Call,
        answer: &Result<bytes::Bytes, umbel_wire::Error>,
        now: Instant,
    ) -> bool {
        if self.rotation.asking != Some(call) || self.current != Some(link) {
            return false;
        }
        self.rotation.asking = None;
        let given =
            answer.as_ref().ok().and_then(|bytes| bounds::decode::<NodeCredentialResponse>(bytes).ok());
        match (given, self.disk.spare) {
            (Some(given), Some(key)) if !self.disk.full => {
                self.disk.pending = Some(Kept { key, not_after: given.not_after_unix_ms });
                self.rotation.dials.renewed();
                self.rotation.step_at = Some(now + STEP);
            }
            _ => self.rotation.step_at = Some(now + LATER),
        }
        true
    }
}
