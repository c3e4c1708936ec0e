//! Metrics of engines as their nodes say: how often each was started anew, and what a failed one suffers from.
//!
//! Invariant: a code that this edge does not know is `other`, whatever a node says; an engine that its node no longer names has
//! no series.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use umbel_contracts::causes::label;
use umbel_contracts::daemon::exposition::{counters, gauges};
use umbel_contracts::proto::node::EngineState;

use super::NodeFigures;
use crate::core::registry::node::Node;

/// What a node last said of an engine.
pub(super) struct Figures {
    name: String,
    restarts: u64,
    /// While it has failed: what that is called.
    failed: Option<&'static str>,
}

/// What a node has said of its engines to this process.
pub(super) fn of(node: &Node) -> Vec<Figures> {
    let each = node.engines.iter().map(|(name, status)| Figures {
        name: name.clone(),
        restarts: status.restarts.into(),
        failed: (status.state() == EngineState::Failed).then(|| label(&status.code)),
    });
    each.collect()
}

/// Their metrics.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, nodes: &[&NodeFigures]) -> Result<(), fmt::Error> {
    let all = || nodes.iter().flat_map(|node| node.engines.iter().map(move |engine| (*node, engine)));
    let labels = |node: &NodeFigures, engine: &Figures| {
        [("node", node.name.clone()), ("node_id", node.id.clone()), ("engine", engine.name.clone())]
    };
    let help = "Starts of an engine after its process ended by itself, since its agent started";
    let restarts = all().map(|(node, engine)| (labels(node, engine), engine.restarts));
    counters(encoder, "umbel_edge_engine_restarts", help, restarts)?;
    let help = "One while an engine has failed, with what that is called";
    let failed = all().filter_map(|(node, engine)| {
        let [a, b, c] = labels(node, engine);
        Some(([a, b, c, ("code", engine.failed?.to_owned())], 1.0))
    });
    gauges(encoder, "umbel_edge_engine_failed", help, failed)
}
