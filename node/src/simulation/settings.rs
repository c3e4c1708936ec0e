//! A simulated node's settings: offers judged by `core/settings`, trials that come to an end, and their record on disk.
//!
//! What settings mean here: the drain's seconds, of which some do not load and some do not prove to work. Invariant: the
//! record stands on the disk before anybody is told.

use std::time::{Duration, Instant};

use data_encoding::HEXLOWER;
use prost::Message;
use umbel_contracts::bounds;
use umbel_contracts::proto::node::{NodeSettings, NodeSettingsResult, NodeSettingsState};
use umbel_wire::{Code, Error};

use super::Node;
use crate::core::settings::{Kept, Offer};

/// How long a trial takes.
const TRIAL: Duration = Duration::from_secs(5);

/// What a trial of this process waits for.
#[derive(Default)]
pub(super) struct Trial {
    ends: Option<Instant>,
}

impl Trial {
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.ends
    }
}

fn seconds(settings: &serde_json::Value) -> u64 {
    let drain = settings.pointer("/shutdown/drain").and_then(serde_json::Value::as_str).unwrap_or("4s");
    drain.trim_end_matches('s').parse().unwrap_or(4)
}

impl Node {
    /// The version that is in force.
    #[must_use]
    pub fn settings_version(&self) -> u64 {
        self.disk.settings.applied().map_or(0, |kept| kept.version)
    }

    pub(super) fn settings_state(&self) -> NodeSettingsState {
        self.disk.settings.state(None, self.disk.settings.on_trial(), Vec::new(), &[])
    }

    /// The process starts: a trial that it has ended in before may be over.
    pub(super) fn start_settings(&mut self, now: Instant) {
        if !self.disk.full {
            self.disk.settings = self.disk.settings.started();
        }
        self.trial.ends = self.disk.settings.on_trial().then(|| now + TRIAL);
    }

    pub(super) fn settings_offered(&mut self, payload: &[u8], now: Instant) -> Result<Vec<u8>, Error> {
        let offer = bounds::decode::<NodeSettings>(payload)?;
        let digest = HEXLOWER.encode(&offer.digest);
        if self.disk.settings.offer(offer.version, &digest) == Offer::New {
            if self.disk.full {
                return Err(Error::new(
                    Code::InsufficientStorage,
                    "DISK_FULL",
                    "the settings cannot be kept",
                ));
            }
            let settings: serde_json::Value =
                serde_json::from_slice(&offer.settings_json).unwrap_or_default();
            let means = seconds(&settings) % 5;
            let ahead = u64::from(self.setup.mutation == Some("a node counts its settings itself"));
            let kept = Kept { version: offer.version + ahead, digest: digest.clone(), settings };
            self.disk.settings = match means {
                0 => self.disk.settings.refuse(offer.version, &digest, "shutdown.drain: it does not load"),
                1 | 2 => self.disk.settings.tried(kept, vec!["engine".to_owned()]),
                _ => crate::core::settings::Record::taken(kept),
            };
            self.trial.ends = self.disk.settings.on_trial().then(|| now + TRIAL);
        }
        Ok(NodeSettingsResult { state: Some(self.settings_state()) }.encode_to_vec())
    }

    /// A trial proves to work, or does not.
    pub(super) fn end_trial(&mut self, now: Instant) {
        if self.trial.ends.is_none_or(|ends| ends > now) {
            return;
        }
        self.trial.ends = None;
        if self.disk.full {
            self.trial.ends = Some(now + TRIAL);
            return;
        }
        let works = self.disk.settings.applied().is_some_and(|kept| seconds(&kept.settings) % 5 != 1);
        self.disk.settings = if works {
            self.disk.settings.confirmed()
        } else {
            self.disk.settings.taken_back("it did not work")
        };
    }
}
