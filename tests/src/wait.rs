//! Waiting for a condition with a limit: the only way in which a test here lets time pass.
//!
//! A limit that is reached names what was waited for and what was seen last.

use std::time::{Duration, Instant};

/// How often a condition is looked at.
const STEP: Duration = Duration::from_millis(15);

/// Waits until `look` gives a value and returns it.
///
/// # Panics
/// When `limit` passes first; `what` and the last failure stand in the message.
#[track_caller]
#[allow(clippy::panic, reason = "a test's condition that did not come true is the test's failure")]
pub fn until_some<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        let last = match look() {
            Ok(value) => return value,
            Err(why) => why,
        };
        if start.elapsed() > limit {
            panic!("not within {limit:?}: {what}; last seen: {last}");
        }
        std::thread::sleep(STEP);
    }
}

/// Waits until `look` is true.
///
/// # Panics
/// When `limit` passes first.
#[track_caller]
pub fn until(what: &str, limit: Duration, mut look: impl FnMut() -> bool) {
    until_some(what, limit, || if look() { Ok(()) } else { Err("it is not so".to_owned()) });
}

/// Checks that `look` stays true for the whole of `span`.
///
/// # Panics
/// As soon as it is false.
#[track_caller]
#[allow(clippy::panic, reason = "a test's condition that became false is the test's failure")]
pub fn stays(what: &str, span: Duration, mut look: impl FnMut() -> Result<(), String>) {
    let start = Instant::now();
    while start.elapsed() < span {
        if let Err(why) = look() {
            panic!("after {:?} no longer so: {what}: {why}", start.elapsed());
        }
        std::thread::sleep(STEP);
    }
}
