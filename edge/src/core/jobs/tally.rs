//! What became of jobs since this process started, for metrics.
//!
//! Owns the words that may be labels. Leaves the text to the shell. Invariants: a job is counted with the change that ends it,
//! never when it is read from disk; a kind or code that this edge does not know is `other`, whatever a node says.

use std::collections::BTreeMap;

use umbel_contracts::causes;
use umbel_contracts::objects::JobState;

use super::row::JobRow;
use super::told::CANCELLED;

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

/// Why attempts come to nothing, and why engines fail, in the words of nodes and of this edge.
pub(crate) const CODES: [&str; 49] = [
    causes::AGENT_STOPPED,
    "ARTIFACT_MISSING",
    "ARTIFACT_UNFIT",
    CANCELLED,
    "CAPABILITY_MISSING",
    causes::CRASH_LOOP,
    causes::CUDA_ERROR,
    "DIGEST_MISMATCH",
    "DISK",
    "DOES_NOT_END",
    "ENGINE_DIFFERS",
    causes::ENGINE_EXPOSED,
    "GPU_IN_USE",
    causes::GPU_MEMORY_HELD,
    "GPU_MISSING",
    "HEALTH_FAILED",
    "INFERENCE_FAILED",
    "INTERNAL",
    "IN_USE",
    "LEFT_OVER",
    "MEMORY",
    "MODEL_MISSING",
    "NAME_REFUSED",
    "NODE_GONE",
    "NOT_ALLOWED",
    "NOT_DEPLOYED",
    "NOT_FOUND",
    causes::OUT_OF_MEMORY,
    causes::PORT_TAKEN,
    "PORT_NOT_OPEN",
    "PROCESS_EXITED",
    "PROCESS_LOST",
    "PROFILE_REFUSED",
    "PROGRAM_MISSING",
    "REPORT_REFUSED",
    "ROOT_UNKNOWN",
    "SIZE_MISMATCH",
    "SOURCE_REFUSED",
    "SOURCE_UNKNOWN",
    "SOURCE_UNREACHABLE",
    "SPACE",
    "STALLED",
    "STATE_NOT_WRITABLE",
    "STILL_LEAVING",
    "STILL_RUNS",
    "TIMED_OUT",
    "TOO_MANY_ENGINES",
    "UNKNOWN_ENGINE",
    "UNLOADED",
];

/// Upper ends of a duration's buckets, in seconds: a look takes one, weights of a large model an hour and more.
pub(crate) const BUCKETS: [f64; 12] =
    [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1_800.0, 3_600.0, 7_200.0, 21_600.0];

/// A word as it may be a label.
pub(crate) fn word(known: &[&'static str], said: &str) -> &'static str {
    known.iter().copied().find(|word| *word == said).unwrap_or("other")
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
        let kind = word(&KINDS, &after.kind);
        if after.failures > before.failures {
            let code = after.failure.as_ref().map_or("", |failure| failure.code.as_str());
            *self.failures.entry((kind, word(&CODES, code))).or_default() += 1;
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
