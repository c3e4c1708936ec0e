//! The last place of each edge's audit that this control plane was told: whoever cuts the tail of an edge's audit, or
//! puts an older store in its place, is seen, also when its number has grown beyond that place again.
//!
//! Owns the judgement. Leaves storing to the shell; what is in memory is written now and then, since an older place
//! shows a cut as well, only later. Invariants: a place is only replaced by a later one, or by a cut that is told; one
//! that was asked for stays until the edge has answered what stands there, and so does what was told before a later hello.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use umbel_contracts::proto::control::{AuditPlace, EdgeSummary, StoreHealth};
use umbel_store::Commit;
use umbel_wire::ids::EdgeId;

use super::audit::{Deed, Detail};

/// Table of [`WitnessRow`]s, keyed by edge id.
pub(crate) const WITNESS: &str = "audit_heads";
/// Places that are asked for later, one a connection: an edge that never answers must not add one with each.
const OPEN: usize = 8;
/// A cut is a problem for so long: 30 days, in which somebody has looked.
const SHOWN_MS: i64 = 30 * 24 * 3_600_000;

/// The newest entry of an edge's audit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) sequence: u64,
    /// In hexadecimal.
    pub(crate) hash: String,
}

/// What is known of one edge's audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WitnessRow {
    pub(crate) last: Place,
    pub(crate) told_at_unix_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cut: Option<Cut>,
    /// What the edge was asked at its hello and has not answered yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) asked: Option<Place>,
    /// What it told meanwhile over earlier connections, oldest first: asked for one after the other once that is answered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) later: Vec<Place>,
}

impl WitnessRow {
    // What was asked for and what is there, if that is something else.
    fn answered(&mut self, answer: Answer) -> Option<(Place, Place)> {
        let asked = self.asked.take_if(|asked| asked.sequence == answer.sequence)?;
        let found = match answer.stands {
            Stands::Entry(hash) if hash != asked.hash => hash,
            Stands::Nothing => String::new(),
            Stands::Aged | Stands::Entry(_) => {
                // It stands; whether what was told after it does is the next question.
                self.asked = (!self.later.is_empty()).then(|| self.later.remove(0));
                return None;
            }
        };
        let found = Place { sequence: asked.sequence, hash: found };
        Some((asked, found))
    }
}

/// An audit that does not go on from where it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cut {
    pub(crate) at_unix_ms: i64,
    /// What was told before.
    pub(crate) had: Place,
    /// What was told then.
    pub(crate) found: Place,
}

impl Cut {
    /// For the audit.
    pub(crate) fn deed(&self, edge_id: &EdgeId) -> Deed {
        Deed {
            actor: "control-plane".into(),
            action: "edge.audit_cut",
            subject: format!("{} {}", self.had.sequence, self.had.hash),
            outcome: "observed".into(),
            detail: Detail { edge: edge_id.to_string(), reason: self.sentence(), ..Detail::default() },
            ..Deed::default()
        }
    }

    /// What happened, for people.
    pub(crate) fn sentence(&self) -> String {
        let (had, found) = (self.had.sequence, self.found.sequence);
        if self.found.hash.is_empty() && had == found {
            return format!(
                "Entry {had} of the edge's audit is missing, although later ones are there: its store was damaged, or \
                 its audit rewritten. Compare with an export, and find out who could write the edge's files."
            );
        }
        if had == found {
            return format!(
                "Entry {had} of the edge's audit has another hash than it had: its audit was rewritten, or goes on from \
                 an older backup. Compare with an export, and find out who could write the edge's files."
            );
        }
        format!(
            "The edge's audit ended at entry {had} and then at {found}: its newest entries are missing. Was an older \
             backup restored? Else find out who could write the edge's files."
        )
    }
}

/// Where an edge's audit stands, as it says.
pub(crate) fn place(said: &EdgeSummary) -> Option<Place> {
    // An edge that cannot read its store knows no place, which is no cut.
    if said.audit_sequence == 0 && said.facts.as_ref().is_some_and(|facts| facts.store() != StoreHealth::Ok) {
        return None;
    }
    Some(Place { sequence: said.audit_sequence, hash: data_encoding::HEXLOWER.encode(&said.audit_hash) })
}

/// What the edge says stands at the place that it was asked for; `None`: no answer, or one that is none.
pub(crate) fn answer(said: &AuditPlace) -> Option<Answer> {
    let stands = match said.hash.len() {
        _ if said.aged => Stands::Aged,
        32 => Stands::Entry(data_encoding::HEXLOWER.encode(&said.hash)),
        0 => Stands::Nothing,
        _ => return None,
    };
    Some(Answer { sequence: said.sequence, stands })
}

/// An edge's answer to the question of its hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    sequence: u64,
    stands: Stands,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stands {
    Entry(String),
    Aged,
    Nothing,
}

/// Adds rows to what is committed.
pub(crate) fn written(commit: Commit, rows: &[(EdgeId, WitnessRow)]) -> Commit {
    rows.iter().fold(commit, |commit, (edge_id, row)| commit.put_json(WITNESS, edge_id.as_str(), row))
}

/// All edges' places.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    rows: HashMap<EdgeId, WitnessRow>,
    unwritten: BTreeSet<EdgeId>,
}

impl Witness {
    /// A stored row.
    pub(crate) fn restore(&mut self, edge_id: EdgeId, row: WitnessRow) {
        self.rows.insert(edge_id, row);
    }

    /// The number that an edge is asked for in the answer to its hello; 0: none. One that it has not answered yet is
    /// asked for again, since all that came after it stands on it.
    pub(crate) fn ask(&mut self, edge_id: &EdgeId) -> u64 {
        let Some(row) = self.rows.get_mut(edge_id) else { return 0 };
        // Below the first entry nothing stands: asked for, that is "none" and stays unanswered for good, and with it all
        // that comes later.
        let last = Some(row.last.clone()).filter(|last| last.sequence > 0);
        row.asked = match row.asked.take().filter(|asked| asked.sequence > 0) {
            Some(open) => {
                // Only the next word of this connection would stand for it, and that may be of another audit.
                row.later.extend(last.filter(|last| *last != open && row.later.last() != Some(last)));
                if row.later.len() > OPEN {
                    // The newest says the most of them.
                    row.later.remove(OPEN - 1);
                }
                Some(open)
            }
            None => last,
        };
        let sequence = row.asked.as_ref().map_or(0, |asked| asked.sequence);
        self.changed(edge_id);
        sequence
    }

    /// What an edge told with its heartbeat, and its answer to what it was asked; the cut, if it is one. Heartbeats of
    /// one connection come in their order.
    pub(crate) fn told(
        &mut self,
        edge_id: &EdgeId,
        place: Place,
        answer: Option<Answer>,
        now_unix_ms: i64,
    ) -> Option<Cut> {
        let Some(row) = self.rows.get_mut(edge_id) else {
            let row = WitnessRow {
                last: place,
                told_at_unix_ms: now_unix_ms,
                cut: None,
                asked: None,
                later: Vec::new(),
            };
            self.rows.insert(edge_id.clone(), row);
            self.changed(edge_id);
            return None;
        };
        let open = row.asked.clone();
        let other = answer.and_then(|answer| row.answered(answer));
        let is_answered = row.asked != open;
        if row.last == place && other.is_none() {
            if is_answered {
                self.changed(edge_id);
            }
            return None;
        }
        let goes_on = row.last == place || place.sequence > row.last.sequence;
        let cut = match other {
            _ if !goes_on => Some((row.last.clone(), place.clone())),
            other => other,
        };
        let cut = cut.map(|(had, found)| Cut { at_unix_ms: now_unix_ms, had, found });
        row.last = place;
        row.told_at_unix_ms = now_unix_ms;
        if cut.is_some() {
            row.cut.clone_from(&cut);
            // It goes on from here.
            row.asked = None;
            row.later.clear();
        }
        self.changed(edge_id);
        cut
    }

    /// What is known of an edge's audit.
    #[cfg(feature = "simulation")]
    pub(crate) fn row(&self, edge_id: &EdgeId) -> Option<&WitnessRow> {
        self.rows.get(edge_id)
    }

    fn changed(&mut self, edge_id: &EdgeId) {
        self.unwritten.insert(edge_id.clone());
    }

    /// The edge enrolled anew: its audit may be another one.
    pub(crate) fn forget(&mut self, edge_id: &EdgeId) {
        self.rows.remove(edge_id);
    }

    /// A cut that is a problem still.
    pub(crate) fn cut(&self, edge_id: &EdgeId, now_unix_ms: i64) -> Option<&Cut> {
        let cut = self.rows.get(edge_id)?.cut.as_ref()?;
        (now_unix_ms.saturating_sub(cut.at_unix_ms) < SHOWN_MS).then_some(cut)
    }

    /// Rows to be written, at most so many; they count as written unless they are [`Witness::keep`]ed.
    pub(crate) fn take_unwritten(&mut self, most: usize) -> Vec<(EdgeId, WitnessRow)> {
        let taken: Vec<_> = self.unwritten.iter().take(most).cloned().collect();
        for edge_id in &taken {
            self.unwritten.remove(edge_id);
        }
        taken.into_iter().filter_map(|id| Some((id.clone(), self.rows.get(&id)?.clone()))).collect()
    }

    /// They could not be written.
    pub(crate) fn keep(&mut self, rows: Vec<(EdgeId, WitnessRow)>) {
        for (edge_id, _) in rows {
            self.changed(&edge_id);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn place(sequence: u64, hash: &str) -> Place {
        Place { sequence, hash: hash.to_owned() }
    }

    #[test]
    fn an_audit_that_goes_on_is_no_cut_and_any_other_is() {
        let edge = EdgeId::parse("ber1").unwrap();
        let mut witness = Witness::default();
        assert_eq!(witness.told(&edge, place(7, "a"), None, 1), None);
        assert_eq!(witness.told(&edge, place(7, "a"), None, 2), None);
        assert_eq!(witness.told(&edge, place(9, "b"), None, 3), None);
        assert!(witness.cut(&edge, 3).is_none());
        let cut = witness.told(&edge, place(4, "c"), None, 4).unwrap();
        assert_eq!((cut.had.sequence, cut.found.sequence), (9, 4));
        // It goes on from there, and stays a problem for its time.
        assert_eq!(witness.told(&edge, place(10, "d"), None, 5), None);
        assert_eq!(witness.cut(&edge, 5), Some(&cut));
        assert!(witness.cut(&edge, 5 + SHOWN_MS).is_none());
        let rewritten = witness.told(&edge, place(10, "e"), None, 6).unwrap();
        assert!(rewritten.sentence().contains("rewritten"));
    }

    #[test]
    fn what_changed_is_written_once_and_read_back() {
        let (edge, other) = (EdgeId::parse("ber1").unwrap(), EdgeId::parse("ham1").unwrap());
        let mut witness = Witness::default();
        for n in 1..5 {
            witness.told(&edge, place(n, "x"), None, 1);
        }
        witness.told(&other, place(1, "x"), None, 1);
        let taken = witness.take_unwritten(1);
        assert_eq!(taken.len(), 1);
        witness.keep(taken);
        let rows = witness.take_unwritten(9);
        assert_eq!((rows.len(), witness.take_unwritten(9).len()), (2, 0));
        let mut again = Witness::default();
        for (id, row) in rows {
            let json = serde_json::to_string(&row).unwrap();
            again.restore(id, serde_json::from_str(&json).unwrap());
        }
        assert!(again.told(&edge, place(3, "x"), None, 2).is_some(), "a cut over a restart is seen");
        again.forget(&other);
        assert!(again.told(&other, place(0, ""), None, 2).is_none());
    }

    fn stands(sequence: u64, hash: &[u8], aged: bool) -> Option<Answer> {
        answer(&AuditPlace { sequence, hash: hash.to_vec(), aged })
    }

    fn hex(byte: u8) -> String {
        data_encoding::HEXLOWER.encode(&[byte; 32])
    }

    #[test]
    fn an_audit_that_was_cut_and_has_grown_beyond_its_place_again_is_one() {
        let edge = EdgeId::parse("ber1").unwrap();
        let known = |asked: bool| {
            let mut witness = Witness::default();
            assert_eq!(witness.ask(&edge), 0, "nothing is known of it");
            assert_eq!(witness.told(&edge, place(9, &hex(9)), None, 1), None);
            if asked {
                assert_eq!(witness.ask(&edge), 9);
            }
            witness
        };
        // What stands there, and whether that is a cut.
        let cases = [
            (stands(9, &[9; 32], false), false, "the same"),
            (stands(9, &[8; 32], false), true, "another"),
            (stands(9, &[], false), true, "none"),
            (stands(9, &[], true), false, "none any more, by age"),
            (stands(8, &[8; 32], false), false, "an answer to another question"),
            (stands(9, &[8; 5], false), false, "no hash"),
            (None, false, "an edge that does not know the question"),
        ];
        for (answer, is_cut, what) in cases {
            let mut witness = known(true);
            let cut = witness.told(&edge, place(12, "x"), answer.clone(), 2);
            let named = cut.map(|cut| cut.sentence().contains("Entry 9"));
            assert_eq!(named, is_cut.then_some(true), "{what}");
            // Told once, and it goes on from there.
            assert_eq!(witness.told(&edge, place(13, "x"), answer.clone(), 3), None, "{what}");
            // An answer that nobody asked for is none.
            assert_eq!(known(false).told(&edge, place(12, "x"), answer, 2), None, "{what}");
        }
        assert_ne!(
            known(true).told(&edge, place(12, "x"), stands(9, &[], false), 2).unwrap().sentence(),
            known(true).told(&edge, place(12, "x"), stands(9, &[1; 32], false), 2).unwrap().sentence(),
        );
    }

    #[test]
    fn an_empty_audit_is_nothing_to_ask_for() {
        let edge = EdgeId::parse("ber1").unwrap();
        let mut witness = Witness::default();
        assert_eq!(witness.told(&edge, place(0, ""), None, 1), None);
        assert_eq!(witness.ask(&edge), 0);
        assert_eq!(witness.told(&edge, place(5, &hex(5)), None, 2), None);
        assert_eq!(witness.ask(&edge), 5);
        assert!(witness.told(&edge, place(13, "x"), stands(5, &[6; 32], false), 3).is_some());
    }

    #[test]
    fn a_question_stays_until_it_is_answered() {
        let edge = EdgeId::parse("ber1").unwrap();
        let mut witness = Witness::default();
        witness.told(&edge, place(9, &hex(9)), None, 1);
        assert_eq!(witness.ask(&edge), 9);
        // The edge could not read its store, or is an older one: the same is asked again, also after a restart.
        witness.told(&edge, place(20, &hex(20)), None, 2);
        let (_, row) = witness.take_unwritten(9).pop().unwrap();
        let json = serde_json::to_string(&row).unwrap();
        let mut again = Witness::default();
        again.restore(edge.clone(), serde_json::from_str(&json).unwrap());
        assert_eq!(again.ask(&edge), 9);
        let cut = again.told(&edge, place(21, "x"), stands(9, &[7; 32], false), 3).unwrap();
        assert_eq!((cut.had.sequence, cut.found.hash.as_str()), (9, hex(7).as_str()));
        assert_eq!(again.ask(&edge), 21);
        // A row of before it was known what is asked.
        let old = r#"{"last":{"sequence":4,"hash":"aa"},"told_at_unix_ms":5}"#;
        again.restore(edge.clone(), serde_json::from_str(old).unwrap());
        assert_eq!(again.ask(&edge), 4);
        // One that holds a question for no entry, as it was put once to an edge whose audit was empty.
        let none =
            r#"{"last":{"sequence":4,"hash":"aa"},"told_at_unix_ms":5,"asked":{"sequence":0,"hash":"00"}}"#;
        again.restore(edge.clone(), serde_json::from_str(none).unwrap());
        assert_eq!(again.ask(&edge), 4);
        // A cut that shows by its number alone ends the question, too.
        assert!(again.told(&edge, place(3, "x"), None, 6).is_some());
        assert_eq!(again.ask(&edge), 3);
    }

    /// Found as seed 510: entry 5 had not been answered when the connection ended, entry 9 was told over it, and the audit was cut
    /// and had grown beyond 9 again when the edge came back: only entry 5 was asked for, which was as it had been.
    #[test]
    fn what_was_told_while_a_question_was_open_is_asked_for_too() {
        let edge = EdgeId::parse("ber1").unwrap();
        let mut witness = Witness::default();
        witness.told(&edge, place(5, &hex(5)), None, 1);
        assert_eq!(witness.ask(&edge), 5);
        witness.told(&edge, place(9, &hex(9)), None, 2);
        // The edge's audit is another one from entry 7 on.
        assert_eq!(witness.ask(&edge), 5);
        assert_eq!(witness.told(&edge, place(11, &hex(11)), stands(5, &[5; 32], false), 3), None);
        assert_eq!(witness.told(&edge, place(11, &hex(11)), stands(5, &[5; 32], false), 4), None);
        assert_eq!(witness.ask(&edge), 9);
        let cut = witness.told(&edge, place(12, &hex(12)), stands(9, &[7; 32], false), 5).unwrap();
        assert!(cut.sentence().contains("Entry 9"), "{cut:?}");
        // It goes on from there.
        assert_eq!(witness.ask(&edge), 12);
        assert_eq!(witness.told(&edge, place(13, &hex(13)), stands(12, &[12; 32], false), 6), None);
        assert_eq!(witness.ask(&edge), 13);
    }

    #[test]
    fn an_edge_that_never_answers_adds_no_question_with_each_connection() {
        let edge = EdgeId::parse("ber1").unwrap();
        let mut witness = Witness::default();
        for n in 1..100 {
            witness.told(&edge, place(n, &hex(1)), None, 1);
            assert_eq!(witness.ask(&edge), 1);
        }
        let later = &witness.rows.get(&edge).unwrap().later;
        assert_eq!((later.len(), later.last().unwrap().sequence), (OPEN, 99));
    }
}
