//! Whether a selector chooses a node, for whoever holds one.
//!
//! Owns which of a node's words a selector is held against. Leaves the language to `contracts`. Invariant: a node is chosen by
//! what the registry knows of it, whether it is connected or not.

use std::collections::BTreeMap;

use umbel_contracts::selector::{Candidate, Selector, Term};

use super::node::Node;

/// Whether a selector chooses a node.
pub(crate) fn matches(selector: &Selector, node: &Node) -> bool {
    // Most questions are of everybody: what a node says need not be unpacked for that.
    if selector.terms().iter().all(|term| *term == Term::All) {
        return true;
    }
    let labels: BTreeMap<String, String> = node.all_labels();
    let mut models: Vec<&str> = Vec::new();
    for engine in &node.report.engines {
        models.push(&engine.model);
        models.extend(engine.aliases.iter().map(String::as_str));
    }
    let inventory = node.inventory().unwrap_or_default();
    let gpus: Vec<&str> = inventory.gpus.iter().map(|gpu| gpu.name.as_str()).collect();
    let id = node.id.to_string();
    selector.matches(&Candidate {
        node_id: &id,
        name: &node.row.name,
        labels: &labels,
        models: &models,
        gpus: &gpus,
    })
}
