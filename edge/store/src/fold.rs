//! Repeats in the audit are one entry and a count.
//!
//! Pure: owns which entries are told and which are only counted. Invariants: the first of its kind is told at once;
//! each one is told or counted, so that the entries' counts add up; what is remembered is bounded.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::audit::AuditRecord;
use crate::limits;

/// Entries that say the same within this time are one and a count.
const WINDOW: Duration = Duration::from_secs(60);
/// Entries of commands that say the same and are told all the same: each names its own command, and people do not ask
/// faster.
const COMMANDS: u64 = 20;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Kind {
    actor: String,
    action: String,
    subject: String,
    outcome: String,
    detail: String,
}

#[derive(Debug)]
struct Seen {
    ends: Instant,
    told: u64,
    counted: u64,
}

/// What was told lately.
#[derive(Debug, Default)]
pub(crate) struct Folds {
    kinds: HashMap<Kind, Seen>,
}

impl Folds {
    /// The entry, if it is to be told now; else it is counted.
    pub(crate) fn take(&mut self, now: Instant, record: AuditRecord) -> Option<AuditRecord> {
        let most = if record.command_id.is_empty() { 1 } else { COMMANDS };
        let mut kind = Kind {
            actor: record.actor.clone(),
            action: record.action.clone(),
            subject: record.subject.clone(),
            outcome: record.outcome.clone(),
            detail: record.detail.clone(),
        };
        let mut told = Some(record);
        if !self.kinds.contains_key(&kind) && self.kinds.len() >= limits::AUDIT_KINDS {
            // More kinds than anybody could read: of each action only the number is kept.
            kind = Kind {
                actor: String::new(),
                subject: "various".to_owned(),
                outcome: String::new(),
                detail: "of different kinds".to_owned(),
                action: kind.action,
            };
            told = None;
        }
        let seen = self.kinds.entry(kind).or_insert(Seen { ends: now + WINDOW, told: 0, counted: 0 });
        match told {
            Some(record) if seen.told < most => {
                seen.told += 1;
                Some(record)
            }
            _ => {
                seen.counted += 1;
                None
            }
        }
    }

    /// The counts of all whose time has ended; of all of them, with `all`.
    pub(crate) fn ended(&mut self, now: Instant, all: bool) -> Vec<AuditRecord> {
        let mut counts = Vec::new();
        self.kinds.retain(|kind, seen| {
            if seen.ends > now && !all {
                return true;
            }
            if seen.counted > 0 {
                counts.push(count(kind, seen.counted));
            }
            false
        });
        counts
    }
}

#[cfg(feature = "simulation")]
impl Folds {
    /// How many were counted and not told yet.
    pub(crate) fn pending(&self) -> u64 {
        self.kinds.values().map(|seen| seen.counted).sum()
    }
}

fn count(kind: &Kind, counted: u64) -> AuditRecord {
    let times = if counted == 1 { "once more".to_owned() } else { format!("{counted} times more") };
    let sentence = format!("{times} within {} s: {}", WINDOW.as_secs(), kind.detail);
    AuditRecord::new(&kind.action, &kind.subject, &kind.outcome).by(&kind.actor).because(sentence)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
    use super::*;

    fn refused(subject: &str) -> AuditRecord {
        AuditRecord::new("token.refused", subject, "refused").by("edge").because("expired")
    }

    /// Row 108: a thousand refusals a second for ten minutes are some entries, and the count is right.
    #[test]
    fn a_flood_is_one_entry_and_a_count_a_minute() {
        let mut folds = Folds::default();
        let start = Instant::now();
        let (mut told, mut counted) = (0_u64, 0_u64);
        let number = |record: &AuditRecord| {
            let first = record.detail.split(' ').next().unwrap();
            if first == "once" { 1 } else { first.parse::<u64>().unwrap() }
        };
        let mut entries = 0;
        for ms in 0..600_000_u64 {
            let now = start + Duration::from_millis(ms);
            told += u64::from(folds.take(now, refused("t1")).is_some());
            if ms % 1_000 == 0 {
                let ended = folds.ended(now, false);
                counted += ended.iter().map(number).sum::<u64>();
                entries += ended.len();
            }
        }
        let ended = folds.ended(start + Duration::from_secs(600), true);
        counted += ended.iter().map(number).sum::<u64>();
        assert_eq!(told + counted, 600_000);
        assert!(told <= 11 && entries + ended.len() <= 11, "{told} {entries}");
    }

    #[test]
    fn different_things_and_commands_are_told_each() {
        let mut folds = Folds::default();
        let now = Instant::now();
        assert!(folds.take(now, refused("t1")).is_some() && folds.take(now, refused("t2")).is_some());
        assert!(folds.take(now, refused("t1").because("revoked")).is_some());
        assert!(folds.take(now, refused("t1")).is_none());
        for n in 0..COMMANDS {
            // One was told before.
            assert!(folds.take(now, refused("t1").of(n.to_string(), "")).is_some() == (n + 1 < COMMANDS));
        }
    }

    #[test]
    fn what_is_remembered_is_bounded_and_nothing_is_lost() {
        let mut folds = Folds::default();
        let now = Instant::now();
        let told = (0..limits::AUDIT_KINDS + 500)
            .filter(|n| folds.take(now, refused(&n.to_string())).is_some())
            .count();
        assert_eq!((told, folds.kinds.len()), (limits::AUDIT_KINDS, limits::AUDIT_KINDS + 1));
        let ended = folds.ended(now, true);
        assert_eq!(ended.len(), 1);
        assert!(ended[0].detail.starts_with("500 times more"), "{:?}", ended[0]);
        assert!(folds.kinds.is_empty());
    }
}
