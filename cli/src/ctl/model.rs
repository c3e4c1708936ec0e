//! `ctl model`: a site's deployments.

mod why;

use super::Ctl;
use crate::{args::ModelVerb, exit::Outcome};

pub(crate) async fn run(ctl: &Ctl, verb: &ModelVerb) -> Outcome {
    match verb {
        ModelVerb::Why { name, nodes, limit } => why::why(ctl, name, nodes.as_deref(), *limit).await,
        ModelVerb::Plan { file, nodes, limit } => why::plan(ctl, file, nodes.as_deref(), *limit).await,
    }
}
