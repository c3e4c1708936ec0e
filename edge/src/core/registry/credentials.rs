//! What nodes' certificates and trust mean for people: what ends, and whom a node trusts.
//!
//! Leaves the rules to `core/rotation`. Invariant: a problem appears and goes with what causes it, and a look that
//! finds nothing new changes nothing.

use std::sync::Arc;

use data_encoding::HEXLOWER;
use umbel_wire::clock::Wall;
use umbel_wire::{Generation, NodeId};

use super::Registry;
use super::problems::{CERTIFICATE_ENDS, CERTIFICATE_EXPIRED, CREDENTIAL_EXPIRED};
use crate::core::authority::AuthorityRow;
use crate::core::rotation::{Standing, standing};

/// Most authorities that a node is believed to trust.
const TRUSTS_MAX: usize = 4;

impl<H: Clone> Registry<H> {
    /// Looks at how long every node's certificate lasts.
    pub(crate) fn judge_credentials(&mut self, wall: Wall) {
        let ids: Vec<_> = self.nodes.keys().copied().collect();
        for id in ids {
            self.judge_credential(id, wall);
        }
    }

    /// Looks at how long a node's certificate lasts.
    pub(crate) fn judge_credential(&mut self, id: NodeId, wall: Wall) {
        let Some(node) = self.nodes.get(&id) else { return };
        let (code, message) = match standing(&node.row, wall) {
            Standing::Good => (None, ""),
            Standing::Ends => (
                Some(CERTIFICATE_ENDS),
                "its certificate ends within two weeks and was not renewed: see that it connects and that its state \
                 directory can be written, or ask with `node rotate`",
            ),
            Standing::Expired => (
                Some(CERTIFICATE_EXPIRED),
                "its certificate has ended; for 30 days it may still connect, and then gets a new one by itself: \
                 start its host",
            ),
            Standing::Lost => (
                Some(CREDENTIAL_EXPIRED),
                "its certificate ended more than 30 days ago and opens nothing any more: enroll its host with a \
                 token that replaces this node",
            ),
        };
        let subject = id.to_string();
        for known in [CERTIFICATE_ENDS, CERTIFICATE_EXPIRED, CREDENTIAL_EXPIRED] {
            if Some(known) != code {
                self.solved(id, known, &subject);
            }
        }
        let there = |code| {
            self.nodes.get(&id).is_some_and(|node| node.problems.contains_key(&(code, subject.clone())))
        };
        if let Some(code) = code.filter(|code| !there(*code)) {
            self.problem(id, code, subject.clone(), message.to_owned(), wall.unix_ms(), None);
        }
    }

    /// A connection's node says whom it trusts. An older connection's word changes nothing.
    pub(crate) fn trusts(&mut self, id: NodeId, generation: Generation, digests: &[Vec<u8>]) {
        if !self.slots.is_current(&id, generation) {
            return;
        }
        self.set_given_trust(id, generation, false);
        let trusts: Vec<String> = digests.iter().take(TRUSTS_MAX).map(|one| HEXLOWER.encode(one)).collect();
        if self.nodes.get(&id).is_some_and(|node| node.report.trusts != trusts) {
            let lacks = self.lacks(&trusts);
            self.change(id, |node| {
                node.report.trusts = trusts;
                node.lacks_authority = lacks;
            });
            self.unsaved.insert(id);
        }
    }

    /// A node is given a bundle of authorities over this connection: until it says whom it trusts, nobody knows.
    pub(crate) fn given_trust(&mut self, id: NodeId, generation: Generation) {
        self.set_given_trust(id, generation, true);
    }

    // Nothing that is shown: the revision stays.
    fn set_given_trust(&mut self, id: NodeId, generation: Generation, given: bool) {
        if let Some(node) = self.nodes.get_mut(&id)
            && node
                .session
                .as_ref()
                .is_some_and(|one| one.generation == generation && one.given_trust != given)
            && let Some(session) = &mut Arc::make_mut(node).session
        {
            session.given_trust = given;
        }
    }

    pub(super) fn lacks(&self, trusts: &[String]) -> bool {
        self.authority.as_ref().is_some_and(|authority| authority.lacks(trusts))
    }

    /// The site's authorities changed, or are known now.
    pub(crate) fn set_authority(&mut self, authority: AuthorityRow) {
        self.authority = Some(authority);
        let moved: Vec<_> = self
            .nodes
            .values()
            .filter(|node| node.lacks_authority != self.lacks(&node.report.trusts))
            .map(|node| node.id)
            .collect();
        for id in moved {
            self.change(id, |node| node.lacks_authority = !node.lacks_authority);
        }
    }
}
