//! What unfinished downloads leave, and when it is thrown away.
//!
//! Owns the choice; leaves looking and removing to the shell. Invariant: what a running download uses is never chosen.

use std::time::Duration;

/// A part that nobody went on with for so long is of no use: a week, since a site may be without its source for days.
const OUTWORN: Duration = Duration::from_secs(7 * 24 * 3600);

/// What is left of one download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Left {
    /// Its folder in the quarantine.
    pub(crate) name: String,
    /// Since it was last written to.
    pub(crate) age: Duration,
    pub(crate) bytes: u64,
    /// A download writes to it.
    pub(crate) running: bool,
}

/// What to remove: all that is outworn, and of the rest the oldest until `wanted` more bytes are free.
pub(crate) fn outworn(mut left: Vec<Left>, wanted: u64) -> Vec<String> {
    left.retain(|one| !one.running);
    left.sort_by_key(|one| std::cmp::Reverse(one.age));
    let mut freed = 0_u64;
    let mut gone = Vec::new();
    for one in left {
        if one.age >= OUTWORN || freed < wanted {
            freed = freed.saturating_add(one.bytes);
            gone.push(one.name);
        }
    }
    gone
}
