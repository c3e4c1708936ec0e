//! Reading request bodies: whole, within bounds of size, time and memory.
//!
//! Owns the bytes that the edge holds until the engine's head. Leaves their meaning to [`super::request`].
//! Invariants: what is held is counted while it is held, and no slot is taken before a body is whole; a request that
//! waits holds its body once, in memory that the body fills.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, Sleep, sleep_until};

use super::Front;
use super::error::Failure;
use super::incoming::{Gone, Incoming};
use super::socket::Socket;
use crate::core::keys::Key;

/// A body that comes slower than this, after a grace, is too slow.
const SLOWEST_PER_SECOND: usize = 32 * 1024;
/// A body that will be refused is still read up to this, so that the client reads the refusal.
const DISCARD_MAX: usize = 128 << 20;
/// And for at most this long.
const DISCARD_TIME: Duration = Duration::from_secs(10);
/// Memory is reserved up to this at once, whatever length a client announces.
const RESERVE_MAX: usize = 1 << 20;
/// What is thrown away is read in pieces of this.
const PIECE: usize = 64 * 1024;

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

    /// They are not held any more.
    pub(super) fn release(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.front.held.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(key) = &self.key {
            key.state.held.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.release();
        }
    }
}

/// Reads the whole body, into memory of its own size.
pub(super) async fn collect<S: Socket>(
    front: &Front,
    incoming: &mut Incoming<'_, '_, S>,
    held: &mut Held,
) -> Result<Bytes, Failure> {
    let limit = front.options().body_max;
    if incoming.left().is_some_and(|left| left > limit as u64) {
        discard(incoming).await;
        return Err(Failure::too_large(limit));
    }
    let mut clock = Clock::new(front.options().body_timeout);
    let mut body = Vec::new();
    while !incoming.is_over() {
        make_room(&mut body, incoming.room());
        let received = body.len();
        let came = match next(incoming, &mut clock, received, &mut body).await {
            Some(Ok(came)) => came,
            Some(Err(Gone)) => return Err(Failure::broken_body()),
            None => return Err(Failure::too_slow()),
        };
        let refusal = if body.len() > limit { Some(Failure::too_large(limit)) } else { held.add(came).err() };
        if let Some(refusal) = refusal {
            drop(body);
            discard(incoming).await;
            return Err(refusal);
        }
    }
    if body.capacity() > body.len() + body.len() / 8 {
        body.shrink_to_fit();
    }
    Ok(Bytes::from(body))
}

/// Makes room for the next read. A client may announce anything; what has come is believed twice.
fn make_room(body: &mut Vec<u8>, announced: u64) {
    if announced == 0 || body.capacity() > body.len() {
        return;
    }
    let believed = RESERVE_MAX.max(body.len()) as u64;
    body.reserve_exact(usize::try_from(announced.min(believed)).unwrap_or(RESERVE_MAX));
}

/// Reads a body that nobody wants, within bounds, so that the client gets to read the answer: closing a
/// connection with unread input would throw the answer away.
pub(super) async fn discard<S: Socket>(incoming: &mut Incoming<'_, '_, S>) {
    // Whoever waits for a 100 has sent nothing, and reads the refusal instead.
    if incoming.is_over() || incoming.is_awaited() {
        return;
    }
    let mut clock = Clock::new(DISCARD_TIME);
    let mut left = DISCARD_MAX;
    let mut piece = Vec::with_capacity(PIECE);
    while !incoming.is_over() {
        let Some(Ok(came)) = next(incoming, &mut clock, 0, &mut piece).await else { return };
        piece.clear();
        let Some(rest) = left.checked_sub(came) else { return };
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

/// Appends what comes next to `to`; `None` if the body's time is over.
async fn next<S: Socket>(
    incoming: &mut Incoming<'_, '_, S>,
    clock: &mut Clock,
    received: usize,
    to: &mut Vec<u8>,
) -> Option<Result<usize, Gone>> {
    poll_fn(|cx| {
        if let Poll::Ready(came) = incoming.poll(cx, to) {
            return Poll::Ready(Some(came));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_gets_the_room_that_it_needs_whatever_was_announced() {
        for announced in [100_000, 20 << 20, u64::MAX] {
            let (mut body, mut left) = (Vec::new(), announced);
            while left > 0 && body.len() < 20 << 20 {
                make_room(&mut body, left);
                let most = RESERVE_MAX.max(2 * body.len());
                assert!(body.capacity() <= most, "{announced}: reserved for an announcement");
                let came = (body.capacity() - body.len())
                    .min(150_000)
                    .min(usize::try_from(left).unwrap_or(usize::MAX));
                body.resize(body.len() + came, 0);
                left -= came as u64;
            }
            assert!(left > 0 || body.capacity() == body.len(), "{announced}: more than it needs");
        }
    }

    #[test]
    fn what_is_here_or_comes_in_chunks_needs_no_room() {
        let mut body = Vec::new();
        make_room(&mut body, 0);
        assert_eq!(body.capacity(), 0);
    }
}
