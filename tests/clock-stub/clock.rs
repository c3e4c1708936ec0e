//! A wall clock that can be set for one process: preloaded before the C library's, it adds what a file says.
//!
//! Owns `clock_gettime`. Built by the tests with plain rustc as a cdylib, outside the workspace: the function is called
//! from C and takes a pointer, so unsafe code cannot be helped. Invariant: only the wall clock is changed; the file that
//! `UMBEL_TEST_CLOCK` names (milliseconds, may be negative) is read at each call.

use std::ffi::{c_int, c_long};

#[repr(C)]
pub struct Time {
    seconds: i64,
    nanoseconds: i64,
}

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
}

#[cfg(target_arch = "x86_64")]
const CLOCK_GETTIME: c_long = 228;
#[cfg(target_arch = "aarch64")]
const CLOCK_GETTIME: c_long = 113;
const REALTIME: c_int = 0;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, to: *mut Time) -> c_int {
    let answer = unsafe { syscall(CLOCK_GETTIME, clock, to) };
    if answer == 0 && clock == REALTIME {
        let text = std::env::var_os("UMBEL_TEST_CLOCK").and_then(|path| std::fs::read_to_string(path).ok());
        let offset: i64 = text.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        unsafe { (*to).seconds += offset / 1000 };
    }
    answer as c_int
}
