//! `ctl model why` and `ctl model plan`: where replicas can run, why not elsewhere, and what would help.
//!
//! Owns the words. Leaves the judgement and each sentence to the edge. Invariant: every node is counted; what is left out of the
//! details is said, with how to see it.

mod elsewhere;

use std::path::Path;

use umbel_contracts::config::ConfigFile;
use umbel_contracts::deployment::DeploymentSpec;
use umbel_contracts::objects::{
    PlacementNeedsObject, PlacementNodeObject, PlacementObject, PlacementRemedyObject, PlacementShardObject,
};
use umbel_contracts::operations::PlacementExplainArgs;

use crate::{
    calls::Call,
    ctl::Ctl,
    exit::{Exit, Failure, Outcome},
    output::{Tone, ago, bytes, count, printable, put},
};

/// Names at one step of the funnel.
const NAMED: usize = 6;
/// Bytes of what is said of a node beside its name in the funnel: what is longer stands below.
const BRIEF: usize = 64;
/// Replicas whose places are listed one by one.
const PLACES: usize = 16;

/// Of a deployment of the site.
pub(super) async fn why(ctl: &Ctl, name: &str, nodes: Option<&str>, limit: u32) -> Outcome {
    let args = PlacementExplainArgs { deployment: Some(name.to_owned()), document: None, limit: Some(limit) };
    let (site, told) = ask(ctl, args, nodes).await?;
    let missing = told.replicas_wanted.saturating_sub(told.replicas_placed);
    if told.fits || missing == 0 {
        return Ok(());
    }
    if !ctl.global.output.is_object() {
        elsewhere::say_of(ctl, &site, name).await;
    }
    let what = format!(
        "{missing} of {} of {} cannot be placed at {site}",
        count_of(told.replicas_wanted),
        told.deployment
    );
    Err(Failure::new(Exit::Condition, what))
}

/// Of a document that is only looked at.
pub(super) async fn plan(ctl: &Ctl, file: &Path, nodes: Option<&str>, limit: u32) -> Outcome {
    let document =
        ConfigFile::read(file).map_err(|error| vec![error]).and_then(|file| DeploymentSpec::from_file(&file));
    let spec = document.map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        Failure::usage(errors.join("\n"))
    })?;
    let document = match serde_json::to_value(&spec) {
        Ok(serde_json::Value::Object(document)) => document,
        _ => return Err(Failure::failed("the document has no JSON form")),
    };
    let args =
        PlacementExplainArgs { deployment: None, document: Some(document.clone()), limit: Some(limit) };
    let (site, told) = ask(ctl, args, nodes).await?;
    match told.fits || needs_no_place(&told) {
        true => Ok(()),
        false => {
            if !ctl.global.output.is_object() {
                elsewhere::say(ctl, &site, document).await;
            }
            Err(Failure::new(Exit::Condition, format!("{} does not fit at {site}", told.deployment)))
        }
    }
}

async fn ask(
    ctl: &Ctl,
    args: PlacementExplainArgs,
    nodes: Option<&str>,
) -> Outcome<(String, PlacementObject)> {
    let site = ctl.one_site().await?;
    let mut call = Call::new("placement.explain").args(&args)?;
    call.selector = nodes.unwrap_or_default().to_owned();
    let answer = ctl.client.ask(&site, &call).await?;
    let told: PlacementObject = answer.result()?;
    if !ctl.put_object(&answer.result_raw()?) {
        put(&words(ctl, &site, &told));
    }
    Ok((site, told))
}

fn count_of(replicas: u32) -> String {
    count(usize::try_from(replicas).unwrap_or(usize::MAX), "replica")
}

/// A document of a deployment whose replicas stay, as many as it wants: what one more would need is nobody's question.
fn needs_no_place(told: &PlacementObject) -> bool {
    told.changes.is_some() && told.replicas_placed >= told.replicas_wanted
}

fn words(ctl: &Ctl, site: &str, told: &PlacementObject) -> String {
    let mut text = format!("{}\n", printable(&headline(site, told)));
    if needs_no_place(told) {
        return text;
    }
    for remark in &told.remarks {
        text.push_str(&format!("{}\n", printable(remark)));
    }
    if let Some(changes) = told.changes.as_ref().filter(|changes| !changes.is_empty()) {
        text.push_str(&format!("Changes: {}\n", printable(&changes.join(", "))));
    }
    if !told.plan.is_empty() {
        text.push('\n');
        places(&mut text, told);
    }
    text.push('\n');
    needs(&mut text, &told.needs);
    text.push('\n');
    funnel(ctl, &mut text, site, told);
    if !told.nodes.is_empty() {
        text.push_str(if told.fits { "\nNodes\n" } else { "\nNearest fits\n" });
        for node in &told.nodes {
            one(ctl, &mut text, node);
        }
    }
    let left_off = told.nodes_left_off;
    if left_off > 0 {
        text.push_str(&format!("  and {left_off} more: -n 256, or --nodes node:NAME\n"));
    }
    remedies(&mut text, told);
    text
}

fn headline(site: &str, told: &PlacementObject) -> String {
    let name = &told.deployment;
    let wanted = count_of(told.replicas_wanted);
    let missing = told.replicas_wanted.saturating_sub(told.replicas_placed);
    let since = match told.waiting_since {
        Some(at) => format!("{missing} of {wanted} missing, for {}", ago(Some(at))),
        None => format!("{missing} of {wanted} missing"),
    };
    if let Some(changes) = told.changes.as_ref().filter(|_| needs_no_place(told)) {
        let replicas = count_of(told.replicas_placed);
        return match (changes.is_empty(), told.replicas_placed - told.replicas_wanted) {
            (true, 0) => {
                format!("{name} is at {site} as this document says, with its {replicas}: nothing changes.")
            }
            (_, 0) => {
                format!("{name} keeps its {replicas} at {site} as they run. Changes: {}.", changes.join(", "))
            }
            (_, less) => {
                let changes = changes.join(", ");
                format!("{name} has {replicas} at {site}, of which {less} would go. Changes: {changes}.")
            }
        };
    }
    match (told.fits, missing, told.plan.len()) {
        (true, 0, _) => format!("{name} has all its {wanted} at {site}; one more would fit."),
        (false, 0, _) => format!("{name} has all its {wanted} at {site}; one more would not fit."),
        (true, _, _) => format!("{name} fits at {site} ({since})."),
        (false, _, 0) => format!("{name} cannot be placed at {site} ({since})."),
        (false, _, some) => {
            format!("{name} does not fit whole at {site} ({since}; {some} would fit). Of the next one:")
        }
    }
}

fn places(text: &mut String, told: &PlacementObject) {
    for (index, replica) in told.plan.iter().take(PLACES).enumerate() {
        for (shard, place) in replica.shards.iter().enumerate() {
            let head = match shard {
                0 => format!("replica +{}", index + 1),
                _ => String::new(),
            };
            text.push_str(&format!("  {head:<12}{}\n", printable(&place_of(place))));
            for remark in &place.remarks {
                text.push_str(&format!("  {:<12}{}\n", "", printable(remark)));
            }
        }
    }
    if told.plan.len() > PLACES {
        text.push_str(&format!("  and {} more\n", told.plan.len() - PLACES));
    }
}

fn place_of(place: &PlacementShardObject) -> String {
    let indexes: Vec<String> = place.gpu_indexes.iter().map(ToString::to_string).collect();
    let gpus = match indexes.is_empty() {
        true => "no GPU".to_owned(),
        false => format!("GPU {}", indexes.join(",")),
    };
    let files = if place.acquire { "; the files come first" } else { "" };
    format!("{}  {gpus}{files}", place.node)
}

/// What is asked for, a line each.
fn needs(text: &mut String, needs: &PlacementNeedsObject) {
    let mut lines = Vec::new();
    let mut gpus = match needs.gpus {
        0 => "no GPU".to_owned(),
        1 => "1 GPU".to_owned(),
        several => format!("{several} GPUs"),
    };
    match (&needs.fabric_label, needs.nodes_per_replica) {
        (Some(label), nodes) => {
            gpus.push_str(&format!(" on each of {nodes} nodes that share fabric label `{label}`"))
        }
        (None, _) if needs.gpus > 0 => gpus.push_str(" on one node"),
        (None, _) => {}
    }
    if needs.gpus > 0 {
        match needs.gpu_memory_bytes {
            Some(memory) => gpus.push_str(&format!(", {} free on each", bytes(memory))),
            None => gpus.push_str(", whole ones"),
        }
    }
    lines.push(gpus);
    lines.extend(memory(needs));
    let mut kind = Vec::new();
    if !needs.gpu_names.is_empty() {
        kind.push(format!("named {}", needs.gpu_names.join(" or ")));
    }
    kind.extend(needs.capability.as_ref().map(|version| format!("compute capability ≥ {version}")));
    kind.extend(needs.driver.as_ref().map(|version| format!("driver ≥ {version}")));
    if !kind.is_empty() {
        lines.push(kind.join(", "));
    }
    let engine = needs.engine.as_ref().map(|engine| match &needs.engine_version {
        Some(version) => format!("{engine} ≥ {version} installed"),
        None => format!("{engine} installed"),
    });
    lines.extend(engine);
    if let (Some(artifact), Some(size)) = (&needs.artifact, needs.artifact_bytes) {
        let reserve = match needs.reserve_bytes {
            Some(0) => String::new(),
            Some(reserve) => format!(", and {} to stay free", bytes(reserve)),
            None => ", and what the node's file wants free".to_owned(),
        };
        lines.push(format!("{artifact}, or room for its {}{reserve}", bytes(size)));
    }
    if let Some(selector) = &needs.selector {
        lines.push(format!("a node of {selector}"));
    }
    for (index, line) in lines.iter().enumerate() {
        let head = if index == 0 { "Needs" } else { "" };
        text.push_str(&format!("{head:<10}{}\n", printable(line)));
    }
}

/// Of what a GPU's memory is taken, as far as that is known.
fn memory(needs: &PlacementNeedsObject) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(weights) = needs.gpu_weights_bytes {
        let weighs = format!("each: weights about {} (by their files)", bytes(weights));
        lines.push(match needs.gpu_memory_bytes.map(|memory| memory.checked_sub(weights)) {
            Some(Some(rest)) => format!("{weighs} + {} for KV cache and the engine itself", bytes(rest)),
            Some(None) => format!("{weighs}: more than what is asked for"),
            None => format!("{weighs} + KV cache and the engine itself"),
        });
    }
    if let Some(measured) = needs.gpu_measured_bytes {
        lines.push(format!("measured: its engines hold up to {} of a GPU now", bytes(measured)));
    }
    lines
}

fn funnel(ctl: &Ctl, text: &mut String, site: &str, told: &PlacementObject) {
    let title = format!("Nodes at {}", printable(site));
    text.push_str(&format!("{title:<42}{:>6}\n", told.nodes_total));
    for step in &told.funnel {
        let shown: Vec<&str> = step.nodes.iter().take(NAMED).map(String::as_str).collect();
        let more = usize::try_from(step.count).unwrap_or(usize::MAX).saturating_sub(shown.len());
        let mut names = shown.join(", ");
        if more > 0 {
            names.push_str(&format!(" and {more} more"));
        }
        let words = step.reason.words();
        let brief = |message: &&String| message.len() <= BRIEF && !message.starts_with(words);
        if let Some(message) = step.message.as_ref().filter(brief) {
            names.push_str(&format!(" ({message})"));
        }
        text.push_str(&format!(
            "  {:<40}{:>6}   {}\n",
            step.reason.words(),
            format!("-{}", step.count),
            ctl.style.paint(Tone::Dim, &printable(&names))
        ));
    }
    text.push_str(&format!("{:<42}{:>6}\n", "Nodes left", told.nodes_left));
}

/// One node: everything for and against it, and the least that would help.
fn one(ctl: &Ctl, text: &mut String, node: &PlacementNodeObject) {
    let word = match node.fits {
        true => ctl.style.paint(Tone::Good, "fits"),
        false => ctl.style.paint(Tone::Bad, "does not fit"),
    };
    let replicas = match node.replicas {
        0 => String::new(),
        some => format!(", has {}", count_of(some)),
    };
    text.push_str(&format!(
        "  {}  {word}{replicas}\n",
        ctl.style.paint(Tone::Strong, &printable(&node.node))
    ));
    for against in &node.against {
        let mark = ctl.style.paint(Tone::Bad, "fail");
        text.push_str(&format!("    {mark}  {}\n", printable(&against.message)));
    }
    for reason in &node.reasons_for {
        let mark = ctl.style.paint(Tone::Good, "ok  ");
        text.push_str(&format!("    {mark}  {}\n", printable(reason)));
    }
    for remark in &node.remarks {
        text.push_str(&format!("    note  {}\n", printable(remark)));
    }
    if let Some(remedy) = node.remedies.first() {
        let steps: Vec<&str> = remedy.changes.iter().map(|change| change.message.as_str()).collect();
        text.push_str(&format!("    try:  {}\n", printable(&steps.join("; and "))));
    }
}

fn remedies(text: &mut String, told: &PlacementObject) {
    if told.fits {
        return;
    }
    match told.remedies.as_slice() {
        [] if told.nodes_total == 0 => {
            text.push_str("\nThe site has no node yet: umbel ctl token create NAME\n");
        }
        [] => text.push_str("\nNo single change makes it fit: it takes another node, or a smaller wish.\n"),
        [one] => {
            text.push_str("\nThis would make it fit\n");
            remedy(text, None, one);
        }
        several => {
            text.push_str("\nAny of these would make it fit\n");
            for (index, one) in several.iter().enumerate() {
                remedy(text, Some(index + 1), one);
            }
        }
    }
}

fn remedy(text: &mut String, number: Option<usize>, remedy: &PlacementRemedyObject) {
    let head = number.map_or_else(|| "  ".to_owned(), |number| format!("  {number}. "));
    let on = match (remedy.changes.iter().all(|change| change.node.is_none()), remedy.nodes.is_empty()) {
        (true, false) => format!("  (then on {})", remedy.nodes.join(", ")),
        _ => String::new(),
    };
    for (index, change) in remedy.changes.iter().enumerate() {
        let head = if index == 0 { head.clone() } else { " ".repeat(head.len()) + "and " };
        let on = if index == 0 { on.as_str() } else { "" };
        text.push_str(&format!("{head}{}{}\n", printable(&change.message), printable(on)));
        for command in &change.commands {
            text.push_str(&format!("       {}\n", printable(command)));
        }
    }
}
