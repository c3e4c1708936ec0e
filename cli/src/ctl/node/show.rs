//! `ctl node NAME`: one node whole, each figure with its age where it has one.
//!
//! Invariant: what the node or its driver did not say is a dash, never a 0.

use umbel_contracts::objects::{GpuFiguresObject, GpuObject, GpuState, NodeObject, SiteNode};

use super::{certificate, detail, find_even_retired, gpus, labels, settings, state, yes};
use crate::{
    calls::Call,
    client::parse,
    ctl::{Ctl, with_site},
    exit::Outcome,
    output::{
        Column, Format, Table, Tone, age_ms, ago, bytes, details, duration_ms, members, printable, put, say,
        state_tone, utc, width,
    },
};

pub(super) async fn run(ctl: &Ctl, name: &str) -> Outcome {
    let (SiteNode { edge_id, node }, raw) = find_even_retired(ctl, name).await?;
    let (node, raw) = in_detail(ctl, &edge_id, &node.node_id).await.unwrap_or((node, raw));
    if ctl.put_object(&raw) {
        return Ok(());
    }
    if ctl.global.output == Format::Name {
        put(&node.name);
        return Ok(());
    }
    put(&details(&lines(ctl, &edge_id, &node)));
    devices(ctl, &node);
    engines(ctl, &node);
    detail::show(ctl, &node);
    for problem in &node.problems {
        let since = ago(Some(problem.since));
        put(&format!(
            "{}  {}  {since}",
            ctl.style.paint(Tone::Bad, &printable(&problem.code)),
            printable(&problem.message)
        ));
    }
    if !node.ready || !node.eligible || node.draining {
        say(&format!("Why it is not serving: umbel ctl node why {}", node.name));
    }
    Ok(())
}

/// The node with more than a list has; nothing if its edge does not say more.
async fn in_detail(ctl: &Ctl, site: &str, node_id: &str) -> Option<(NodeObject, String)> {
    let call = Call { selector: format!("node:{node_id}"), ..Call::new("node.show") };
    let told = ctl.client.ask(site, &call).await.ok()?.result_raw().ok()?;
    let raw = members(&told, "nodes").into_iter().next()?;
    let node = parse(raw.get()).ok()?;
    Some((node, with_site(site, &raw).ok()?.get().to_owned()))
}

fn lines(ctl: &Ctl, edge_id: &str, node: &NodeObject) -> Vec<(&'static str, String)> {
    let word = state(node);
    let seen = node.last_seen_at.map_or("never".to_owned(), |at| {
        format!("{} ago, heartbeat {}", ago(Some(at)), node.heartbeat_sequence)
    });
    let mut lines = vec![
        ("Node", format!("{}  site {edge_id}", node.name)),
        ("Id", node.node_id.clone()),
        ("State", ctl.style.paint(state_tone(word), word)),
        ("Seen", seen),
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
    if let Some(at) = node.enrolled_at {
        lines.push(("Enrolled", utc(Some(at))));
    }
    if let Some(at) = node.decommissioned_at {
        lines.push(("Retired", utc(Some(at))));
    }
    lines.extend(credential(node));
    lines.extend(config(node));
    if let Some(skew) = node.clock_skew_ms {
        lines.push(("Clock", skewed(skew)));
    }
    lines.extend(host(node));
    if node.reports_refused > 0 || node.reports_missed > 0 {
        lines.push(("Reports", format!("{} refused, {} missed", node.reports_refused, node.reports_missed)));
    }
    lines
}

/// `12m ahead of the edge's`.
pub(super) fn skewed(skew_ms: i64) -> String {
    let way = if skew_ms > 0 { "ahead of" } else { "behind" };
    format!("{} {way} the edge's", duration_ms(skew_ms.unsigned_abs()))
}

fn credential(node: &NodeObject) -> Option<(&'static str, String)> {
    let credential = node.credential.as_ref()?;
    let mut text = match (credential.revoked_at, credential.not_after) {
        (Some(at), _) => format!("revoked {}", utc(Some(at))),
        (None, Some(end)) => match certificate(node).as_str() {
            "expired" => format!("expired {}", utc(Some(end))),
            left => format!("until {}, {left} left", end.strftime("%Y-%m-%d")),
        },
        (None, None) => "-".to_owned(),
    };
    if credential.rotating {
        text.push_str(", a new one is on its way");
    }
    if credential.lacks_authority {
        text.push_str(", does not trust the site's newest authority yet");
    }
    Some(("Certificate", text))
}

fn config(node: &NodeObject) -> Option<(&'static str, String)> {
    let config = node.config.as_ref()?;
    let mut text = format!("version {}", settings(node));
    if config.confirming {
        text.push_str(", on trial");
    }
    if let (Some(version), Some(why)) = (config.refused_version, &config.refusal) {
        text.push_str(&format!(", refused {version}: {why}"));
    }
    if !config.waits_for_restart.is_empty() {
        text.push_str(&format!(", with the next start of {}", config.waits_for_restart.join(", ")));
    }
    if !config.ignored_keys.is_empty() {
        text.push_str(&format!(", unknown to its agent: {}", config.ignored_keys.join(", ")));
    }
    Some(("Settings", text))
}

fn host(node: &NodeObject) -> Vec<(&'static str, String)> {
    let Some(host) = &node.inventory else { return Vec::new() };
    let memory = bytes(host.memory_bytes);
    let (name, cores, os) = (&host.hostname, host.cpu_count, &host.os);
    let mut lines =
        vec![("Host", format!("{name} · {cores} × {} · {memory} · {os} · {}", host.cpu_model, host.kernel))];
    if let Some(figures) = &node.telemetry {
        let load = figures.load_1m_milli;
        lines.push((
            "Load",
            format!(
                "{}.{:02} · {} of {memory} in use · {} old",
                load / 1000,
                load % 1000 / 10,
                bytes(figures.memory_used_bytes),
                age_ms(Some(figures.age_ms))
            ),
        ));
    }
    for root in &host.storage {
        let free = root.free_bytes.map_or_else(|| "-".to_owned(), bytes);
        let reserve = root.reserve_bytes.map(|left| format!(", {} to stay free", bytes(left)));
        // Its disk was not asked yet, or does not answer.
        let total = Some(root.total_bytes).filter(|total| *total > 0).map_or_else(|| "-".to_owned(), bytes);
        let reserve = reserve.unwrap_or_default();
        lines.push(("Storage", format!("{}: {free} of {total} free{reserve}", root.name)));
    }
    if let Some(driver) = &host.driver_version {
        let cuda = host.cuda_version.as_deref().unwrap_or("-");
        lines.push(("Driver", format!("{driver}, CUDA {cuda}")));
    }
    if !host.fabric_labels.is_empty() {
        lines.push(("Fabric", labels(&host.fabric_labels)));
    }
    lines.push(("GPUs", or_dash(&gpus(node)).to_owned()));
    if let Some(why) = &host.incomplete_reason {
        lines.push(("Incomplete", why.clone()));
    }
    lines
}

/// A value with its unit, or a dash.
fn unit<T: ToString>(value: Option<T>, unit: &str) -> String {
    value.map_or_else(String::new, |value| format!("{}{unit}", value.to_string()))
}

fn devices(ctl: &Ctl, node: &NodeObject) {
    let Some(host) = node.inventory.as_ref().filter(|host| !host.gpus.is_empty()) else { return };
    let mut table = Table::new(vec![
        Column::number("GPU"),
        Column::left("NAME"),
        Column::state("STATE"),
        Column::left("MEMORY"),
        Column::number("UTIL"),
        Column::number("TEMP"),
        Column::number("POWER"),
        Column::number("AGE"),
        Column::left("USED BY"),
        Column::left("UUID").wide(),
        Column::left("PCI").wide(),
        Column::left("ECC").wide(),
        Column::left("MIG").wide(),
        Column::text("NOTE"),
    ]);
    for gpu in &host.gpus {
        table.row(device(gpu));
    }
    put(&format!("\n{}", table.render(ctl.global.output == Format::Wide, width(), ctl.style)));
}

fn device(gpu: &GpuObject) -> Vec<String> {
    let figures = gpu.figures.as_ref();
    let total = figures.and_then(|figures| figures.memory_total_bytes).unwrap_or(gpu.memory_bytes);
    let used = figures.and_then(|figures| figures.memory_used_bytes);
    let memory = used.map_or_else(|| bytes(total), |used| format!("{} / {}", bytes(used), bytes(total)));
    let by = |figures: &GpuFiguresObject| {
        let each = figures.engines.iter().map(|engine| format!("{} {}", engine.engine, bytes(engine.bytes)));
        each.collect::<Vec<_>>().join(", ")
    };
    let ecc = figures.and_then(|figures| Some((figures.ecc_corrected?, figures.ecc_uncorrected?)));
    vec![
        gpu.index.to_string(),
        gpu.name.clone(),
        // An older edge does not say it.
        if gpu.state == GpuState::Unrecognized { String::new() } else { gpu.state.as_str().to_owned() },
        memory,
        unit(figures.and_then(|figures| figures.utilization_percent), "%"),
        unit(figures.and_then(|figures| figures.temperature_celsius), "C"),
        unit(figures.and_then(|figures| figures.power_milliwatts).map(|power| power / 1000), "W"),
        age_ms(figures.map(|figures| figures.age_ms)),
        figures.map(by).unwrap_or_default(),
        gpu.uuid.clone(),
        gpu.pci_address.clone(),
        ecc.map_or_else(String::new, |(corrected, other)| format!("{corrected}/{other}")),
        mig(gpu),
        note(gpu),
    ]
}

/// Whether it does not answer, or is not there any more.
pub(super) fn is_gone(gpu: &GpuObject) -> bool {
    matches!(gpu.state, GpuState::Lost | GpuState::Missing)
}

fn mig(gpu: &GpuObject) -> String {
    match gpu.mig_enabled {
        None => String::new(),
        Some(false) => "off".to_owned(),
        Some(true) => {
            let profiles = gpu.mig_instances.iter().map(|instance| instance.profile.as_str());
            format!("on {}", profiles.collect::<Vec<_>>().join(",")).trim_end().to_owned()
        }
    }
}

fn note(gpu: &GpuObject) -> String {
    let mut notes = Vec::new();
    if is_gone(gpu) {
        notes.push(format!("last seen {} ago", ago(gpu.last_seen_at)));
    }
    if let Some(figures) = &gpu.figures {
        if !figures.throttle_reasons.is_empty() {
            notes.push(format!("held back: {}", figures.throttle_reasons.join(", ")));
        }
        if let (Some(count @ 1..), Some(last)) = (figures.xid_count, figures.xid_last) {
            notes.push(format!("{count} driver errors, the last Xid {last}"));
        }
    }
    if gpu.memory_is_host {
        notes.push("shares the host's memory".to_owned());
    }
    notes.join("; ")
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
        Column::left("OF").wide(),
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
            provider.deployment.clone().unwrap_or_else(|| "its own file".to_owned()),
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
pub(super) fn engine_name(provider_id: &str) -> &str {
    provider_id.rsplit_once('/').map_or(provider_id, |(_, name)| name)
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}
