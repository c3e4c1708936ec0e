//! An engine that a node declares, in admission's words.
//!
//! Owns the translation between the registry and admission, which know nothing of each other.

use umbel_wire::NodeId;

use super::admission::{self, Category, ProviderSpec};
use super::registry::node::{Declared, ProviderState};

/// What admission is told of a declared engine.
pub(crate) fn spec(node: NodeId, engine: &Declared) -> ProviderSpec {
    ProviderSpec {
        provider_id: id(node, &engine.name).into(),
        node_id: node,
        model: engine.model.clone(),
        aliases: engine.aliases.clone(),
        category: match engine.category.as_str() {
            "api" => Category::Api,
            "cli" => Category::Cli,
            _ => Category::LocalInference,
        },
        capacity: engine.capacity,
        max_context_tokens: engine.max_context_tokens,
        long_context_threshold_tokens: engine.long_context_threshold_tokens,
        long_context_capacity: engine.long_context_capacity,
    }
}

/// `NODE_ID/NAME`.
pub(crate) fn id(node: NodeId, engine: &str) -> String {
    format!("{node}/{engine}")
}

/// What the registry derived, as admission counts it.
pub(crate) fn state(state: ProviderState) -> admission::ProviderState {
    match state {
        ProviderState::Available => admission::ProviderState::Available,
        ProviderState::Loading => admission::ProviderState::Loading,
        ProviderState::Draining => admission::ProviderState::Draining,
        ProviderState::Unavailable => admission::ProviderState::Unavailable,
        ProviderState::Failed => admission::ProviderState::Failed,
    }
}
