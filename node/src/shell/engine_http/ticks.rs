//! Streams that flow faster than anybody reads are read together, by the clock.
//!
//! Owns which streams of an engine flow so and when they are read. A connection that brings piece after piece costs a
//! wake-up, a read with its acknowledgement and a write a piece; where several do so at once, one tick serves all of
//! them, and each read brings what piled up. Invariant: a stream waits for a tick only behind [`RUN`] reads each within
//! [`CLOSE`] of the one before, so what a model makes one by one passes at once; no piece waits for more than one tick.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::Instant;

/// Between two ticks; the runtime's clock makes up to 2 ms of it.
const TICK: Duration = Duration::from_millis(1);
/// A read that begins within this of the one before follows it closely.
const CLOSE: Duration = Duration::from_millis(2);
/// So many reads that follow each other closely are a fast stream: more than the head, the first event and the last ones
/// of an answer that is otherwise slow.
const RUN: u8 = 8;
/// Ticks in a row without a piece after which it is none any more: an engine that has to wait for a processor is back
/// before that.
const EMPTY: u8 = 4;
/// Fewer streams do not make up for a tick's own wake-up.
const TOGETHER: usize = 4;

/// The ticks of one engine's streams.
#[derive(Debug, Default)]
pub(super) struct Ticks {
    /// Streams that flow fast.
    fast: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Of the streams that wait for the next tick.
    waiting: Vec<Waker>,
    /// Ticks so far.
    count: u64,
    /// Somebody ticks.
    running: bool,
}

/// A place among those that wait for a tick.
#[derive(Debug, Clone, Copy)]
struct Place {
    count: u64,
    index: usize,
}

impl Ticks {
    #[cfg(test)]
    pub(super) fn is_running(&self) -> bool {
        self.lock().running
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll(self: &Arc<Self>, place: &mut Option<Place>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if let Some(Place { count, index }) = *place {
            if count != state.count {
                *place = None;
                return Poll::Ready(());
            }
            if let Some(known) = state.waiting.get_mut(index) {
                known.clone_from(cx.waker());
            }
            return Poll::Pending;
        }
        *place = Some(Place { count: state.count, index: state.waiting.len() });
        state.waiting.push(cx.waker().clone());
        if !std::mem::replace(&mut state.running, true) {
            drop(state);
            tokio::spawn(Arc::clone(self).run());
        }
        Poll::Pending
    }

    /// Ticks until nobody waits.
    async fn run(self: Arc<Self>) {
        let mut woken = Vec::new();
        loop {
            tokio::time::sleep(TICK).await;
            {
                let mut state = self.lock();
                if state.waiting.is_empty() {
                    state.running = false;
                    state.waiting = Vec::new();
                    return;
                }
                state.count += 1;
                std::mem::swap(&mut state.waiting, &mut woken);
            }
            woken.drain(..).for_each(Waker::wake);
        }
    }
}

/// How one stream flows.
#[derive(Debug)]
pub(super) struct Flow {
    ticks: Arc<Ticks>,
    /// When the last read began.
    last: Option<Instant>,
    /// Reads that followed each other fast.
    run: u8,
    /// It counts as fast.
    fast: bool,
    /// Ticks in a row that brought nothing.
    empty: u8,
    place: Option<Place>,
}

impl Flow {
    pub(super) fn new(ticks: &Arc<Ticks>) -> Self {
        Self { ticks: Arc::clone(ticks), last: None, run: 0, fast: false, empty: 0, place: None }
    }

    /// A read begins that waits for the connection.
    pub(super) fn begins(&mut self, now: Instant) {
        let close = self.last.is_some_and(|last| now.saturating_duration_since(last) < CLOSE);
        self.last = Some(now);
        if !close {
            self.slow();
        } else if self.run < RUN {
            self.run += 1;
        } else if !std::mem::replace(&mut self.fast, true) {
            self.ticks.fast.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether it is to be read by the clock from now on.
    pub(super) fn is_timed(&self) -> bool {
        self.fast && self.ticks.fast.load(Ordering::Relaxed) >= TOGETHER
    }

    /// What a tick brought; whether the stream is still fast.
    pub(super) fn brought(&mut self, something: bool) -> bool {
        self.empty = if something { 0 } else { self.empty + 1 };
        if self.empty == EMPTY {
            self.empty = 0;
            self.slow();
        }
        self.fast
    }

    /// It flows no faster than it is read.
    fn slow(&mut self) {
        self.run = 0;
        if std::mem::take(&mut self.fast) {
            self.ticks.fast.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Resolves at the next tick.
    pub(super) fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.ticks.poll(&mut self.place, cx)
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.slow();
    }
}
