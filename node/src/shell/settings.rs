//! Settings in the running agent: taken from the edge, kept, put in force, proved or taken back; and the node's own
//! file, taken up again when it was edited.
//!
//! Owns the order: judged on top of the file, written, in force, told. Leaves what follows from an offer to
//! `core/settings`, which engines there are to `engines`. Invariants: changes are made one after the other; no
//! connection, stream or running engine ends because of one that stays; what cannot be in force leaves what is in force
//! as it is.

mod file;
mod trial;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest as _, Sha256};
use tokio::{sync::Notify, sync::watch, task::spawn_blocking};
use umbel_contracts::{
    daemon::set_log_level,
    proto::node::{NodeProblem, NodeSettings, NodeSettingsState},
    settings::{self, AgentSettings},
};
use umbel_wire::{Code, Error, clock::Wall};

use crate::{
    Config,
    core::{
        problems::Problems,
        settings::{Kept, Offer, Record},
    },
    shell::{engines::Engines, state::State},
};

/// Keys of a newer edge that are told.
const IGNORED: usize = 64;
/// What was kept of settings could not be read.
const SETTINGS_UNREADABLE: &str = "SETTINGS_UNREADABLE";
/// The last settings could not be written, so they were not taken.
const SETTINGS_NOT_KEPT: &str = "SETTINGS_NOT_KEPT";

/// What is known of settings and file.
#[derive(Debug)]
struct Now {
    record: Record,
    /// The file as it was last read and found good.
    file: Config,
    /// File and settings together.
    in_force: Arc<Config>,
    /// Why the settings of the record are not in force after all.
    unfit: Option<String>,
    /// What of the settings says nothing to this node.
    ignored: Vec<String>,
    /// Engines that a trial is about, until each has proved itself.
    unproved: Vec<String>,
}

/// What was kept, on top of the file: what the agent starts with.
#[derive(Debug)]
pub(crate) struct Opened {
    now: Now,
    trouble: Option<String>,
}

/// What became of changes since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) applied: u64,
    /// Refused, or taken back.
    pub(crate) refused: u64,
}

/// Changes by where they came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// The site's settings, as its edge sends them.
    pub(crate) site: Tally,
    /// The node's own file.
    pub(crate) file: Tally,
}

/// The node's settings.
#[derive(Debug)]
pub(crate) struct Settings {
    state: Arc<State>,
    engines: Arc<Engines>,
    now: Mutex<Now>,
    problems: Mutex<Problems>,
    changes: Mutex<Changes>,
    /// One change after the other.
    turn: tokio::sync::Mutex<()>,
    /// Counts changes of what is told of settings.
    news: watch::Sender<u64>,
    /// A trial began or another one took its place.
    begun: Notify,
}

/// File and settings together; the file alone where they do not fit, and why. Also what of them says nothing here.
fn together(file: &Config, record: &Record) -> (Config, Option<String>, Vec<String>) {
    let Some(kept) = record.applied() else { return (file.clone(), None, Vec::new()) };
    match overlaid(file, &kept.settings) {
        Ok((config, ignored)) => (config, None, ignored),
        Err(why) => (file.clone(), Some(why), Vec::new()),
    }
}

/// Settings on top of a file, and what of them says nothing here.
fn overlaid(file: &Config, said: &serde_json::Value) -> Result<(Config, Vec<String>), String> {
    let (settings, mut ignored) = settings::known(said.clone(), IGNORED);
    settings::check_agent(&settings, "").map_err(|fault| fault.to_string())?;
    let typed: AgentSettings = serde_json::from_value(settings).map_err(|error| error.to_string())?;
    let overlaid = file.with_settings(&typed)?;
    ignored.extend(overlaid.skipped);
    Ok((overlaid.config, ignored))
}

impl Opened {
    /// Takes up what was kept. Blocks on the disk.
    pub(crate) fn read(state: &State, file: Config) -> Self {
        let (record, mut trouble) = match state.settings() {
            Ok(record) => (record, None),
            Err(why) => (Record::default(), Some(why)),
        };
        let started = record.started();
        if started != record
            && let Err(error) = state.set_settings(&started)
        {
            trouble = Some(format!("what became of the settings on trial cannot be written: {error}"));
        }
        let (config, unfit, ignored) = together(&file, &started);
        if let Some(why) = &unfit {
            tracing::error!(why, "the settings do not fit on this node's file: it runs on the file alone");
        }
        let unproved = if unfit.is_none() { started.about().to_vec() } else { Vec::new() };
        let now = Now { record: started, file, in_force: Arc::new(config), unfit, ignored, unproved };
        Self { now, trouble }
    }

    /// File and settings together.
    pub(crate) fn in_force(&self) -> Arc<Config> {
        Arc::clone(&self.now.in_force)
    }
}

impl Settings {
    /// Of engines that were started with what was opened.
    pub(crate) fn new(opened: Opened, state: &Arc<State>, engines: &Arc<Engines>) -> Arc<Self> {
        let settings = Arc::new(Self {
            state: Arc::clone(state),
            engines: Arc::clone(engines),
            now: Mutex::new(opened.now),
            problems: Mutex::default(),
            changes: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            news: watch::Sender::new(0),
            begun: Notify::new(),
        });
        settings.trouble(SETTINGS_UNREADABLE, opened.trouble);
        settings.set_log_level();
        settings
    }

    fn trouble(&self, code: &'static str, message: Option<String>) {
        let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        problems.set(code, message, Wall::now());
    }

    /// What is wrong with settings or file.
    pub(crate) fn problems(&self) -> Vec<NodeProblem> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).all().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// File and settings together, as they are in force.
    pub(crate) fn in_force(&self) -> Arc<Config> {
        Arc::clone(&self.lock().in_force)
    }

    /// Changes whenever what is told of settings does.
    pub(crate) fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// What became of changes since the start.
    pub(crate) fn changes(&self) -> Changes {
        *self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self, count: impl FnOnce(&mut Changes)) {
        count(&mut self.changes.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn tell(&self) {
        self.news.send_modify(|count| *count += 1);
    }

    fn set_log_level(&self) {
        if let Err(error) = set_log_level(&self.in_force().log_level) {
            tracing::warn!(error, "the log's level could not be changed");
        }
    }

    /// What the edge is told.
    pub(crate) fn state(&self) -> NodeSettingsState {
        let waits = self.engines.waiting_for_restart();
        let now = self.lock();
        // What only waits for an engine's next start is in force as far as it can be.
        let confirming = now.unproved.iter().any(|name| !waits.contains(name));
        now.record.state(now.unfit.as_deref(), confirming, waits, &now.ignored)
    }

    /// Takes settings from the edge: the answer says what became of them.
    ///
    /// # Errors
    /// If they cannot be judged now: nothing has changed, and they may be sent again.
    pub(crate) async fn take(&self, sent: NodeSettings) -> Result<NodeSettingsState, Error> {
        let _turn = self.turn.lock().await;
        let digest = Sha256::digest(&sent.settings_json);
        if digest.as_slice() != sent.digest {
            return Err(Error::new(
                Code::InvalidArgument,
                "SETTINGS_DIGEST",
                "the settings are not those that their digest names",
            ));
        }
        let digest = data_encoding::HEXLOWER.encode(&digest);
        let offer = self.lock().record.offer(sent.version, &digest);
        match offer {
            Offer::New => {}
            Offer::Has | Offer::WasRefused => return Ok(self.state()),
            Offer::Older => {
                let message = "newer settings are in force here";
                return Err(Error::new(Code::Conflict, "SETTINGS_OLDER", message));
            }
        }
        let file = self.lock().file.clone();
        let judged = serde_json::from_slice(&sent.settings_json)
            .map_err(|error| format!("they are no JSON: {error}"))
            .and_then(|said: serde_json::Value| Ok((overlaid(&file, &said)?, said)));
        match judged {
            Ok((overlaid, settings)) => {
                self.begin(Kept { version: sent.version, digest, settings }, overlaid).await?;
                self.changed(|changes| changes.site.applied += 1);
            }
            Err(why) => {
                tracing::warn!(version = sent.version, why, "settings were refused");
                let record = self.lock().record.refuse(sent.version, &digest, &why);
                self.keep_record(record).await?;
                self.changed(|changes| changes.site.refused += 1);
            }
        }
        self.tell();
        Ok(self.state())
    }

    async fn begin(&self, kept: Kept, (config, ignored): (Config, Vec<String>)) -> Result<(), Error> {
        let version = kept.version;
        let unproved = self.engines.touched(&config);
        let record = if unproved.is_empty() {
            Record::taken(kept)
        } else {
            self.lock().record.tried(kept, unproved.clone())
        };
        self.keep_record(record).await?;
        tracing::info!(version, on_trial = !unproved.is_empty(), "settings are taken");
        {
            let mut now = self.lock();
            (now.unfit, now.ignored, now.unproved) = (None, ignored, unproved);
        }
        self.put_in_force(config);
        self.begun.notify_one();
        Ok(())
    }

    /// Everything that can change while the agent runs does.
    fn put_in_force(&self, config: Config) {
        self.engines.apply(&config);
        self.lock().in_force = Arc::new(config);
        self.set_log_level();
        self.tell();
    }

    /// On the disk first, then here.
    async fn keep_record(&self, record: Record) -> Result<(), Error> {
        let (state, written) = (Arc::clone(&self.state), record.clone());
        let kept = spawn_blocking(move || state.set_settings(&written)).await;
        let failed = match kept {
            Ok(Ok(())) => None,
            Ok(Err(error)) => {
                Some(format!("settings cannot be written to the state directory: {}", error.kind()))
            }
            Err(_) => Some("settings could not be written".to_owned()),
        };
        let told = failed.clone().map(|why| format!("{why}; the last ones stay: free space there"));
        self.trouble(SETTINGS_NOT_KEPT, told);
        if let Some(why) = failed {
            return Err(Error::new(Code::InsufficientStorage, "SETTINGS_NOT_KEPT", why));
        }
        self.lock().record = record;
        Ok(())
    }
}
