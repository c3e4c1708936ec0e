//! The objects of the operator API that are about the fleet and not about one node: here sites' statuses, and in the
//! files below edges with their credentials, commands, and what is told (events, audit, problems).
//!
//! What an edge says of its nodes, providers and queues stands beside this file. Fields are only ever added;
//! times are RFC 3339 in UTC, durations are integers of milliseconds with `_ms` in the name.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{DeploymentObject, JobObject, NodeObject, QueueObject, SummaryObject};

mod commands;
mod edges;
mod told;

pub use commands::*;
pub use edges::*;
pub use told::*;

/// A time of the wire as an object's. One outside of the calendar becomes its nearest end.
#[must_use]
pub fn timestamp(unix_ms: i64) -> Timestamp {
    let edge = if unix_ms < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_millisecond(unix_ms).unwrap_or(edge)
}

/// What an operator's token allows: each role includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads.
    Viewer,
    /// Commands that change running state.
    Operator,
    /// Tokens, credentials, decommission, operators; and every operation whose class is not known.
    Admin,
}

impl Role {
    /// Its spelling in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Page<T> {
    /// The entries of this page.
    pub items: Vec<T>,
    /// What to pass as `cursor` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// A list that fits on one page.
    #[must_use]
    pub fn whole(items: Vec<T>) -> Self {
        Self { items, next_cursor: None }
    }
}

/// How old a site's figures are, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Freshness {
    /// The edge answered this question.
    Fresh,
    /// The edge is connected but was not asked or refused; the figures are its last heartbeat's.
    Cached,
    /// The edge is connected and did not answer by the deadline; the figures are the last known.
    TimedOut,
    /// The edge is not connected; the figures are the last known, if any.
    Disconnected,
}

/// The answer about the whole fleet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetStatus {
    /// Name of the fleet; on an edge's own socket the site's name.
    pub fleet_name: String,
    /// Who answers: the control plane's name, or the edge's.
    pub answered_by: String,
    /// When the answer was put together.
    pub observed_at: Timestamp,
    /// The time that the edges were given, in milliseconds.
    pub deadline_ms: u64,
    /// Every enrolled site, by name.
    pub sites: Vec<SiteStatus>,
}

/// What is known of one site. Without `nodes`, `queues`, `deployments` or `jobs` that section was not asked for, or is not
/// known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteStatus {
    /// The site.
    pub edge_id: String,
    /// Its name for people.
    pub display_name: String,
    /// How old the figures are, and why.
    pub freshness: Freshness,
    /// Age of the figures by the answering host's own clock; absent when nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    /// The edge's own time of the reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_at: Option<Timestamp>,
    /// Why the site is not fresh, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Figures of the site; absent while the edge has said nothing since the control plane started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<SummaryObject>,
    /// The site's nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<NodeObject>>,
    /// The site's queues, one a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<Vec<QueueObject>>,
    /// The site's deployments, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployments: Option<Vec<DeploymentObject>>,
    /// The site's jobs that have not ended, the newest first, at most 1,000; the summary counts all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<Vec<JobObject>>,
}

/// The nodes of the fleet, with the sites whose nodes are not among them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetNodes {
    /// Each node with its site.
    pub items: Vec<SiteNode>,
    /// Sites that did not answer: their nodes are missing from `items` and are not to be taken for gone.
    pub missing: Vec<SiteStatus>,
}

/// A node and its site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteNode {
    /// The site.
    pub edge_id: String,
    /// The node as its edge describes it.
    #[serde(flatten)]
    pub node: NodeObject,
}
