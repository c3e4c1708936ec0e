//! What became of jobs since this process started, for metrics.
//!
//! Owns the kinds of work that may be labels. Leaves names of failures to [`causes`], the text to the shell. Invariants: a job is
//! counted with the change that ends it, never when it is read from disk; a kind or code that this edge does not know is
//! `other`, whatever a node says.

use std::collections::BTreeMap;

use umbel_contracts::causes;
use umbel_contracts::objects::JobState;

use super::row::JobRow;

/// Kinds of work.
pub(crate) const KINDS: [&str; 9] = [
    "artifact.acquire",
    "artifact.remove",
    "runtime.probe",
    "runtime.health",
    "runtime.unload",
    "deployment.load",
    "deployment.health",
    "deployment.drain",
    "deployment.unload",
];

/// Upper ends of a duration's buckets, in seconds: a look takes one, weights of a large model an hour and more.
pub(crate) const BUCKETS: [f64; 12] =
    [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1_800.0, 3_600.0, 7_200.0, 21_600.0];

/// A kind of work as it may be a label.
pub(crate) fn kind(said: &str) -> &'static str {
    KINDS.into_iter().find(|kind| *kind == said).unwrap_or(causes::OTHER)
}

/// Durations of one kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Durations {
    /// One a bucket, and those above the last.
    pub(crate) counts: [u64; BUCKETS.len() + 1],
    pub(crate) sum: f64,
}

/// All counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    /// By kind and outcome.
    pub(crate) ended: BTreeMap<(&'static str, &'static str), u64>,
    /// Attempts that came to nothing, by kind and code.
    pub(crate) failures: BTreeMap<(&'static str, &'static str), u64>,
    /// From the first lease to the end, by kind.
    pub(crate) durations: BTreeMap<&'static str, Durations>,
    /// Bytes that nodes fetched for jobs that came to their good end.
    pub(crate) fetched_bytes: u64,
}

impl Tally {
    /// A job's row becomes another; the new one as it is on disk.
    pub(crate) fn note(&mut self, before: &JobRow, after: &JobRow) {
        let kind = kind(&after.kind);
        if after.failures > before.failures {
            let code = after.failure.as_ref().map_or("", |failure| failure.code.as_str());
            *self.failures.entry((kind, causes::label(code))).or_default() += 1;
        }
        if before.state.is_end() || !after.state.is_end() {
            return;
        }
        let outcome = match after.state {
            JobState::Succeeded => "succeeded",
            JobState::Cancelled => "cancelled",
            _ => "failed",
        };
        *self.ended.entry((kind, outcome)).or_default() += 1;
        if let (Some(started), Some(ended)) = (after.started_at_unix_ms, after.ended_at_unix_ms) {
            self.took(kind, ended.saturating_sub(started));
        }
        let artifact = after.report().and_then(|report| report.artifact);
        self.fetched_bytes += artifact.map_or(0, |artifact| artifact.fetched_bytes);
    }

    fn took(&mut self, kind: &'static str, milliseconds: i64) {
        let seconds = f64::from(u32::try_from(milliseconds.max(0)).unwrap_or(u32::MAX)) / 1e3;
        let of_kind = self.durations.entry(kind).or_default();
        let at = BUCKETS.iter().position(|end| seconds <= *end).unwrap_or(BUCKETS.len());
        if let Some(count) = of_kind.counts.get_mut(at) {
            *count += 1;
        }
        of_kind.sum += seconds;
    }
}
