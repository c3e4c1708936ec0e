//! The allocator of the daemons, and when it gives memory back.
//!
//! Bodies of requests come in bursts. What a burst needed stays with the thread's heap until that heap is asked, so it
//! is asked every now and then. Invariant: a daemon that has become idle is as small as one that was never busy, but
//! for a few MiB.

use std::alloc::{GlobalAlloc, Layout};
use std::time::Duration;

use libmimalloc_sys::{
    mi_free, mi_malloc, mi_malloc_aligned, mi_realloc, mi_realloc_aligned, mi_zalloc, mi_zalloc_aligned,
};

/// mimalloc. Requests and answers are many small pieces that live for microseconds: a tenth of their processor time goes
/// with the system's allocator (BENCHMARKS.md).
#[derive(Clone, Copy, Debug)]
pub struct Allocator;

/// The allocator itself; a binary names it its global one.
pub const ALLOCATOR: Allocator = Allocator;

/// What mimalloc aligns to by itself: to words, and to two of them what is not shorter than that.
const WORD: usize = 8;
/// Tasks ask for the alignment of two lines of the cache. A block whose length is a power of two lies so by itself, which
/// is worth at most as much memory as a small one takes.
const ROUNDED_MAX: usize = 1024;

/// Its crate asks for an alignment each time, and most of what an allocation takes is then the look at it.
// SAFETY: each call is mimalloc's own of the same meaning, and what it gives is aligned as the layout asks: to a word by
// itself, to more since it is asked to.
#[allow(unsafe_code, reason = "the allocator's crate binds the calls; its own wrapper is slower")]
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: the layout is the caller's word; its size is not 0.
        unsafe {
            if align <= WORD {
                return mi_malloc(size).cast();
            }
            let size = if size <= ROUNDED_MAX { size.next_power_of_two() } else { size };
            mi_malloc_aligned(size, align).cast()
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            if layout.align() <= WORD {
                return mi_zalloc(layout.size()).cast();
            }
            mi_zalloc_aligned(layout.size(), layout.align()).cast()
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the caller was given it here.
        unsafe { mi_free(block.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller was given it here.
        unsafe {
            if layout.align() <= WORD {
                return mi_realloc(block.cast(), size).cast();
            }
            mi_realloc_aligned(block.cast(), size, layout.align()).cast()
        }
    }
}

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
