//! When the certificates that this edge itself shows or signs with end: for metrics, and for people two weeks before.
//!
//! Leaves nodes' certificates to the registry. Invariant: one that is renewed is told of no more.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use umbel_contracts::proto::control::Problem;
use umbel_wire::clock::Wall;

use crate::core::registry::problems::CERTIFICATE_ENDS;
use crate::core::rotation::WARNED;

/// Ends by name: `nodes`, `https`, `authority`, `control-plane/NAME`.
#[derive(Debug, Default)]
pub(crate) struct Expiries(Mutex<BTreeMap<String, Wall>>);

impl Expiries {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Wall>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A certificate in use ends then. Says so in the log when that is soon, and news.
    pub(crate) fn set(&self, name: &str, ends: Wall) {
        let before = self.lock().insert(name.to_owned(), ends);
        if before != Some(ends) && Wall::now() + WARNED > ends {
            tracing::warn!(certificate = name, days = days(ends, Wall::now()), "a certificate ends soon");
        }
    }

    /// Keeps only what `of` says of those whose names begin so.
    pub(crate) fn retain(&self, prefix: &str, of: impl Fn(&str) -> bool) {
        self.lock().retain(|name, _| name.strip_prefix(prefix).is_none_or(&of));
    }

    /// When each ends.
    pub(crate) fn ends(&self) -> Vec<(String, Wall)> {
        self.lock().iter().map(|(name, ends)| (name.clone(), *ends)).collect()
    }

    /// Days until each ends; negative when it has.
    #[cfg(test)]
    pub(crate) fn days(&self, now: Wall) -> Vec<(String, f64)> {
        self.lock().iter().map(|(name, ends)| (name.clone(), days(*ends, now))).collect()
    }

    /// Those that end within two weeks.
    pub(crate) fn problems(&self, now: Wall) -> Vec<Problem> {
        let soon = |(name, ends): (&String, &Wall)| Problem {
            code: CERTIFICATE_ENDS.to_owned(),
            message: format!(
                "the certificate `{name}` ends in {:.0} days: {}",
                days(*ends, now).floor(),
                remedy(name)
            ),
            since_unix_ms: ends.unix_ms().saturating_sub(i64::try_from(WARNED.as_millis()).unwrap_or(0)),
            subject: String::new(),
        };
        self.lock().iter().filter(|(_, ends)| now + WARNED > **ends).map(soon).collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds of a few hundred years are exact")]
fn days(ends: Wall, now: Wall) -> f64 {
    ends.unix_ms().saturating_sub(now.unix_ms()) as f64 / 86_400_000.0
}

fn remedy(name: &str) -> &'static str {
    match name {
        "https" => "replace the files that [api] names; they are read again by themselves",
        "authority" => "change it with `umbel ctl ca rotate begin`",
        "nodes" => "it renews itself; see the edge's log for why it did not",
        _ => "it renews itself while its control plane is connected; see the edge's log for why it did not",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, clippy::float_cmp, reason = "tests")]
    use super::*;

    /// Row 31: days are counted, and two weeks before the end it is a problem, until it is renewed.
    #[test]
    fn row_31_what_ends_is_told_two_weeks_before() {
        const DAY: i64 = 86_400_000;
        let now = Wall(1_800_000_000_000);
        let expiries = Expiries::default();
        expiries.set("https", Wall(now.unix_ms() + 13 * DAY));
        expiries.set("nodes", Wall(now.unix_ms() + 60 * DAY));
        expiries.set("control-plane/main", Wall(now.unix_ms() - DAY));
        let days: Vec<f64> = expiries.days(now).iter().map(|(_, days)| *days).collect();
        assert_eq!(days, [-1.0, 13.0, 60.0]);
        let problems = expiries.problems(now);
        assert_eq!(problems.len(), 2);
        assert!(problems[1].message.contains("`https` ends in 13 days"), "{problems:?}");
        expiries.retain("control-plane/", |name| name != "main");
        expiries.set("https", Wall(now.unix_ms() + 90 * DAY));
        assert!(expiries.problems(now).is_empty());
    }
}
