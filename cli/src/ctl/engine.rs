//! `ctl engine`: the processes that compute, of deployments and of nodes' own files.
//!
//! Owns listing and showing them. Leaves their output to `logs`, ending or starting one to `control`, jobs about them to `runtime`,
//! and which should be there to `ctl model`.
//! Invariant: an engine is named by what `ctl engine` prints; where several nodes have one of a name, by NODE/NAME.

use jiff::Timestamp;
use serde_json::json;
use umbel_contracts::objects::EngineObject;

use super::{Ctl, gather::gather, pick, with_site};
use crate::{
    args::EngineVerb,
    calls::Call,
    client::parse,
    exit::Outcome,
    output::{Column, Format, Table, age_ms, ago, details, put, say, state_tone, utc},
};

mod control;
mod logs;
mod runtime;

use control::Wish;

const LIST: &str = "umbel ctl engine";

pub(crate) async fn run(ctl: &Ctl, name: Option<&str>, verb: Option<&EngineVerb>) -> Outcome {
    match (verb, name) {
        (None | Some(EngineVerb::List), None) => list(ctl).await,
        (None | Some(EngineVerb::List), Some(name)) => show(ctl, name).await,
        (Some(EngineVerb::Show { name }), _) => show(ctl, name).await,
        (Some(EngineVerb::Logs { name, lines, follow }), _) => logs::run(ctl, name, *lines, *follow).await,
        (Some(EngineVerb::Health { name, node }), _) => {
            runtime::health(ctl, name.as_deref(), node.as_deref()).await
        }
        (Some(EngineVerb::Probe(probe)), _) => runtime::probe(ctl, probe).await,
        (Some(EngineVerb::Unload { name, deadline }), _) => runtime::unload(ctl, name, *deadline).await,
        (Some(EngineVerb::Restart { name, deadline }), _) => {
            control::send(ctl, name, Wish::Restart, *deadline).await
        }
        (Some(EngineVerb::Stop { name, deadline }), _) => {
            ctl.reason_for("stopping an engine")?;
            control::send(ctl, name, Wish::Stop, *deadline).await
        }
    }
}

/// For how long, as its edge says; an older edge says only since when, by the node's clock.
fn age(ms: Option<u64>, since: Option<Timestamp>) -> String {
    if ms.is_some() { age_ms(ms) } else { ago(since) }
}

/// The same, and the moment as the node's own log has it.
fn since(ms: Option<u64>, since: Option<Timestamp>) -> String {
    match ms {
        Some(_) => format!("{} ago, {} by its node's clock", age_ms(ms), utc(since)),
        None => utc(since),
    }
}

async fn list(ctl: &Ctl) -> Outcome {
    let gathered = gather(ctl, "engine.list", "engines").await?;
    if ctl.put_list(&gathered.raws()?) {
        return gathered.complete("engines");
    }
    let mut table = Table::new(vec![
        Column::left("ENGINE"),
        Column::left("SITE"),
        Column::left("NODE"),
        Column::left("KIND"),
        Column::left("MODEL"),
        Column::state("STATE"),
        Column::number("SINCE"),
        Column::number("RUNNING"),
        Column::number("RESTARTS"),
        Column::number("GPUS").wide(),
        Column::left("PROVIDER").wide(),
        Column::text("CAUSE"),
    ]);
    let mut names = Vec::new();
    for (site, raw) in &gathered.items {
        let one: EngineObject = parse(raw.get())?;
        names.push(one.provider_id.clone());
        table.row(vec![
            one.engine.clone(),
            site.clone(),
            one.node.clone(),
            one.kind.clone(),
            one.model.clone(),
            one.state.clone(),
            age(one.age_ms, one.since),
            one.in_flight.to_string(),
            one.restarts.to_string(),
            one.gpus.len().to_string(),
            one.provider_id.clone(),
            one.cause.clone(),
        ]);
    }
    if ctl.global.output == Format::Name {
        ctl.put_names(names.iter().map(String::as_str));
    } else {
        ctl.put_table(&table, "No engine. Apply a deployment: umbel ctl model apply FILE");
    }
    gathered.complete("engines")
}

/// The one engine of a name, NODE/NAME, a provider's id, or the start of one.
async fn found(ctl: &Ctl, name: &str) -> Outcome<(String, EngineObject, bool)> {
    let gathered = gather(ctl, "engine.list", "engines").await?;
    let mut all: Vec<(String, EngineObject, String)> = Vec::new();
    for (site, raw) in &gathered.items {
        all.push((site.clone(), parse(raw.get())?, with_site(site, raw)?.get().to_owned()));
    }
    let names = |(_, one, _): &(String, EngineObject, String)| {
        // A node's name is the start of NODE/ENGINE only where a slash was typed: else it would mean its only engine.
        let mut names = vec![one.engine.clone()];
        if name.contains('/') {
            names.extend([format!("{}/{}", one.node, one.engine), one.provider_id.clone()]);
        }
        names
    };
    let place =
        |(site, one, _): &(String, EngineObject, String)| format!("{}/{}  {site}", one.node, one.engine);
    let picked = pick::placed(all, name, "engine", names, place, LIST);
    let picked = picked.map_err(|failure| gathered.or_silent(failure, name, "engine"))?;
    let exact = picked.exact;
    let (site, one, _) = picked.item;
    Ok((site, one, exact))
}

/// One to look at.
async fn find(ctl: &Ctl, name: &str) -> Outcome<(String, EngineObject)> {
    let (site, one, exact) = found(ctl, name).await?;
    if !exact {
        say(&format!("{} on {}", one.engine, one.node));
    }
    Ok((site, one))
}

/// One to act on.
async fn chosen(ctl: &Ctl, name: &str, act: &str) -> Outcome<(String, EngineObject)> {
    let (site, one, exact) = found(ctl, name).await?;
    if !exact {
        ctl.confirm_half(&format!("{act} {} on {}?", one.engine, one.node))?;
    }
    Ok((site, one))
}

async fn show(ctl: &Ctl, name: &str) -> Outcome {
    let (site, found) = find(ctl, name).await?;
    let call = Call::new("engine.show").args(&json!({ "engine": found.provider_id }))?;
    let raw = ctl.client.ask(&site, &call).await?.result_raw()?;
    if ctl.put_object(&raw) {
        return Ok(());
    }
    let one: EngineObject = parse(&raw)?;
    if ctl.global.output == Format::Name {
        put(&one.provider_id);
        return Ok(());
    }
    let of = match (&one.deployment, one.replica) {
        (Some(name), Some(number)) => format!("{name}, replica {number}"),
        (Some(name), None) => name.clone(),
        (None, _) => "its node's own file".to_owned(),
    };
    let mut lines = vec![
        ("Engine", one.engine.clone()),
        ("Node", format!("{} at {site}", one.node)),
        ("Of", of),
        ("Kind", one.kind.clone()),
        ("Model", one.model.clone()),
        ("State", ctl.style.paint(state_tone(&one.state), &one.state)),
        ("Since", since(one.age_ms, one.since)),
        ("Running", format!("{} of {} at once", one.in_flight, one.capacity)),
        ("Restarts", one.restarts.to_string()),
    ];
    if one.process_since.is_some() {
        lines.push(("Process", format!("since {}", since(one.process_age_ms, one.process_since))));
    }
    match (one.exit_status, one.exit_signal) {
        (Some(status), _) => lines.push(("Last exit", format!("status {status}"))),
        (None, Some(signal)) => lines.push(("Last exit", format!("signal {signal}"))),
        (None, None) => {}
    }
    if !one.cause.is_empty() {
        let code = one.code.as_ref().map(|code| format!(" ({code})")).unwrap_or_default();
        lines.push(("Cause", format!("{}{code}", one.cause)));
    }
    if let Some(digest) = &one.profile_digest {
        lines.push(("Profile", digest.clone()));
    }
    if !one.gpus.is_empty() {
        lines.push(("GPUs", one.gpus.join(", ")));
    }
    put(&details(&lines));
    if !one.output_tail.is_empty() {
        put(&format!("\n{}", crate::output::printable_lines(one.output_tail.trim_end())));
    }
    Ok(())
}
