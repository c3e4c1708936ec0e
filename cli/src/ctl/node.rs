//! `ctl node`: lists, details, why a node is not serving, and the writes about one node.

mod why;

use std::collections::BTreeMap;

use umbel_contracts::objects::{FleetNodes, NodeObject, SiteNode};

use super::{Ctl, command, gather::silent, pick};
use crate::{
    args::NodeVerb,
    calls::Call,
    exit::{Exit, Failure, Outcome},
    output::{Column, Format, Table, Tone, ago, bytes, details, members, printable, put, state_tone, width},
};

const LIST: &str = "umbel ctl node";

pub(crate) async fn run(ctl: &Ctl, name: Option<&str>, verb: Option<&NodeVerb>) -> Outcome {
    match (verb, name) {
        (None | Some(NodeVerb::List), None) => list(ctl).await,
        (None | Some(NodeVerb::List), Some(name)) => show(ctl, name).await,
        (Some(NodeVerb::Show { name }), _) => show(ctl, name).await,
        (Some(NodeVerb::Why { name }), _) => {
            let (node, _) = find(ctl, name).await?.item;
            why::run(ctl, &node)
        }
        (Some(NodeVerb::Drain { name, deadline }), _) => {
            let reason = ctl.reason_for("draining a node")?.to_owned();
            let node = write_to(ctl, name, "Drain").await?;
            let args = match deadline {
                Some(deadline) => serde_json::json!({ "deadline_seconds": deadline.as_secs() }),
                None => serde_json::json!({}),
            };
            let call = Call::new("node.drain").args(&args)?.reason(Some(&reason));
            let undo = format!("It gets no more requests. Undo: umbel ctl node undrain {}", node.node.name);
            send(ctl, &node, call, "is drained", "would be drained", &undo).await
        }
        (Some(NodeVerb::Undrain { name }), _) => {
            let node = write_to(ctl, name, "Undrain").await?;
            let call = Call::new("node.undrain").reason(ctl.global.reason.as_deref());
            send(ctl, &node, call, "is not draining any more", "would not be draining any more", "").await
        }
        (Some(NodeVerb::Eligible { name, value }), _) => {
            let node = write_to(ctl, name, "Change").await?;
            let eligible = value == "yes";
            let call = Call::new("node.eligible").args(&serde_json::json!({ "eligible": eligible }))?;
            let call = call.reason(ctl.global.reason.as_deref());
            let (done, would, undo) = if eligible {
                ("may get requests", "could get requests", "no")
            } else {
                ("gets no requests", "would get no requests", "yes")
            };
            let undo = format!("Undo: umbel ctl node eligible {} {undo}", node.node.name);
            send(ctl, &node, call, done, would, &undo).await
        }
    }
}

/// The node that a write is about; one that was not named in full is asked for.
async fn write_to(ctl: &Ctl, name: &str, act: &str) -> Outcome<SiteNode> {
    let picked = find(ctl, name).await?;
    let (node, _) = picked.item;
    if !picked.exact {
        ctl.confirm(&format!("{act} {} at {}?", node.node.name, node.edge_id))?;
    }
    Ok(node)
}

async fn send(ctl: &Ctl, node: &SiteNode, call: Call, done: &str, would: &str, undo: &str) -> Outcome {
    let call = call.node(&node.node.node_id).dry_run(ctl.global.dry_run);
    let (name, site) = (&node.node.name, &node.edge_id);
    let text = if ctl.global.dry_run {
        format!("{name} at {site} {would}.")
    } else {
        format!("{name} at {site} {done}. {undo}")
    };
    command::send(ctl, site, &call, text.trim_end()).await
}

/// All nodes of the selected sites with their text, and the sites whose nodes are missing.
async fn all(ctl: &Ctl) -> Outcome<(Vec<(SiteNode, String)>, Vec<String>)> {
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

async fn find(ctl: &Ctl, name: &str) -> Outcome<pick::Picked<(SiteNode, String)>> {
    let (nodes, missing) = all(ctl).await?;
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

/// The word for what a node does now.
fn state(node: &NodeObject) -> &str {
    if node.draining && node.state == "online" { "draining" } else { &node.state }
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

async fn list(ctl: &Ctl) -> Outcome {
    let (nodes, missing) = all(ctl).await?;
    match ctl.global.output {
        Format::Json | Format::Jsonl => {
            let raws = nodes.iter().map(|(_, raw)| serde_json::value::RawValue::from_string(raw.clone()));
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
        Column::left("LABELS").wide(),
        Column::text("NOTE"),
    ]);
    for (SiteNode { edge_id, node }, _) in nodes {
        let available =
            node.providers.iter().filter(|provider| provider.status.as_str() == "available").count();
        let running: u64 = node.providers.iter().map(|provider| u64::from(provider.in_flight)).sum();
        table.row(vec![
            node.name.clone(),
            edge_id.clone(),
            state(node).to_owned(),
            yes(node.ready).to_owned(),
            yes(node.eligible).to_owned(),
            format!("{available}/{}", node.providers.len()),
            running.to_string(),
            ago(node.last_seen_at),
            gpus(node),
            node.agent_version.clone(),
            node.node_id.clone(),
            node.generation.to_string(),
            labels(&node.labels),
            node.problems.first().map_or_else(String::new, |problem| problem.message.clone()),
        ]);
    }
    if all || !table.is_empty() {
        ctl.put_table(&table, "No node. Make a token for one: umbel ctl token create NODE");
    }
}

async fn show(ctl: &Ctl, name: &str) -> Outcome {
    let (SiteNode { edge_id, node }, raw) = find(ctl, name).await?.item;
    if ctl.put_object(&raw) {
        return Ok(());
    }
    if ctl.global.output == Format::Name {
        put(&node.name);
        return Ok(());
    }
    let word = state(&node);
    let mut lines = vec![
        ("Node", format!("{}  site {edge_id}", node.name)),
        ("Id", node.node_id.clone()),
        ("State", ctl.style.paint(state_tone(word), word)),
        ("Seen", node.last_seen_at.map_or("never".to_owned(), |at| format!("{} ago", ago(Some(at))))),
        ("Connected", format!("{}, generation {}", yes(node.connected), node.generation)),
        ("Ready", yes(node.ready).to_owned()),
        ("Eligible", yes(node.eligible).to_owned()),
        ("Draining", yes(node.draining).to_owned()),
        (
            "Agent",
            format!("{}, protocol {} {}", or_dash(&node.agent_version), node.protocol, node.protocol_verdict),
        ),
        ("Labels", or_dash(&labels(&node.labels)).to_owned()),
    ];
    if let Some(host) = &node.inventory {
        let memory = bytes(host.memory_bytes);
        let (name, cores, os) = (&host.hostname, host.cpu_count, &host.os);
        lines.push((
            "Host",
            format!("{name} · {cores} × {} · {memory} · {os} · {}", host.cpu_model, host.kernel),
        ));
        lines.push(("GPUs", or_dash(&gpus(&node)).to_owned()));
    }
    put(&details(&lines));
    engines(ctl, &node);
    for problem in &node.problems {
        let since = ago(Some(problem.since));
        put(&format!(
            "{}  {}  {since}",
            ctl.style.paint(Tone::Bad, &printable(&problem.code)),
            printable(&problem.message)
        ));
    }
    if !node.ready || !node.eligible || node.draining {
        crate::output::say(&format!("Why it is not serving: umbel ctl node why {}", node.name));
    }
    Ok(())
}

fn engines(ctl: &Ctl, node: &NodeObject) {
    if node.providers.is_empty() {
        return;
    }
    let mut table = Table::new(vec![
        Column::left("ENGINE"),
        Column::left("MODEL"),
        Column::left("KIND"),
        Column::state("STATUS"),
        Column::state("HEALTH"),
        Column::number("RUN"),
        Column::number("WAIT"),
        Column::number("CONTEXT").wide(),
        Column::number("LONG").wide(),
        Column::text("NOTE"),
    ]);
    for provider in &node.providers {
        table.row(vec![
            engine_name(&provider.provider_id).to_owned(),
            provider.model.clone(),
            provider.engine_kind.clone(),
            provider.status.as_str().to_owned(),
            provider.health.as_str().to_owned(),
            format!("{}/{}", provider.in_flight, provider.capacity),
            provider.queued.to_string(),
            provider.max_context_tokens.to_string(),
            format!("{}/{}", provider.long_context_in_flight, provider.long_context_capacity),
            provider.cause.clone().unwrap_or_default(),
        ]);
    }
    put(&format!("\n{}", table.render(ctl.global.output == Format::Wide, width(), ctl.style)));
}

/// A provider's id is NODE_ID/NAME; on its own node the name is enough.
fn engine_name(provider_id: &str) -> &str {
    provider_id.rsplit_once('/').map_or(provider_id, |(_, name)| name)
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}
