//! A node's credential is replaced in two phases: given, then shown.
//!
//! Owns what each phase does to the stored row, when a new certificate is wanted, and how often a node is asked. Leaves the
//! rules that a control plane has too to `umbel_wire::rotation::acceptor`, signing, storing and asking the node to the
//! shell. Invariant: a node has one active credential and at most one that is pending; the
//! first hello with the pending one retires the active one, in one write.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use umbel_store::{AuditRecord, Commit};
use umbel_wire::clock::Wall;
use umbel_wire::rotation::acceptor::{self, Holder, Unfit, due, lost};
use umbel_wire::{Error, Generation, KeyHash, NodeId};

use super::authority::AuthorityRow;
use super::registry::node::{Credential, Lifecycle, Node, NodeRow};

/// People are told of a certificate that ends within this time: two weeks, when one that renews itself at two thirds
/// of 90 days has failed to do so for two weeks.
pub(crate) const WARNED: Duration = Duration::from_secs(14 * 24 * 3600);

/// Why a new certificate is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cause {
    /// People asked.
    Operator,
    /// Another authority signs now.
    Authority,
    /// Two thirds of its life are over.
    Age,
}

impl Cause {
    /// The word for the node's log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Authority => "authority",
            Self::Age => "age",
        }
    }
}

/// Whether a new certificate is wanted of this node now.
pub(crate) fn wanted(row: &NodeRow, authority: &AuthorityRow, now: Wall) -> Option<Cause> {
    let credential = &row.credential;
    if !row.admits() {
        return None;
    }
    if row.rotate.is_some() {
        return Some(Cause::Operator);
    }
    if authority.is_old(&credential.issuer) {
        return Some(Cause::Authority);
    }
    let begun = match credential.issued_at_unix_ms {
        // From before it was kept: they were all of 90 days.
        0 => {
            credential.not_after_unix_ms
                - i64::try_from(umbel_wire::ca::CLIENT_VALIDITY.as_millis()).unwrap_or(0)
        }
        at => at,
    };
    (now >= due(Wall(begun), Wall(credential.not_after_unix_ms))).then_some(Cause::Age)
}

/// What a connected node has to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wish {
    /// To trust other authorities than it said.
    Trust,
    /// To get a new certificate.
    Rotate(Cause),
}

/// What is wanted of a node now.
pub(crate) fn wishes(node: &Node, authority: &AuthorityRow, now: Wall) -> impl Iterator<Item = Wish> {
    // One that was given a bundle and did not say that it has it is asked again, even if what it said is right now.
    let unsaid = node.session.as_ref().is_some_and(|session| session.given_trust);
    let may_be_told = !node.report.trusts.is_empty();
    let trust = ((unsaid && may_be_told) || authority.tells(&node.report.trusts)).then_some(Wish::Trust);
    let rotate = wanted(&node.row, authority, now).map(Wish::Rotate);
    [trust, rotate].into_iter().flatten()
}

/// A node that was asked and has not done it is asked again after this.
const AGAIN: Duration = Duration::from_secs(120);

/// Who was asked for what, and when. Another bundle of authorities is asked for at once, whoever was just asked to trust the
/// one before: else two would be trusted for longer than a change says.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    last: HashMap<(NodeId, bool), (Generation, Instant)>,
    bundle: Vec<String>,
}

impl Asked {
    /// A look at everybody begins.
    pub(crate) fn look(&mut self, authority: &AuthorityRow, now: Instant) {
        self.last.retain(|_, (_, at)| now.saturating_duration_since(*at) < AGAIN);
        if !self.bundle.iter().eq(authority.trusted()) {
            self.bundle = authority.trusted().cloned().collect();
            self.last.retain(|(_, is_trust), _| !is_trust);
        }
    }

    /// Whether it is to be asked over this connection now.
    pub(crate) fn may(&self, id: NodeId, generation: Generation, wish: Wish) -> bool {
        let last = self.last.get(&(id, wish == Wish::Trust));
        last.is_none_or(|(of, _)| *of != generation)
    }

    /// It is asked.
    pub(crate) fn note(&mut self, id: NodeId, generation: Generation, wish: Wish, now: Instant) {
        self.last.insert((id, wish == Wish::Trust), (generation, now));
    }
}

/// How a node's credential stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Good,
    /// It ends soon.
    Ends,
    /// It is over, and a host that comes back is still let in to renew it.
    Expired,
    /// It is over for good.
    Lost,
}

/// How the credential of `row` stands. One that was replaced by people or is not looked at any more is good.
pub(crate) fn standing(row: &NodeRow, now: Wall) -> Standing {
    let ends = Wall(row.credential.not_after_unix_ms);
    if row.lifecycle == Lifecycle::Decommissioned
        || row.credential.revoked_at_unix_ms.is_some()
        || now < super::credentials::CLOCK_FLOOR
    {
        Standing::Good
    } else if lost(ends, now) {
        Standing::Lost
    } else if now > ends {
        Standing::Expired
    } else if now + WARNED > ends {
        Standing::Ends
    } else {
        Standing::Good
    }
}

/// Whether `key` may become this node's next one. `holder`: the node that has it already.
pub(crate) fn may_have(node: &Node, key: &KeyHash, holder: Option<NodeId>) -> Result<(), Error> {
    let holder = match holder {
        None => Holder::Nobody,
        Some(holder) if holder != node.id => Holder::Another,
        Some(_) if node.row.is_pending(key) => Holder::Pending,
        Some(_) => Holder::Itself,
    };
    acceptor::may_have(holder).map_err(|unfit| {
        unfit.error(match unfit {
            Unfit::Another => "the key of the signing request is another node's",
            Unfit::Unchanged => "the signing request has the key in use; a rotation needs a new one",
        })
    })
}

/// By whom a rotation is, for the audit.
fn by(row: &NodeRow, cause: Option<Cause>) -> String {
    match (&row.rotate, cause) {
        (Some(wanted), _) => wanted.by.clone(),
        (None, Some(Cause::Authority)) => "edge".to_owned(),
        (None, _) => "node".to_owned(),
    }
}

/// First phase: the credential is given and not yet shown. Nothing is retired.
pub(crate) fn give(
    node: &Node,
    given: Credential,
    cause: Option<Cause>,
    reply_lost: bool,
) -> (NodeRow, Commit) {
    let row = NodeRow { pending: Some(given), ..node.row.clone() };
    let why = match cause {
        _ if reply_lost => "asked again",
        Some(cause) => cause.name(),
        None => "its own wish",
    };
    let record = AuditRecord::new("node.credential.issued", node.id.to_string(), "succeeded");
    (row, Commit::new().audit(record.by(by(&node.row, cause)).because(why)))
}

/// Second phase: a hello shows `key`. `None`: that is the active one, nothing changes.
pub(crate) fn shown(node: &Node, key: &KeyHash, now: Wall) -> Option<(NodeRow, Commit)> {
    let mut row = node.row.clone();
    if !row.is_pending(key) || !row.admits() {
        return None;
    }
    let record = AuditRecord::new("node.credential.rotated", node.id.to_string(), "succeeded");
    let record = record.by(by(&row, None)).because("shown; the one before is retired");
    row.promote(now.unix_ms());
    Some((row, Commit::new().audit(record)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use umbel_store::Position;

    use super::super::registry::node::{KeyState, ReportRow, Retirement, Session, Wanted};
    use super::*;

    const DAY: i64 = 24 * 3_600_000;
    const NOW: Wall = Wall(1_900_000_000_000);

    fn credential(key: u8) -> Credential {
        Credential {
            key_sha256: KeyHash([key; 32]).to_string(),
            not_after_unix_ms: NOW.unix_ms() + 90 * DAY,
            revoked_at_unix_ms: None,
            issued_at_unix_ms: NOW.unix_ms(),
            issuer: "a".into(),
        }
    }

    fn node() -> Node {
        let row = NodeRow::enrolled("n", "t", credential(1), NOW);
        Node::new(NodeId::random(), row, Position::default(), ReportRow::default())
    }

    fn at(days: i64) -> Wall {
        Wall(NOW.unix_ms() + days * DAY)
    }

    #[test]
    fn a_new_one_is_wanted_at_two_thirds_by_people_and_by_a_new_authority() {
        let authority = AuthorityRow::first("a".into());
        let mut node = node();
        assert_eq!(wanted(&node.row, &authority, at(59)), None);
        assert_eq!(wanted(&node.row, &authority, at(60)), Some(Cause::Age));
        let changed = authority.begin("b".into()).unwrap();
        assert_eq!(wanted(&node.row, &changed, NOW), None);
        assert_eq!(wanted(&node.row, &changed.switch().unwrap(), NOW), Some(Cause::Authority));
        node.row.rotate = Some(Wanted { at_unix_ms: 1, by: "anna".into() });
        assert_eq!(wanted(&node.row, &authority, NOW), Some(Cause::Operator));
        node.row.lifecycle = Lifecycle::Disabled;
        assert_eq!(wanted(&node.row, &authority, at(100)), None);
        // A row from before times of issue were kept.
        let mut old = NodeRow::enrolled("n", "t", credential(1), NOW);
        (old.credential.issued_at_unix_ms, old.credential.issuer) = (0, String::new());
        assert_eq!(wanted(&old, &authority, at(59)), None);
        assert_eq!(wanted(&old, &authority, at(60)), Some(Cause::Age));
    }

    #[test]
    fn who_was_asked_is_left_in_peace_for_a_while_unless_it_is_for_another_bundle() {
        let (now, id, generation) = (Instant::now(), NodeId::random(), Generation(1));
        let rotate = Wish::Rotate(Cause::Operator);
        let begun = AuthorityRow::first("a".into()).begin("b".into()).unwrap();
        let mut asked = Asked::default();
        asked.look(&begun, now);
        for wish in [Wish::Trust, rotate] {
            assert!(asked.may(id, generation, wish));
            asked.note(id, generation, wish, now);
        }
        let soon = now + Duration::from_secs(1);
        asked.look(&begun, soon);
        assert!(!asked.may(id, generation, Wish::Trust) && !asked.may(id, generation, rotate));
        assert!(asked.may(id, Generation(2), Wish::Trust), "a new connection knows nothing of it");
        // The change is taken back a second later.
        asked.look(&begun.abort().unwrap(), soon);
        assert!(asked.may(id, generation, Wish::Trust) && !asked.may(id, generation, rotate));
        asked.look(&begun.abort().unwrap(), now + AGAIN);
        assert!(asked.may(id, generation, rotate));
    }

    #[test]
    fn who_was_given_a_bundle_and_did_not_say_so_is_told_again() {
        let (authority, mut node) = (AuthorityRow::first("a".into()), node());
        node.report.trusts = vec!["a".into()];
        assert_eq!(wishes(&node, &authority, NOW).count(), 0);
        // It said hello during a change, got both with its welcome, and the change was taken back before it was asked.
        let (generation, protocol) = (Generation(1), 1);
        node.session = Some(Session { generation, protocol, named: true, leaving: false, given_trust: true });
        assert_eq!(wishes(&node, &authority, NOW).collect::<Vec<_>>(), [Wish::Trust]);
    }

    #[test]
    fn row_30_what_ends_is_said_before_and_after() {
        let row = node().row;
        for (day, expected) in
            [(75, Standing::Good), (77, Standing::Ends), (91, Standing::Expired), (121, Standing::Lost)]
        {
            assert_eq!(standing(&row, at(day)), expected, "day {day}");
        }
        assert_eq!(standing(&row, Wall(0)), Standing::Good);
    }

    #[test]
    fn a_credential_is_given_then_shown_and_the_old_one_is_retired_in_that_write() {
        let mut node = node();
        let (first, second, other) = (KeyHash([1; 32]), KeyHash([2; 32]), KeyHash([3; 32]));
        assert!(shown(&node, &first, NOW).is_none());
        assert_eq!(may_have(&node, &first, Some(node.id)).unwrap_err().reason, "KEY_UNCHANGED");
        assert_eq!(may_have(&node, &other, Some(NodeId::random())).unwrap_err().reason, "KEY_IN_USE");
        may_have(&node, &second, None).unwrap();
        node.row = give(&node, credential(2), Some(Cause::Age), false).0;
        assert_eq!(node.row.keys().collect::<Vec<_>>(), [first, second]);
        // The answer was lost: the same key again, or another that takes its place.
        may_have(&node, &second, Some(node.id)).unwrap();
        node.row = give(&node, credential(3), None, false).0;
        assert_eq!(node.row.keys().collect::<Vec<_>>(), [first, other]);
        assert!(shown(&node, &first, NOW).is_none() && shown(&node, &second, NOW).is_none());
        node.row = shown(&node, &other, NOW).unwrap().0;
        assert_eq!(node.row.key(&other), Some(KeyState::InUse));
        assert_eq!(node.row.key(&first), Some(KeyState::Retired(Retirement::Rotated)));
        assert_eq!((node.row.pending.clone(), node.row.rotate.clone()), (None, None));
    }
}
