//! What a connection's task is woken for by hyper, but for one thing that it need not be.
//!
//! hyper wakes the connection whenever a part of a request's body is taken, since there could be more to read. Behind the
//! last part there is not, and every lone request would cost its connection a whole turn. Invariant: nothing is kept
//! from the task but what hyper says while a body is asked for its next part, on the thread that asks, and only if
//! that was its last.

use std::cell::Cell;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ear {
    Open,
    Shut,
    /// It was shut, and something was said.
    Missed,
}

thread_local! {
    static EAR: Cell<Ear> = const { Cell::new(Ear::Open) };
}

/// Wakes the connection's task, unless a part of a body is being taken.
struct Listening(Waker);

impl Wake for Listening {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match EAR.get() {
            Ear::Open => self.0.wake_by_ref(),
            Ear::Shut | Ear::Missed => EAR.set(Ear::Missed),
        }
    }
}

/// The waker to give to hyper, for the task of this one.
pub(super) fn listening(task: &Waker) -> Waker {
    Waker::from(Arc::new(Listening(task.clone())))
}

/// Shut for as long as it lives, also where what is done meanwhile panics: a thread that hears nothing any more would leave
/// every connection of it asleep.
struct Shut;

impl Shut {
    fn now() -> Self {
        EAR.set(Ear::Shut);
        Self
    }

    /// Whether something was said meanwhile.
    fn missed(&self) -> bool {
        EAR.get() == Ear::Missed
    }
}

impl Drop for Shut {
    fn drop(&mut self) {
        EAR.set(Ear::Open);
    }
}

/// Takes the next part of a body; `is_over` says whether it was the last.
pub(super) fn take<B, T>(
    body: &mut B,
    cx: &mut Context<'_>,
    next: impl FnOnce(&mut B, &mut Context<'_>) -> T,
    is_over: impl FnOnce(&B) -> bool,
) -> T {
    let shut = Shut::now();
    let part = next(body, cx);
    let missed = shut.missed();
    drop(shut);
    if missed && !is_over(body) {
        cx.waker().wake_by_ref();
    }
    part
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn only_what_is_said_behind_the_last_part_of_a_body_is_not_heard() {
        let count = Arc::new(Count::default());
        let waker = listening(&Waker::from(Arc::clone(&count)));
        let mut cx = Context::from_waker(&waker);
        let woken = || count.0.swap(0, Ordering::Relaxed);
        waker.wake_by_ref();
        assert_eq!(woken(), 1);
        for (is_over, heard) in [(true, 0), (false, 1)] {
            let next = |(): &mut (), cx: &mut Context<'_>| cx.waker().wake_by_ref();
            take(&mut (), &mut cx, next, |()| is_over);
            assert_eq!(woken(), heard);
            waker.wake_by_ref();
            assert_eq!(woken(), 1, "what comes later is heard");
        }
        take(&mut (), &mut cx, |(), _| (), |()| false);
        assert_eq!(woken(), 0, "nothing was said");
        let another = waker.clone();
        let next = |(): &mut (), _: &mut Context<'_>| {
            let _ = std::thread::spawn(move || another.wake_by_ref()).join();
        };
        take(&mut (), &mut cx, next, |()| true);
        assert_eq!(woken(), 1, "another thread is heard at any time");
        let breaks = |(): &mut (), _: &mut Context<'_>| panic!("a body that breaks off");
        let broken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            take(&mut (), &mut cx, breaks, |()| true);
        }));
        waker.wake_by_ref();
        assert_eq!((broken.is_err(), woken()), (true, 1), "nobody is deaf for good");
    }
}
