//! `placement.explain`: where the replicas that a deployment still wants would go, and why not elsewhere.
//!
//! Owns the reading of the site that is explained, and the size of the answer. Leaves the judgement to `core::placement`.
//! Invariant: it changes nothing, and is worked out beside the runtime's thread, which other requests need.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Map, Value};
use umbel_contracts::deployment::DeploymentSpec;
use umbel_contracts::objects::{PlacementObject, timestamp};
use umbel_contracts::operations::{
    EXPLAINED_MAX, LARGEST_RESULT, Operation, PlacementExplain, PlacementExplainArgs,
};
use umbel_wire::{Code, Error, NodeId, clock};

use super::{args, invalid, result, select_any, unknown};
use crate::core::commands::Request as Command;
use crate::core::deployments::Deployments as Table;
use crate::core::placement::candidate::{Given, candidates, measured};
use crate::core::placement::explain::{Detail, explain_some};
use crate::core::placement::remedy::Stocks;
use crate::core::placement::request::Memory;
use crate::core::placement::{Fleet, Plan, Request, told};
use crate::core::registry::Moment;
use crate::shell::commands::Commands;
use crate::shell::deployments;
use crate::shell::site::Site;

/// Nodes told of in full unless said.
const EXPLAINED: u32 = 32;
/// The nodes of an answer end at this size.
const NODES_BYTES: usize = LARGEST_RESULT - LARGEST_RESULT / 8;

pub(super) async fn read(commands: &Arc<Commands>, request: &Command) -> Result<Value, Error> {
    match request.operation.as_str() {
        PlacementExplain::NAME => {
            let asked = Asked::new(commands, request, args::<PlacementExplain>(request)?)?;
            let site = Arc::clone(&commands.site);
            let explained = tokio::task::spawn_blocking(move || asked.explained(&site)).await;
            let explained =
                explained.map_err(|_| Error::new(Code::Internal, "INTERNAL", "the explanation broke off"))?;
            result::<PlacementExplain>(explained)
        }
        other => Err(unknown(other)),
    }
}

/// What is to be explained.
struct Asked {
    spec: DeploymentSpec,
    request: Request,
    given: Given,
    stocks: Stocks,
    wanted: u32,
    placed: u32,
    waiting_since_unix_ms: Option<i64>,
    /// What becomes another of the deployment that the document is of.
    changes: Option<Vec<String>>,
    remarks: Vec<String>,
    limit: usize,
    /// Nodes that may be told of in full; `None`: all.
    only: Option<HashSet<NodeId>>,
}

impl Asked {
    fn new(commands: &Commands, request: &Command, asked: PlacementExplainArgs) -> Result<Self, Error> {
        let limit = asked.limit.unwrap_or(EXPLAINED);
        if limit > EXPLAINED_MAX {
            return Err(invalid("ARGS", format!("limit must be 0 to {EXPLAINED_MAX}")));
        }
        let only = match request.selector.as_str() {
            "" => None,
            text => Some(select_any(commands, text)?.iter().map(|node| node.id).collect()),
        };
        let known = asked.deployment.as_deref().and_then(|name| commands.site.deployments.known(name));
        let spec = spec_of(&commands.site, asked.deployment.as_deref(), asked.document)?;
        let mut wish = Request { memory: Memory::of(&spec), ..Request::from(&spec) };
        let mut waiting_since_unix_ms = None;
        let mut placed = 0;
        let mut wanted = spec.replicas;
        let (mut changes, mut remarks) = (None, Vec::new());
        if let Some(known) = known {
            (wish.placed, wish.avoid, wish.displaces) = (known.placed, known.avoid, known.lost);
            placed = wish.placed.values().fold(0, |sum: u32, count| sum.saturating_add(*count));
            waiting_since_unix_ms = known.waiting_since_unix_ms;
            wanted = known.wanted;
            remarks = deployments::misplaced(&commands.site, &spec.name);
        } else if let Some(against) = deployments::against(&commands.site, &spec) {
            (wish.placed, wish.avoid, wish.displaces) = (against.stay, against.avoid, against.displaces);
            placed = wish.placed.values().fold(0, |sum: u32, count| sum.saturating_add(*count));
            changes = Some(against.changes);
        } else {
            // As if it took the place of what has its name.
            wish.displaces = commands.site.deployments.engines_of(&spec.name);
        }
        let given = deployments::given_away(&commands.site);
        let stocks = commands.site.deployments.read(Table::stocks);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(Self {
            spec,
            request: wish,
            given,
            stocks,
            wanted,
            placed,
            waiting_since_unix_ms,
            changes,
            remarks,
            limit,
            only,
        })
    }

    /// Places what is missing one after the other, and explains the first of all if they fit, else the first that does not.
    fn explained(mut self, site: &Site) -> PlacementObject {
        let moment = Moment { now: clock::now(), wall: site.wall().unix_ms() };
        let (_, nodes) = site.nodes();
        self.request.memory.measured_bytes = measured(&nodes, &self.spec.name, moment);
        let fleet = Fleet::of(candidates(&nodes, &self.given, moment));
        let missing = self.wanted.saturating_sub(self.placed).max(1);
        let plans = places(&self.spec, &self.request, (self.placed, missing), &fleet);
        let only = |id: &NodeId| self.only.as_ref().is_none_or(|only| only.contains(id));
        let detail = Detail { most: self.limit, only: &only };
        let mut object = match plans {
            // What is told of nodes is how they are now, not how they would be.
            Placed::AllOrNone(plans) => {
                let why = explain_some(&self.request, fleet.nodes(), detail);
                debug_assert_eq!(why.plan.as_ref(), plans.first(), "one question has one answer");
                told::object(&why, &plans, fleet.nodes(), &self.stocks)
            }
            Placed::Partly(plans, request, fleet) => {
                let why = explain_some(&request, fleet.nodes(), detail);
                debug_assert_eq!(why.plan, None, "one question has one answer");
                told::object(&why, &plans, fleet.nodes(), &self.stocks)
            }
        };
        object.replicas_wanted = self.wanted;
        object.replicas_placed = self.placed;
        (object.changes, object.remarks) = (self.changes, self.remarks);
        object.waiting_since = self.waiting_since_unix_ms.map(timestamp);
        bounded(object)
    }
}

/// What a deployment's name or a whole document means; exactly one of them is said.
pub(super) fn spec_of(
    site: &Site,
    deployment: Option<&str>,
    document: Option<Map<String, Value>>,
) -> Result<DeploymentSpec, Error> {
    match (deployment, document) {
        (Some(name), None) => site.deployments.known(name).map(|known| known.spec).ok_or_else(|| {
            let message = format!("the site has no deployment `{name}`");
            Error::new(Code::NotFound, "DEPLOYMENT_UNKNOWN", message)
        }),
        (None, Some(document)) => DeploymentSpec::from_value(Value::Object(document))
            .map_err(|faults| invalid("DOCUMENT", faults.to_string())),
        _ => Err(invalid("ARGS", "say the name of a `deployment`, or a whole `document`")),
    }
}

/// What could be placed of what is missing.
enum Placed {
    AllOrNone(Vec<Plan>),
    /// And the wish and the nodes of the next one.
    Partly(Vec<Plan>, Box<Request>, Fleet),
}

/// Places so many replicas one after the other, beside those that have a place already.
fn places(spec: &DeploymentSpec, request: &Request, (placed, missing): (u32, u32), fleet: &Fleet) -> Placed {
    let Some(first) = fleet.plan(request) else {
        return Placed::AllOrNone(Vec::new());
    };
    let mut plans = vec![first];
    if missing == 1 {
        return Placed::AllOrNone(plans);
    }
    let (mut request, mut fleet) = (request.clone(), fleet.clone());
    for number in 1..missing {
        if let Some(found) = plans.last() {
            fleet.take(found, &request, &spec.engine_name(placed + number, None));
            for shard in &found.shards {
                *request.placed.entry(shard.node).or_default() += 1;
            }
        }
        let Some(found) = fleet.plan(&request) else {
            return Placed::Partly(plans, Box::new(request), fleet);
        };
        plans.push(found);
    }
    Placed::AllOrNone(plans)
}

/// As many of the nodes as an answer holds.
fn bounded(mut object: PlacementObject) -> PlacementObject {
    let mut bytes = 0;
    let fit = object.nodes.iter().position(|node| {
        bytes += serde_json::to_vec(node).map_or(usize::MAX / 2, |text| text.len());
        bytes > NODES_BYTES
    });
    if let Some(fit) = fit {
        let off = object.nodes.len() - fit;
        object.nodes.truncate(fit);
        object.nodes_left_off = object.nodes_left_off.saturating_add(u32::try_from(off).unwrap_or(u32::MAX));
    }
    object
}
