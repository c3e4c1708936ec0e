//! What admission is asked for: figures, readings, names.
//!
//! Invariant: each answer is read under one lock, so that its numbers belong together.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{ChoiceFigures, Dispatch, Figures, LeaseCounts, ModelIndex, Reading, now};
use crate::shell::requests::Requests;

impl Dispatch {
    /// The records of requests.
    pub(crate) fn requests(&self) -> &Arc<Requests> {
        &self.requests
    }

    /// Counts of a provider, for snapshots.
    pub(crate) fn figures(&self, provider_id: &str) -> Option<Figures> {
        self.lock().admission.figures(provider_id)
    }

    /// Everything that waits and runs, read at once.
    pub(crate) fn reading(&self) -> Reading {
        // Counting and ordering it is not for the time in which nobody is given a slot.
        let copied = self.lock().admission.copied(now());
        copied.told()
    }

    /// How often requests for a model were refused, by the reason that clients were told.
    pub(crate) fn rejections(&self, model: ModelIndex) -> BTreeMap<String, u64> {
        let metrics = self.lock().models.get(&model).map(|known| Arc::clone(&known.metrics));
        metrics.map(|metrics| metrics.rejections()).unwrap_or_default()
    }

    /// All queues.
    #[cfg(test)]
    pub(crate) fn queues(&self) -> Vec<crate::core::admission::QueueFigures> {
        self.lock().admission.queues(now())
    }

    /// What prefix affinity and the passing over of failing providers came to.
    pub(crate) fn choice_figures(&self) -> ChoiceFigures {
        self.lock().admission.choice_figures()
    }

    /// Requests and leases by phase, of the whole site.
    pub(crate) fn totals(&self) -> LeaseCounts {
        self.lock().admission.lease_counts()
    }

    /// Leases whose end their node has not confirmed in time, with the provider of each.
    #[cfg(test)]
    pub(crate) fn unconfirmed(&self) -> Vec<(super::LeaseId, Arc<str>)> {
        self.lock().admission.unconfirmed()
    }

    /// Whether a name is one of this model's.
    pub(crate) fn means(&self, name: &str, model: ModelIndex) -> bool {
        self.lock().admission.resolve(name) == Some(model)
    }

    /// Names that callers may use, each with its canonical name.
    pub(crate) fn model_names(&self) -> Vec<(Arc<str>, Arc<str>)> {
        self.lock().admission.model_names()
    }
}
