//! A report of a node as it is held: its bytes, and when they came.
//!
//! Owns that form, in memory and in the store. A site has ten thousand of them that are read now and then, so they are
//! kept as small as they travel. Invariant: bytes are put in only from a message that was decoded.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use data_encoding::BASE64;
use prost::Message;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The edge's two clocks at one reading: ages come from the first, what a process before left from the second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) now: Instant,
    /// Milliseconds since 1970.
    pub(crate) wall: i64,
}

/// The last report of one stream that counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct Kept<M: Message + Default> {
    #[serde(rename = "bytes")]
    packed: Packed<M>,
    /// The edge's wall clock at its arrival.
    pub(crate) received_at_unix_ms: i64,
    /// The node's clock.
    pub(crate) observed_at_unix_ms: i64,
    /// Its clock was believed. Otherwise it is only shown because nothing better came yet.
    pub(crate) good: bool,
    /// Its arrival, if this process took it.
    #[serde(skip)]
    at: Option<Instant>,
}

impl<M: Message + Default> Kept<M> {
    /// A report that has just arrived.
    pub(crate) fn new(report: &M, observed_at_unix_ms: i64, good: bool, moment: Moment) -> Self {
        Self {
            packed: Packed { bytes: report.encode_to_vec().into(), message: PhantomData },
            received_at_unix_ms: moment.wall,
            observed_at_unix_ms,
            good,
            at: Some(moment.now),
        }
    }

    /// What it says.
    pub(crate) fn report(&self) -> M {
        // Only what was decoded is kept; a row that was damaged says nothing.
        M::decode(&*self.packed.bytes).unwrap_or_default()
    }

    /// How long ago it arrived.
    pub(crate) fn age(&self, moment: Moment) -> Duration {
        match self.at {
            Some(at) => moment.now.saturating_duration_since(at),
            None => {
                let age = moment.wall.saturating_sub(self.received_at_unix_ms);
                Duration::from_millis(u64::try_from(age).unwrap_or(0))
            }
        }
    }

    /// Its own time, if that was believed; else 0, which anything is newer than.
    pub(crate) fn last_good(&self) -> i64 {
        if self.good { self.observed_at_unix_ms } else { 0 }
    }
}

/// A message as its bytes; in the store in base64.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Packed<M> {
    bytes: Arc<[u8]>,
    message: PhantomData<fn() -> M>,
}

impl<M> Serialize for Packed<M> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64.encode(&self.bytes))
    }
}

impl<'de, M: Message + Default> Deserialize<'de> for Packed<M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        let bytes = BASE64.decode(text.as_bytes()).map_err(serde::de::Error::custom)?;
        M::decode(&*bytes).map_err(serde::de::Error::custom)?;
        Ok(Self { bytes: bytes.into(), message: PhantomData })
    }
}
