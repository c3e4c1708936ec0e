//! What the operator API says of queues: requests that wait and run, a model each.
//!
//! Invariant: the figures of one queue, its keys and its providers are one reading of the edge's admission.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ProviderState, timestamp};
use crate::proto::control;

/// The queue of one model. Fields that an older edge does not tell are absent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueObject {
    /// The model.
    pub model: String,
    /// Requests that wait.
    pub depth: u32,
    /// How long the first of them has been waiting.
    pub oldest_age_ms: u64,
    /// Requests that got a lease since the edge's start.
    pub admitted_total: u64,
    /// Requests that were refused since the edge's start.
    pub shed_total: u64,
    /// Leases held.
    pub in_flight: u32,
    /// The edge's time of the reading.
    #[schemars(with = "String")]
    pub observed_at: Timestamp,
    /// What else an edge of this version tells.
    #[serde(flatten)]
    pub more: Option<QueueFigures>,
    /// Whose requests wait, the most first, at most 32; only in `queue.show`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_keys: Option<Vec<WaitingKeyObject>>,
    /// Who serves the model; only in `queue.show`, and at most 32 unless one model is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub providers: Option<Vec<QueueProviderObject>>,
}

/// Figures of a queue that an older edge does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueFigures {
    /// The bound of `depth`.
    pub limit: u32,
    /// Slots of all providers that may be given work.
    pub capacity: u32,
    /// The long ones of `depth`.
    pub long_waiting: u32,
    /// How long the first long one has been waiting.
    pub oldest_long_age_ms: u64,
    /// Leases that end in a minute, by the last ones; 0 where none ended lately.
    pub drain_per_minute: u32,
    /// API keys whose requests wait.
    pub keys_waiting: u32,
    /// Providers that may be given work.
    pub providers_open: u32,
    /// Providers that are on their way to it.
    pub providers_loading: u32,
    /// Providers that are wanted, there or not.
    pub providers_wanted: u32,
    /// The leases of `in_flight` by phase.
    pub leases: LeasesObject,
    /// Requests that this edge refused since its start, by the reason that clients were told.
    pub rejections: BTreeMap<String, u64>,
}

/// Leases by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeasesObject {
    /// Without a head from the engine.
    pub prefill: u32,
    /// The engine's answer flows.
    pub streaming: u32,
    /// Their client left or their time is over; the node has not confirmed their end yet.
    pub ending: u32,
    /// The node did not confirm their end in time; their slots stay taken until it does or `request.release`.
    pub unconfirmed: u32,
}

/// The waiting requests of one API key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WaitingKeyObject {
    /// Which; absent for callers on the edge's host without a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// What people call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_name: Option<String>,
    /// Its priority: the higher is served first.
    pub priority: u8,
    /// Its requests that wait.
    pub waiting: u32,
    /// The long ones of them.
    pub long_waiting: u32,
    /// How long the first of them has been waiting.
    pub oldest_age_ms: u64,
}

/// One provider of a model, as admission counts it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueProviderObject {
    /// `NODE_ID/NAME`.
    pub provider_id: String,
    /// Name of its node.
    pub node: String,
    /// Whether it takes requests.
    pub status: ProviderState,
    /// It may be given work now, if a slot is free.
    pub open: bool,
    /// It failed more than its peers and is passed over for a while.
    pub ejected: bool,
    /// Requests at once.
    pub capacity: u32,
    /// Leases held, the long ones included.
    pub in_flight: u32,
    /// Long requests at once.
    pub long_context_capacity: u32,
    /// Leases of long requests.
    pub long_context_in_flight: u32,
    /// Leases whose end its node did not confirm in time.
    pub unconfirmed: u32,
    /// Requests waiting for which it is a candidate.
    pub queued: u32,
}

impl QueueObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(queue: control::QueueSnapshot) -> Self {
        // No edge that tells these has a queue without a bound.
        let more = (queue.limit > 0).then(|| QueueFigures {
            limit: queue.limit,
            capacity: queue.capacity,
            long_waiting: queue.long_waiting,
            oldest_long_age_ms: queue.oldest_long_age_ms,
            drain_per_minute: queue.drain_per_minute,
            keys_waiting: queue.keys_waiting,
            providers_open: queue.providers_open,
            providers_loading: queue.providers_loading,
            providers_wanted: queue.providers_wanted,
            leases: LeasesObject {
                prefill: queue.leases_prefill,
                streaming: queue.leases_streaming,
                ending: queue.leases_ending,
                unconfirmed: queue.leases_unconfirmed,
            },
            rejections: queue.rejections.into_iter().collect(),
        });
        Self {
            model: queue.model,
            depth: queue.depth,
            oldest_age_ms: queue.oldest_age_ms,
            admitted_total: queue.admitted_total,
            shed_total: queue.shed_total,
            in_flight: queue.in_flight,
            observed_at: timestamp(queue.observed_at_unix_ms),
            more,
            waiting_keys: None,
            providers: None,
        }
    }
}
