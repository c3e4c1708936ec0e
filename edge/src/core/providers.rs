//! What the registry tells, in admission's words.
//!
//! Owns the translation between the registry and admission, which know nothing of each other: of an engine that a node
//! declares, and of each call. Leaves the connections that streams are opened on to the shell.

use std::time::Instant;

use umbel_contracts::deployment::DeploymentSpec;
use umbel_wire::{Generation, NodeId};

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
        category: category(&engine.category),
        capacity: engine.capacity,
        max_context_tokens: engine.max_context_tokens,
        long_context_threshold_tokens: engine.long_context_threshold_tokens,
        long_context_capacity: engine.long_context_capacity,
    }
}

fn category(word: &str) -> Category {
    match word {
        "api" => Category::Api,
        "cli" => Category::Cli,
        _ => Category::LocalInference,
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
        ProviderState::Leaving => admission::ProviderState::Leaving,
        ProviderState::Unavailable => admission::ProviderState::Unavailable,
        ProviderState::Failed => admission::ProviderState::Failed,
    }
}

/// The node of providers that no node has yet.
const NOWHERE: NodeId = NodeId(uuid::Uuid::nil());

/// Whether a provider is only expected: it is in no list of those that there are.
pub(crate) fn is_expected(node: NodeId) -> bool {
    node == NOWHERE
}

/// What stands for a deployment's model while no replica serves it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expected {
    pub(crate) spec: ProviderSpec,
    /// A replica comes by itself, so requests wait; else they are refused at once, as of a model that is known.
    pub(crate) comes: bool,
}

/// A provider that a deployment wants and that is not there yet.
pub(crate) fn expected(spec: &DeploymentSpec, comes: bool) -> Expected {
    let spec = ProviderSpec {
        provider_id: format!("deployment/{}", spec.name).into(),
        node_id: NOWHERE,
        model: spec.model().to_owned(),
        aliases: spec.aliases.clone(),
        category: category(spec.category()),
        capacity: spec.capacity(),
        max_context_tokens: spec.max_context_tokens.unwrap_or_default(),
        long_context_threshold_tokens: spec.long_context_threshold_tokens.unwrap_or_default(),
        long_context_capacity: spec.long_context_capacity.unwrap_or_default(),
    };
    Expected { spec, comes }
}

/// Admission waits with requests for what is expected and comes; what no longer is expected goes. `known` is what it was told
/// before.
pub(crate) fn expect(
    admission: &mut Admission,
    now: Instant,
    known: &mut Vec<Expected>,
    expected: Vec<Expected>,
) {
    if *known == expected {
        return;
    }
    let is_in = |old: &Expected| expected.iter().any(|new| new.spec.provider_id == old.spec.provider_id);
    for old in known.iter().filter(|old| !is_in(old)) {
        admission.undeclare(now, &old.spec.provider_id);
    }
    admission.node_eligible(now, NOWHERE, true);
    for new in expected.iter().filter(|new| !known.contains(new)) {
        let state =
            if new.comes { admission::ProviderState::Loading } else { admission::ProviderState::Draining };
        // One that does not fit any more is not waited for: its replicas will not be served either.
        let _ = admission.provider_up(now, new.spec.clone(), Generation(1), state);
    }
    *known = expected;
}
