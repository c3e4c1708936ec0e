//! What the operations on the site's certificate authority take and give.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `ca.rotate`: one step of a change with overlap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaRotateArgs {
    /// Which step.
    pub step: CaStep,
    /// Go on although nodes lack the new authority: they will have to be enrolled anew.
    #[serde(default)]
    pub leave_behind: bool,
}

/// The steps of a change of authority, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CaStep {
    /// Make a new authority and give it to the nodes; the old one still signs.
    Begin,
    /// Sign with the new one, and give every node a new certificate; both are trusted.
    Switch,
    /// Trust only the new one.
    Finish,
    /// Take `begin` back.
    Abort,
}

/// `ca.show` and `ca.rotate`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CaResult {
    /// Where a change stands: `settled`, `begun` or `switched`.
    pub phase: String,
    /// Those that nodes are told to trust; the one that signs first.
    pub authorities: Vec<CaObject>,
    /// Nodes that do not trust the newest one yet, at most 1,000.
    pub lacking: Vec<CaLacking>,
    /// Nodes whose certificate an older one signed.
    pub old_certificates: u64,
    /// What to do next.
    pub next_step: String,
}

/// One certificate authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CaObject {
    /// SHA-256 of its certificate, in hexadecimal.
    pub sha256: String,
    /// It signs now.
    pub signs: bool,
    /// From then on it holds.
    #[schemars(with = "String")]
    pub not_before: Timestamp,
    /// Until then.
    #[schemars(with = "String")]
    pub not_after: Timestamp,
}

/// A node that lacks the newest authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CaLacking {
    /// Which.
    pub node_id: String,
    /// Its name.
    pub name: String,
    /// One word for its state.
    pub state: String,
    /// When the edge last heard of it; `null` if never.
    #[schemars(with = "Option<String>")]
    pub last_seen_at: Option<Timestamp>,
}
