//! What is used with each key, counted in memory and written in groups.
//!
//! Owns when it is written, and reading it back. Leaves counting to [`crate::core::keys::ledger`]. Invariants: a request
//! waits for no disk; what is written are whole numbers, so that a lost write loses the last seconds and nothing goes
//! back; on a full disk counting goes on, and it is written later.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use umbel_store::{Commit, ReadError, Row, Store};
use umbel_wire::clock::Wall;

use super::Keys;
use crate::core::keys::ledger::{Counts, Day, DayPart, DayRow, UsageRow};
use crate::core::keys::{Caller, KeyPermit, KeyState};
use crate::core::usage::Usage;

/// Totals and the day that goes on, one row a key.
pub(super) const USAGE: &str = "key_usage";
/// Days that are over: `DAY/KEY/PART`.
const DAYS: &str = "key_usage_days";
/// How often it is written: what kill -9 can lose.
const EVERY: Duration = Duration::from_secs(5);
/// Days on which anything was used that are kept apart; older ones are in the totals only.
pub(crate) const DAYS_KEPT: usize = 62;
/// Rows of one commit or one read.
const ROWS: usize = 500;

/// What of the ledgers is not on disk.
#[derive(Debug, Default)]
pub(super) struct Writing {
    /// Ledgers with something to write.
    changed: Mutex<Vec<Arc<KeyState>>>,
    /// One at a time.
    turn: tokio::sync::Mutex<()>,
    /// Days that have rows on disk.
    days: Mutex<BTreeSet<Day>>,
}

/// What was used with a key of a model, on a day where it was asked by day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) day: Option<Day>,
    pub(crate) key_id: Arc<str>,
    pub(crate) model: Arc<str>,
    pub(crate) counts: Counts,
}

/// Which usage is asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) key_id: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) by_day: bool,
    pub(crate) since: Option<Day>,
}

type Sums = BTreeMap<(Arc<str>, Arc<str>), Counts>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn days_of(day: Day, key_id: Option<&str>) -> (String, String) {
    match key_id {
        // `0` is the character after `/`.
        None => (format!("{:010}/", day.0), format!("{:010}0", day.0)),
        Some(key_id) => (format!("{:010}/{key_id}/", day.0), format!("{:010}/{key_id}0", day.0)),
    }
}

fn key_of(key: &str) -> Option<&str> {
    key.split('/').nth(1)
}

impl Writing {
    /// Reads what is stored into the ledgers, and which days there are.
    pub(super) async fn open(store: &Store, keys: &Keys) -> Result<(), ReadError> {
        let table = keys.table.load_full();
        for (stored, row) in store.load_json::<UsageRow>(USAGE).await? {
            if let Some(state) = table.state(&stored.key) {
                state.ledger().restore(row);
            }
        }
        let mut from = String::new();
        // One row a day is looked at, whatever number there is.
        while let Some(row) = first(store, &from).await? {
            let Some(day) = row.split('/').next().and_then(|day| day.parse().ok()).map(Day) else { break };
            lock(&keys.writing.days).insert(day);
            from = days_of(day, None).1;
        }
        Ok(())
    }
}

/// The key of the first row of a day from there on.
async fn first(store: &Store, from: &str) -> Result<Option<String>, ReadError> {
    let (rows, _) = store.load_range(DAYS, from, "~", 1).await?;
    Ok(rows.into_iter().next().map(|row| row.key))
}

impl Keys {
    /// A request is over, with these tokens, and so is its permit.
    pub(crate) fn used(
        &self,
        (now, wall): (Instant, Wall),
        permit: KeyPermit,
        model: &Arc<str>,
        usage: &Usage,
    ) {
        let state = Arc::clone(permit.state());
        let tokens = usage.prompt_tokens.saturating_add(usage.completion_tokens);
        permit.settle(now, tokens);
        let counts = Counts {
            requests: 1,
            refused: 0,
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            cached_tokens: usage.cached_tokens,
            last_used_unix_ms: wall.unix_ms(),
        };
        self.count(&state, model, &counts);
    }

    /// This edge refused a request of this caller; no engine worked on it. `model` is its own name, empty if the
    /// request came to none.
    pub(crate) fn refused(&self, caller: &Caller, model: &Arc<str>) {
        let last_used_unix_ms = Wall::now().unix_ms();
        self.count(
            caller.state(),
            model,
            &Counts { requests: 1, refused: 1, last_used_unix_ms, ..Counts::default() },
        );
    }

    pub(super) fn count(&self, state: &Arc<KeyState>, model: &Arc<str>, counts: &Counts) {
        if state.ledger().count(model, counts) {
            lock(&self.writing.changed).push(Arc::clone(state));
        }
    }

    /// What was used with each key in all, of every key that was used: for metrics.
    pub(crate) fn by_key(&self) -> Vec<(Arc<str>, Counts)> {
        let total = |state: &Arc<KeyState>| {
            let mut all = Counts::default();
            state.ledger().totals().for_each(|(_, of_model)| all.add(of_model));
            (all != Counts::default()).then(|| (Arc::clone(&state.key_id), all))
        };
        let mut totals: Vec<_> = self.table.load().states().filter_map(total).collect();
        totals.sort_by(|(a, _), (b, _)| a.cmp(b));
        totals
    }

    /// Writes what was used, for ever.
    pub(crate) async fn keep(self: Arc<Self>) {
        loop {
            tokio::time::sleep(EVERY).await;
            self.flush().await;
        }
    }

    /// Writes what was used since the last time. What cannot be written is kept for the next time.
    pub(crate) async fn flush(&self) {
        let _turn = self.writing.turn.lock().await;
        let mut changed = std::mem::take(&mut *lock(&self.writing.changed)).into_iter();
        loop {
            let (mut commit, mut written) = (Commit::new(), Vec::new());
            while commit.effects.len() < ROWS
                && let Some(state) = changed.next()
            {
                let (days, row) = state.ledger().unsaved();
                for ((day, part), row) in &days {
                    let key = format!("{:010}/{}/{part}", day.0, state.key_id);
                    commit = commit.put_json(DAYS, key, row);
                }
                commit = commit.put_json(USAGE, &*state.key_id, &row);
                written.push((state, days.into_iter().map(|(day, _)| day).collect::<Vec<DayPart>>()));
            }
            if written.is_empty() {
                break;
            }
            if let Err(error) = self.store.commit(commit).await {
                tracing::warn!(%error, "what keys have used could not be written; it stays in memory");
                let rest = written.into_iter().map(|(state, _)| state).chain(changed);
                let rest: Vec<_> = rest.filter(|state| state.ledger().not_saved()).collect();
                lock(&self.writing.changed).extend(rest);
                return;
            }
            for (state, days) in written {
                state.ledger().saved(&days);
                lock(&self.writing.days).extend(days.into_iter().map(|(day, _)| day));
            }
        }
        self.forget().await;
    }

    /// Removes the oldest days while there are too many.
    async fn forget(&self) {
        loop {
            let oldest = {
                let days = lock(&self.writing.days);
                days.first().copied().filter(|_| days.len() > DAYS_KEPT)
            };
            let Some(day) = oldest else { return };
            let (from, to) = days_of(day, None);
            let (rows, next) = match self.store.load_range(DAYS, &from, &to, ROWS).await {
                Ok(found) => found,
                Err(error) => return tracing::warn!(%error, "old usage of keys could not be read"),
            };
            let commit = rows.into_iter().fold(Commit::new(), |commit, row| commit.remove(DAYS, row.key));
            if let Err(error) = self.store.commit(commit).await {
                return tracing::warn!(%error, "old usage of keys could not be removed; it is tried again");
            }
            if next.is_none() {
                lock(&self.writing.days).remove(&day);
            }
        }
    }

    /// When a request last ended with each key.
    pub(crate) fn last_used(&self, key_id: &str) -> Option<i64> {
        self.table.load().state(key_id)?.ledger().last_used_unix_ms()
    }

    /// What was used: by key and model, days newest first. Rows up to `after` are passed over; at most `most` are
    /// given, and whether there are more.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub(crate) async fn usage(
        &self,
        asked: &Asked,
        after: Option<&(Option<Day>, String, String)>,
        most: usize,
    ) -> Result<(Vec<Used>, bool), ReadError> {
        let is_later = |(key, model): &(Arc<str>, Arc<str>)| {
            after.is_none_or(|(_, after, of)| (&**key, &**model) > (after.as_str(), of.as_str()))
        };
        let mut found = Vec::new();
        let at = after.and_then(|(day, _, _)| *day);
        for (day, days) in self.spans(asked, at) {
            // What was shown of this one before is passed over.
            let goes_on = after.filter(|_| day == at);
            let mut from = goes_on.map_or_else(String::new, |(_, key_id, _)| key_id.clone());
            loop {
                let (sums, next) = match &days {
                    None => (self.totals(asked), None),
                    Some(days) => self.of_days(asked, days.clone(), &from).await?,
                };
                let rest = sums.into_iter().filter(|(of, _)| goes_on.is_none() || is_later(of));
                found.extend(rest.take(most + 1).map(used(day)));
                match next {
                    Some(next) if found.len() <= most => from = next,
                    _ => break,
                }
            }
            if found.len() > most {
                break;
            }
        }
        let more = found.len() > most;
        found.truncate(most);
        Ok((found, more))
    }

    /// What is summed together, in the order in which it is shown: all that was ever used, what was since a day, or each
    /// day, the newest first, from the one `at` which a page goes on.
    fn spans(&self, asked: &Asked, at: Option<Day>) -> Vec<(Option<Day>, Option<RangeInclusive<Day>>)> {
        if !asked.by_day {
            return vec![(None, asked.since.map(|since| since..=Day(i32::MAX)))];
        }
        let days = self.days(asked, &(asked.since.unwrap_or(Day(i32::MIN))..=at.unwrap_or(Day(i32::MAX))));
        days.into_iter().rev().map(|day| (Some(day), Some(day..=day))).collect()
    }

    fn totals(&self, asked: &Asked) -> Sums {
        let mut sums = Sums::new();
        for state in self.asked(asked) {
            for (model, counts) in state.ledger().totals().filter(|(model, _)| asked.takes(model)) {
                sums.insert((Arc::clone(&state.key_id), Arc::clone(model)), *counts);
            }
        }
        sums
    }

    fn asked(&self, asked: &Asked) -> Vec<Arc<KeyState>> {
        let table = self.table.load();
        match &asked.key_id {
            Some(key_id) => table.state(key_id).cloned().into_iter().collect(),
            None => table.states().cloned().collect(),
        }
    }

    /// Days among these that may have usage.
    fn days(&self, asked: &Asked, among: &RangeInclusive<Day>) -> BTreeSet<Day> {
        let mut days: BTreeSet<Day> = lock(&self.writing.days).range(among.clone()).copied().collect();
        for state in self.asked(asked) {
            days.extend(state.ledger().open_days().map(|(day, _, _)| day).filter(|day| among.contains(day)));
        }
        days
    }

    /// What was used on these days with the keys from `from` on, and from which key on there is more: of each day so
    /// many rows are read as one read takes, so that a page costs no more than itself however many keys there are.
    async fn of_days(
        &self,
        asked: &Asked,
        days: RangeInclusive<Day>,
        from: &str,
    ) -> Result<(Sums, Option<String>), ReadError> {
        // What is written while this reads must be seen once: nothing is written meanwhile.
        let _turn = self.writing.turn.lock().await;
        let mut sums = Sums::new();
        for state in self.asked(asked).into_iter().filter(|state| &*state.key_id >= from) {
            for (_, model, counts) in state.ledger().open_days().filter(|(day, _, _)| days.contains(day)) {
                add(&mut sums, asked, &state.key_id, model, counts);
            }
        }
        let mut whole_below: Option<String> = None;
        for day in self.days(asked, &days) {
            let next = self.rows_of_day(asked, day, from, &mut sums).await?;
            whole_below = match (whole_below, next) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        if let Some(below) = &whole_below {
            sums.retain(|(key_id, _), _| **key_id < **below);
        }
        Ok((sums, whole_below))
    }

    /// Adds the rows of one day with keys from `from` on, about as many as one read takes, and says which key is next.
    async fn rows_of_day(
        &self,
        asked: &Asked,
        day: Day,
        from: &str,
        sums: &mut Sums,
    ) -> Result<Option<String>, ReadError> {
        let (mut at, to) = days_of(day, asked.key_id.as_deref());
        if !from.is_empty() {
            at = at.max(days_of(day, Some(from)).0);
        }
        loop {
            let (rows, next) = self.store.load_range(DAYS, &at, &to, ROWS).await?;
            for row in rows {
                self.add_row(asked, &row, sums);
            }
            let Some(next) = next else { return Ok(None) };
            match key_of(&next) {
                // A key's parts are read to their end.
                Some(key_id) if key_id == from => at = next,
                key_id => return Ok(key_id.map(str::to_owned)),
            }
        }
    }

    fn add_row(&self, asked: &Asked, row: &Row, sums: &mut Sums) {
        let Some(key_id) = key_of(&row.key).map(Arc::<str>::from) else { return };
        match row.json::<DayRow>() {
            Ok(stored) => {
                stored.models.iter().for_each(|of| add(sums, asked, &key_id, &of.model, &of.counts));
            }
            Err(_) => self.store.not_usable(DAYS, &row.key, "it does not decode"),
        }
    }
}

fn add(sums: &mut Sums, asked: &Asked, key_id: &Arc<str>, model: &Arc<str>, counts: &Counts) {
    if asked.takes(model) {
        sums.entry((Arc::clone(key_id), Arc::clone(model))).or_default().add(counts);
    }
}

impl Asked {
    fn takes(&self, model: &str) -> bool {
        self.model.as_ref().is_none_or(|wanted| *wanted == *model)
    }
}

/// A key's id and a model's name.
type KeyAndModel = (Arc<str>, Arc<str>);

fn used(day: Option<Day>) -> impl Fn((KeyAndModel, Counts)) -> Used {
    move |((key_id, model), counts)| Used { day, key_id, model, counts }
}
