//! A simulated node's keys and certificates towards its edge.
//!
//! Leaves the steps and what stands in the directory to the wire's simulation; here are its requests and dials.

use std::time::{Duration, Instant};

use prost::Message;
use umbel_contracts::proto::node::{NodeCredentialRequest, NodeCredentialResponse};
use umbel_contracts::{bounds, method};
use umbel_wire::simulation::{Call, LinkId, Next};

use super::Node;

const TIMEOUT: Duration = Duration::from_secs(10);

impl Node {
    /// Goes one step on.
    pub(super) fn go_on(&mut self, now: Instant) {
        if self.rotation.next_deadline().is_none_or(|at| at > now) {
            return;
        }
        let key = self.luck.bytes();
        let before = self.disk.keys.spare;
        match self.rotation.go_on(&mut self.disk.keys, now, self.disk.full, || key) {
            Next::Nothing => {}
            Next::Dial => {
                if self.dial_at.is_none() {
                    self.dial_at = Some(now);
                }
            }
            Next::Ask(key) => {
                let message = NodeCredentialRequest { signing_request: key.to_vec() }.encode_to_vec();
                let Some(entry) = self.current.and_then(|link| self.links.get_mut(&link)) else { return };
                let asked = entry.end.request(now, method::NODE_CREDENTIAL, message, TIMEOUT);
                self.rotation.asked(asked.ok(), now);
            }
        }
        let made = before.is_none() && self.disk.keys.spare == Some(key);
        if made && self.setup.mutation == Some("a key is replaced before it is accepted") {
            self.disk.keys.key = Some(key);
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
        if !self.rotation.is_asking(call) || self.current != Some(link) {
            return false;
        }
        let given =
            answer.as_ref().ok().and_then(|bytes| bounds::decode::<NodeCredentialResponse>(bytes).ok());
        let not_after = given.map(|given| given.not_after_unix_ms).filter(|_| !self.disk.full);
        self.rotation.given(&mut self.disk.keys, not_after, now);
        true
    }
}
