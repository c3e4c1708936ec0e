//! Which providers exist, and what their names mean.
//!
//! Owns declaring and removing providers, and the names of models and aliases. Leaves states to
//! [`super::node`], and what stands where nodes contradict each other to the registry, which tells only that. Invariant: a
//! name means one model, the one that was told last.

use std::sync::Arc;
use std::time::Instant;

use super::Admission;
use super::model::Model;
use super::outliers::Health;
use super::provider::{Provider, ProviderSpec, ProviderState};
use super::words::{ModelIndex, ProviderIndex};

/// Why a provider was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotTaken {
    /// Too many names or providers at this edge.
    #[error("this edge knows too many {0} already")]
    TooMany(&'static str),
    /// The report is of an older connection than the one in force.
    #[error("an older connection's report")]
    Stale,
}

impl Admission {
    /// Adds or replaces a provider's specification. Its state stays; a new one is unavailable. The provider
    /// of a node that is away counts as wanted if the node is eligible and not draining. The newest specification has its
    /// model's aliases and threshold.
    ///
    /// # Errors
    /// If there are too many: then the provider is not served.
    pub(crate) fn declare(&mut self, now: Instant, spec: ProviderSpec) -> Result<ProviderIndex, NotTaken> {
        let moved = |provider: &Provider| provider.spec.model != spec.model || provider.gone;
        let known = self.by_id.get(&spec.provider_id);
        if known.and_then(|index| self.providers.get(index.0 as usize)).is_some_and(moved) {
            self.undeclare(now, &spec.provider_id);
        }
        let model = self.model_of(&spec)?;
        let index = match self.by_id.get(&spec.provider_id).copied() {
            Some(index) => {
                self.respecify(index, spec);
                index
            }
            None => self.add_provider(model, spec)?,
        };
        self.refresh(now, index);
        // Whoever is passed over may be the last one that takes such prompts now.
        self.take_back_the_last(now, model);
        Ok(index)
    }

    fn respecify(&mut self, index: ProviderIndex, spec: ProviderSpec) {
        let Some(provider) = self.providers.get_mut(index.0 as usize) else { return };
        let Some(model) = self.models.get_mut(provider.model.0 as usize) else { return };
        let prompts = |spec: &ProviderSpec| (spec.max_context_tokens, spec.long_context_capacity > 0);
        if prompts(&spec) != prompts(&provider.spec) {
            model.pool.changed();
        }
        model.long_threshold = spec.long_context_threshold_tokens;
        provider.spec = spec;
    }

    /// The model of a specification that is free of conflicts, made or renamed as needed.
    fn model_of(&mut self, spec: &ProviderSpec) -> Result<ModelIndex, NotTaken> {
        // Names are remembered as long as there is room: a model that comes back is estimated as well as before.
        if self.names.len().max(self.canonical.len()) + 1 + spec.aliases.len() > self.limits.names {
            self.forget_unused();
        }
        let index = match self.canonical.get(spec.model.as_str()) {
            Some(index) => *index,
            None => {
                if self.names.len() >= self.limits.names || self.canonical.len() >= self.limits.names {
                    return Err(NotTaken::TooMany("model names"));
                }
                let name: Arc<str> = Arc::from(spec.model.as_str());
                let index = self.models.add(Model::new(Arc::clone(&name)));
                self.canonical.insert(name, index);
                index
            }
        };
        if let Some(model) = self.models.get(index.0 as usize) {
            // It may have been another model's alias while nobody served this one.
            self.names.insert(Arc::clone(&model.name), index);
        }
        // Aliases of all providers of a model are equal, so the newest specification has them all.
        self.forget_aliases(index);
        for alias in &spec.aliases {
            if self.names.len() >= self.limits.names && !self.names.contains_key(alias.as_str()) {
                return Err(NotTaken::TooMany("model names"));
            }
            let alias: Arc<str> = Arc::from(alias.as_str());
            self.names.insert(Arc::clone(&alias), index);
            if let Some(model) = self.models.get_mut(index.0 as usize)
                && !model.aliases.contains(&alias)
                && *alias != *model.name
            {
                model.aliases.push(alias);
            }
        }
        Ok(index)
    }

    /// Forgets the models that nobody declares and nothing asks for.
    fn forget_unused(&mut self) {
        let unused: Vec<ModelIndex> =
            self.models.iter().filter(|(_, model)| model.is_over()).map(|(index, _)| index).collect();
        for index in unused {
            let Some(model) = self.models.forget(index) else { continue };
            self.canonical.remove(&model.name);
            // It may be another model's alias by now.
            if self.names.get(&model.name) == Some(&index) {
                self.names.remove(&model.name);
            }
            self.forgotten.push(index);
        }
    }

    fn forget_aliases(&mut self, index: ModelIndex) {
        let Some(model) = self.models.get_mut(index.0 as usize) else { return };
        for alias in std::mem::take(&mut model.aliases) {
            // It may be another model's by now.
            if self.names.get(&alias) == Some(&index) {
                self.names.remove(&alias);
            }
        }
    }

    fn add_provider(&mut self, model: ModelIndex, spec: ProviderSpec) -> Result<ProviderIndex, NotTaken> {
        if self.by_id.len() >= self.limits.providers {
            return Err(NotTaken::TooMany("providers"));
        }
        let free = if self.by_id.len() < self.providers.len() {
            self.providers.iter().position(|provider| provider.gone && provider.in_flight == 0)
        } else {
            None
        };
        let index = ProviderIndex(u32::try_from(free.unwrap_or(self.providers.len())).unwrap_or(u32::MAX));
        self.by_id.insert(Arc::clone(&spec.provider_id), index);
        self.nodes.entry(spec.node_id).or_default().providers.push(index);
        if let Some(model) = self.models.get_mut(model.0 as usize) {
            model.providers.push(index);
            model.pool.changed();
            model.long_threshold = spec.long_context_threshold_tokens;
        }
        self.seen.make_room(self.by_id.len());
        let opened =
            free.and_then(|free| self.providers.get(free)).map_or(0, |old| old.opened.wrapping_add(1));
        let provider = Provider {
            spec,
            model,
            state: ProviderState::default(),
            generation: None,
            in_flight: 0,
            long_in_flight: 0,
            unconfirmed: 0,
            health: Health::default(),
            seat: 0,
            open: false,
            wanted: false,
            loading: false,
            opened,
            gone: false,
        };
        match free.and_then(|free| self.providers.get_mut(free)) {
            Some(slot) => *slot = provider,
            None => self.providers.push(provider),
        }
        Ok(index)
    }

    /// A provider is no longer declared: it takes nothing new, its leases end as they do.
    pub(crate) fn undeclare(&mut self, now: Instant, provider_id: &str) {
        let Some(index) = self.by_id.remove(provider_id) else { return };
        let Some(provider) = self.providers.get_mut(index.0 as usize) else { return };
        provider.gone = true;
        provider.generation = None;
        let (model_index, node) = (provider.model, provider.spec.node_id);
        self.refresh(now, index);
        if let Some(node) = self.nodes.get_mut(&node) {
            node.providers.retain(|other| *other != index);
        }
        if let Some(model) = self.models.get_mut(model_index.0 as usize) {
            model.providers.retain(|other| *other != index);
            model.pool.changed();
            if model.providers.is_empty() {
                // The canonical name keeps its index; an alias is free for others again.
                self.forget_aliases(model_index);
            }
        }
        self.hand_over(now, model_index);
        self.refuse_unwanted(now, model_index);
    }
}
