//! `ctl engine health|probe|unload`: work about engines that is a job of their nodes.
//!
//! Owns which node and engine are meant, and what a look's exit code is. Leaves following to `ctl job`. Invariant: what is
//! tried out is named by its document or deployment, what is unloaded by what `ctl engine` prints.

use std::path::Path;
use std::time::Duration;

use umbel_contracts::objects::JobObject;
use umbel_contracts::operations::{RuntimeHealthArgs, RuntimeProbeArgs, RuntimeUnloadArgs};

use super::{chosen, find};
use crate::{
    args::EngineProbe,
    calls::Call,
    ctl::{Ctl, job, model, nodes},
    exit::{Exit, Failure, Outcome},
};

pub(super) async fn health(ctl: &Ctl, name: Option<&str>, node: Option<&str>) -> Outcome {
    let (site, selector, engine) = match name {
        Some(name) => {
            let (site, found) = find(ctl, name).await?;
            (site, format!("node:{}", found.node_id), Some(found.engine))
        }
        None => (ctl.one_site().await?, nodes(node.unwrap_or("all")), None),
    };
    let call = Call { selector, ..Call::new("runtime.health") }.args(&RuntimeHealthArgs { engine })?;
    let looks = job::begin(ctl, &site, call).await?;
    let ill: Vec<String> = looks.iter().flat_map(not_well).collect();
    if ill.is_empty() {
        return Ok(());
    }
    Err(Failure::new(Exit::Condition, format!("not well: {}", ill.join(", "))))
}

/// The engines of a look that are not well, with the layer at which that shows.
fn not_well(look: &JobObject) -> Vec<String> {
    let engines = look.report.iter().flat_map(|report| &report.engines);
    let ill = engines.filter_map(|engine| {
        let layer = engine.layers.iter().find(|layer| !layer.ok)?;
        Some(format!("{} on {} ({})", engine.engine, job::node(look), layer.layer))
    });
    ill.collect()
}

pub(super) async fn probe(ctl: &Ctl, asked: &EngineProbe) -> Outcome {
    let path = Path::new(&asked.what);
    let is_file = asked.what.contains(['/', '.']) || path.is_file();
    let (deployment, document) =
        if is_file { (None, Some(model::document(path)?.1)) } else { (Some(asked.what.clone()), None) };
    let site = ctl.one_site().await?;
    let args = RuntimeProbeArgs {
        deployment,
        document,
        input: asked.input.clone(),
        answer_tokens: asked.tokens,
        timeout_seconds: asked.within.map(|within| within.as_secs().max(1)),
    };
    let call = Call { selector: nodes(&asked.node), ..Call::new("runtime.probe") }.args(&args)?;
    job::begin(ctl, &site, call).await.map(drop)
}

pub(super) async fn unload(ctl: &Ctl, name: &str, deadline: Option<Duration>) -> Outcome {
    ctl.reason_for("unloading an engine")?;
    let (site, selector, engine) = match (chosen(ctl, name, "Unload").await, name.split_once('/')) {
        (Ok((site, found)), _) => (site, format!("node:{}", found.node_id), found.engine),
        // One that its node does not tell of may be there all the same.
        (Err(failure), Some((node, engine)))
            if failure.exit() == Exit::NotFound && !failure.is_ambiguous() =>
        {
            (ctl.one_site().await?, nodes(node), engine.to_owned())
        }
        (Err(failure), _) => return Err(failure),
    };
    let args = RuntimeUnloadArgs { engine, deadline_seconds: deadline.map(|deadline| deadline.as_secs()) };
    let call = Call { selector, ..Call::new("runtime.unload") }.args(&args)?;
    job::begin(ctl, &site, call).await.map(drop)
}
