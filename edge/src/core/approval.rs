//! Certificates of this site that its store does not know, because it was restored from a backup older than they are.
//!
//! Owns which are held for an operator's word, and the rows that an approval makes. Leaves whether the site's authority
//! signed one to the shell. Invariant: nothing comes in by itself that the backup does not hold; a tombstone stays one;
//! at most [`WAITING_MAX`] wait, the latest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use umbel_contracts::proto::control::Problem;
use umbel_store::{AuditRecord, Commit};
use umbel_wire::ca::BACKDATED;
use umbel_wire::clock::Wall;
use umbel_wire::peer::{PeerCertificate, PeerName};
use umbel_wire::{Code, EdgeId, Error, KeyHash, NodeId};

use super::registry::node::{Credential, Decision, Node, NodeRow};
use super::registry::{NODES, Registry};
use super::tombstones::{TOMBSTONES, Tombstone};

/// Certificates that wait at once: more than enroll between two backups.
pub(crate) const WAITING_MAX: usize = 256;
/// A host that did not come again for so long waits no more.
const WAITING_FOR: Duration = Duration::from_secs(3_600);
/// A held host comes again after this: an operator is about to decide.
const RETRY: Duration = Duration::from_secs(30);
/// The problem's code.
pub(crate) const CREDENTIAL_HELD: &str = "CREDENTIAL_HELD";

/// A certificate that waits for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) key: KeyHash,
    pub(crate) node: NodeId,
    pub(crate) issued: Wall,
    pub(crate) not_after: Wall,
    /// The store was rescued from a damaged file: the row is lost, and with it what people decided about the node.
    pub(crate) lost: bool,
    since: Wall,
    last: Wall,
}

/// All that wait.
#[derive(Debug, Default)]
pub(crate) struct Approvals(BTreeMap<KeyHash, Held>);

/// Whether an unknown certificate is one that the backup could not know. `restored`: what the store holds is from then
/// (0: nobody knows); `ours`: an authority of this site signed it.
pub(crate) fn is_newer(
    restored: Option<Wall>,
    certificate: &PeerCertificate,
    edge: &EdgeId,
    ours: impl FnOnce() -> bool,
) -> Option<NodeId> {
    let restored = restored?;
    let Some(PeerName::Node(site, id)) = &certificate.name else { return None };
    // Certificates count in whole seconds.
    let newer = certificate.not_before + BACKDATED + Duration::from_secs(1) > restored;
    (site == edge && newer && ours()).then_some(*id)
}

impl Approvals {
    /// A host showed such a certificate: it is remembered, and told what it waits for. True with it: that is news.
    /// `lost`: the store was rescued from a damaged file, not restored.
    pub(crate) fn hold(
        &mut self,
        certificate: &PeerCertificate,
        node: NodeId,
        lost: bool,
        now: Wall,
    ) -> (Error, bool) {
        self.0.retain(|_, one| one.last + WAITING_FOR > now);
        let key = certificate.key_hash;
        let since = self.0.get(&key).map_or(now, |one| one.since);
        let news = !self.0.contains_key(&key);
        if news && self.0.len() >= WAITING_MAX {
            let oldest = self.0.values().min_by_key(|one| one.last).map(|one| one.key);
            oldest.map(|key| self.0.remove(&key));
        }
        let held = Held {
            key,
            node,
            issued: certificate.not_before + BACKDATED,
            not_after: certificate.not_after,
            lost,
            since,
            last: now,
        };
        self.0.insert(key, held);
        let message = if lost {
            "this edge's store was rescued: this host's row is lost; an operator can let it in with \
             umbel ctl node approve, the site's problems name its key"
        } else {
            "this edge was restored from a backup that is older than this host's certificate; an operator can let it in \
             with umbel ctl node approve, the site's problems name its key"
        };
        (Error::new(Code::PermissionDenied, CREDENTIAL_HELD, message).with_retry_after(RETRY), news)
    }

    /// The one of a key.
    ///
    /// # Errors
    /// NOT_FOUND: none waits.
    pub(crate) fn get(&self, key: &str, now: Wall) -> Result<Held, Error> {
        let held = self.0.values().find(|one| one.key.to_string() == key && one.last + WAITING_FOR > now);
        held.cloned().ok_or_else(|| {
            let message = "no certificate of this key waits; the site's problems name those that do, as long as their \
                           hosts come again";
            Error::new(Code::NotFound, "NOTHING_HELD", message)
        })
    }

    /// It was decided.
    pub(crate) fn remove(&mut self, key: &KeyHash) {
        self.0.remove(key);
    }

    /// What operators are told.
    pub(crate) fn problems(&self, now: Wall) -> Vec<Problem> {
        let waiting = self.0.values().filter(|one| one.last + WAITING_FOR > now);
        let problem = |one: &Held| Problem {
            code: CREDENTIAL_HELD.to_owned(),
            message: if one.lost {
                format!(
                    "a host shows a certificate of this site that the edge does not know (rescued: its row is lost); if it \
                     is yours: umbel ctl node approve {}, which lets it back disabled",
                    one.key
                )
            } else {
                format!(
                    "a host shows a certificate that is newer than this restored edge; if it is yours: \
                     umbel ctl node approve {}",
                    one.key
                )
            },
            since_unix_ms: one.since.unix_ms(),
            subject: one.node.to_string(),
        };
        waiting.map(problem).collect()
    }
}

/// What this edge knows of where its store came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Past {
    /// What the store began with is from then; `None`: nothing was restored.
    pub(crate) restored: Option<Wall>,
    /// It was read out of a damaged file.
    pub(crate) lost: bool,
}

/// Whether an unknown certificate waits for people, and what its host is told. With an entry for the audit, if it is
/// the first time.
pub(crate) fn withhold<H: Clone>(
    registry: &Registry<H>,
    approvals: &mut Approvals,
    certificate: &PeerCertificate,
    (edge, past, now): (&EdgeId, Past, Wall),
    ours: impl FnOnce() -> bool,
) -> Option<(Error, Option<AuditRecord>)> {
    let key = &certificate.key_hash;
    if registry.by_key(key).is_some() || registry.tombstones.has(key) {
        return None;
    }
    let node = is_newer(past.restored, certificate, edge, ours)?;
    if registry.node(&node).is_some_and(|node| node.is_tombstone()) {
        return None;
    }
    if let Err(gone) = registry.tombstones.check(key, Some(&node)) {
        return Some((gone, None));
    }
    let (error, news) = approvals.hold(certificate, node, past.lost, now);
    let why = if past.lost {
        "its row is lost: the store was rescued from a damaged file"
    } else {
        "its certificate is newer than the backup of this edge"
    };
    let record = AuditRecord::new("node.credential.held", node.to_string(), "refused").by("edge");
    Some((error, news.then(|| record.because(why))))
}

/// What an approval writes: the node's row, and whether it is a new one.
#[derive(Debug)]
pub(crate) struct Approved {
    pub(crate) row: NodeRow,
    /// As it was; `None`: the backup did not know the node at all.
    pub(crate) known: Option<Arc<Node>>,
    pub(crate) commit: Commit,
}

/// Lets a held certificate in.
///
/// # Errors
/// GONE: its node is a tombstone. UNAUTHENTICATED: its key was revoked. CONFLICT: its key is a node's meanwhile.
pub(crate) fn approve<H: Clone>(
    registry: &Registry<H>,
    held: &Held,
    audit: AuditRecord,
    now: Wall,
) -> Result<Approved, Error> {
    if registry.by_key(&held.key).is_some() {
        let message = "a node of this site holds this key by now; there is nothing left to approve";
        return Err(Error::new(Code::Conflict, "KEY_IN_USE", message));
    }
    registry.tombstones.check(&held.key, Some(&held.node))?;
    let credential = Credential {
        key_sha256: held.key.to_string(),
        not_after_unix_ms: held.not_after.unix_ms(),
        revoked_at_unix_ms: None,
        issued_at_unix_ms: held.issued.unix_ms(),
        issuer: String::new(),
    };
    let key = held.node.to_string();
    let known = registry.node(&held.node).cloned();
    let commit = Commit::new().audit(audit);
    let (row, commit) = match &known {
        Some(node) if node.is_tombstone() => {
            let message = "the node of this certificate was decommissioned for good; enroll its host anew";
            return Err(Error::new(Code::Gone, "NODE_DECOMMISSIONED", message));
        }
        Some(node) => {
            let mut row = node.row.clone();
            // Which token its host enrolled with was lost with the rest.
            row.replace(String::new(), credential, now.unix_ms());
            (row, commit.require_at(NODES, key.clone(), node.position))
        }
        None => {
            // Its name, labels and marks were lost: an operator gives them anew.
            let name = format!("recovered-{}", key.get(..8).unwrap_or_default());
            let mut row = NodeRow::enrolled(&name, "", credential, now);
            if let Some(stone) = registry.tombstones.get(&held.node) {
                row.retired = stone.retired();
            }
            if held.lost {
                // Whether people had disabled it is lost as well: they say so again.
                row.disable(Decision {
                    at_unix_ms: now.unix_ms(),
                    by: "edge".to_owned(),
                    reason:
                        "its row was lost, and with it whether it was disabled: enable it if it may come in"
                            .to_owned(),
                });
            }
            (row, commit.require_absent(NODES, key.clone()))
        }
    };
    let commit = match Tombstone::of(&row) {
        Some(stone) => commit.put_json(TOMBSTONES, key.clone(), &stone),
        None => commit,
    };
    let commit = commit.put_json(NODES, key, &row);
    Ok(Approved { row, known, commit })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn certificate(key: u8, edge: &EdgeId, node: NodeId, issued: Wall) -> PeerCertificate {
        PeerCertificate {
            key_hash: KeyHash([key; 32]),
            serial: "01".into(),
            name: Some(PeerName::Node(edge.clone(), node)),
            not_before: Wall(issued.unix_ms() - i64::try_from(BACKDATED.as_millis()).unwrap()),
            not_after: Wall(i64::MAX),
        }
    }

    #[test]
    fn only_what_the_backup_could_not_know_is_held() {
        let (edge, other) = (EdgeId::parse("ber1").unwrap(), EdgeId::parse("muc1").unwrap());
        let node = NodeId::random();
        let backup = Some(Wall(10_000_000));
        let newer = certificate(1, &edge, node, Wall(9_999_001));
        assert_eq!(is_newer(backup, &newer, &edge, || true), Some(node));
        assert_eq!(is_newer(backup, &newer, &edge, || false), None, "a stranger signed it");
        assert_eq!(is_newer(None, &newer, &edge, || true), None, "nothing was restored");
        assert_eq!(is_newer(backup, &newer, &other, || true), None, "another site's");
        let older = certificate(1, &edge, node, Wall(9_999_000));
        assert_eq!(is_newer(backup, &older, &edge, || true), None, "the backup would know it");
        assert_eq!(
            is_newer(Some(Wall(0)), &older, &edge, || true),
            Some(node),
            "nobody knows from when it is"
        );
    }

    /// Whoever waits already when its identity turns out to be over is not let in either.
    #[test]
    fn what_was_ended_cannot_be_approved() {
        use super::super::tombstones::Tombstone;
        use umbel_wire::liveness::Times;
        let now = std::time::Instant::now();
        let mut registry: Registry<()> =
            Registry::new(Times::default(), Duration::from_secs(1), umbel_wire::Generation(0), now);
        let (gone, revoked) = (NodeId::random(), NodeId::random());
        let stone = |key: u8, decommissioned| Tombstone {
            keys: [KeyHash([key; 32]).to_string()].into(),
            at_unix_ms: 1,
            decommissioned,
        };
        registry.tombstones.insert(gone, stone(1, true));
        registry.tombstones.insert(revoked, stone(2, false));
        let ask = |key: u8, node| {
            let held = Held {
                key: KeyHash([key; 32]),
                node,
                issued: Wall(1),
                not_after: Wall(2),
                lost: true,
                since: Wall(1),
                last: Wall(1),
            };
            approve(&registry, &held, AuditRecord::default(), Wall(3)).map(|approved| approved.row)
        };
        for (key, node) in [(1, gone), (9, gone), (1, NodeId::random())] {
            assert_eq!(ask(key, node).unwrap_err().reason, "NODE_DECOMMISSIONED");
        }
        assert_eq!(ask(2, revoked).unwrap_err().reason, "CREDENTIAL_REVOKED");
        let back = ask(3, revoked).unwrap();
        assert!(back.key(&KeyHash([2; 32])).is_some() && !back.admits(), "its old key stays ended");
    }

    #[test]
    fn those_that_wait_are_bounded_and_forgotten() {
        let edge = EdgeId::parse("ber1").unwrap();
        let mut approvals = Approvals::default();
        let node = NodeId::random();
        for n in 0..400_i64 {
            let mut one = certificate(0, &edge, node, Wall(1));
            let [first, second, ..] = u16::try_from(n).unwrap().to_be_bytes();
            one.key_hash.0[0] = first;
            one.key_hash.0[1] = second;
            assert!(approvals.hold(&one, node, false, Wall(n)).1);
            assert!(!approvals.hold(&one, node, false, Wall(n)).1, "it is known now");
        }
        assert_eq!(approvals.problems(Wall(400)).len(), WAITING_MAX);
        assert!(approvals.problems(Wall(400) + WAITING_FOR).is_empty());
        let last = KeyHash({
            let mut key = [0; 32];
            key[0] = 1;
            key[1] = 0x8f;
            key
        });
        assert_eq!(approvals.get(&last.to_string(), Wall(400)).unwrap().key, last);
        assert_eq!(approvals.get("00", Wall(400)).unwrap_err().code, Code::NotFound);
    }
}
