//! Builds every part of the edge, runs it, and drains it.

use crate::{Config, StartError};

/// Runs the edge until SIGTERM or SIGINT and the drain after it. Builds its own runtime; blocks.
///
/// # Errors
/// What kept it from starting: [`StartError::exit_code`] says with which code to exit.
pub fn run(config: Config) -> Result<(), StartError> {
    let _ = config;
    unimplemented!()
}
