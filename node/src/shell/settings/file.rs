//! The node's own file, taken up again when it was edited.
//!
//! Invariant: one that does not load, alone or with the settings on top, changes nothing and is a problem on the node;
//! what needs a new start of the agent is named.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};
use umbel_contracts::config::{ConfigError, ConfigFile};

use super::{Settings, together};
use crate::Config;

/// The file was edited and does not load.
const CONFIG_FILE_INVALID: &str = "CONFIG_FILE_INVALID";
/// The file was edited where only a new start of the agent helps.
const CONFIG_FILE_NEEDS_RESTART: &str = "CONFIG_FILE_NEEDS_RESTART";

/// How often it is looked at: an edit is in force within two seconds.
const LOOK: Duration = Duration::from_secs(1);

impl Settings {
    /// Looks at the file for ever.
    pub(crate) async fn watch_file(self: Arc<Self>) {
        let path = self.lock().file.source.path().to_owned();
        let start = self.lock().file.clone();
        // What was last judged, good or not.
        let mut last = Ok(start.source.clone());
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let wanted = path.clone();
            let Ok(read) = spawn_blocking(move || ConfigFile::read(&wanted)).await else { continue };
            if same(&read, &last) {
                continue;
            }
            last = read.clone();
            let taken = match read {
                Ok(file) => self.take_file(&start, file).await,
                Err(error) => Err(said(&error)),
            };
            self.changed(|changes| match &taken {
                Ok(_) => changes.file.applied += 1,
                Err(_) => changes.file.refused += 1,
            });
            let (invalid, needs_restart) = match taken {
                Ok(fixed) if fixed.is_empty() => (None, None),
                Ok(fixed) => {
                    let keys = fixed.join(", ");
                    (
                        None,
                        Some(format!(
                            "the node's file was changed in {keys}: restart the agent to take that up"
                        )),
                    )
                }
                Err(why) => (
                    Some(format!("the node's file was changed and is not taken up: {why}; correct it")),
                    None,
                ),
            };
            if let Some(why) = &invalid {
                tracing::error!("{why}");
            }
            self.trouble(CONFIG_FILE_INVALID, invalid);
            self.trouble(CONFIG_FILE_NEEDS_RESTART, needs_restart);
            self.tell();
        }
    }

    /// Takes up an edited file: the keys that need a new start of the agent.
    async fn take_file(&self, start: &Config, source: ConfigFile) -> Result<Vec<&'static str>, String> {
        let file = Config::check(&source).map_err(|error| said(&error))?;
        let _turn = self.turn.lock().await;
        let record = self.lock().record.clone();
        let (mut config, unfit, ignored) = together(&file, &record);
        if let Some(why) = &unfit
            && self.lock().unfit.is_none()
        {
            return Err(format!("with the settings of its edge on top: {why}"));
        }
        let fixed = fixed_keys(start, &file);
        // Those stay as they were until the agent starts anew.
        (config.accelerator, config.metrics) = (start.accelerator, start.metrics);
        config.socket.clone_from(&start.socket);
        config.state_dir.clone_from(&start.state_dir);
        tracing::info!("the node's file was changed: it is taken up");
        {
            let mut now = self.lock();
            (now.file, now.unfit, now.ignored) = (file, unfit, ignored);
        }
        self.put_in_force(config);
        self.begun.notify_one();
        Ok(fixed)
    }
}

/// A place in the file without the file's path: that is the host's own affair.
fn said(error: &ConfigError) -> String {
    match error.place {
        Some((line, _)) => format!("line {line}: {}", error.message),
        None => error.message.clone(),
    }
}

fn same(read: &Result<ConfigFile, ConfigError>, last: &Result<ConfigFile, ConfigError>) -> bool {
    match (read, last) {
        (Ok(read), Ok(last)) => read.text() == last.text(),
        (Err(read), Err(last)) => read == last,
        _ => false,
    }
}

/// Keys that were changed and that only a new start takes up.
fn fixed_keys(start: &Config, file: &Config) -> Vec<&'static str> {
    let changed = [
        ("node.name", start.name != file.name),
        ("node.state_dir", start.state_dir != file.state_dir),
        ("node.accelerator", start.accelerator != file.accelerator),
        ("node.nvml_library", start.nvml_library != file.nvml_library),
        ("node.fabric_labels", start.fabric_labels != file.fabric_labels),
        ("artifacts", start.artifacts.places() != file.artifacts.places()),
        ("source", start.artifacts.sources != file.artifacts.sources),
        ("listen.metrics", start.metrics != file.metrics),
        ("listen.socket", start.socket != file.socket),
        ("log.format", start.log_format != file.log_format),
    ];
    changed.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key).collect()
}
