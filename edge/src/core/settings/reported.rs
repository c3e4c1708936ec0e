//! Which settings a node has, beside which it should have.
//!
//! Invariant: one that a node refused is not sent again before its version changes (row 78), and what a node says of
//! settings that it was not given counts as nothing new.

use umbel_contracts::proto::control::NodeConfig;
use umbel_contracts::proto::node::NodeSettingsState;
use umbel_wire::text::shorten;

use super::Desired;

/// Names of keys and engines that are kept of one report.
const NAMES: usize = 64;
/// Bytes of a reason.
const REFUSAL: usize = 512;

/// What a node said of its settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reported {
    pub(crate) applied: u64,
    pub(crate) digest: [u8; 32],
    /// 0: none.
    pub(crate) refused: u64,
    pub(crate) refusal: String,
    /// In force, and taken back by the node itself if it does not work.
    pub(crate) confirming: bool,
    pub(crate) ignored_keys: Vec<String>,
    pub(crate) waits_for_restart: Vec<String>,
}

impl Reported {
    pub(crate) fn new(state: NodeSettingsState) -> Self {
        let names = |names: Vec<String>| names.into_iter().take(NAMES).collect();
        let refused = state.refused_version;
        let mut refusal = if refused == 0 { String::new() } else { state.refusal };
        shorten(&mut refusal, REFUSAL);
        Self {
            applied: state.applied_version,
            digest: state.applied_digest.try_into().unwrap_or([0; 32]),
            refused,
            refusal,
            confirming: state.confirming,
            ignored_keys: names(state.ignored_keys),
            waits_for_restart: names(state.waits_for_restart),
        }
    }
}

/// Where one node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rollout {
    /// It has what it should have.
    Applied,
    /// It has it on trial.
    Confirming,
    /// It was not reached yet.
    Pending,
    /// It said no.
    Refused,
    /// Its agent is too old to take settings.
    Unsupported,
}

/// What became of a report, to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) kind: &'static str,
    pub(crate) message: String,
}

/// The settings of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeSettings {
    pub(crate) desired: Desired,
    /// `None`: its agent says nothing of settings, or it was never connected to this process.
    pub(crate) reported: Option<Box<Reported>>,
}

impl NodeSettings {
    /// What it has to be sent; nothing if it has it, has refused it or cannot take any.
    pub(crate) fn to_send(&self) -> Option<Desired> {
        let reported = self.reported.as_ref()?;
        let desired = self.desired;
        let has = reported.applied == desired.version && reported.digest == desired.digest;
        (desired.version > 0 && !has && reported.refused != desired.version).then_some(desired)
    }

    /// Where it stands. `connected`: its agent has said hello to this process.
    pub(crate) fn rollout(&self, connected: bool) -> Rollout {
        match &self.reported {
            _ if self.desired.version == 0 => Rollout::Applied,
            Some(reported) if reported.refused == self.desired.version => Rollout::Refused,
            Some(_) if self.to_send().is_some() => Rollout::Pending,
            Some(reported) if reported.confirming => Rollout::Confirming,
            Some(_) => Rollout::Applied,
            None if connected => Rollout::Unsupported,
            None => Rollout::Pending,
        }
    }

    /// The version that it refused, and why.
    pub(crate) fn refusal(&self) -> Option<(u64, &str)> {
        let reported = self.reported.as_ref().filter(|reported| reported.refused > 0)?;
        Some((reported.refused, &reported.refusal))
    }

    /// For observers; never what the settings say. `connected`: as in [`NodeSettings::rollout`].
    pub(crate) fn config(&self, connected: bool) -> NodeConfig {
        let none = Reported::default();
        let reported = self.reported.as_deref().unwrap_or(&none);
        let digest = match self.desired.version {
            0 => String::new(),
            _ => data_encoding::HEXLOWER.encode(&self.desired.digest),
        };
        let unsupported = self.rollout(connected) == Rollout::Unsupported;
        NodeConfig {
            desired_version: self.desired.version,
            applied_version: reported.applied,
            digest,
            refusal: if unsupported {
                "its agent is too old to take settings: upgrade it".to_owned()
            } else {
                reported.refusal.clone()
            },
            refused_version: reported.refused,
            confirming: reported.confirming,
            ignored_keys: reported.ignored_keys.clone(),
            waits_for_restart: reported.waits_for_restart.clone(),
        }
    }

    /// Takes what a node says; what has to be told of it. The first report to this process tells nothing: it was so
    /// before.
    pub(crate) fn take(&mut self, new: Reported) -> Option<Told> {
        let old = self.reported.replace(Box::new(new.clone()))?;
        let told = |kind, message| Some(Told { kind, message });
        if new.refused > 0 && new.refused != old.refused {
            let version = new.refused;
            if old.confirming && old.applied == version {
                let back = new.applied;
                return told(
                    "settings_rolled_back",
                    format!("took settings version {version} back, runs {back}: {}", new.refusal),
                );
            }
            return told("settings_refused", format!("refused settings version {version}: {}", new.refusal));
        }
        let in_force = |one: &Reported| (one.applied, one.digest, one.confirming);
        if new.applied > 0 && !new.confirming && in_force(&new) != in_force(&old) {
            let waits = match new.waits_for_restart.len() {
                0 => String::new(),
                _ => format!(
                    "; engines that take theirs with their next start: {}",
                    new.waits_for_restart.join(", ")
                ),
            };
            return told("settings_applied", format!("settings version {} is in force{waits}", new.applied));
        }
        None
    }
}
