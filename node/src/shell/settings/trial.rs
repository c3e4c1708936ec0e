//! Whether settings on trial work: every engine that they are about has to become ready.
//!
//! Invariant: a trial ends, in the new settings or in the last good ones; what waits for an engine's next start is
//! judged then (row 77).

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::{Settings, together};
use crate::{config::EngineSource, shell::engines::Standing};

/// Engines without a process are reached or not within this, after their own patience of 10 s.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a trial stands.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    Working,
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
                    // What waited for an engine's next start has its whole time from that on.
                    let until = *until.get_or_insert_with(|| Instant::now() + self.patience());
                    if until <= Instant::now() {
                        self.end_trial(Some("an engine was not ready in time".to_owned())).await;
                    }
                }
                Verdict::Waits => {}
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
        let longest = config.engines.iter().filter_map(|engine| match &engine.source {
            EngineSource::LlamaServer { start_timeout, .. } => Some(*start_timeout),
            EngineSource::Sim { .. } | EngineSource::External { .. } => None,
        });
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
        let mut left = Vec::new();
        let mut verdict = Verdict::Good;
        for name in unproved {
            match self.engines.standing(&name) {
                Standing::Good => continue,
                Standing::Failed(cause) => return Verdict::Failed(format!("engine {name}: {cause}")),
                Standing::Working => verdict = Verdict::Working,
                Standing::Waits if verdict == Verdict::Good => verdict = Verdict::Waits,
                Standing::Waits => {}
            }
            left.push(name);
        }
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
