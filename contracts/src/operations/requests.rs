//! Operations on queues and requests: what they take and give.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::objects::{LeaseObject, QueueObject, RequestObject};

/// `queue.show`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueShowArgs {
    /// Only this model's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub model: Option<String>,
    /// Queues a page, at most 1,000. A page may hold fewer, where they are large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub cursor: Option<String>,
}

/// `queue.show`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueShowResult {
    /// One a model, by name.
    pub queues: Vec<QueueObject>,
    /// For the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// `request.list`: every condition must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestListArgs {
    /// Only this model's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub model: Option<String>,
    /// Only this API key's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 36))]
    pub key_id: Option<String>,
    /// Only those that run (`true`) or that ended (`false`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<bool>,
    /// Only with this status (`429`), or with one of this hundred (`5xx`): ended ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 3))]
    pub status: Option<String>,
    /// Only those that take or took at least this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_ms: Option<u64>,
    /// Requests a page, at most 1,000; 100 unless said. A page may hold fewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub cursor: Option<String>,
}

/// `request.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestListResult {
    /// Newest first.
    pub requests: Vec<RequestObject>,
    /// Leases whose end their node did not confirm in time, also of requests that are not kept any more. On the first
    /// page only, at most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unconfirmed: Vec<LeaseObject>,
    /// For the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// `request.show`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestShowArgs {
    /// The `x-request-id` that the client has.
    #[schemars(length(min = 1, max = 128))]
    pub request_id: String,
}

/// `request.show`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestShowResult {
    /// All that have this id, newest first, at most 100: a client may use one id again.
    pub requests: Vec<RequestObject>,
}

/// `request.release`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestReleaseArgs {
    /// Which lease: `lease.lease_id` of a request.
    #[schemars(length(min = 1, max = 20))]
    pub lease_id: String,
}

/// `request.release`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestReleaseResult {
    /// What was released.
    pub lease: LeaseObject,
    /// The request that had it, if it is still kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}
