//! The allocator of the daemons, and when it gives memory back.
//!
//! Bodies of requests come in bursts. What a burst needed stays with the thread's heap until that heap is asked, so it
//! is asked every now and then. Invariant: a daemon that has become idle is as small as one that was never busy, but
//! for a few MiB.

use std::time::Duration;

/// Requests and answers are many small pieces that live for microseconds: a tenth of their processor time goes with the
/// system's allocator (BENCHMARKS.md).
pub type Allocator = mimalloc::MiMalloc;

/// The allocator itself; a binary names it its global one.
pub const ALLOCATOR: Allocator = mimalloc::MiMalloc;

/// Rare enough to cost nothing: a look over the heap takes well under a millisecond.
const EVERY: Duration = Duration::from_secs(10);

/// From now on the calling thread's runtime gives back what it does not use. Call it once a runtime, within it.
pub fn keep_small() {
    tokio::spawn(async {
        loop {
            tokio::time::sleep(EVERY).await;
            give_back();
        }
    });
}

/// Gives the thread's unused memory back to the system. Harmless where another allocator is in use.
#[allow(unsafe_code, reason = "the allocator's crate binds the call and does not wrap it")]
fn give_back() {
    // SAFETY: it takes no pointer, works on the calling thread's own heap, and may be called at any time.
    unsafe { libmimalloc_sys::mi_collect(true) }
}
