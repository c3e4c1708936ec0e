//! Reading request bodies: whole, within bounds of size, time and memory.
//!
//! Owns the bytes that the edge holds until the engine's head. Leaves their meaning to [`super::request`].
//! Invariant: what is held is counted while it is held, and no slot is taken before a body is whole.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap};
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep_until};

use super::Front;
use super::error::Failure;
use crate::core::keys::Key;

/// A body that comes slower than this, after a grace, is too slow.
const SLOWEST_PER_SECOND: usize = 32 * 1024;
/// A body that will be refused is still read up to this, so that the client reads the refusal.
const DISCARD_MAX: usize = 128 << 20;
/// And for at most this long.
const DISCARD_TIME: Duration = Duration::from_secs(10);
/// Memory is reserved up to this at once, whatever length a client announces.
const RESERVE_MAX: usize = 1 << 20;

/// Request bytes that count as held by the edge, and by their key.
#[derive(Debug)]
pub(super) struct Held {
    front: Arc<Front>,
    key: Option<Arc<Key>>,
    bytes: u64,
}

impl Held {
    pub(super) fn new(front: &Arc<Front>, key: Option<&Arc<Key>>) -> Self {
        Self { front: Arc::clone(front), key: key.map(Arc::clone), bytes: 0 }
    }

    fn add(&mut self, bytes: usize) -> Result<(), Failure> {
        let bytes = bytes as u64;
        let limit = self.front.options().held_max;
        let of_key = limit / 4;
        if self.front.held.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > limit {
            self.front.held.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Failure::held(limit, false));
        }
        if let Some(key) = &self.key
            && key.state.held.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > of_key
        {
            key.state.held.fetch_sub(bytes, Ordering::Relaxed);
            self.front.held.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Failure::held(of_key, true));
        }
        self.bytes = self.bytes.saturating_add(bytes);
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.front.held.fetch_sub(self.bytes, Ordering::Relaxed);
        if let Some(key) = &self.key {
            key.state.held.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// What a request's head says of its body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announced {
    length: Option<u64>,
    expects_continue: bool,
}

impl Announced {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let length = headers
            .get(header::CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.parse().ok());
        let expects_continue = headers
            .get(header::EXPECT)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
        Self { length, expects_continue }
    }
}

/// Reads the whole body.
pub(super) async fn collect<B>(
    front: &Front,
    body: B,
    announced: Announced,
    held: &mut Held,
) -> Result<Bytes, Failure>
where
    B: Body<Data = Bytes>,
{
    let mut body = pin!(body);
    let limit = front.options().body_max;
    if announced.length.is_some_and(|length| length > limit as u64) {
        discard_rest(body, announced).await;
        return Err(Failure::too_large(limit));
    }
    let mut clock = Clock::new(front.options().body_timeout);
    let mut first = Bytes::new();
    let mut more = BytesMut::new();
    let mut received = 0usize;
    loop {
        let Some(frame) = next_frame(body.as_mut(), &mut clock, received).await else {
            return Err(Failure::too_slow());
        };
        let data = match frame {
            Some(Err(_)) => return Err(Failure::broken_body()),
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            None if more.is_empty() => return Ok(first),
            None => return Ok(more.freeze()),
        };
        received = received.saturating_add(data.len());
        let refusal =
            if received > limit { Some(Failure::too_large(limit)) } else { held.add(data.len()).err() };
        if let Some(refusal) = refusal {
            drop((first, more));
            discard_rest(body, announced).await;
            return Err(refusal);
        }
        // The usual body is one part and is passed on as it is; only further ones are copied together.
        if first.is_empty() && more.is_empty() {
            first = data;
        } else {
            if more.is_empty() {
                let all = announced.length.and_then(|length| usize::try_from(length).ok());
                more.reserve(all.unwrap_or(2 * received).clamp(received, RESERVE_MAX.max(received)));
                more.extend_from_slice(&std::mem::take(&mut first));
            }
            more.extend_from_slice(&data);
        }
    }
}

/// Reads a body that nobody wants, within bounds, so that the client gets to read the answer: closing a
/// connection with unread input would throw the answer away.
pub(super) async fn discard<B>(body: B, announced: Announced)
where
    B: Body<Data = Bytes>,
{
    if announced.length != Some(0) {
        discard_rest(pin!(body), announced).await;
    }
}

async fn discard_rest<B>(mut body: Pin<&mut B>, announced: Announced)
where
    B: Body<Data = Bytes>,
{
    // Whoever waits for a 100 has sent nothing, and reads the refusal instead.
    if announced.expects_continue || body.is_end_stream() {
        return;
    }
    let mut clock = Clock::new(DISCARD_TIME);
    let mut left = DISCARD_MAX;
    while let Some(Some(Ok(frame))) = next_frame(body.as_mut(), &mut clock, 0).await {
        let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else { return };
        left = rest;
    }
}

/// The time a body may take: a grace, and more as more of it has come. The timer exists only once something
/// had to be waited for.
struct Clock {
    grace: Duration,
    timer: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Clock {
    fn new(grace: Duration) -> Self {
        Self { grace, timer: None }
    }
}

/// The next frame; `None` inside if the body is over, outside if its time is.
async fn next_frame<B>(
    mut body: Pin<&mut B>,
    clock: &mut Clock,
    received: usize,
) -> Option<Option<Result<Frame<Bytes>, B::Error>>>
where
    B: Body<Data = Bytes>,
{
    poll_fn(|cx| {
        if let Poll::Ready(frame) = body.as_mut().poll_frame(cx) {
            return Poll::Ready(Some(frame));
        }
        let grace = clock.grace;
        let (started, timer) = clock.timer.get_or_insert_with(|| {
            let now = Instant::now();
            (now, Box::pin(sleep_until(now + grace)))
        });
        while timer.as_mut().poll(cx).is_ready() {
            let earned = Duration::from_secs((received / SLOWEST_PER_SECOND) as u64);
            let until = *started + grace + earned;
            if until <= Instant::now() {
                return Poll::Ready(None);
            }
            timer.as_mut().reset(until);
        }
        Poll::Pending
    })
    .await
}
