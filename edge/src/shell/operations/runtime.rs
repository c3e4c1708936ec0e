//! `runtime.probe`, `runtime.health`, `runtime.unload`: a node's engines tried out, looked at, ended; each is a job.
//!
//! Owns what a probe is given of a node, and what may not be unloaded behind a deployment's back. Leaves beginning jobs to
//! [`super::jobs`], where something fits to the placement, and the work to nodes. Invariant: a probe gets no GPU that a replica
//! holds, and no files that are not there.

use std::sync::Arc;

use serde_json::Value;
use umbel_contracts::deployment::DeploymentSpec;
use umbel_contracts::operations::{
    JobsResult, Operation, RuntimeHealth, RuntimeHealthArgs, RuntimeProbe, RuntimeProbeArgs, RuntimeUnload,
    RuntimeUnloadArgs,
};
use umbel_contracts::proto::node::{self, job_lease::Body};
use umbel_wire::{Code, Error, clock};

use super::{args, invalid, jobs, result, unknown};
use crate::core::commands::Request;
use crate::core::deployments::bodies;
use crate::core::jobs::Order;
use crate::core::placement::candidate::candidates;
use crate::core::placement::explain::{Detail, explain_some};
use crate::core::placement::{Request as Wish, plan};
use crate::core::registry::Moment;
use crate::core::registry::node::Node;
use crate::shell::commands::{Commands, Context};
use crate::shell::deployments;
use crate::shell::site::Site;

/// Longest patience.
const LONGEST_SECONDS: u64 = 86_400;
/// Tokens of a probe's answer.
const TOKENS_MAX: u32 = 1024;
/// Bytes of what it goes on with.
const INPUT_MAX: usize = 4096;

pub(super) fn dry_run(commands: &Arc<Commands>, request: &Request) -> Result<Value, Error> {
    orders(commands, request)?;
    result::<RuntimeHealth>(JobsResult { jobs: Vec::new() })
}

pub(super) async fn start(context: &Context<'_>) -> Result<(), Error> {
    jobs::begin(context, orders(context.commands, context.request)?).await
}

fn orders(commands: &Commands, request: &Request) -> Result<Vec<Order>, Error> {
    let site = &commands.site;
    match request.operation.as_str() {
        RuntimeHealth::NAME => {
            let RuntimeHealthArgs { engine } = args::<RuntimeHealth>(request)?;
            let body = Body::RuntimeHealth(node::RuntimeHealth { engine: engine.unwrap_or_default() });
            jobs::orders(commands, request, |_| Ok(body.clone()))
        }
        RuntimeProbe::NAME => {
            let asked = Probe::of(site, args::<RuntimeProbe>(request)?)?;
            jobs::orders(commands, request, |node| asked.body(site, node))
        }
        RuntimeUnload::NAME => {
            let asked = args::<RuntimeUnload>(request)?;
            jobs::orders(commands, request, |node| unload(site, node, &asked))
        }
        other => Err(unknown(other)),
    }
}

fn milliseconds(seconds: Option<u64>, what: &str) -> Result<u32, Error> {
    let seconds = seconds.unwrap_or_default();
    if seconds > LONGEST_SECONDS {
        return Err(invalid("ARGS", format!("{what} must be at most {LONGEST_SECONDS}")));
    }
    Ok(u32::try_from(seconds.saturating_mul(1_000)).unwrap_or(u32::MAX))
}

fn unload(site: &Site, node: &Node, asked: &RuntimeUnloadArgs) -> Result<Body, Error> {
    let deadline_ms = milliseconds(asked.deadline_seconds, "deadline_seconds")?;
    let of = site.deployments.read(|table| {
        let mut rows = table.replicas.values();
        let row = rows.find(|row| row.node == node.id && row.engine() == asked.engine)?;
        Some((row.deployment.clone(), row.number))
    });
    if let Some((name, number)) = of {
        let message = format!(
            "{} on {} is replica {number} of the deployment {name}, which would have it come up again: \
             umbel ctl model unload {name} --replica {number}, or without --replica for all",
            asked.engine, node.row.name
        );
        return Err(Error::new(Code::Conflict, "ENGINE_OF_DEPLOYMENT", message));
    }
    Ok(Body::RuntimeUnload(node::RuntimeUnload { engine: asked.engine.clone(), deadline_ms }))
}

/// What is tried out, and how.
struct Probe {
    spec: DeploymentSpec,
    input: String,
    answer_tokens: u32,
    timeout_ms: u32,
}

impl Probe {
    fn of(site: &Site, asked: RuntimeProbeArgs) -> Result<Self, Error> {
        let spec = super::placement::spec_of(site, asked.deployment.as_deref(), asked.document)?;
        let input = asked.input.unwrap_or_default();
        if input.len() > INPUT_MAX {
            return Err(invalid("ARGS", format!("input must be at most {INPUT_MAX} bytes")));
        }
        let answer_tokens = asked.answer_tokens.unwrap_or_default();
        if answer_tokens > TOKENS_MAX {
            return Err(invalid("ARGS", format!("answer_tokens must be 1 to {TOKENS_MAX}")));
        }
        if spec.nodes_per_replica > 1 {
            let message = "a replica over several nodes cannot be tried out on one";
            return Err(Error::new(Code::Conflict, "PROBE_DOES_NOT_FIT", message));
        }
        let timeout_ms = milliseconds(asked.timeout_seconds, "timeout_seconds")?;
        Ok(Self { spec, input, answer_tokens, timeout_ms })
    }

    /// What one node is given for it: GPUs that nobody holds, and the files that are there.
    fn body(&self, site: &Site, node: &Arc<Node>) -> Result<Body, Error> {
        let refused = |reason: &'static str, why: String| {
            Error::new(Code::Conflict, reason, format!("{} on {}: {why}", self.spec.name, node.row.name))
        };
        let gpus = self.gpus(site, node).map_err(|why| refused("PROBE_DOES_NOT_FIT", why))?;
        if let Some(artifact) = &self.spec.artifact {
            let key = artifact.key();
            if !node.report.artifacts.iter().any(|one| one.key() == key) {
                let name = &node.row.name;
                let why = format!(
                    "its files are not there; bring them first: umbel ctl artifact acquire FILE --node {name}"
                );
                return Err(refused("ARTIFACT_MISSING", why));
            }
        }
        // A probe is of no replica: the first one's number is as good as any.
        let load = bodies::load(&self.spec, 1, &gpus, &node.report.artifacts);
        let load = load.map_err(|why| invalid("DOCUMENT", why))?;
        Ok(Body::RuntimeProbe(node::RuntimeProbe {
            load: Some(load),
            input: self.input.clone(),
            answer_tokens: self.answer_tokens,
            timeout_ms: self.timeout_ms,
        }))
    }

    /// Who asks has chosen the node: what only keeps traffic away, and the document's own choice of nodes, say nothing here.
    fn gpus(&self, site: &Site, node: &Arc<Node>) -> Result<Vec<String>, String> {
        let mut wish = Wish::from(&self.spec);
        wish.selector = None;
        let moment = Moment { now: clock::now(), wall: site.wall().unix_ms() };
        let mut fleet = candidates(std::slice::from_ref(node), &deployments::given_away(site), moment);
        for one in &mut fleet {
            (one.eligible, one.draining) = (true, false);
        }
        if let Some(found) = plan(&wish, &fleet) {
            return Ok(found.shards.into_iter().flat_map(|shard| shard.gpus).collect());
        }
        let why = explain_some(&wish, &fleet, Detail { most: 1, only: &|_| true });
        let against = why.nodes.iter().flat_map(|one| &one.obstacles).map(|one| one.sentence());
        Err(against.collect::<Vec<_>>().join("; "))
    }
}
