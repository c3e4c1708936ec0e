//! Which providers exist, and what their names mean.
//!
//! Owns declaring and removing providers, and the names of models and aliases. Leaves states to
//! [`super::node`]. Invariant: a name means one model; where specifications of a model's providers contradict
//! each other the first one stands.

use std::sync::Arc;
use std::time::Instant;

use super::Admission;
use super::model::Model;
use super::outliers::Health;
use super::provider::{Provider, ProviderSpec, ProviderState};
use super::words::{ModelIndex, ProviderIndex};

/// Why a provider was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProviderConflict {
    /// One of its aliases, or its model, is a name that already means another model.
    #[error("the name {0} already belongs to another model; rename it in one of the two node files")]
    NameTaken(String),
    /// The model's first provider has another threshold.
    #[error(
        "long_context_threshold_tokens is {declared}, but the other providers of the model say {stands}; use one value"
    )]
    Threshold {
        /// The one that stands.
        stands: u32,
        /// The one refused.
        declared: u32,
    },
    /// The model's first provider has other aliases.
    #[error("its aliases differ from those of the model's other providers; use the same list")]
    Aliases,
    /// Too many names or providers at this edge.
    #[error("this edge knows too many {0} already")]
    TooMany(&'static str),
    /// The report is of an older connection than the one in force.
    #[error("an older connection's report")]
    Stale,
}

impl Admission {
    /// Adds or replaces a provider's specification. Its state stays; a new one is unavailable. The provider
    /// of a node that is away counts as wanted if the node is eligible and not draining.
    ///
    /// # Errors
    /// If names or thresholds contradict what stands: then the provider is not served.
    pub(crate) fn declare(
        &mut self,
        now: Instant,
        spec: ProviderSpec,
    ) -> Result<ProviderIndex, ProviderConflict> {
        let index = self.by_id.get(&spec.provider_id).copied();
        let conflict = self.conflict(&spec, index);
        if let Some(index) = index {
            let moved = self
                .providers
                .get(index.0 as usize)
                .is_some_and(|provider| provider.spec.model != spec.model || provider.gone);
            if conflict.is_some() || moved {
                self.undeclare(now, &spec.provider_id);
            }
        }
        if let Some(conflict) = conflict {
            return Err(conflict);
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

    fn conflict(&self, spec: &ProviderSpec, own: Option<ProviderIndex>) -> Option<ProviderConflict> {
        let model = self.names.get(spec.model.as_str()).copied();
        let serves_others = |index: ModelIndex| {
            self.models
                .get(index.0 as usize)
                .is_some_and(|model| model.providers.iter().any(|provider| Some(*provider) != own))
        };
        let names = std::iter::once(&spec.model).chain(&spec.aliases);
        for name in names {
            if let Some(&other) = self.names.get(name.as_str())
                && serves_others(other)
                && (Some(other) != model || self.canonical(other) != Some(spec.model.as_str()))
            {
                return Some(ProviderConflict::NameTaken(name.clone()));
            }
        }
        let first = self
            .models
            .get(model?.0 as usize)?
            .providers
            .iter()
            .filter(|provider| Some(**provider) != own)
            .find_map(|provider| self.providers.get(provider.0 as usize))?;
        let (stands, declared) =
            (first.spec.long_context_threshold_tokens, spec.long_context_threshold_tokens);
        if stands != declared {
            return Some(ProviderConflict::Threshold { stands, declared });
        }
        (sorted(&first.spec.aliases) != sorted(&spec.aliases)).then_some(ProviderConflict::Aliases)
    }

    fn canonical(&self, model: ModelIndex) -> Option<&str> {
        self.models.get(model.0 as usize).map(|model| &*model.name)
    }

    /// The model of a specification that is free of conflicts, made or renamed as needed.
    fn model_of(&mut self, spec: &ProviderSpec) -> Result<ModelIndex, ProviderConflict> {
        let known = self.names.get(spec.model.as_str()).copied();
        let index = match known.filter(|index| self.canonical(*index) == Some(spec.model.as_str())) {
            Some(index) => index,
            None => {
                if self.names.len() >= self.limits.names || self.models.len() >= self.limits.names {
                    return Err(ProviderConflict::TooMany("model names"));
                }
                let index = ModelIndex(u32::try_from(self.models.len()).unwrap_or(u32::MAX));
                let name: Arc<str> = Arc::from(spec.model.as_str());
                self.names.insert(Arc::clone(&name), index);
                self.models.push(Model::new(name));
                index
            }
        };
        // Aliases of all providers of a model are equal, so the newest specification has them all.
        self.forget_aliases(index);
        for alias in &spec.aliases {
            if self.names.len() >= self.limits.names {
                return Err(ProviderConflict::TooMany("model names"));
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

    fn forget_aliases(&mut self, index: ModelIndex) {
        let Some(model) = self.models.get_mut(index.0 as usize) else { return };
        for alias in std::mem::take(&mut model.aliases) {
            self.names.remove(&alias);
        }
    }

    fn add_provider(
        &mut self,
        model: ModelIndex,
        spec: ProviderSpec,
    ) -> Result<ProviderIndex, ProviderConflict> {
        if self.by_id.len() >= self.limits.providers {
            return Err(ProviderConflict::TooMany("providers"));
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

fn sorted(names: &[String]) -> Vec<&str> {
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    names
}
