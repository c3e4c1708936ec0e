//! How far work of a node is, in words: `fetching 204.0 MiB of 609.8 MiB, 9s left: 41.2 MiB/s, 1 of 2 files`.
//!
//! Owns those words, and what is reckoned of them. Invariant: what a node said is made printable by whoever prints it.

use std::time::{Duration, Instant};

use umbel_contracts::objects::{JobProgressObject, ReplicaJobObject};

use crate::output::{Gauge, bytes, duration_ms};

/// A pace is of so much time at least: the first figures of a phase say nothing.
const LEAST: Duration = Duration::from_secs(2);

/// How far one job is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress<'a> {
    phase: &'a str,
    done: u64,
    total: u64,
    unit: &'a str,
    message: &'a str,
}

impl<'a> From<&'a JobProgressObject> for Progress<'a> {
    fn from(said: &'a JobProgressObject) -> Self {
        let JobProgressObject { phase, done, total, unit, message } = said;
        Self { phase, done: *done, total: *total, unit, message }
    }
}

impl<'a> From<&'a ReplicaJobObject> for Progress<'a> {
    fn from(said: &'a ReplicaJobObject) -> Self {
        let ReplicaJobObject { phase, done, total, unit, message, .. } = said;
        Self { phase, done: *done, total: *total, unit, message }
    }
}

impl Progress<'_> {
    /// For a bar, where it is known how much there is to do.
    pub(crate) fn gauge(&self, left: Option<Duration>) -> Option<Gauge> {
        let Self { done, total, .. } = *self;
        let figures = self.figures(left);
        (total > 0).then(|| Gauge { phase: self.phase.to_owned(), done, total, figures })
    }

    /// In words, with how long it takes yet where that is known.
    pub(crate) fn words(&self, left: Option<Duration>) -> String {
        let figures = self.figures(left);
        match self.total == 0 && self.done == 0 && !figures.is_empty() {
            true => format!("{}: {figures}", self.phase),
            false => format!("{} {figures}", self.phase).trim_end().to_owned(),
        }
    }

    /// Without the phase; what matters most first, since lines are cut.
    fn figures(&self, left: Option<Duration>) -> String {
        let is_bytes = self.unit == "bytes";
        let figure = |value: u64| if is_bytes { bytes(value) } else { value.to_string() };
        let unit = if is_bytes { String::new() } else { format!(" {}", self.unit) };
        let mut text = match (self.total, self.done) {
            (0, 0) => String::new(),
            (0, done) => format!("{}{unit}", figure(done)),
            (total, done) => format!("{} of {}{unit}", figure(done), figure(total)),
        };
        if let Some(left) = left {
            let left = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1000);
            text.push_str(&format!(", {} left", duration_ms(left)));
        }
        if !self.message.is_empty() && self.message != self.phase {
            let colon = if text.is_empty() { "" } else { ": " };
            text.push_str(&format!("{colon}{}", self.message));
        }
        text
    }
}

/// How fast it goes, by the first step that was seen of its phase.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    first: Option<(String, u64, Instant)>,
}

impl Pace {
    /// How long it takes yet.
    pub(crate) fn left(&mut self, progress: &Progress<'_>, now: Instant) -> Option<Duration> {
        let of_phase =
            self.first.as_ref().filter(|(phase, done, _)| *phase == progress.phase && *done <= progress.done);
        let Some((_, first, since)) = of_phase else {
            self.first = Some((progress.phase.to_owned(), progress.done, now));
            return None;
        };
        let took = now.saturating_duration_since(*since);
        let (came, open) = (progress.done - first, progress.total.saturating_sub(progress.done));
        if took < LEAST || came == 0 || open == 0 {
            return None;
        }
        let ms = took.as_millis() * u128::from(open) / u128::from(came);
        Some(Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_told_with_its_figures() {
        let said = JobProgressObject {
            phase: "fetching".into(),
            done: 1 << 20,
            total: 4 << 20,
            unit: "bytes".into(),
            message: "1 of 2 files".into(),
        };
        assert_eq!(Progress::from(&said).words(None), "fetching 1.0 MiB of 4.0 MiB: 1 of 2 files");
        let mut pace = Pace::default();
        let start = Instant::now();
        assert_eq!(pace.left(&Progress::from(&said), start), None);
        let later = JobProgressObject { done: 3 << 20, ..said.clone() };
        let left = pace.left(&Progress::from(&later), start + Duration::from_secs(4));
        assert_eq!(left, Some(Duration::from_secs(2)));
        let words = Progress::from(&later).words(left);
        assert_eq!(words, "fetching 3.0 MiB of 4.0 MiB, 2s left: 1 of 2 files");
        let gauge = Progress::from(&later).gauge(left).map(|gauge| (gauge.done, gauge.total, gauge.figures));
        let figures = "3.0 MiB of 4.0 MiB, 2s left: 1 of 2 files".to_owned();
        assert_eq!(gauge, Some((3 << 20, 4 << 20, figures)));
        let next = JobProgressObject { phase: "verifying".into(), done: 0, ..said };
        assert_eq!(pace.left(&Progress::from(&next), start + Duration::from_secs(5)), None);
        let layers =
            JobProgressObject { phase: "loading".into(), total: 5, done: 2, unit: "layers".into(), ..next };
        assert!(Progress::from(&layers).words(None).starts_with("loading 2 of 5 layers"));
        let starting = JobProgressObject { phase: "starting".into(), ..JobProgressObject::default() };
        assert_eq!(Progress::from(&starting).words(None), "starting");
        let waits = JobProgressObject { message: "its port is not open".into(), ..starting };
        assert_eq!(Progress::from(&waits).words(None), "starting: its port is not open");
    }
}
