//! Time limits of waits that nearly always end soon: without a timer, or with one that is kept and seldom moved.
//!
//! Owns the timer; leaves to its owner what a limit is and what follows. Invariant: a wait that lasts past its limit ends,
//! however many shorter ones came before it.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until, timeout};

/// What `work` comes to, if it does within `limit`. What is there already needs no timer.
pub async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    if let Poll::Ready(result) = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await {
        return Some(result);
    }
    timeout(limit, work).await.ok()
}

/// A time limit for each of many waits, with one timer that is moved when it fires, or for a limit that is earlier.
#[derive(Debug)]
pub struct Patience {
    sleep: Pin<Box<Sleep>>,
    until: Instant,
    /// The shortest of the limits: so often, at least, the timer is looked at.
    shortest: Duration,
}

impl Patience {
    /// No wait has begun. None shall be shorter than `shortest`, or the timer is moved for each of them.
    pub fn new(now: Instant, shortest: Duration) -> Self {
        let until = now + shortest;
        Self { sleep: Box::pin(sleep_until(until)), until, shortest }
    }

    /// The same for waits of other limits.
    pub fn shortest(&mut self, shortest: Duration) {
        self.shortest = shortest;
    }

    /// A wait begins, and may take `limit`.
    pub fn begin(&mut self, now: Instant, limit: Duration) {
        self.until = now + limit;
        let look = self.until.min(now + self.shortest);
        if look < self.sleep.deadline() {
            self.sleep.as_mut().reset(look);
        }
    }

    /// Ready when the wait has lasted for its limit.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.sleep.as_mut().poll(cx));
            let now = Instant::now();
            if self.until <= now {
                return Poll::Ready(());
            }
            self.sleep.as_mut().reset(self.until.min(now + self.shortest));
        }
    }

    /// What `work` comes to, if it does within the limit of the wait that began.
    pub async fn over<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            if let Poll::Ready(result) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(result));
            }
            self.poll(cx).map(|()| None)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_wait_has_its_whole_limit_and_no_more() {
        let second = Duration::from_secs(1);
        let mut patience = Patience::new(Instant::now(), 3 * second);
        for (pause, limit) in [(0, 3), (2, 3), (2, 10), (100, 3), (0, 1), (1, 5), (5, 20)] {
            tokio::time::sleep(pause * second).await;
            let began = Instant::now();
            patience.begin(began, limit * second);
            let short = timeout(limit * second / 2, patience.over(pending::<()>())).await;
            assert!(short.is_err(), "half of {limit} s is not the whole");
            assert!(patience.over(pending::<()>()).await.is_none());
            let late = began.elapsed().saturating_sub(limit * second);
            assert!(began.elapsed() >= limit * second && late < second / 100, "{limit}: {late:?}");
        }
        patience.begin(Instant::now(), second);
        assert_eq!(patience.over(async { 7 }).await, Some(7));
    }
}
