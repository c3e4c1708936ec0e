//! What was used with one key: requests and tokens of each model, in all and by day.
//!
//! Pure. Owns counting, days, and the rows that are stored. Leaves when they are written to `shell::keys`.
//! Invariants: stored numbers are whole ones, never differences, so that writing one twice changes nothing and none
//! goes back; a day of a clock that goes back is counted apart and added when it is read; models and days that wait
//! to be written are bounded.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Models that a key's usage is told apart by; that of more is counted together.
const MODELS: usize = 256;
/// Stands for all models beyond [`MODELS`].
pub(crate) const OTHER_MODELS: &str = "_other";
/// Days that are over and wait to be written; beyond it (a disk that was full for months) the oldest is only in the
/// totals.
const UNWRITTEN_DAYS: usize = 62;

fn none(count: &u64) -> bool {
    *count == 0
}

/// What was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Counts {
    /// Requests that ended, refused ones included.
    #[serde(skip_serializing_if = "none")]
    pub(crate) requests: u64,
    /// Those that the edge refused.
    #[serde(skip_serializing_if = "none")]
    pub(crate) refused: u64,
    /// Tokens of prompts, cached ones included.
    #[serde(skip_serializing_if = "none")]
    pub(crate) prompt_tokens: u64,
    /// Tokens of answers.
    #[serde(skip_serializing_if = "none")]
    pub(crate) completion_tokens: u64,
    /// Tokens of prompts that the engine had kept.
    #[serde(skip_serializing_if = "none")]
    pub(crate) cached_tokens: u64,
    /// Wall time of the last one's end.
    pub(crate) last_used_unix_ms: i64,
}

impl Counts {
    /// Adds what others used.
    pub(crate) fn add(&mut self, more: &Self) {
        self.requests = self.requests.saturating_add(more.requests);
        self.refused = self.refused.saturating_add(more.refused);
        self.prompt_tokens = self.prompt_tokens.saturating_add(more.prompt_tokens);
        self.completion_tokens = self.completion_tokens.saturating_add(more.completion_tokens);
        self.cached_tokens = self.cached_tokens.saturating_add(more.cached_tokens);
        self.last_used_unix_ms = self.last_used_unix_ms.max(more.last_used_unix_ms);
    }
}

/// A day (UTC), counted from 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Day(pub(crate) i32);

impl Day {
    /// The day of a wall time.
    pub(crate) fn of(unix_ms: i64) -> Self {
        Self(i32::try_from(unix_ms.div_euclid(86_400_000)).unwrap_or(i32::MAX))
    }
}

/// A shared text, as JSON.
mod text {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(text: &Arc<str>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<str>, D::Error> {
        String::deserialize(from).map(Arc::from)
    }
}

/// One model's part of a key's row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ModelCounts {
    /// Its own name; empty for requests that came to none.
    #[serde(with = "text")]
    pub(crate) model: Arc<str>,
    /// Since the key was made.
    pub(crate) total: Counts,
    /// Of the day that the row names.
    pub(crate) day: Counts,
}

/// A key's row: totals, and the day that goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UsageRow {
    /// The day that goes on.
    pub(crate) day: Day,
    /// Which of the parts of that day: more than one if the clock went back.
    pub(crate) part: u32,
    /// By model.
    pub(crate) models: Vec<ModelCounts>,
}

/// A day that is over: never changed again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DayRow {
    /// By model.
    pub(crate) models: Vec<DayCounts>,
}

/// One model's part of a day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DayCounts {
    /// Its own name.
    #[serde(with = "text")]
    pub(crate) model: Arc<str>,
    /// What was used.
    pub(crate) counts: Counts,
}

/// Which day's row of a key.
pub(crate) type DayPart = (Day, u32);

/// What a key has used.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    now: UsageRow,
    over: BTreeMap<DayPart, DayRow>,
    unsaved: bool,
}

impl Ledger {
    /// Goes on from what is stored.
    pub(crate) fn restore(&mut self, row: UsageRow) {
        self.now = row;
    }

    /// Counts; true if it has to be written and nobody knew that yet.
    pub(crate) fn count(&mut self, model: &Arc<str>, used: &Counts) -> bool {
        let day = Day::of(used.last_used_unix_ms);
        if day != self.now.day {
            self.turn(day);
        }
        let counts = self.model(model);
        counts.total.add(used);
        counts.day.add(used);
        !std::mem::replace(&mut self.unsaved, true)
    }

    fn model(&mut self, model: &Arc<str>) -> &mut ModelCounts {
        let models = &mut self.now.models;
        // A key asks for few models, and mostly for the same one.
        let known = |known: &ModelCounts| Arc::ptr_eq(&known.model, model) || known.model == *model;
        let at = models.iter().position(known).unwrap_or_else(|| {
            let full = models.len() >= MODELS;
            let name = if full { Arc::from(OTHER_MODELS) } else { Arc::clone(model) };
            models.iter().position(|known| known.model == name).unwrap_or_else(|| {
                models.push(ModelCounts { model: name, total: Counts::default(), day: Counts::default() });
                models.len() - 1
            })
        });
        #[expect(clippy::indexing_slicing, reason = "it was found or pushed just now")]
        &mut models[at]
    }

    fn turn(&mut self, day: Day) {
        let used = self.now.models.iter_mut().filter(|counts| counts.day != Counts::default());
        let models: Vec<_> = used
            .map(|used| DayCounts { model: Arc::clone(&used.model), counts: std::mem::take(&mut used.day) })
            .collect();
        if !models.is_empty() {
            self.over.insert((self.now.day, self.now.part), DayRow { models });
            if self.over.len() > UNWRITTEN_DAYS {
                self.over.pop_first();
            }
        }
        // Only ever up, so that no part of any day is written twice.
        self.now.part = self.now.part.wrapping_add(u32::from(day < self.now.day));
        self.now.day = day;
    }

    /// What has to be written now: the days that are over and the row. Call [`Ledger::saved`] or
    /// [`Ledger::not_saved`] with the outcome.
    pub(crate) fn unsaved(&mut self) -> (Vec<(DayPart, DayRow)>, UsageRow) {
        self.unsaved = false;
        (self.over.iter().map(|(part, row)| (*part, row.clone())).collect(), self.now.clone())
    }

    /// These days are on disk.
    pub(crate) fn saved(&mut self, days: &[DayPart]) {
        for day in days {
            self.over.remove(day);
        }
    }

    /// The disk took nothing; true if nobody knows yet that it has to be written.
    pub(crate) fn not_saved(&mut self) -> bool {
        !std::mem::replace(&mut self.unsaved, true)
    }

    /// Totals of each model.
    pub(crate) fn totals(&self) -> impl Iterator<Item = (&Arc<str>, &Counts)> {
        self.now.models.iter().map(|counts| (&counts.model, &counts.total))
    }

    /// Each model's part of each day that is not on disk as a day's row.
    pub(crate) fn open_days(&self) -> impl Iterator<Item = (Day, &Arc<str>, &Counts)> {
        let now = self.now.models.iter().map(|counts| (self.now.day, &counts.model, &counts.day));
        let over = self
            .over
            .iter()
            .flat_map(|((day, _), row)| row.models.iter().map(|of| (*day, &of.model, &of.counts)));
        over.chain(now.filter(|(_, _, counts)| **counts != Counts::default()))
    }

    /// Wall time at which a request of it last ended.
    pub(crate) fn last_used_unix_ms(&self) -> Option<i64> {
        self.now.models.iter().map(|counts| counts.total.last_used_unix_ms).max()
    }
}

#[cfg(test)]
mod tests;
