//! What applications talk to: the OpenAI surface, health and metrics, on HTTP/1.1.
//!
//! Owns listeners, connections, and the path of a request from its head to its answer's last byte. Leaves who
//! gets a slot to [`crate::shell::dispatch`] and bytes between edge and node to the wire. Invariants: 200 only
//! with the engine's own 200; truncation never looks like success; nothing of a message is logged or kept.

mod answer;
mod body;
mod connection;
mod error;
mod exchange;
mod exposition;
mod h1;
mod headers;
mod health;
mod incoming;
mod inference;
mod limits;
mod listen;
mod meter;
mod models;
mod openai;
mod quiet;
mod relay;
mod request;
mod routes;
mod socket;
mod sse;
#[cfg(test)]
mod tests;
mod unread;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use umbel_wire::Parts;

pub(crate) use listen::{serve, serve_metrics, serve_tls};

use crate::metrics::Metrics;
use crate::shell::dispatch::Dispatch;
use crate::shell::keys::Keys;

/// Whose wish decides whether engines tell the usage of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamUsage {
    /// The client's: what it sends reaches the engine as it is, and tokens are counted here where nobody tells them.
    AsAsked,
    /// The site's: the edge asks for it, and takes it out of streams whose clients did not.
    Always,
}

impl StreamUsage {
    /// As files and settings have it.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        match word {
            "as_asked" => Some(Self::AsAsked),
            "always" => Some(Self::Always),
            _ => None,
        }
    }
}

/// Bounds and times of the HTTP front.
#[derive(Clone, Debug)]
pub(crate) struct FrontOptions {
    /// Largest request body in bytes.
    pub(crate) body_max: usize,
    /// Request bytes held in all until the engines' heads; a key may hold a quarter.
    pub(crate) held_max: u64,
    /// A silent event stream gets a comment this often.
    pub(crate) keepalive: Duration,
    /// Whether engines are asked for the usage of streams.
    pub(crate) stream_usage: StreamUsage,
    /// Until an engine's first byte.
    pub(crate) first_byte_timeout: Duration,
    /// Between two bytes of an answer.
    pub(crate) idle_timeout: Duration,
    /// Silence within an answer that may be a stall; that it is one its own pace says.
    pub(crate) stall: Duration,
    /// The node ends what an engine's silence has outlasted; this much later the edge does, whatever the node does.
    pub(crate) grace: Duration,
    /// Until a request's head is whole, and between two parts of its body.
    pub(crate) header_timeout: Duration,
    /// Until a small request's body is whole; larger ones get a second more for each 32 KiB.
    pub(crate) body_timeout: Duration,
    /// How long a connection without a request is kept.
    pub(crate) idle_connection: Duration,
    /// How long a client may take nothing of its answer.
    pub(crate) write_stall: Duration,
    /// Connections at once, on each listener.
    pub(crate) connections: usize,
    /// What of this process broke off.
    pub(crate) parts: Parts,
}

impl FrontOptions {
    /// How many connections a listener takes where the process may have so many descriptors: of three listeners a quarter
    /// each, so that clients without a key never take those of the nodes, the operators and the store.
    pub(crate) fn connections_within(descriptors: usize) -> usize {
        Self::default().connections.min(descriptors / 4)
    }
}

impl Default for FrontOptions {
    fn default() -> Self {
        Self {
            body_max: 32 << 20,
            held_max: 256 << 20,
            keepalive: Duration::from_secs(15),
            stream_usage: StreamUsage::AsAsked,
            // The official clients' own read time-out.
            first_byte_timeout: Duration::from_secs(600),
            idle_timeout: Duration::from_secs(300),
            stall: Duration::from_secs(5),
            grace: Duration::from_secs(15),
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            // Above the 60 s that load balancers keep idle connections, so that they close first.
            idle_connection: Duration::from_secs(75),
            // 10-wire: nothing consumed for 60 s resets a stream.
            write_stall: Duration::from_secs(60),
            // Where the descriptors suffice.
            connections: 8_192,
            parts: Parts::default(),
        }
    }
}

/// It takes traffic.
const SERVES: u8 = 0;
/// It takes nothing new; what runs goes on.
const DRAINS: u8 = 1;
/// The time for that is over.
const OVER: u8 = 2;

/// Everything a request needs, shared by all listeners.
#[derive(Debug)]
pub(crate) struct Front {
    dispatch: Arc<Dispatch>,
    keys: Arc<Keys>,
    metrics: Arc<Metrics>,
    scrapes: exposition::Scrapes,
    options: ArcSwap<FrontOptions>,
    /// How far its life is; it only goes on.
    stage: AtomicU8,
    held: AtomicU64,
    request_ids: headers::RequestIds,
    /// Wall time of the start, in seconds: the `created` of all models.
    started_unix: u64,
}

impl Front {
    /// A front that is ready to take traffic.
    pub(crate) fn new(
        dispatch: Arc<Dispatch>,
        keys: Arc<Keys>,
        metrics: Arc<Metrics>,
        options: FrontOptions,
    ) -> Arc<Self> {
        Arc::new(Self {
            dispatch,
            keys,
            metrics,
            scrapes: exposition::Scrapes::default(),
            options: ArcSwap::from_pointee(options),
            stage: AtomicU8::new(SERVES),
            held: AtomicU64::new(0),
            request_ids: headers::RequestIds::new(),
            started_unix: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        })
    }

    /// Other bounds and times, for requests that come from now on; a running one keeps those it began with where
    /// they are its own.
    pub(crate) fn set_options(&self, change: impl FnOnce(&mut FrontOptions)) {
        let mut options = FrontOptions::clone(&self.options());
        change(&mut options);
        self.options.store(Arc::new(options));
    }

    fn options(&self) -> arc_swap::Guard<Arc<FrontOptions>> {
        self.options.load()
    }

    /// From now on `/readyz` is 503 and new requests are refused; running ones go on. Cancel the listeners'
    /// tokens as well; the exit may follow [`Dispatch::idle`].
    pub(crate) fn drain(&self) {
        self.stage.fetch_max(DRAINS, Ordering::AcqRel);
    }

    /// The time of the drain is over: what has no engine is refused now, and nothing is tried once more. Close the nodes'
    /// connections after it; that ends what has one.
    pub(crate) fn end(&self) {
        self.stage.fetch_max(OVER, Ordering::AcqRel);
        self.dispatch.refuse_all();
    }

    fn is_over(&self) -> bool {
        self.stage.load(Ordering::Acquire) == OVER
    }

    /// What is counted.
    #[cfg(test)]
    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    fn is_draining(&self) -> bool {
        self.stage.load(Ordering::Acquire) >= DRAINS
    }
}
