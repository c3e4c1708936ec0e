//! A change of the site's certificate authority, step by step, and what is trusted meanwhile.
//!
//! Owns the stored row, the order of its steps, and who would be left behind. Leaves keys, files and signing to `shell/authority`. Invariant:
//! exactly one authority signs; nodes are told of a new one before it signs, and the old one is trusted until
//! people say that it is over.
//!
//! ```text
//!   settled --begin--> begun --switch--> switched --finish--> settled (the new one)
//!      ^--------abort----'
//! ```

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use umbel_contracts::operations::{CaRotateArgs, CaStep};
use umbel_wire::clock::Wall;
use umbel_wire::{Code, Error};

use crate::core::enrollment::EnrollmentRow;
use crate::core::registry::node::{Lifecycle, Node};

/// Nodes that a refusal names.
const NAMED: usize = 5;

/// Where a change stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// There is one authority.
    Settled,
    /// Nodes are told of the next one; it does not sign yet.
    Begun,
    /// The new one signs; the previous one is still trusted.
    Switched,
}

impl Phase {
    /// The word in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Begun => "begun",
            Self::Switched => "switched",
        }
    }
}

/// Which authorities there are, as SHA-256 of their certificates in lower-case hexadecimal: table `self`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AuthorityRow {
    pub(crate) signing: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) previous: Option<String>,
    /// No change has ever been finished: a node that never said whom it trusts trusts this one.
    #[serde(default)]
    pub(crate) first: bool,
}

impl AuthorityRow {
    /// A site's first.
    pub(crate) fn first(signing: String) -> Self {
        Self { signing, next: None, previous: None, first: true }
    }

    /// Where its change stands.
    pub(crate) fn phase(&self) -> Phase {
        match (&self.next, &self.previous) {
            (Some(_), _) => Phase::Begun,
            (None, Some(_)) => Phase::Switched,
            (None, None) => Phase::Settled,
        }
    }

    /// Whom nodes are told to trust, the one that signs first.
    pub(crate) fn trusted(&self) -> impl Iterator<Item = &String> {
        [Some(&self.signing), self.next.as_ref(), self.previous.as_ref()].into_iter().flatten()
    }

    /// Those that vouch for the nodes' port, the one that signs first: whoever trusts one of them reaches this edge. A next
    /// one vouches for nothing before it signs.
    pub(crate) fn vouching(&self) -> impl Iterator<Item = &String> {
        [Some(&self.signing), self.previous.as_ref()].into_iter().flatten()
    }

    /// The trusted one that a token's text names, which its host compares. Without a name it is from before the last
    /// change; one that is over finds the one that signs, and its host refuses.
    pub(crate) fn named(&self, sha256: &str) -> &str {
        let before = self.previous.as_ref().filter(|_| sha256.is_empty());
        self.trusted().find(|one| *one == sha256).or(before).unwrap_or(&self.signing)
    }

    /// Whether a node with these in its trust has to be told whom to trust: neither one more nor one less. One that said
    /// nothing cannot be told.
    pub(crate) fn tells(&self, trusts: &[String]) -> bool {
        // None stands twice in the bundle, so that as many which have all of it are it.
        let same = trusts.len() == self.trusted().count() && self.trusted().all(|one| trusts.contains(one));
        !trusts.is_empty() && !same
    }

    /// The one that is trusted in the end.
    pub(crate) fn newest(&self) -> &str {
        self.next.as_ref().unwrap_or(&self.signing)
    }

    /// Whether a node with these in its trust lacks the newest one.
    pub(crate) fn lacks(&self, trusts: &[String]) -> bool {
        if trusts.is_empty() {
            // It never said so: an agent from before it could be changed.
            return !(self.first && self.phase() == Phase::Settled);
        }
        !trusts.iter().any(|one| one == self.newest())
    }

    /// Whether another one than the one that signs now has signed a certificate; an empty name is the site's first.
    pub(crate) fn is_old(&self, issuer: &str) -> bool {
        if issuer.is_empty() {
            !self.first || self.phase() == Phase::Switched
        } else {
            issuer != self.signing
        }
    }

    /// A new one is there and is told to nodes.
    pub(crate) fn begin(&self, made: String) -> Result<Self, Error> {
        self.must_be(Phase::Settled, "begin")?;
        Ok(Self { next: Some(made), ..self.clone() })
    }

    /// The new one signs.
    pub(crate) fn switch(&self) -> Result<Self, Error> {
        self.must_be(Phase::Begun, "switch")?;
        let signing = self.next.clone().unwrap_or_else(|| self.signing.clone());
        Ok(Self { signing, next: None, previous: Some(self.signing.clone()), first: self.first })
    }

    /// The previous one is over.
    pub(crate) fn finish(&self) -> Result<Self, Error> {
        self.must_be(Phase::Switched, "finish")?;
        Ok(Self { previous: None, first: false, ..self.clone() })
    }

    /// `begin` is taken back.
    pub(crate) fn abort(&self) -> Result<Self, Error> {
        self.must_be(Phase::Begun, "abort")?;
        Ok(Self { next: None, ..self.clone() })
    }

    fn must_be(&self, phase: Phase, step: &str) -> Result<(), Error> {
        let now = self.phase();
        if now == phase {
            return Ok(());
        }
        let message = format!(
            "{step} follows on phase {}, and the change of authority is {}: {}",
            phase.name(),
            now.name(),
            next_step(now)
        );
        Err(Error::new(Code::Conflict, "CA_PHASE", message))
    }
}

/// Of these, the nodes that the end of a change would cut off: not those that nothing lets in any more.
pub(crate) fn lacking(row: &AuthorityRow, mut nodes: Vec<Arc<Node>>) -> Vec<Arc<Node>> {
    nodes.retain(|node| {
        let counts = node.row.lifecycle != Lifecycle::Decommissioned
            && node.row.credential.revoked_at_unix_ms.is_none();
        counts && row.lacks(&node.report.trusts)
    });
    nodes
}

/// Whoever trusts only the one that is over has to be enrolled anew: a change ends when that is nobody.
pub(crate) fn nobody_is_left(
    row: &AuthorityRow,
    nodes: Vec<Arc<Node>>,
    tokens: &[EnrollmentRow],
    now: Wall,
) -> Result<(), Error> {
    let lacking = lacking(row, nodes);
    let old = |token: &str| token.is_empty() || token != row.newest();
    let tokens = tokens.iter().filter(|one| one.state(now) == "open" && old(&one.ca_sha256)).count();
    let mut names: Vec<_> = lacking.iter().take(NAMED).map(|node| node.row.name.as_str()).collect();
    if lacking.len() > NAMED {
        names.push("...");
    }
    let nodes = match lacking.len() {
        0 => None,
        1 => Some(format!("1 node lacks the new authority ({})", names.join(", "))),
        many => Some(format!("{many} nodes lack the new authority ({})", names.join(", "))),
    };
    let tokens = match tokens {
        0 => None,
        1 => Some("1 open enrollment token names the old one".to_owned()),
        many => Some(format!("{many} open enrollment tokens name the old one")),
    };
    let left: Vec<String> = [nodes, tokens].into_iter().flatten().collect();
    if left.is_empty() {
        return Ok(());
    }
    let message = format!(
        "{}: wait for nodes, revoke tokens, or say leave_behind; a host that is left behind has to be enrolled anew",
        left.join(" and ")
    );
    Err(Error::new(Code::Conflict, "CA_LACKING", message))
}

/// The row after a step, or why it is refused. `made`: the new one of a `begin`. `left`: nodes and tokens that the end of
/// a change would leave behind.
pub(crate) fn after(
    row: &AuthorityRow,
    step: &CaRotateArgs,
    made: Option<String>,
    left: impl FnOnce() -> (Vec<Arc<Node>>, Vec<EnrollmentRow>),
    now: Wall,
) -> Result<AuthorityRow, Error> {
    match step.step {
        CaStep::Begin => row.begin(made.unwrap_or_default()),
        CaStep::Switch => row.switch(),
        CaStep::Abort => row.abort(),
        CaStep::Finish => {
            let after = row.finish()?;
            if !step.leave_behind {
                let (nodes, tokens) = left();
                nobody_is_left(row, nodes, &tokens, now)?;
            }
            Ok(after)
        }
    }
}

/// What follows on a phase.
pub(crate) fn next_step(phase: Phase) -> &'static str {
    match phase {
        Phase::Settled => "nothing is under way; `begin` makes a new authority and tells the nodes of it",
        Phase::Begun => {
            "wait until no node lacks the new authority, then `switch`; or take it back with `abort`. A switch cuts \
             nobody off"
        }
        Phase::Switched => {
            "wait until no node lacks the new authority, then `finish`: a node that lacks it then has to be enrolled \
             anew"
        }
    }
}

/// The authorities whose keys are there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    /// The directory's own, the site's first; it is gone after a finished change.
    pub(crate) own: Option<String>,
    /// Those that changes made, newest first.
    pub(crate) others: Vec<String>,
}

impl Keys {
    fn newest_first(&self) -> impl Iterator<Item = &String> {
        self.others.iter().chain(&self.own)
    }
}

/// What is stored, made to agree with the keys that are there. The flag: the one that should sign is missing.
pub(crate) fn taken_up(stored: Option<AuthorityRow>, keys: &Keys) -> Option<(AuthorityRow, bool)> {
    let there = |digest: &String| keys.newest_first().any(|one| one == digest);
    match (stored, &keys.own) {
        (Some(row), _) if there(&row.signing) => {
            // A next or previous one without its key is nothing that could be switched to or vouch for anybody.
            let next = row.next.filter(|one| there(one));
            let over = row.previous.as_ref().is_some_and(|one| !there(one));
            let previous = row.previous.filter(|one| there(one));
            // A change whose previous one is gone was finished, whatever an older store says.
            let first = row.first && !over;
            Some((AuthorityRow { next, previous, first, ..row }, false))
        }
        // Others than the directory's own are left of a `begin` that was not stored.
        (None, Some(own)) => Some((AuthorityRow::first(own.clone()), false)),
        // The store is older than the directory, and knows nothing of the change that made these. Whether nodes were told of the
        // newest one, and whether it signed already, nobody knows: it does, and the one before vouches until people say that it is
        // over, so that whoever trusts either gets in and is told.
        _ => {
            let mut newest = keys.newest_first().cloned();
            let (signing, previous) = (newest.next()?, newest.next());
            Some((AuthorityRow { signing, next: None, previous, first: false }, true))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn row_32_a_change_overlaps() {
        let settled = AuthorityRow::first("a".into());
        assert!(!settled.lacks(&[]) && !settled.is_old("") && !settled.is_old("a"));
        let begun = settled.begin("b".into()).unwrap();
        assert_eq!((begun.phase(), begun.signing.as_str(), begun.newest()), (Phase::Begun, "a", "b"));
        assert!(begun.lacks(&[]) && begun.lacks(&["a".into()]) && !begun.lacks(&["a".into(), "b".into()]));
        assert!(!begun.is_old("a") && !begun.is_old(""));
        assert_eq!(begun.abort().unwrap(), settled);
        let switched = begun.switch().unwrap();
        assert_eq!(switched.trusted().collect::<Vec<_>>(), ["b", "a"]);
        assert!(switched.is_old("a") && switched.is_old("") && !switched.is_old("b"));
        assert!(switched.lacks(&["a".into()]));
        let over = switched.finish().unwrap();
        assert_eq!((over.phase(), over.signing.as_str()), (Phase::Settled, "b"));
        assert!(over.is_old("") && over.lacks(&[]) && !over.lacks(&["b".into()]));
        for wrong in
            [settled.switch(), settled.finish(), settled.abort(), begun.begin("c".into()), begun.finish()]
        {
            assert_eq!(wrong.unwrap_err().reason, "CA_PHASE");
        }
        assert!(switched.abort().is_err() && switched.begin("c".into()).is_err());
    }

    #[test]
    fn nodes_are_told_exactly_whom_to_trust_and_a_token_finds_the_one_it_names() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let settled = AuthorityRow::first("a".into());
        let begun = settled.begin("b".into()).unwrap();
        let switched = begun.switch().unwrap();
        let over = switched.finish().unwrap();
        assert!(begun.tells(&names(&["a"])) && !begun.tells(&names(&["b", "a"])) && !begun.tells(&[]));
        assert!(settled.tells(&names(&["a", "b"])), "an aborted one is taken away again");
        assert!(over.tells(&names(&["a", "b"])) && !over.tells(&names(&["b"])));
        assert_eq!(begun.vouching().collect::<Vec<_>>(), ["a"]);
        assert_eq!(switched.vouching().collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!((switched.named(""), switched.named("a"), switched.named("b")), ("a", "a", "b"));
        assert_eq!((begun.named(""), begun.named("b"), over.named("a")), ("a", "b", "b"));
    }

    fn keys(own: Option<&str>, others: &[&str]) -> Keys {
        Keys { own: own.map(str::to_owned), others: others.iter().map(|name| (*name).to_owned()).collect() }
    }

    #[test]
    fn what_is_stored_follows_the_keys_that_are_there() {
        assert_eq!(taken_up(None, &Keys::default()), None);
        let (row, lost) = taken_up(None, &keys(Some("a"), &["b"])).unwrap();
        assert_eq!((row, lost), (AuthorityRow::first("a".into()), false));
        let switched = AuthorityRow::first("a".into()).begin("b".into()).unwrap().switch().unwrap();
        let taken = taken_up(Some(switched.clone()), &keys(Some("a"), &["b"]));
        assert_eq!(taken, Some((switched.clone(), false)));
        // An older backup of the store, from before the end of that change.
        let (row, lost) = taken_up(Some(switched), &keys(None, &["b"])).unwrap();
        assert_eq!((row.phase(), row.signing.as_str(), lost), (Phase::Settled, "b", false));
        assert!(row.lacks(&[]), "who never said whom it trusts may trust the one that is gone");
    }

    /// Found as seed 427: the backup was of before the first change, which was over; the next one had only begun, and what it made
    /// was taken for the site's first, although no node knew of it.
    #[test]
    fn a_store_that_is_older_than_the_keys_locks_nobody_out() {
        for stored in [None, Some(AuthorityRow::first("a".into()))] {
            let (row, lost) = taken_up(stored.clone(), &keys(None, &["b"])).unwrap();
            assert_eq!(
                (row.phase(), row.signing.as_str(), row.first, lost),
                (Phase::Settled, "b", false, true)
            );
            let (row, lost) = taken_up(stored, &keys(None, &["c", "b"])).unwrap();
            assert_eq!((row.phase(), row.first, lost), (Phase::Switched, false, true));
            assert_eq!(row.vouching().collect::<Vec<_>>(), ["c", "b"]);
            assert!(row.tells(&["b".into()]) && row.lacks(&["b".into()]), "nobody ends it unseen");
        }
        let (row, _) = taken_up(Some(AuthorityRow::first("x".into())), &keys(Some("a"), &["b"])).unwrap();
        assert_eq!(row.vouching().collect::<Vec<_>>(), ["b", "a"], "the directory's own is the oldest");
    }
}
