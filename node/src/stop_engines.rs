//! `umbel node stop-engines`: ends every engine of a node whose agent does not run.
//!
//! Owns the order; leaves finding and ending to `shell/engines`. Invariant: while an agent runs nothing is done, since it
//! would start its engines again; and no agent starts meanwhile.

use std::{collections::BTreeSet, sync::Arc};

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
    let (stopped, stuck) = runtime.block_on(async {
        let found = engines::find_inherited(&state).await;
        let unnamed = || "an engine without a record".to_owned();
        let mut names: BTreeSet<String> = found.engines.keys().cloned().collect();
        names.extend(found.strays.iter().map(|stray| stray.trace.name.clone().unwrap_or_else(unnamed)));
        let stuck = engines::end_all_inherited(&state, found).await;
        (names, stuck.into_iter().map(move |trace| trace.name.unwrap_or_else(unnamed)))
    });
    runtime.shutdown_background();
    let mut left: BTreeSet<String> = state.engine_records().into_iter().map(|record| record.name).collect();
    left.extend(stuck);
    if left.is_empty() {
        return Ok(stopped.into_iter().collect());
    }
    Err(StartError::Failed(format!(
        "processes of {} cannot be ended: they hang in the kernel, mostly in a driver; the host wants a restart",
        left.into_iter().collect::<Vec<_>>().join(", ")
    )))
}
