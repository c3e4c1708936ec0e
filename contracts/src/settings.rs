//! The site's settings: one closed document for the edge itself and for its nodes' agents.
//!
//! Owns: which keys there are, what each may hold, how a node's own settings lie over the default, and what differs
//! between two documents. Leaves to others: versions and who has which (the edge), and what a node makes of them.
//! Invariant: a document that passes [`check`] holds nothing unknown, nothing out of bounds and nothing that belongs
//! into a host's own file; an error names the field by its path and says what would be right.
//!
//! ```text
//! { "edge": { "queue": { "max_wait": "30s" } },
//!   "agents": { "default": { "log": { "level": "info" } },
//!               "nodes": { "NODE_ID": { "engines": { "chat": { "capacity": 8 } } } } } }
//! ```

mod compare;
mod path;
mod rules;
mod table;
#[cfg(test)]
mod tests;
mod typed;
mod walk;

use std::fmt;

use serde_json::{Map, Value};

pub use compare::{diff, overlay, tidy, undo};
pub use path::{InvalidPath, Path};
pub use typed::{
    AgentSettings, ApiSettings, AuditSettings, ClockSettings, EdgeSettings, EngineSettings, LivenessSettings,
    LogSettings, QueueSettings, ShutdownSettings, UpstreamSettings,
};
pub use walk::{Row, rows};

/// Largest document in bytes of JSON: its versions are rows of a store, and it is one operation's result.
pub const LARGEST_DOCUMENT: usize = 256 * 1024;
/// Largest effective settings of one node in bytes of JSON: they travel in one request.
pub const LARGEST_EFFECTIVE: usize = 48 * 1024;
/// Bytes of the names, models and aliases of one node's engines together: they travel in one hello of at most 60 KiB.
pub const NAMES_BYTES_MAX: usize = 16 * 1024;
/// Engines of one node: each has a status in every heartbeat of at most 60 KiB.
pub const ENGINES_MAX: usize = 32;
/// Requests at once of one engine: the streams of a connection.
pub const CAPACITY_MAX: u32 = 1024;

/// What is wrong with a document, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The field: `agents.default.engines.chat.capacity`; empty for the whole.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl Fault {
    /// About the field of that path.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            return f.write_str(&self.message);
        }
        write!(f, "{}: {}", self.path, self.message)
    }
}

impl std::error::Error for Fault {}

/// Checks a whole document as far as that needs neither the edge's nor a node's file.
///
/// # Errors
/// The first field that is wrong.
pub fn check(document: &Value) -> Result<(), Fault> {
    let bytes = serde_json::to_vec(document).map_or(usize::MAX, |bytes| bytes.len());
    if bytes > LARGEST_DOCUMENT {
        return Err(Fault::new("", format!("the settings are above {LARGEST_DOCUMENT} bytes")));
    }
    walk::check_document(document)?;
    let default = default_of(document);
    check_agent(&default, "agents.default")?;
    for (node, _) in nodes_of(document) {
        let at = Path::from_iter(["agents", "nodes", node.as_str()]).to_string();
        check_agent(&effective(document, node), &at)?;
    }
    Ok(())
}

/// Checks effective settings of a node; `at` goes before the path of an error (empty on the node itself).
///
/// # Errors
/// The first field that is wrong.
pub fn check_agent(settings: &Value, at: &str) -> Result<(), Fault> {
    let bytes = serde_json::to_vec(settings).map_or(usize::MAX, |bytes| bytes.len());
    if bytes > LARGEST_EFFECTIVE {
        return Err(Fault::new(at, format!("a node's settings are above {LARGEST_EFFECTIVE} bytes")));
    }
    walk::check_agent(settings, at)?;
    rules::check(settings, at)
}

/// Takes away what this build does not know, so that a newer edge's settings can be used; the paths that went, at
/// most `most` of them. What is wrong in a key that it knows stays for [`check_agent`].
#[must_use]
pub fn known(settings: Value, most: usize) -> (Value, Vec<String>) {
    let mut settings = settings;
    let mut ignored = Vec::new();
    walk::drop_unknown(&mut settings, most, &mut ignored);
    (tidy(settings), ignored)
}

/// The settings of one node: the default, overlaid with its own.
#[must_use]
pub fn effective(document: &Value, node_id: &str) -> Value {
    let own = document.get("agents").and_then(|agents| agents.get("nodes")?.get(node_id));
    let default = default_of(document);
    own.map_or_else(|| default.clone(), |own| overlay(&default, own))
}

/// The edge's own settings; an empty object if there are none.
#[must_use]
pub fn edge_of(document: &Value) -> Value {
    document.get("edge").cloned().unwrap_or_else(|| Value::Object(Map::new()))
}

/// The default of all nodes; an empty object if there is none.
#[must_use]
pub fn default_of(document: &Value) -> Value {
    let default = document.get("agents").and_then(|agents| agents.get("default"));
    default.cloned().unwrap_or_else(|| Value::Object(Map::new()))
}

/// Nodes that have settings of their own.
pub fn nodes_of(document: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let nodes = document.get("agents").and_then(|agents| agents.get("nodes")).and_then(Value::as_object);
    nodes.into_iter().flatten()
}
