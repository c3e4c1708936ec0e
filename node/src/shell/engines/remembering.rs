//! Which engines of deployments there were before this agent, and what becomes of those whose list was lost.
//!
//! Owns salvaging; leaves the list to `shell/state` and what an engine's process was started as to its record. Invariant: an
//! engine that runs is not ended because a file cannot be read: it goes on as it was started until the edge says otherwise.

use std::sync::PoisonError;

use super::Engines;
use crate::config::EngineConfig;

/// Begins the names of engines that were only tried out.
pub(crate) const TRIED: &str = "probe.";

impl Engines {
    /// Takes up what an earlier agent had. Blocks on the disk.
    pub(super) fn remember(&self) {
        let state = &self.host.state;
        let (deployed, why) = state.deployments();
        let mut salvaged = state.salvaged();
        if let Some(why) = &why {
            let mut found = self.of_records();
            found.retain(|one| !deployed.iter().any(|kept| kept.engine == one.name));
            salvaged.retain(|one| !found.iter().any(|other| other.name == one.name));
            salvaged.extend(found);
            if !salvaged.is_empty() {
                tracing::error!(engines = salvaged.len(), "{why}: engines go on as they were started");
                state.set_salvaged(&salvaged);
            }
        }
        let why = why.unwrap_or_else(|| "the list of deployments was lost".to_owned());
        {
            let mut list = self.lock();
            list.lost = (!salvaged.is_empty()).then_some(why);
            list.salvaged = salvaged;
        }
        self.deploy(deployed, None);
    }

    /// Engines of deployments by the records of their processes.
    fn of_records(&self) -> Vec<EngineConfig> {
        let inheritance = self.host.inheritance.lock().unwrap_or_else(PoisonError::into_inner);
        let started = inheritance.engines.values().filter_map(|inherited| {
            let config: EngineConfig = serde_json::from_value(inherited.record.started.clone()).ok()?;
            let is_whole = config.name == inherited.record.name && config.origin.is_some();
            (is_whole && !config.name.starts_with(TRIED)).then_some(config)
        });
        started.collect()
    }

    /// What an engine whose list was lost was started as.
    pub(crate) fn salvaged(&self, name: &str) -> Option<EngineConfig> {
        self.lock().salvaged.iter().find(|one| one.name == name).cloned()
    }

    /// Those that are left; they stand on the disk until the edge has loaded or unloaded each.
    pub(crate) fn all_salvaged(&self) -> Vec<EngineConfig> {
        self.lock().salvaged.clone()
    }

    /// One of them is wanted no more: its streams get as long as the next [`Engines::deploy`] says.
    pub(crate) fn let_go(&self, name: &str) {
        self.lock().salvaged.retain(|one| one.name != name);
    }

    /// Why engines go on without their deployments' list, for whoever reports problems.
    pub(crate) fn lost_deployments(&self) -> Option<String> {
        let list = self.lock();
        let names: Vec<_> = list.salvaged.iter().map(|one| one.name.as_str()).collect();
        let why = list.lost.as_ref().filter(|_| !names.is_empty())?;
        Some(format!(
            "{why}: {} go on as they were started, until the edge loads or unloads them",
            names.join(", ")
        ))
    }
}
