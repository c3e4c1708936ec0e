//! Which settings this node has: the last ones that proved to work, those on trial, and those it refused.
//!
//! Owns what follows from an offer, from the end of a trial and from a start of the agent. Leaves files to
//! `shell/state`, what settings mean to `config`, and whether they work to `shell/settings`. Invariants: whatever stands
//! here is written before it takes effect; settings that do not prove to work are taken back, over restarts too, and
//! are not tried again (rows 77, 78); a version only gives way to a newer one.
//!
//! ```text
//!   good A --offer B--> A, B on trial --works--> good B
//!                            |--does not work, or the agent ended twice meanwhile--> good A, B refused
//! ```

use serde::{Deserialize, Serialize};
use umbel_contracts::proto::node::NodeSettingsState;

/// Ends of the agent during one trial: the first may be anybody's, the second is taken for the settings' fault.
const STARTS: u32 = 2;
/// Bytes of a reason.
const REASON: usize = 512;
/// Keys that are told as ignored, and characters of one.
const IGNORED: usize = 64;
const KEY: usize = 120;

/// Settings as they were sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) version: u64,
    /// SHA-256 of what was sent, in lower-case hexadecimal.
    pub(crate) digest: String,
    /// Whole, also what this agent does not know: a newer one may.
    pub(crate) settings: serde_json::Value,
}

/// Settings that are in force and not proved to work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Trial {
    kept: Kept,
    /// The engines that have to prove them.
    #[serde(default)]
    about: Vec<String>,
    /// Starts of the agent since they came.
    #[serde(default)]
    starts: u32,
}

/// Settings that this node does not take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refused {
    pub(crate) version: u64,
    #[serde(default)]
    pub(crate) digest: String,
    pub(crate) reason: String,
}

/// What stands on the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    #[serde(default)]
    good: Option<Kept>,
    #[serde(default)]
    trial: Option<Trial>,
    #[serde(default)]
    refused: Option<Refused>,
}

/// What an offer is to this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offer {
    /// To be judged.
    New,
    /// In force already, on trial or not.
    Has,
    /// Refused before: trying again would bring the same.
    WasRefused,
    /// A newer one is in force.
    Older,
}

impl Record {
    /// The settings in force.
    pub(crate) fn applied(&self) -> Option<&Kept> {
        self.trial.as_ref().map(|trial| &trial.kept).or(self.good.as_ref())
    }

    /// Those in force have not proved to work.
    pub(crate) fn on_trial(&self) -> bool {
        self.trial.is_some()
    }

    /// The engines that have to prove those on trial.
    pub(crate) fn about(&self) -> &[String] {
        self.trial.as_ref().map(|trial| trial.about.as_slice()).unwrap_or_default()
    }

    /// What these settings are to this node.
    pub(crate) fn offer(&self, version: u64, digest: &str) -> Offer {
        let applied = self.applied();
        if applied.is_some_and(|kept| kept.version == version && kept.digest == digest) {
            Offer::Has
        } else if self.refused.as_ref().is_some_and(|one| one.version == version && one.digest == digest) {
            Offer::WasRefused
        } else if applied.is_some_and(|kept| kept.version > version) {
            Offer::Older
        } else {
            Offer::New
        }
    }

    /// They are taken, on trial.
    #[must_use]
    pub(crate) fn tried(&self, kept: Kept, about: Vec<String>) -> Self {
        Self { good: self.good.clone(), trial: Some(Trial { kept, about, starts: 0 }), refused: None }
    }

    /// They are taken for good: nothing about them can fail later.
    #[must_use]
    pub(crate) fn taken(kept: Kept) -> Self {
        Self { good: Some(kept), trial: None, refused: None }
    }

    /// Those on trial have proved to work.
    #[must_use]
    pub(crate) fn confirmed(&self) -> Self {
        let good = self.trial.as_ref().map(|trial| trial.kept.clone()).or_else(|| self.good.clone());
        Self { good, trial: None, refused: self.refused.clone() }
    }

    /// Those on trial do not work: the last good ones are in force again.
    #[must_use]
    pub(crate) fn taken_back(&self, reason: &str) -> Self {
        let refused = self.trial.as_ref().map(|trial| Refused {
            version: trial.kept.version,
            digest: trial.kept.digest.clone(),
            reason: cut(reason),
        });
        Self { good: self.good.clone(), trial: None, refused: refused.or_else(|| self.refused.clone()) }
    }

    /// They are not taken; what is in force stays.
    #[must_use]
    pub(crate) fn refuse(&self, version: u64, digest: &str, reason: &str) -> Self {
        let refused = Refused { version, digest: digest.to_owned(), reason: cut(reason) };
        Self { refused: Some(refused), ..self.clone() }
    }

    /// The agent starts: a trial that it has ended in before is over.
    #[must_use]
    pub(crate) fn started(&self) -> Self {
        let Some(trial) = &self.trial else { return self.clone() };
        let starts = trial.starts + 1;
        if starts >= STARTS {
            return self.taken_back("the agent ended twice while they were on trial");
        }
        Self { trial: Some(Trial { starts, ..trial.clone() }), ..self.clone() }
    }

    /// What the edge is told. `unfit`: why those in force by this record are not in force after all, because they do
    /// not fit on an edited file. `confirming`: something of a trial can fail now, not only with an engine's next start.
    /// `ignored`: what of them says nothing to this agent.
    pub(crate) fn state(
        &self,
        unfit: Option<&str>,
        confirming: bool,
        waits_for_restart: Vec<String>,
        ignored: &[String],
    ) -> NodeSettingsState {
        let applied = self.applied().filter(|_| unfit.is_none());
        let not_fitting = self.applied().zip(unfit).map(|(kept, why)| (kept.version, cut(why)));
        let refused = self.refused.as_ref().map(|one| (one.version, one.reason.clone()));
        let (refused_version, refusal) = not_fitting.or(refused).unwrap_or_default();
        let digest = applied.and_then(|kept| data_encoding::HEXLOWER.decode(kept.digest.as_bytes()).ok());
        NodeSettingsState {
            applied_version: applied.map_or(0, |kept| kept.version),
            applied_digest: digest.unwrap_or_default(),
            refused_version,
            refusal,
            confirming: confirming && self.trial.is_some() && unfit.is_none(),
            ignored_keys: ignored.iter().take(IGNORED).map(|key| key.chars().take(KEY).collect()).collect(),
            waits_for_restart,
        }
    }
}

fn cut(text: &str) -> String {
    umbel_wire::text::beginning(text, REASON).to_owned()
}

#[cfg(test)]
mod tests {
    use quickcheck::quickcheck;
    use serde_json::json;

    use super::*;

    fn kept(version: u64) -> Kept {
        Kept { version, digest: format!("{version:064x}"), settings: json!({}) }
    }

    fn digest(version: u64) -> String {
        kept(version).digest
    }

    fn told(record: &Record) -> (u64, u64, bool) {
        let state = record.state(None, true, Vec::new(), &[]);
        (state.applied_version, state.refused_version, state.confirming)
    }

    /// Row 77: what parses and does not work is taken back by itself, over ends of the agent too.
    #[test]
    fn row_77_a_trial_ends_in_the_new_ones_or_in_the_old_ones() {
        let a = Record::taken(kept(1));
        assert_eq!(told(&a), (1, 0, false));
        let trial = a.tried(kept(2), vec!["chat".into()]);
        assert_eq!(told(&trial), (2, 0, true));
        assert_eq!(told(&trial.confirmed()), (2, 0, false));
        let back = trial.taken_back("engine chat has failed");
        assert_eq!(told(&back), (1, 2, false));
        // Killed once while they were being applied: they get another chance. Twice: they do not.
        let again = trial.started();
        assert_eq!(told(&again), (2, 0, true));
        assert_eq!(told(&again.started()), (1, 2, false));
        assert_eq!(told(&back.started()), (1, 2, false));
        // Through the disk it is the same.
        let stored: Record = serde_json::from_slice(&serde_json::to_vec(&again).unwrap()).unwrap();
        assert_eq!(stored, again);
    }

    /// Row 78: what was refused is not tried again; another content or a newer version is.
    #[test]
    fn row_78_an_offer_is_new_only_once() {
        let record = Record::taken(kept(4)).refuse(5, &digest(5), "no");
        for (version, digest, offer) in [
            (4, digest(4), Offer::Has),
            (5, digest(5), Offer::WasRefused),
            (5, digest(6), Offer::New),
            (6, digest(6), Offer::New),
            (4, digest(9), Offer::New),
            (3, digest(3), Offer::Older),
        ] {
            assert_eq!(record.offer(version, &digest), offer, "{version}");
        }
        assert_eq!(told(&record), (4, 5, false));
        assert_eq!(told(&Record::taken(kept(6))), (6, 0, false));
    }

    #[test]
    fn settings_that_do_not_fit_on_an_edited_file_are_told_as_refused() {
        let record = Record::taken(kept(3));
        let state =
            record.state(Some("engines.chat.model_file: the file names no root"), true, Vec::new(), &[]);
        assert_eq!((state.applied_version, state.refused_version), (0, 3));
        assert!(state.refusal.starts_with("engines.chat"));
    }

    quickcheck! {
        // Whatever comes: what is in force is the newest that was not refused, and never older than before, but for
        // those that were taken back.
        fn versions_never_go_back_but_to_the_last_good_one(steps: Vec<(u8, u8)>) -> bool {
            let mut record = Record::default();
            let mut good = 0;
            steps.into_iter().all(|(what, version)| {
                let version = u64::from(version % 16) + 1;
                record = match what % 5 {
                    0 | 1 if record.offer(version, &digest(version)) == Offer::New => {
                        if what % 5 == 0 { record.tried(kept(version), Vec::new()) } else { Record::taken(kept(version)) }
                    }
                    2 => record.confirmed(),
                    3 => record.taken_back("no"),
                    4 => record.started(),
                    _ => record.clone(),
                };
                let before = good;
                if !record.on_trial() {
                    good = record.applied().map_or(0, |kept| kept.version);
                }
                let applied = record.applied().map_or(0, |kept| kept.version);
                good >= before && applied >= before && record.applied().is_none_or(|kept| {
                    record.offer(kept.version, &kept.digest) == Offer::Has
                })
            })
        }
    }
}
