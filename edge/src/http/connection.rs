//! One client connection: its requests, one after the other, and its clocks.
//!
//! Owns the order of a conversation and its times: slow heads, idle connections, clients that stop reading. Leaves bytes to
//! [`super::socket`], what they mean to [`super::h1`] and requests to the service it is given. Invariants: a connection costs
//! one task and one timer, and its clocks are not touched by each request; a request is begun once the answer before it is
//! written; a client that leaves is noticed in every phase.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Response;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use umbel_wire::Patience;

use super::answer::Answer;
use super::h1::{self, Framing, Head, To, Unread};
use super::incoming::{Gone, Incoming};
use super::relay::Broken;
use super::socket::{Io, Socket};
use super::{Front, FrontOptions, unread};
use crate::core::keys::Shown;

/// More than this is not gathered before it is written: a stalled stream holds little.
const BUFFER: usize = 16 * 1024;

/// Who is at the other end.
#[derive(Debug)]
pub(super) struct Peer {
    /// On this host.
    pub(super) is_loopback: bool,
    /// The credential of its last request.
    pub(super) shown: Mutex<Option<Shown>>,
    /// Of its requests' waits for engines' heads: the timer of one is the next one's.
    patience: Mutex<Option<Patience>>,
}

impl Peer {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self {
            is_loopback: address.ip().to_canonical().is_loopback(),
            shown: Mutex::default(),
            patience: Mutex::default(),
        }
    }

    /// A wait of a request begins, and may take `limit`.
    pub(super) fn patience(&self, now: Instant, limit: Duration) -> Patience {
        let kept = self.patience.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut patience = kept.unwrap_or_else(|| Patience::new(now, limit));
        patience.shortest(limit);
        patience.begin(now, limit);
        patience
    }

    /// The wait is over.
    pub(super) fn keep(&self, patience: Patience) {
        *self.patience.lock().unwrap_or_else(PoisonError::into_inner) = Some(patience);
    }
}

/// What answers the requests of a connection. Only while it receives one does it have the connection's bytes.
pub(super) trait Service: Sync {
    /// A request of which the body is here, or is not wanted.
    type Received: Send;

    /// Takes the body of a request, or what it wants of it.
    fn receive<S: Socket>(
        &self,
        head: Head,
        incoming: &mut Incoming<'_, '_, S>,
    ) -> impl Future<Output = Self::Received> + Send;

    /// Answers it; a failure is an answer. Dropped when the client leaves.
    fn answer(&self, received: Self::Received) -> impl Future<Output = Response<Answer>> + Send;
}

/// What a connection's clocks know of its conversation.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// A request's answer is not gone.
    busy: AtomicBool,
    /// Counts reads and writes that moved bytes.
    pub(super) reads: AtomicU64,
    pub(super) writes: AtomicU64,
    /// A write waits for the client.
    pub(super) blocked: AtomicBool,
    /// A part of a head is here.
    pub(super) partial: AtomicBool,
    /// No request is taken any more, but for those whose bytes are here.
    pub(super) draining: AtomicBool,
}

/// Serves a connection to its end.
pub(super) async fn drive<S: Socket, V: Service>(
    socket: S,
    front: &Front,
    shutdown: &CancellationToken,
    service: &V,
) {
    // Only times of the connection itself are used here; they do not change.
    let options = &*front.options.load_full();
    let shared = Shared::default();
    let mut conversation = pin!(converse(Io::new(socket, &shared), &shared, front, service));
    let mut clocks = Clocks::new(options, &shared);
    let mut timer = pin!(sleep_until(clocks.next));
    let mut cancelled = pin!(shutdown.cancelled());
    poll_fn(|cx| {
        loop {
            if conversation.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            if !shared.draining.load(Ordering::Relaxed) && cancelled.as_mut().poll(cx).is_ready() {
                shared.draining.store(true, Ordering::Relaxed);
                continue;
            }
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if clocks.is_over(options, &shared) {
                return Poll::Ready(());
            }
            timer.as_mut().reset(clocks.next);
        }
    })
    .await;
}

/// One request after the other.
async fn converse<S: Socket, V: Service>(mut io: Io<'_, S>, shared: &Shared, front: &Front, service: &V) {
    loop {
        let head = match poll_fn(|cx| io.poll_head(cx)).await {
            Ok(Some(head)) => head,
            Ok(None) => break,
            Err(unread) => return refuse(io, unread, front).await,
        };
        shared.busy.store(true, Ordering::Relaxed);
        let mut to = To::of(&head);
        let mut incoming = Incoming::new(&mut io, &head);
        // Boxed once a request: an idle connection has no room for one.
        let received = Box::pin(service.receive(head, &mut incoming)).await;
        // Behind a body that nobody took, no request can be found.
        to.keeps &= incoming.is_over();
        let mut answering = Box::pin(service.answer(received));
        let answered = poll_fn(|cx| {
            if let Poll::Ready(response) = answering.as_mut().poll(cx) {
                return Poll::Ready(Some(response));
            }
            io.poll_left(cx).map(|()| None)
        });
        let Some(response) = answered.await else { return };
        drop(answering);
        let framing = h1::write(&response, response.body().length(), &mut to, io.out());
        let ends_with_connection = framing == Framing::UntilClose;
        if ends_with_connection {
            io.breaks(true);
        }
        let mut delivery =
            Delivery { answer: Some(response.into_body()), framing, whole: false, blocked: false };
        let delivered = poll_fn(|cx| delivery.poll(&mut io, cx)).await;
        if delivered.is_err() || (!delivery.whole && ends_with_connection) {
            return;
        }
        if ends_with_connection {
            io.breaks(false);
        }
        if !delivery.whole || !to.keeps {
            break;
        }
        shared.busy.store(false, Ordering::Relaxed);
        io.rest();
    }
    shared.busy.store(false, Ordering::Relaxed);
    poll_fn(|cx| io.poll_close(cx)).await;
}

/// Tells the client why nothing more of it is read.
async fn refuse<S: Socket>(mut io: Io<'_, S>, unread: Unread, front: &Front) {
    let refusal = unread::refusal(&unread::failure(unread), front);
    io.out().extend_from_slice(&refusal);
    if poll_fn(|cx| io.poll_write(cx)).await.is_ok() {
        poll_fn(|cx| io.poll_close(cx)).await;
    }
}

/// An answer on its way over the connection.
struct Delivery {
    /// Until its last byte is gathered: its drop tells that nobody waits for it any more.
    answer: Option<Answer>,
    framing: Framing,
    /// It ended as it should.
    whole: bool,
    /// A write waits for the client.
    blocked: bool,
}

impl Delivery {
    fn poll<S: Socket>(&mut self, io: &mut Io<'_, S>, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        loop {
            let waits = !self.blocked && self.gather(io, cx);
            self.blocked = io.poll_write(cx)?.is_pending();
            if !self.blocked && self.answer.is_none() {
                return Poll::Ready(Ok(()));
            }
            if self.blocked || waits {
                // Who has all of it may be sending the next request: only the engine's end is waited for.
                let has_all = !self.blocked && self.framing == Framing::Length(0);
                return if has_all { Poll::Pending } else { io.poll_left(cx).map(|()| Err(Gone)) };
            }
        }
    }

    /// Takes what is there of the answer, as far as it is to be written next; whether more of it has to be waited for.
    fn gather<S: Socket>(&mut self, io: &mut Io<'_, S>, cx: &mut Context<'_>) -> bool {
        while let Some(answer) = &mut self.answer
            && io.owed() < BUFFER
        {
            match answer.poll(cx) {
                Poll::Ready(Some(Ok(part))) => {
                    self.framing.push(&part, io.out());
                    continue;
                }
                Poll::Ready(None) => self.whole = self.framing.finish(io.out()),
                Poll::Ready(Some(Err(Broken))) => {}
                Poll::Pending => return true,
            }
            self.answer = None;
        }
        false
    }
}

/// The connection's times, judged when the one timer fires.
struct Clocks {
    next: Instant,
    /// Since when nothing has changed in the state below.
    since: Instant,
    state: (bool, u64, u64, bool),
    /// Since when there is a part of a head, as far as anybody looked.
    head_since: Option<Instant>,
}

impl Clocks {
    fn new(options: &FrontOptions, shared: &Shared) -> Self {
        let now = Instant::now();
        let state = Self::look(shared);
        Self { next: now + Self::period(options), since: now, state, head_since: None }
    }

    /// Twice a limit's accuracy is enough: a few looks in the shortest of them.
    fn period(options: &FrontOptions) -> Duration {
        options.header_timeout.min(options.idle_connection).min(options.write_stall) / 4
    }

    fn look(shared: &Shared) -> (bool, u64, u64, bool) {
        let busy = shared.busy.load(Ordering::Relaxed);
        let blocked = shared.blocked.load(Ordering::Relaxed);
        // While a head is read, bytes may trickle in: only requests and writes count as progress then.
        let reads = if busy { shared.reads.load(Ordering::Relaxed) } else { 0 };
        (busy, reads, shared.writes.load(Ordering::Relaxed), blocked)
    }

    fn is_over(&mut self, options: &FrontOptions, shared: &Shared) -> bool {
        let now = Instant::now();
        self.next = now + Self::period(options);
        let state = Self::look(shared);
        if state != self.state {
            self.state = state;
            self.since = now;
            self.head_since = None;
            return false;
        }
        let (busy, _, _, blocked) = state;
        let (since, limit) = match (busy, blocked) {
            (_, true) => (self.since, options.write_stall),
            (true, false) => return false,
            // Bytes came, but no request of them. How long nothing came before is not their fault.
            (false, false) if shared.partial.load(Ordering::Relaxed) => {
                (*self.head_since.get_or_insert(now), options.header_timeout)
            }
            (false, false) => (self.since, options.idle_connection),
        };
        now.saturating_duration_since(since) >= limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn behaviour_24_the_time_of_a_head_begins_with_its_first_bytes() {
        let options = FrontOptions::default();
        let shared = Shared::default();
        let mut clocks = Clocks::new(&options, &shared);
        let mut after = async |passes: Duration| {
            tokio::time::advance(passes).await;
            clocks.is_over(&options, &shared)
        };
        let second = Duration::from_secs(1);
        assert!(!after(options.idle_connection - second).await, "an idle connection may be idle");
        shared.partial.store(true, Ordering::Relaxed);
        assert!(!after(second).await, "a head is coming");
        assert!(!after(options.header_timeout - second).await);
        shared.reads.fetch_add(1, Ordering::Relaxed);
        assert!(after(second).await, "bytes that trickle buy no time");
        shared.partial.store(false, Ordering::Relaxed);
        shared.busy.store(true, Ordering::Relaxed);
        assert!(!after(second).await && !after(options.idle_connection).await);
        shared.busy.store(false, Ordering::Relaxed);
        assert!(!after(second).await && !after(options.header_timeout).await);
        assert!(after(options.idle_connection).await);
    }
}
