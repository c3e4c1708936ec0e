//! Builds every part of the agent, runs it, and drains it.

use crate::{Config, StartError};

/// Runs the agent until SIGTERM or SIGINT and the drain after it. Builds its own runtime; blocks.
///
/// # Errors
/// What kept it from starting: [`StartError::exit_code`] says with which code to exit.
pub fn run(config: Config) -> Result<(), StartError> {
    let _ = config;
    unimplemented!()
}

/// The agent's runtime: one thread. A node relays more on one thread than on two that share the work.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, StartError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| StartError::Failed(format!("no runtime: {error}")))
}
