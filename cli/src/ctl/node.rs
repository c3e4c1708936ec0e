//! `ctl node`: which node is meant, and the list of them.
//!
//! Leaves the words of one node to `show` and `why`, and what changes one to `change` and `retire`. Invariant: while a
//! site cannot be asked, none of its nodes counts as not there.

mod change;
mod detail;
mod retire;
mod show;
mod why;

use std::collections::BTreeMap;

use serde_json::{Map, Value, value::RawValue};
use umbel_contracts::objects::{FleetNodes, NodeObject, SiteNode};

use super::{
    Ctl,
    gather::{gather_with, silent},
    pick,
};
use crate::{
    args::NodeVerb,
    client::parse,
    exit::{Exit, Failure, Outcome},
    output::{Column, Format, Table, ago, members, until},
};

const LIST: &str = "umbel ctl node";

pub(crate) async fn run(ctl: &Ctl, name: Option<&str>, verb: Option<&NodeVerb>) -> Outcome {
    match (verb, name) {
        (None | Some(NodeVerb::List { .. }), Some(name)) => show::run(ctl, name).await,
        (Some(NodeVerb::List { decommissioned: true }), None) => list(ctl, retired(ctl).await?).await,
        (None | Some(NodeVerb::List { .. }), None) => list(ctl, all(ctl).await?).await,
        (Some(NodeVerb::Show { name }), _) => show::run(ctl, name).await,
        (Some(NodeVerb::Why { name }), _) => {
            let (node, _) = find_even_retired(ctl, name).await?;
            why::run(ctl, &node)
        }
        (Some(NodeVerb::Decommission { name, preview, deadline, confirm }), _) => {
            retire::run(ctl, name, *preview, *deadline, confirm.as_deref()).await
        }
        (Some(verb), _) => change::run(ctl, verb).await,
    }
}

/// Nodes with their text, and the sites whose nodes are not known.
type Nodes = (Vec<(SiteNode, String)>, Vec<String>);

/// All nodes of the selected sites that were not retired.
async fn all(ctl: &Ctl) -> Outcome<Nodes> {
    let answer = ctl.client.get("/api/v1/nodes").await?;
    let nodes: FleetNodes = answer.parse()?;
    let raws = members(answer.raw()?, "items");
    let mut pairs: Vec<(SiteNode, String)> =
        nodes.items.into_iter().zip(raws).map(|(node, raw)| (node, raw.get().to_owned())).collect();
    let mut missing: Vec<String> = nodes.missing.into_iter().map(|site| site.edge_id).collect();
    if ctl.global.site.is_some() {
        let sites: Vec<String> = ctl.sites().await?.into_iter().map(|edge| edge.edge_id).collect();
        pairs.retain(|(node, _)| sites.contains(&node.edge_id));
        missing.retain(|site| sites.contains(site));
    }
    Ok((pairs, missing))
}

/// All nodes, those that were retired, too.
async fn retired(ctl: &Ctl) -> Outcome<Nodes> {
    let more = Map::from_iter([("decommissioned".to_owned(), Value::Bool(true))]);
    let gathered = gather_with(ctl, "node.list", "nodes", "", &more).await?;
    let mut pairs = Vec::new();
    for raw in gathered.raws()? {
        pairs.push((parse::<SiteNode>(raw.get())?, raw.get().to_owned()));
    }
    Ok((pairs, gathered.silent))
}

async fn find(ctl: &Ctl, name: &str) -> Outcome<pick::Picked<(SiteNode, String)>> {
    found(all(ctl).await?, name)
}

fn found((nodes, missing): Nodes, name: &str) -> Outcome<pick::Picked<(SiteNode, String)>> {
    let names = |(node, _): &(SiteNode, String)| vec![node.node.name.clone(), node.node.node_id.clone()];
    pick::one(nodes, name, "node", names, LIST).map_err(|failure| {
        if missing.is_empty() || failure.is_ambiguous() {
            return failure;
        }
        // It is not known that there is no such node while some site could not be asked.
        Failure::new(Exit::Unreachable, format!("no site that answers has a node `{name}`; silent are"))
            .candidates(missing)
            .remedy("umbel ctl status")
    })
}

/// A node to look at. Retired ones are in no list unless asked for; by their whole name or id they are still found, before
/// one whose name only begins so.
async fn find_even_retired(ctl: &Ctl, name: &str) -> Outcome<(SiteNode, String)> {
    let living = find(ctl, name).await;
    match &living {
        Ok(picked) if picked.exact => {}
        Err(failure) if failure.exit() != Exit::NotFound => {}
        _ => {
            let mut nodes = retired(ctl).await.unwrap_or_default();
            nodes.0.retain(|(node, _)| node.node.lifecycle.as_str() == "decommissioned");
            let is = |(node, _): &(SiteNode, String)| {
                [&node.node.name, &node.node.node_id].contains(&&name.to_owned())
            };
            if nodes.0.iter().any(is) {
                return found(nodes, name).map(|picked| picked.item);
            }
        }
    }
    living.map(|picked| picked.item)
}

/// The node whose whole name this is: for what cannot be undone the start of one is not enough.
pub(crate) async fn whole(ctl: &Ctl, name: &str) -> Outcome<SiteNode> {
    let picked = find(ctl, name).await?;
    if picked.exact {
        return Ok(picked.item.0);
    }
    let what = format!("there is no node `{name}`; its whole name or id is needed here");
    Err(Failure::new(Exit::NotFound, what).candidates(vec![picked.item.0.node.name]))
}

/// The word for what a node does now.
fn state(node: &NodeObject) -> &str {
    if node.draining && node.state == "online" { "draining" } else { &node.state }
}

fn is_revoked(node: &NodeObject) -> bool {
    node.credential.as_ref().is_some_and(|credential| credential.revoked_at.is_some())
}

/// How a node whose credential opens nothing any more comes back as the same node.
fn comes_back(node: &NodeObject) -> String {
    format!("umbel ctl token create --replace {}, then umbel node enroll on its host", node.name)
}

fn yes(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

/// `k=v k2=v2`.
pub(crate) fn labels(labels: &BTreeMap<String, String>) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

/// `4×L40S 1×H100`.
fn gpus(node: &NodeObject) -> String {
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for gpu in node.inventory.iter().flat_map(|inventory| &inventory.gpus) {
        *kinds.entry(gpu.name.as_str()).or_default() += 1;
    }
    kinds.iter().map(|(name, count)| format!("{count}×{name}")).collect::<Vec<_>>().join(" ")
}

/// `7`, or `6/7` while a node has not what it should have.
fn settings(node: &NodeObject) -> String {
    match &node.config {
        None => String::new(),
        Some(config) if config.applied_version == config.desired_version => {
            config.applied_version.to_string()
        }
        Some(config) => format!("{}/{}", config.applied_version, config.desired_version),
    }
}

/// How long the certificate still holds.
fn certificate(node: &NodeObject) -> String {
    match &node.credential {
        None => String::new(),
        Some(credential) if credential.revoked_at.is_some() => "revoked".to_owned(),
        Some(credential) => match credential.not_after {
            None => String::new(),
            Some(end) => until(end).unwrap_or_else(|| "expired".to_owned()),
        },
    }
}

/// Requests that run there, as the edge counts them.
fn running(node: &NodeObject) -> u64 {
    node.providers.iter().map(|provider| u64::from(provider.in_flight)).sum()
}

async fn list(ctl: &Ctl, (nodes, missing): Nodes) -> Outcome {
    match ctl.global.output {
        Format::Json | Format::Jsonl | Format::Yaml => {
            let raws = nodes.iter().map(|(_, raw)| RawValue::from_string(raw.clone()));
            let raws = raws.collect::<Result<Vec<_>, _>>();
            let raws = raws.map_err(|error| Failure::failed(error.to_string()))?;
            ctl.put_list(&raws);
        }
        Format::Name => ctl.put_names(nodes.iter().map(|(node, _)| node.node.name.as_str())),
        Format::Table | Format::Wide => table(ctl, &nodes, missing.is_empty()),
    }
    silent(&missing, "nodes")
}

fn table(ctl: &Ctl, nodes: &[(SiteNode, String)], all: bool) {
    let mut table = Table::new(vec![
        Column::left("NODE"),
        Column::left("SITE"),
        Column::state("STATE"),
        Column::state("READY"),
        Column::state("ELIGIBLE"),
        Column::number("ENGINES"),
        Column::number("RUN"),
        Column::number("SEEN"),
        Column::left("GPUS"),
        Column::left("AGENT"),
        Column::left("ID").wide(),
        Column::number("GENERATION").wide(),
        Column::number("HEARTBEAT").wide(),
        Column::left("SETTINGS").wide(),
        Column::left("CERTIFICATE").wide(),
        Column::left("LABELS").wide(),
        Column::text("NOTE"),
    ]);
    for (SiteNode { edge_id, node }, _) in nodes {
        let available =
            node.providers.iter().filter(|provider| provider.status.as_str() == "available").count();
        table.row(vec![
            node.name.clone(),
            edge_id.clone(),
            state(node).to_owned(),
            yes(node.ready).to_owned(),
            yes(node.eligible).to_owned(),
            format!("{available}/{}", node.providers.len()),
            running(node).to_string(),
            ago(node.last_seen_at),
            gpus(node),
            node.agent_version.clone(),
            node.node_id.clone(),
            node.generation.to_string(),
            node.heartbeat_sequence.to_string(),
            settings(node),
            certificate(node),
            labels(&node.labels),
            node.problems.first().map_or_else(String::new, |problem| problem.message.clone()),
        ]);
    }
    if all || !table.is_empty() {
        ctl.put_table(&table, "No node. Make a token for one: umbel ctl token create NODE");
    }
}
