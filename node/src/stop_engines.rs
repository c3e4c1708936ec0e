//! `umbel node stop-engines`: ends every engine of a node whose agent does not run.
//!
//! Owns the order; leaves finding and ending to `shell/engines`. Invariant: while an agent runs nothing is done, since it
//! would start its engines again; and no agent starts meanwhile.

use std::sync::Arc;

use crate::{
    Config, StartError,
    app::runtime,
    shell::{engines, state::State},
};

/// Ends the engines that agents of this node left running, each with the usual grace; their names. Blocks until nothing of
/// them is left.
///
/// # Errors
/// [`StartError::Refused`] while an agent runs; [`StartError::Failed`] where something cannot be ended, or the state
/// directory cannot be used.
pub fn stop_engines(config: &Config) -> Result<Vec<String>, StartError> {
    if !config.state_dir.join("engines").exists() {
        return Ok(Vec::new());
    }
    let state = State::open(&config.state_dir).map_err(|error| match error {
        StartError::Failed(says) if says.contains("in use by another agent") => StartError::Refused(format!(
            "the node agent runs and would start its engines again: stop it first (systemctl stop umbel-node), then its \
             engines. {says}"
        )),
        error => error,
    })?;
    let state = Arc::new(state);
    let runtime = runtime()?;
    let stopped = runtime.block_on(async {
        let found = engines::find_inherited(&state).await;
        let names: Vec<String> = found.keys().cloned().collect();
        let mut ending = tokio::task::JoinSet::new();
        for inherited in found.into_values() {
            let state = Arc::clone(&state);
            ending.spawn(async move { engines::end_inherited(&state, inherited).await });
        }
        ending.join_all().await;
        names
    });
    runtime.shutdown_background();
    let left: Vec<String> = state.engine_records().into_iter().map(|record| record.name).collect();
    if left.is_empty() {
        return Ok(stopped);
    }
    Err(StartError::Failed(format!(
        "processes of {} cannot be ended: they hang in the kernel, mostly in a driver; the host wants a restart",
        left.join(", ")
    )))
}
