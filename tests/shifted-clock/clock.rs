//! A wall clock that is wrong by what a file says: for hosts whose time nobody set.
//!
//! Owns `clock_gettime` of a process that is started with it in LD_PRELOAD. Built by the tests with plain rustc as a
//! cdylib, outside the workspace: it is called from C, so unsafe code cannot be helped. Invariant: only the wall clock is
//! shifted; the monotonic one, by which everything here is timed, is the kernel's.
//!
//! UMBEL_TEST_CLOCK names the file: one whole number, seconds, read at each call, so that the clock can be set while the
//! process runs.

use std::ffi::{c_int, c_long};

#[repr(C)]
pub struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
}

const REALTIME: c_int = 0;
const REALTIME_COARSE: c_int = 5;

#[cfg(target_arch = "x86_64")]
const CLOCK_GETTIME: c_long = 228;
#[cfg(target_arch = "aarch64")]
const CLOCK_GETTIME: c_long = 113;

fn shift() -> i64 {
    let Some(path) = std::env::var_os("UMBEL_TEST_CLOCK") else { return 0 };
    std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// The C library's own, but for the wall clock.
///
/// # Safety
/// `time` is null or points to a timespec, as for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int {
    let result = unsafe { syscall(CLOCK_GETTIME, clock, time) };
    if result == 0 && matches!(clock, REALTIME | REALTIME_COARSE) && !time.is_null() {
        unsafe { (*time).seconds += shift() };
    }
    result as c_int
}
