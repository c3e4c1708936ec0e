//! `ctl model`: a site's deployments.
//!
//! Owns which verb goes where. Leaves tables to [`show`], silent sites to [`last`], wishes to [`change`], places to [`why`].

mod change;
mod last;
mod show;
mod why;

use std::path::Path;

use serde_json::{Map, Value, json};
use umbel_contracts::config::ConfigFile;
use umbel_contracts::deployment::DeploymentSpec;

use super::Ctl;
use crate::{
    args::ModelVerb,
    calls::Call,
    exit::{Failure, Outcome},
};

pub(crate) async fn run(ctl: &Ctl, name: Option<&str>, verb: Option<&ModelVerb>) -> Outcome {
    let Some(verb) = verb else {
        return match name {
            None => show::list(ctl).await,
            Some(name) => show::show(ctl, name).await,
        };
    };
    match verb {
        ModelVerb::Apply { file, if_version } => change::apply(ctl, file, *if_version).await,
        ModelVerb::List => show::list(ctl).await,
        ModelVerb::Show { name } => show::show(ctl, name).await,
        ModelVerb::Load { name } => change::load(ctl, name).await,
        ModelVerb::Drain { name, replica, deadline } => change::drain(ctl, name, replica, *deadline).await,
        ModelVerb::Unload { name, replica } => change::unload(ctl, name, replica).await,
        ModelVerb::Delete { name, confirm } => change::delete(ctl, name, confirm.as_deref()).await,
        ModelVerb::Restart { name, replica } => change::restart(ctl, name, replica).await,
        ModelVerb::Pause { name, off } => change::pause(ctl, name, !off).await,
        ModelVerb::Why { name, nodes, limit } => why::why(ctl, name, nodes.as_deref(), *limit).await,
        ModelVerb::Plan { file, nodes, limit } => why::plan(ctl, file, nodes.as_deref(), *limit).await,
    }
}

/// A document out of its file, checked, and as the operations take it.
pub(crate) fn document(file: &Path) -> Outcome<(DeploymentSpec, Map<String, Value>)> {
    let read = ConfigFile::read(file).map_err(|error| Failure::usage(error.to_string()))?;
    let spec = DeploymentSpec::from_file(&read).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        Failure::usage(lines.join("\n"))
    })?;
    match serde_json::to_value(&spec) {
        Ok(Value::Object(document)) => Ok((spec, document)),
        _ => Err(Failure::failed("the document is no object")),
    }
}

/// One deployment whole, as its site wrote it.
async fn ask_show(ctl: &Ctl, site: &str, name: &str) -> Outcome<String> {
    let call = Call::new("deployment.show").args(&json!({ "name": name }))?;
    ctl.client.ask(site, &call).await?.result_raw()
}
