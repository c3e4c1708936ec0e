//! The last place of each edge's audit that this control plane was told: whoever cuts the tail of an edge's audit, or
//! puts an older store in its place, is seen.
//!
//! Owns the judgement. Leaves storing to the shell; what is in memory is written now and then, since an older place
//! shows a cut as well, only later. Invariant: a place is only replaced by a later one, or by a cut that is told.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use umbel_contracts::proto::control::{EdgeSummary, StoreHealth};
use umbel_store::Commit;
use umbel_wire::ids::EdgeId;

use super::audit::{Deed, Detail};

/// Table of [`WitnessRow`]s, keyed by edge id.
pub(crate) const WITNESS: &str = "audit_heads";
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
        if had == found {
            return format!(
                "Entry {had} of the edge's audit has another hash than it had: its audit was rewritten. Compare with an \
                 export, and find out who could write the edge's files."
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

    /// What an edge told with its heartbeat; the cut, if it is one. Answers of one connection come in their order.
    pub(crate) fn told(&mut self, edge_id: &EdgeId, place: Place, now_unix_ms: i64) -> Option<Cut> {
        let Some(row) = self.rows.get_mut(edge_id) else {
            self.rows
                .insert(edge_id.clone(), WitnessRow { last: place, told_at_unix_ms: now_unix_ms, cut: None });
            self.changed(edge_id);
            return None;
        };
        if row.last == place {
            return None;
        }
        let goes_on = place.sequence > row.last.sequence;
        let cut =
            (!goes_on).then(|| Cut { at_unix_ms: now_unix_ms, had: row.last.clone(), found: place.clone() });
        row.last = place;
        row.told_at_unix_ms = now_unix_ms;
        if cut.is_some() {
            row.cut.clone_from(&cut);
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
        assert_eq!(witness.told(&edge, place(7, "a"), 1), None);
        assert_eq!(witness.told(&edge, place(7, "a"), 2), None);
        assert_eq!(witness.told(&edge, place(9, "b"), 3), None);
        assert!(witness.cut(&edge, 3).is_none());
        let cut = witness.told(&edge, place(4, "c"), 4).unwrap();
        assert_eq!((cut.had.sequence, cut.found.sequence), (9, 4));
        // It goes on from there, and stays a problem for its time.
        assert_eq!(witness.told(&edge, place(10, "d"), 5), None);
        assert_eq!(witness.cut(&edge, 5), Some(&cut));
        assert!(witness.cut(&edge, 5 + SHOWN_MS).is_none());
        let rewritten = witness.told(&edge, place(10, "e"), 6).unwrap();
        assert!(rewritten.sentence().contains("rewritten"));
    }

    #[test]
    fn what_changed_is_written_once_and_read_back() {
        let (edge, other) = (EdgeId::parse("ber1").unwrap(), EdgeId::parse("ham1").unwrap());
        let mut witness = Witness::default();
        for n in 1..5 {
            witness.told(&edge, place(n, "x"), 1);
        }
        witness.told(&other, place(1, "x"), 1);
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
        assert!(again.told(&edge, place(3, "x"), 2).is_some(), "a cut over a restart is seen");
        again.forget(&other);
        assert!(again.told(&other, place(0, ""), 2).is_none());
    }
}
