//! Changing what a running daemon logs: settings may say it, and the binary that started the log knows how.
//!
//! Invariant: a level that is no filter changes nothing.

use std::sync::OnceLock;

type Change = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// There is one log a process, as there is one subscriber.
static CHANGE: OnceLock<Change> = OnceLock::new();

/// Says how the log's filter is changed. Once a process; later calls change nothing.
pub fn on_log_level(change: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static) {
    let _ = CHANGE.set(Box::new(change));
}

/// Changes the log's filter: `info`, `info,umbel_edge=debug`. Does nothing where nobody said how.
///
/// # Errors
/// If it is no filter.
pub fn set_log_level(level: &str) -> Result<(), String> {
    CHANGE.get().map_or(Ok(()), |change| change(level))
}
