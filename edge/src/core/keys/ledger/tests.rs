//! Ledgers against a plain list of what was used, with clocks that jump, disks that fill up, and crashes.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeMap;

use quickcheck::{Arbitrary, Gen, quickcheck};

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Used { model: u8, tokens: u16 },
    Clock(i8),
    Write,
    DiskFull,
    Crash,
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        match u8::arbitrary(g) % 12 {
            0..=5 => Self::Used { model: u8::arbitrary(g) % 3, tokens: u16::arbitrary(g) },
            6 | 7 => Self::Clock(i8::arbitrary(g) % 3),
            8 | 9 => Self::Write,
            10 => Self::DiskFull,
            _ => Self::Crash,
        }
    }
}

#[derive(Clone, Default)]
struct Disk {
    row: UsageRow,
    days: BTreeMap<DayPart, DayRow>,
}

type Sums = BTreeMap<(Day, Arc<str>), (u64, u64)>;

fn add(sums: &mut Sums, day: Day, model: &Arc<str>, counts: &Counts) {
    let sum = sums.entry((day, Arc::clone(model))).or_default();
    sum.0 += counts.requests;
    sum.1 += counts.prompt_tokens;
}

/// What a reader sees: days on disk and what the ledger has beside them.
fn by_day(disk: &Disk, ledger: &Ledger) -> Sums {
    let mut sums = Sums::new();
    for ((day, _), row) in &disk.days {
        row.models.iter().for_each(|of| add(&mut sums, *day, &of.model, &of.counts));
    }
    ledger.open_days().for_each(|(day, model, counts)| add(&mut sums, day, model, counts));
    sums
}

fn totals(ledger: &Ledger) -> BTreeMap<Arc<str>, (u64, u64)> {
    ledger.totals().map(|(model, of)| (Arc::clone(model), (of.requests, of.prompt_tokens))).collect()
}

fn write(disk: &mut Disk, ledger: &mut Ledger) {
    let (days, row) = ledger.unsaved();
    let parts: Vec<DayPart> = days.iter().map(|(part, _)| *part).collect();
    for (part, row) in days {
        let before = disk.days.insert(part, row.clone());
        assert!(before.is_none_or(|before| before == row), "a day that is over is another one");
    }
    // As it is read back.
    disk.row = serde_json::from_slice(&serde_json::to_vec(&row).unwrap()).unwrap();
    ledger.saved(&parts);
}

quickcheck! {
    /// Days and totals are what was used; a crash goes back to what was written, and to nothing older.
    fn what_is_read_is_what_was_used(steps: Vec<Step>) -> bool {
        let names: Vec<Arc<str>> = ["a", "b", ""].map(Arc::from).to_vec();
        let (mut disk, mut ledger) = (Disk::default(), Ledger::default());
        let (mut model, mut written) = (Sums::new(), Sums::new());
        let mut day = 100_i64;
        for step in steps {
            match step {
                Step::Used { model: name, tokens } => {
                    let last_used_unix_ms = day * 86_400_000 + 5;
                    let used = Counts { requests: 1, prompt_tokens: tokens.into(), last_used_unix_ms, ..Counts::default() };
                    ledger.count(&names[usize::from(name)], &used);
                    add(&mut model, Day::of(last_used_unix_ms), &names[usize::from(name)], &used);
                }
                Step::Clock(days) => day += i64::from(days),
                Step::Write => {
                    write(&mut disk, &mut ledger);
                    written = model.clone();
                }
                Step::DiskFull => {
                    ledger.unsaved();
                    assert!(ledger.not_saved() && !ledger.not_saved());
                }
                Step::Crash => {
                    ledger = Ledger::default();
                    ledger.restore(disk.row.clone());
                    model = written.clone();
                }
            }
            let mut sums = BTreeMap::<Arc<str>, (u64, u64)>::new();
            for ((_, name), of) in &model {
                let sum = sums.entry(Arc::clone(name)).or_default();
                *sum = (sum.0 + of.0, sum.1 + of.1);
            }
            if by_day(&disk, &ledger) != model || totals(&ledger) != sums {
                return false;
            }
        }
        true
    }
}

#[test]
fn models_and_days_that_wait_are_bounded_and_totals_keep_all() {
    let mut ledger = Ledger::default();
    let used =
        |day: i64| Counts { requests: 1, last_used_unix_ms: day * 86_400_000 + 1, ..Counts::default() };
    for model in 0..2 * MODELS {
        ledger.count(&Arc::from(model.to_string()), &used(0));
    }
    assert_eq!(ledger.totals().count(), MODELS + 1);
    let other = ledger.totals().find(|(model, _)| &***model == OTHER_MODELS).unwrap();
    assert_eq!(other.1.requests, MODELS as u64);
    for day in 1..500 {
        ledger.count(&Arc::from("0"), &used(day));
    }
    assert_eq!(ledger.over.len(), UNWRITTEN_DAYS);
    assert_eq!(ledger.totals().map(|(_, of)| of.requests).sum::<u64>(), 2 * MODELS as u64 + 499);
    assert_eq!(ledger.last_used_unix_ms(), Some(499 * 86_400_000 + 1));
    let (_, row) = ledger.unsaved();
    assert!(serde_json::to_vec(&row).unwrap().len() < 128 * 1024, "far below what a row may have");
}

#[test]
fn only_the_first_change_has_to_be_told() {
    let mut ledger = Ledger::default();
    let (model, used) = (Arc::from("m"), Counts { requests: 1, ..Counts::default() });
    assert!(ledger.count(&model, &used) && !ledger.count(&model, &used));
    ledger.unsaved();
    assert!(ledger.count(&model, &used));
}
