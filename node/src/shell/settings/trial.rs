//! Whether settings on trial work: every engine that they are about has to become ready.
//!
//! Invariant: a trial ends, in the new settings or in the last good ones; what waits for an engine's next start is
//! judged then (row 77), and what waits for the end of the engine that had its name (which a drain bounds) is judged
//! from that end on.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::{Settings, together};
use crate::shell::engines::Standing;

/// Engines without a process are reached or not within this, after their own patience of 10 s.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a trial stands.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    Working,
    /// Some of it cannot begin before an engine that leaves is gone.
    Leaving,
    /// Only what waits for an engine's next start is left.
    Waits,
    Failed(String),
}

impl Settings {
    /// Judges trials for ever.
    pub(crate) async fn judge_trials(self: Arc<Self>) {
        let mut changes = self.engines.changes();
        let mut until = None;
        loop {
            match self.verdict() {
                Verdict::Good => self.end_trial(None).await,
                Verdict::Failed(why) => self.end_trial(Some(why)).await,
                Verdict::Working => {
                    // What waited for an engine's next start, or for a name, has its whole time from that on.
                    let until = *until.get_or_insert_with(|| Instant::now() + self.patience());
                    if until <= Instant::now() {
                        self.end_trial(Some("an engine was not ready in time".to_owned())).await;
                    }
                }
                Verdict::Leaving | Verdict::Waits => {}
            }
            if self.verdict() != Verdict::Working {
                until = None;
            }
            tokio::select! {
                // The sender lives as long as the agent.
                Ok(()) = changes.changed() => {}
                () = self.begun.notified() => until = None,
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {}
            }
        }
    }

    /// The longest that an engine may take to be ready.
    fn patience(&self) -> Duration {
        let config = self.in_force();
        let processes = config.engines.iter().filter_map(|engine| engine.source.process());
        let longest = processes.map(|process| process.start_timeout());
        longest.max().unwrap_or_default() + PATIENCE
    }

    fn verdict(&self) -> Verdict {
        let (on_trial, unproved) = {
            let now = self.lock();
            (now.record.on_trial() && now.unfit.is_none(), now.unproved.clone())
        };
        if !on_trial {
            return Verdict::Waits;
        }
        let (verdict, left) = judge(unproved, |name| self.engines.standing(name));
        // One that has proved itself may fail later for its own reasons.
        self.lock().unproved = left;
        verdict
    }

    /// `why`: they do not work.
    async fn end_trial(&self, why: Option<String>) {
        let _turn = self.turn.lock().await;
        let record = self.lock().record.clone();
        // Another change may have come first.
        let still = match (self.verdict(), &why) {
            (Verdict::Good, None) => record.on_trial(),
            (Verdict::Failed(_) | Verdict::Working, Some(_)) => record.on_trial(),
            _ => false,
        };
        if !still {
            return;
        }
        let ended = match &why {
            None => record.confirmed(),
            Some(why) => record.taken_back(why),
        };
        if self.keep_record(ended.clone()).await.is_err() {
            // They are tried again, or given up, at the next start; a change that does not work goes at once all the same.
            self.lock().record = ended.clone();
        }
        self.lock().unproved.clear();
        let version = record.applied().map_or(0, |kept| kept.version);
        match why {
            None => tracing::info!(version, "the settings work"),
            Some(why) => {
                self.changed(|changes| changes.site.refused += 1);
                tracing::error!(
                    version,
                    why,
                    "the settings do not work: the last good ones are in force again"
                );
                let file = self.lock().file.clone();
                let (config, unfit, ignored) = together(&file, &ended);
                {
                    let mut now = self.lock();
                    (now.unfit, now.ignored) = (unfit, ignored);
                }
                self.put_in_force(config);
            }
        }
        self.tell();
    }
}

/// What all of them come to, and those that have not proved themselves.
fn judge(unproved: Vec<String>, standing: impl Fn(&str) -> Standing) -> (Verdict, Vec<String>) {
    let mut verdict = Verdict::Good;
    let mut failed = None;
    let mut left = unproved;
    left.retain(|name| {
        verdict = match (standing(name), &verdict) {
            (Standing::Good, _) => return false,
            (Standing::Failed(cause), _) => {
                failed.get_or_insert_with(|| format!("engine {name}: {cause}"));
                return true;
            }
            (Standing::Leaving, _) | (_, Verdict::Leaving) => Verdict::Leaving,
            (Standing::Working, _) | (_, Verdict::Working) => Verdict::Working,
            (Standing::Waits, _) => Verdict::Waits,
        };
        true
    });
    (failed.map_or(verdict, Verdict::Failed), left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(standings: &[Standing]) -> (Verdict, usize) {
        let names = (0..standings.len()).map(|place| place.to_string()).collect();
        let (verdict, left) =
            judge(names, |name| standings.get(name.parse::<usize>().unwrap()).unwrap().clone());
        (verdict, left.len())
    }

    /// The time that an engine has to be ready begins when it can: not while a stream keeps the one that had its name.
    #[test]
    fn what_waits_for_a_name_is_not_running_out_of_time() {
        let failed = || Standing::Failed("it broke".into());
        let rows = [
            (vec![], (Verdict::Good, 0)),
            (vec![Standing::Good, Standing::Good], (Verdict::Good, 0)),
            (vec![Standing::Leaving], (Verdict::Leaving, 1)),
            (vec![Standing::Leaving, Standing::Working, Standing::Good], (Verdict::Leaving, 2)),
            (vec![Standing::Working, Standing::Leaving, Standing::Waits], (Verdict::Leaving, 3)),
            (vec![Standing::Waits, Standing::Working], (Verdict::Working, 2)),
            (vec![Standing::Good, Standing::Waits], (Verdict::Waits, 1)),
            (vec![Standing::Leaving, failed()], (Verdict::Failed("engine 1: it broke".into()), 2)),
        ];
        for (standings, expected) in rows {
            assert_eq!(sum(&standings), expected, "{standings:?}");
        }
    }
}
