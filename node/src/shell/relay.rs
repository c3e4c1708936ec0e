//! The relay: one stream from the edge, one request to an engine, bytes passed as they come.
//!
//! Owns what goes to the engine and what comes back, and how each stream ends; leaves HTTP to `engine_http` and
//! whether the engine is ready to `engines`. Invariants: each stream gets exactly one END, `COMPLETE` only if the
//! engine's answer was complete; the engine's connection is closed when the stream is not wanted any more; a stream is
//! in the list from its taking to its end.
//!
//! One task a stream, one buffer, no queue: while the edge gives no credit, the engine is not read.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    sync::{Arc, Mutex, PoisonError},
    task::{Poll, Waker},
};

use prost::Message;
use tokio::sync::Notify;
use umbel_contracts::inference::{self, reading::Opening};
use umbel_contracts::proto::node::{InferenceEnd, InferenceOutcome};
use umbel_wire::{Code, Error, Generation, IncomingStream, Reset, limits};

use crate::{
    core::{identity::Identity, supervisor::State, usage::UsageTail},
    shell::{
        engine_http::Head,
        engines::{Engines, Route, Visit},
    },
};

mod by_program;
mod by_rule;
mod open;
mod over_http;
#[cfg(test)]
mod tests;

use open::Asked;

/// Relays the streams of every connection to the edge.
#[derive(Debug)]
pub(crate) struct Relay {
    /// What this node's providers are called before their own names.
    prefix: String,
    engines: Arc<Engines>,
    /// The streams that are not over, by connection and stream id.
    carried: Mutex<Streams>,
    /// One of them ended.
    ended: Notify,
    /// The streams of a connection that broke are over.
    orphans_over: Notify,
}

type Streams = BTreeMap<(Generation, u64), Carried>;

/// A stream that is not over.
#[derive(Debug)]
struct Carried {
    lease: u64,
    cancel: Arc<Cancel>,
}

/// Tells one stream's task to stop. Looked at with each piece of an answer, so it is no more than a flag.
#[derive(Debug, Default)]
struct Cancel(Mutex<(bool, Option<Waker>)>);

impl Cancel {
    fn cancel(&self) {
        let waker = {
            let mut state = self.lock();
            state.0 = true;
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Resolves once it was called. One task waits.
    async fn cancelled(&self) {
        poll_fn(|cx| {
            let mut state = self.lock();
            if state.0 {
                return Poll::Ready(());
            }
            if !state.1.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                state.1 = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (bool, Option<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream in the list of carried ones; dropping it takes it out, however its task ends.
struct Entry {
    relay: Arc<Relay>,
    key: (Generation, u64),
    cancel: Arc<Cancel>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.relay.lock().remove(&self.key);
        self.relay.ended.notify_waiters();
    }
}

fn any_of(carried: &Streams, own: Generation) -> bool {
    carried.keys().any(|(generation, _)| *generation == own)
}

/// The end of a stream, as it is told.
#[derive(Debug)]
struct Ended {
    outcome: InferenceOutcome,
    error: Option<Error>,
    not_processed: bool,
}

/// What the stream brought so far; survives the work that is dropped when it is cancelled.
#[derive(Debug, Default)]
struct Progress {
    answer_bytes: u64,
    usage: UsageTail,
}

impl Ended {
    fn complete() -> Self {
        Self { outcome: InferenceOutcome::Complete, error: None, not_processed: false }
    }

    fn failed(
        outcome: InferenceOutcome,
        code: Code,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { outcome, error: Some(Error::new(code, reason, message)), not_processed: false }
    }

    /// Nothing was done for it: another provider may be tried.
    fn refused(code: Code, reason: &'static str, message: impl Into<String>) -> Self {
        let outcome = InferenceOutcome::EngineRefused;
        Self { outcome, error: Some(Error::new(code, reason, message)), not_processed: true }
    }

    fn cancelled(reset: Reset) -> Self {
        let outcome = if reset.error.code == Code::DeadlineExceeded {
            InferenceOutcome::TimedOut
        } else {
            InferenceOutcome::Cancelled
        };
        Self { outcome, error: Some(reset.error), not_processed: false }
    }
}

impl Relay {
    pub(crate) fn new(identity: &Identity, engines: Arc<Engines>) -> Self {
        Self {
            prefix: format!("{}/", identity.node_id),
            engines,
            carried: Mutex::default(),
            ended: Notify::new(),
            orphans_over: Notify::new(),
        }
    }

    /// Leases that are still carried, of every connection.
    pub(crate) fn leases(&self) -> Vec<u64> {
        self.lock().values().map(|carried| carried.lease).collect()
    }

    /// Cancels the streams of these leases: the edge does not own them any more.
    pub(crate) fn cancel(&self, leases: &[u64]) {
        for carried in self.lock().values().filter(|carried| leases.contains(&carried.lease)) {
            carried.cancel.cancel();
        }
    }

    /// Cancels every stream: the agent stops, and the time for draining is over.
    pub(crate) fn cancel_all(&self) {
        for carried in self.lock().values() {
            carried.cancel.cancel();
        }
    }

    /// Streams that are not over.
    pub(crate) fn in_flight(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Streams> {
        self.carried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a stream of the connection with that generation; `current` is the newest connection's.
    pub(crate) fn take(self: &Arc<Self>, stream: IncomingStream, own: Generation, current: Generation) {
        let taken = open::parse(stream.message()).and_then(|(route, opening)| {
            // Before it has the engine and its task has begun: whoever waits until nothing is carried waits for it, too.
            let entry = self.enter((own, stream.id()), opening.lease_id);
            Ok((self.admit(&opening, own, current)?, Asked::new(route, &opening), entry))
        });
        match taken {
            // Boxed: spawning a task and ending it would copy the whole future several times.
            Ok((visit, asked, entry)) => drop(tokio::spawn(Box::pin(carry(stream, asked, visit, entry)))),
            Err(ended) => end(stream, ended, &Progress::default()),
        }
    }

    fn enter(self: &Arc<Self>, key: (Generation, u64), lease: u64) -> Entry {
        let cancel = Arc::<Cancel>::default();
        self.lock().insert(key, Carried { lease, cancel: Arc::clone(&cancel) });
        Entry { relay: Arc::clone(self), key, cancel }
    }

    /// Checks an opening; everything refused here was not processed.
    fn admit(&self, opening: &Opening<'_>, own: Generation, current: Generation) -> Result<Visit, Ended> {
        if own != current || opening.generation != own.0 {
            return Err(Ended::refused(
                Code::Conflict,
                "STALE_GENERATION",
                "the lease belongs to another connection of this node",
            ));
        }
        let engine = opening
            .provider_id
            .strip_prefix(&self.prefix)
            .and_then(|name| self.engines.by_name(name))
            .ok_or_else(|| {
                Ended::refused(Code::NotFound, "UNKNOWN_PROVIDER", "this node has no such provider")
            })?;
        engine.visit().map_err(|view| {
            let reason = match view.state {
                State::Draining | State::Stopping => "ENGINE_DRAINING",
                _ => "ENGINE_NOT_READY",
            };
            Ended::refused(Code::Unavailable, reason, format!("the engine is {}", view.state))
        })
    }

    /// Resolves when no stream is carried.
    pub(crate) async fn idle(&self) {
        self.until(BTreeMap::is_empty).await;
    }

    /// A connection broke: the edge is told over a newer one once its streams are over, since no END of theirs
    /// reaches it.
    pub(crate) async fn orphaned(&self, own: Generation) {
        self.until(|carried| !any_of(carried, own)).await;
        self.orphans_over.notify_one();
    }

    /// Whether a stream of this connection is not over.
    pub(crate) fn carries_of(&self, own: Generation) -> bool {
        any_of(&self.lock(), own)
    }

    /// Resolves when the leases have to be named anew.
    pub(crate) async fn orphans_over(&self) {
        self.orphans_over.notified().await;
    }

    async fn until(&self, done: impl Fn(&Streams) -> bool) {
        loop {
            let ended = self.ended.notified();
            if done(&self.lock()) {
                return;
            }
            ended.await;
        }
    }
}

/// Carries one stream to its end.
async fn carry(stream: IncomingStream, asked: Asked, visit: Visit, entry: Entry) {
    let mut progress = Progress::default();
    let ended = tokio::select! {
        biased;
        // Dropping the exchange closes the engine's connection, in whatever phase it is.
        reset = stream.reset() => Ended::cancelled(reset),
        () = entry.cancel.cancelled() => Ended::failed(
            InferenceOutcome::Cancelled,
            Code::Unavailable,
            "NODE_STOPPING",
            "the node stopped before the answer was complete",
        ),
        ended = exchange(&stream, &asked, &visit.route, &mut progress) => ended,
    };
    if let Some(error) = &ended.error {
        tracing::debug!(request_id = %asked.request_id, outcome = ?ended.outcome, %error, "stream ended");
    }
    // Over here before it is over at the edge: a lease that was given back must find its slot free.
    drop(visit);
    drop(entry);
    end(stream, ended, &progress);
}

/// The one END.
fn end(stream: IncomingStream, ended: Ended, progress: &Progress) {
    let usage = progress.usage.usage();
    let told = InferenceEnd {
        outcome: ended.outcome.into(),
        prompt_tokens: usage.prompt_tokens,
        completion_tokens: usage.completion_tokens,
        answer_bytes: progress.answer_bytes,
        cached_tokens: usage.cached_tokens,
    }
    .encode_to_vec();
    match ended.error {
        None => stream.finish(&told),
        Some(error) => stream.fail(error, ended.not_processed, &told),
    }
}

async fn exchange(stream: &IncomingStream, asked: &Asked, route: &Route, progress: &mut Progress) -> Ended {
    let carried = match route {
        Route::Http(http) => over_http::answer(stream, asked, http, progress).await,
        // Boxed: the usual stream shall not be as large as these.
        Route::Sim(sim) => Box::pin(by_rule::answer(stream, asked, sim, progress)).await,
        Route::Cli(cli) => Box::pin(by_program::answer(stream, asked, cli, progress)).await,
    };
    carried.err().unwrap_or_else(Ended::complete)
}

/// The next part of the body; nothing if it ended. Counts `left` down.
async fn body_part(stream: &IncomingStream, left: &mut u64) -> Result<Option<bytes::Bytes>, Ended> {
    let wrong = || {
        Ended::refused(Code::InvalidArgument, "BODY_LENGTH", "the body is not as long as the opening says")
    };
    match stream.body().await {
        Ok(Some(part)) => {
            *left = left.checked_sub(part.len() as u64).ok_or_else(wrong)?;
            Ok(Some(part))
        }
        Ok(None) if *left > 0 => Err(wrong()),
        Ok(None) => Ok(None),
        Err(reset) => Err(Ended::cancelled(reset)),
    }
}

async fn send_head(
    stream: &IncomingStream,
    head: Head,
    body: &[u8],
    progress: &mut Progress,
) -> Result<(), Ended> {
    let headers = head.headers.iter().map(|(name, value)| (*name, &**value));
    let message = inference::head(head.status, headers);
    let (inline, rest) = body.split_at(body.len().min(limits::INLINE_MAX));
    stream.send_head(message, inline).map_err(|error| {
        Ended::failed(InferenceOutcome::BadAnswer, Code::BadGateway, "BAD_ANSWER", error.message)
    })?;
    note(progress, inline);
    pass_on(stream, rest, progress).await
}

async fn pass_on(stream: &IncomingStream, payload: &[u8], progress: &mut Progress) -> Result<(), Ended> {
    if payload.is_empty() {
        return Ok(());
    }
    note(progress, payload);
    // Waits for credit; the engine is not read meanwhile, and its kernel tells it so.
    stream.send(payload).await.map_err(Ended::cancelled)
}

fn note(progress: &mut Progress, payload: &[u8]) {
    progress.answer_bytes += payload.len() as u64;
    progress.usage.push(payload);
}
