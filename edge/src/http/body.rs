//! Reading request bodies: whole, within bounds of size, time and memory.
//!
//! Owns the bytes that the edge holds until the engine's head. Leaves their meaning to [`super::request`].
//! Invariants: what is held is counted while it is held, and no slot is taken before a body is whole; a request that
//! waits holds its body once, in memory that the body fills.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep_until};

use super::Front;
use super::connection::BUFFER;
use super::error::Failure;
use super::headers::Said;
use crate::core::keys::Key;

/// A body that comes slower than this, after a grace, is too slow.
const SLOWEST_PER_SECOND: usize = 32 * 1024;
/// A body that will be refused is still read up to this, so that the client reads the refusal.
const DISCARD_MAX: usize = 128 << 20;
/// And for at most this long.
const DISCARD_TIME: Duration = Duration::from_secs(10);
/// Memory is reserved up to this at once, whatever length a client announces.
const RESERVE_MAX: usize = 1 << 20;
/// Bodies up to this are kept in the buffers that they were read into. Beside a larger one, those do not matter.
const PARTS_MAX: usize = 256 * 1024;

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

/// What a request's head says of its body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announced {
    length: Option<u64>,
    expects_continue: bool,
}

impl Announced {
    pub(super) fn of(said: &Said<'_>) -> Self {
        let length =
            said.content_length.and_then(|value| value.to_str().ok()).and_then(|value| value.parse().ok());
        let expects_continue =
            said.expect.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
        Self { length, expects_continue }
    }
}

/// A body that is here.
#[derive(Debug, Default)]
pub(super) struct Text {
    /// All of it in one piece; empty while it was set aside.
    whole: Bytes,
    /// The buffers that it was read into, where it fills them.
    parts: Vec<Bytes>,
}

impl Text {
    /// All of it in one piece.
    pub(super) fn whole(&mut self) -> &Bytes {
        if self.whole.is_empty() {
            self.whole = Bytes::from(self.parts.concat());
        }
        &self.whole
    }

    /// The same, of which nothing is set aside any more.
    pub(super) fn used(&mut self) -> &Bytes {
        self.whole();
        self.parts = Vec::new();
        &self.whole
    }

    /// It has to wait: what it was read into is kept, and no second copy. The buffer of the connection is one of those,
    /// so that a waiting request has none beside its body.
    pub(super) fn set_aside(&mut self) {
        if !self.parts.is_empty() {
            self.whole = Bytes::new();
        }
    }
}

/// A body that comes: in the buffers that it is read into as long as it fills them, else copied together.
struct Gathering {
    /// What the client announced, within the limit.
    announced: Option<usize>,
    received: usize,
    parts: Vec<Bytes>,
    copied: Vec<u8>,
}

impl Gathering {
    fn new(announced: Option<usize>) -> Self {
        Self { announced, received: 0, parts: Vec::new(), copied: Vec::new() }
    }

    fn push(&mut self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        self.received = self.received.saturating_add(data.len());
        if self.copied.is_empty() {
            self.parts.push(data);
            // A small read keeps a whole buffer of its connection.
            let fills = self.parts.len() * BUFFER <= self.received.saturating_add(2 * BUFFER);
            if self.received > PARTS_MAX || !fills {
                for part in std::mem::take(&mut self.parts) {
                    self.copy(&part);
                }
            }
        } else {
            self.copy(&data);
        }
    }

    fn copy(&mut self, data: &[u8]) {
        let needed = self.copied.len().saturating_add(data.len());
        if needed > self.copied.capacity() {
            // A client may announce anything; what has come is believed twice.
            let believed = RESERVE_MAX.max(2 * needed);
            let all = self.announced.unwrap_or(2 * self.received).min(believed).max(needed);
            self.copied.reserve_exact(all - self.copied.len());
        }
        self.copied.extend_from_slice(data);
    }

    fn whole(mut self) -> Text {
        if !self.copied.is_empty() {
            if self.copied.capacity() > self.copied.len() + self.copied.len() / 8 {
                self.copied.shrink_to_fit();
            }
            return Text { whole: self.copied.into(), parts: Vec::new() };
        }
        // The usual body is one part, and is passed on as it is.
        if self.parts.len() <= 1 {
            return Text { whole: self.parts.pop().unwrap_or_default(), parts: Vec::new() };
        }
        self.parts.shrink_to_fit();
        Text { whole: Bytes::new(), parts: self.parts }
    }
}

/// Reads the whole body into `text`.
pub(super) async fn collect<B>(
    front: &Front,
    body: B,
    announced: Announced,
    held: &mut Held,
    text: &mut Text,
) -> Result<(), Failure>
where
    B: Body<Data = Bytes>,
{
    let mut body = pin!(body);
    let limit = front.options().body_max;
    if announced.length.is_some_and(|length| length > limit as u64) {
        Box::pin(discard_rest(body, announced)).await;
        return Err(Failure::too_large(limit));
    }
    let mut clock = Clock::new(front.options().body_timeout);
    let mut gathering = Gathering::new(announced.length.and_then(|length| usize::try_from(length).ok()));
    loop {
        let Some(frame) = next_frame(body.as_mut(), &mut clock, gathering.received).await else {
            return Err(Failure::too_slow());
        };
        let data = match frame {
            Some(Err(_)) => return Err(Failure::broken_body()),
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            None => {
                *text = gathering.whole();
                return Ok(());
            }
        };
        let received = gathering.received.saturating_add(data.len());
        let refusal =
            if received > limit { Some(Failure::too_large(limit)) } else { held.add(data.len()).err() };
        if let Some(refusal) = refusal {
            drop((gathering, data));
            Box::pin(discard_rest(body, announced)).await;
            return Err(refusal);
        }
        gathering.push(data);
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
    /// What is here already was asked for.
    asked: bool,
    timer: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Clock {
    fn new(grace: Duration) -> Self {
        Self { grace, asked: false, timer: None }
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
        // hyper hands over what it has read already only in the turn after it was asked.
        if !std::mem::replace(&mut clock.asked, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
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

    fn gathered(announced: Option<usize>, reads: &[usize]) -> (Text, Vec<u8>) {
        let mut gathering = Gathering::new(announced);
        let mut sent = Vec::new();
        for (at, length) in reads.iter().enumerate() {
            let data = vec![u8::try_from(at % 251).unwrap_or_default(); *length];
            sent.extend_from_slice(&data);
            gathering.push(data.into());
        }
        (gathering.whole(), sent)
    }

    #[test]
    fn a_body_that_fills_its_buffers_waits_in_them_and_is_whole_again_for_the_engine() {
        let mut reads = vec![BUFFER / 2 - 300];
        reads.extend([BUFFER; 5]);
        reads.push(BUFFER / 2);
        let (mut text, sent) = gathered(Some(reads.iter().sum()), &reads);
        assert_eq!(text.whole(), &sent);
        text.set_aside();
        assert!(text.whole.is_empty(), "no second copy is held");
        assert_eq!(text.parts.len(), reads.len());
        assert_eq!(text.used(), &sent);
        assert!(text.parts.is_empty(), "nor are the buffers held beside what is used");
        text.set_aside();
        assert_eq!(text.used(), &sent, "a second try");
    }

    #[test]
    fn small_reads_keep_no_buffers() {
        for (announced, reads) in
            [(Some(14_000), [1_400; 10]), (None, [1_400; 10]), (Some(400_000), [40_000; 10])]
        {
            let (mut text, sent) = gathered(announced, &reads);
            assert!(text.parts.is_empty());
            text.set_aside();
            assert_eq!(text.used(), &sent);
        }
    }

    #[test]
    fn a_large_body_takes_its_length_whatever_was_announced() {
        let megabytes = [1 << 20; 20];
        for announced in [Some(20 << 20), Some(40 << 20), None] {
            let mut gathering = Gathering::new(announced);
            for length in megabytes {
                gathering.push(vec![0; length].into());
                let most = RESERVE_MAX.max(2 * gathering.received);
                assert!(gathering.copied.capacity() <= most, "{announced:?}: reserved for an announcement");
            }
            assert_eq!(gathering.whole().used().len(), 20 << 20);
        }
    }

    #[test]
    fn bodies_of_none_and_one_read_are_passed_on_as_they_are() {
        let (mut text, _) = gathered(Some(0), &[]);
        assert!(text.used().is_empty());
        let data = Bytes::from_static(b"{}");
        let mut gathering = Gathering::new(None);
        gathering.push(data.clone());
        let mut text = gathering.whole();
        text.set_aside();
        assert_eq!(text.used().as_ptr(), data.as_ptr());
    }
}
