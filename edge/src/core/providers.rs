//! What the registry tells, in admission's words.
//!
//! Owns the translation between the registry and admission, which know nothing of each other: of an engine that a node
//! declares, and of each call. Leaves the connections that streams are opened on to the shell.

use std::time::Instant;

use umbel_wire::NodeId;

use super::admission::{self, Admission, Category, NotTaken, ProviderIndex, ProviderSpec};
use super::registry::Call;
use super::registry::node::{Declared, ProviderState};

/// Tells admission one thing of the registry's; which provider came up with it, if one did.
///
/// # Errors
/// If there are too many providers or names, or the connection is an old one: then the provider is not served.
pub(crate) fn apply(
    admission: &mut Admission,
    now: Instant,
    call: &Call,
) -> Result<Option<ProviderIndex>, NotTaken> {
    match call {
        Call::Declare { node, engine } => drop(admission.declare(now, spec(*node, engine))?),
        Call::Up { node, generation, engine, state: up, .. } => {
            return admission.provider_up(now, spec(*node, engine), *generation, state(*up)).map(Some);
        }
        Call::State { node, generation, engine, state: new, .. } => {
            admission.provider_state(now, &id(*node, engine), *generation, state(*new));
        }
        Call::Down { node, engine } => admission.undeclare(now, &id(*node, engine)),
        Call::Ready { node, generation, ready } => admission.node_ready(now, *node, *generation, *ready),
        Call::Draining { node, draining } => admission.node_draining(now, *node, *draining),
        Call::Eligible { node, eligible } => admission.node_eligible(now, *node, *eligible),
        Call::Lost { node, generation } => drop(admission.node_lost(now, *node, *generation)),
        Call::Gone { node } => admission.node_gone(*node),
    }
    Ok(None)
}

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
fn state(state: ProviderState) -> admission::ProviderState {
    match state {
        ProviderState::Available => admission::ProviderState::Available,
        ProviderState::Loading => admission::ProviderState::Loading,
        ProviderState::Draining => admission::ProviderState::Draining,
        ProviderState::Unavailable => admission::ProviderState::Unavailable,
        ProviderState::Failed => admission::ProviderState::Failed,
    }
}
