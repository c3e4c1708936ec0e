//! `ctl node why`: every condition for a node to get requests, with its result, numbers and the next step.
//!
//! Owns the order, and the conditions that people decide; what the edge measures it says itself. Invariant: conditions
//! are listed in the order in which an operator can change them, none is left out, and each that failed names a step.

use jiff::Timestamp;
use serde::Serialize;
use umbel_contracts::objects::{NodeObject, SiteNode};

use super::show::{engine_name, is_gone, skewed};
use crate::{
    ctl::Ctl,
    exit::{Exit, Failure, Outcome},
    output::{Tone, ago, printable, put, until, utc},
};

/// A certificate that ends within this time should have been renewed by itself long before.
const ENDS_SOON: u64 = 14 * 86_400;

/// One condition.
#[derive(Debug, Serialize)]
struct Check {
    name: String,
    /// `passed`, `failed`, `warning` (it does not keep requests away) or `not_reported`.
    result: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_step: Option<String>,
}

impl Check {
    fn new(name: &str, result: &'static str, message: impl Into<String>, step: Option<String>) -> Self {
        let next_step = step.filter(|_| matches!(result, "failed" | "warning"));
        Self { name: name.to_owned(), result, message: message.into(), since: None, next_step }
    }
}

#[derive(Debug, Serialize)]
struct Why<'a> {
    node_id: &'a str,
    name: &'a str,
    edge_id: &'a str,
    state: &'a str,
    serving: bool,
    checks: Vec<Check>,
}

/// Prints why a node serves or not; exit code 3 when it does not, or when a check failed all the same.
pub(super) fn run(ctl: &Ctl, node: &SiteNode) -> Outcome {
    let checks = checks(&node.node);
    let failed = checks.iter().filter(|check| check.result == "failed").count();
    let serving = is_serving(&node.node);
    let name = node.node.name.as_str();
    if ctl.global.output.is_object() {
        let state = super::state(&node.node);
        let why = Why { node_id: &node.node.node_id, name, edge_id: &node.edge_id, state, serving, checks };
        let raw = serde_json::to_string(&why).map_err(|error| Failure::failed(error.to_string()))?;
        ctl.put_object(&raw);
    } else {
        put(&words(ctl, node, &checks, serving));
    }
    match (serving, failed) {
        (true, 0) => Ok(()),
        (true, _) => {
            Err(Failure::new(Exit::Condition, format!("{name} gets requests, but {failed} of these failed")))
        }
        (false, _) => {
            Err(Failure::new(Exit::Condition, format!("{name} gets no requests: {failed} of these failed")))
        }
    }
}

/// Whether the edge gives it requests now: of each engine it says so itself.
fn is_serving(node: &NodeObject) -> bool {
    let available = node.providers.iter().any(|provider| provider.status.as_str() == "available");
    available && node.connected && node.eligible && !node.draining && node.lifecycle.as_str() == "enrolled"
}

fn words(ctl: &Ctl, node: &SiteNode, checks: &[Check], serving: bool) -> String {
    let failed = checks.iter().any(|check| check.result == "failed");
    let word = match (serving, failed) {
        (true, false) => "is serving",
        (true, true) => "gets requests, but not all is well",
        (false, _) => "gets no requests",
    };
    let heard = match node.node.last_seen_at {
        None => "It was never heard of.".to_owned(),
        Some(at) => format!("It is {}, heard {} ago.", super::state(&node.node), ago(Some(at))),
    };
    let mut text =
        format!("{} at {} {word}. {heard}\n\n", printable(&node.node.name), printable(&node.edge_id));
    let width = checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    for check in checks {
        let mark = match check.result {
            "passed" => ctl.style.paint(Tone::Good, "ok  "),
            "failed" => ctl.style.paint(Tone::Bad, "fail"),
            "warning" => ctl.style.paint(Tone::Warn, "warn"),
            _ => ctl.style.paint(Tone::Dim, "n/a "),
        };
        let since = check.since.map_or_else(String::new, |at| format!(" (for {})", ago(Some(at))));
        text.push_str(&format!("  {mark}  {:<width$}  {}{since}\n", check.name, printable(&check.message)));
        if let Some(step) = &check.next_step {
            text.push_str(&format!("        {:<width$}  try: {}\n", "", printable(step)));
        }
    }
    text
}

fn checks(node: &NodeObject) -> Vec<Check> {
    let mut checks = decided(node);
    for check in &node.readiness {
        let result = match check.result.as_str() {
            "passed" => "passed",
            "not_reported" => "not_reported",
            _ => "failed",
        };
        checks.push(Check::new(&check.name, result, check.message.clone(), check.next_step.clone()));
    }
    // Where the edge says itself what is wrong, with its numbers and since when, it is not told twice.
    let told = |kind: &str| node.problems.iter().any(|problem| problem.code.starts_with(kind));
    let own = [
        ("CERTIFICATE_", credential(node)),
        ("SETTINGS_", settings(node)),
        ("CLOCK_", clock(node)),
        ("GPU_", gpus(node)),
    ];
    let own = own.into_iter().filter_map(|(kind, check)| Some((kind, check?)));
    checks
        .extend(own.filter(|(kind, check)| check.result != "warning" || !told(kind)).map(|(_, check)| check));
    checks.push(engines(node));
    for problem in &node.problems {
        let failed = if is_warning(&problem.code) { "warning" } else { "failed" };
        let mut check = Check::new(&problem.code, failed, problem.message.clone(), step(&problem.code, node));
        check.since = Some(problem.since);
        checks.push(check);
    }
    checks
}

/// What people decided.
fn decided(node: &NodeObject) -> Vec<Check> {
    let name = &node.name;
    let result = |passed: bool| if passed { "passed" } else { "failed" };
    let lifecycle = node.lifecycle.as_str();
    let is = match node.decommissioned_at {
        Some(at) => format!("it was decommissioned {} ago ({}), for ever", ago(Some(at)), utc(Some(at))),
        None => format!("it is {lifecycle}"),
    };
    let step = match lifecycle {
        "disabled" => format!("umbel ctl node enable {name}"),
        _ => format!("its host joins as a new node: umbel ctl token create {name}"),
    };
    vec![
        Check::new("lifecycle", result(lifecycle == "enrolled"), is, Some(step)),
        Check::new(
            "eligible",
            result(node.eligible),
            if node.eligible { "it may get requests" } else { "it was not declared fit for requests" },
            Some(format!("umbel ctl node eligible {name}")),
        ),
        Check::new(
            "draining",
            result(!node.draining),
            if node.draining { "it is draining or drained" } else { "it is not draining" },
            Some(format!("umbel ctl node undrain {name}")),
        ),
    ]
}

fn credential(node: &NodeObject) -> Option<Check> {
    let credential = node.credential.as_ref()?;
    let name = "certificate";
    let replace = format!("umbel ctl token create --replace {}", node.name);
    if let Some(at) = credential.revoked_at {
        return Some(Check::new(name, "failed", format!("revoked {} ago", ago(Some(at))), Some(replace)));
    }
    let end = credential.not_after?;
    let more = match (credential.rotating, credential.lacks_authority) {
        (true, _) => ", a new one is on its way",
        (false, true) => ", and it does not trust the site's newest authority yet",
        (false, false) => "",
    };
    let left = end.as_second().saturating_sub(Timestamp::now().as_second());
    let rotate = format!("umbel ctl node rotate {}", node.name);
    Some(match until(end) {
        // Within the grace time its connections are taken all the same: what is wrong then is the node's problem.
        None => Check::new(name, "warning", format!("expired {} ago{more}", ago(Some(end))), Some(rotate)),
        Some(time) if u64::try_from(left).is_ok_and(|left| left < ENDS_SOON) => {
            Check::new(name, "warning", format!("ends in {time}{more}"), Some(rotate))
        }
        Some(time) => Check::new(name, "passed", format!("good for {time}{more}"), None),
    })
}

fn settings(node: &NodeObject) -> Option<Check> {
    let config = node.config.as_ref()?;
    let name = "settings";
    let (has, wants) = (config.applied_version, config.desired_version);
    if let (Some(version), Some(why)) = (config.refused_version, &config.refusal) {
        let step = format!(
            "umbel ctl settings show --node {0}, then correct it: umbel ctl settings set agents.nodes.{0}.…",
            node.name
        );
        let message = format!("version {has} in force, {version} refused: {why}");
        return Some(Check::new(name, "warning", message, Some(step)));
    }
    if has != wants {
        let message = format!("version {has} in force, {wants} not taken up yet");
        let step = "it takes them up when it connects; umbel ctl settings status".to_owned();
        return Some(Check::new(name, "warning", message, Some(step)));
    }
    let trial = if config.confirming { ", on trial" } else { "" };
    Some(Check::new(name, "passed", format!("version {has} in force{trial}"), None))
}

fn clock(node: &NodeObject) -> Option<Check> {
    let skew = node.clock_skew_ms?;
    let step = "set the host's clock (timedatectl, chronyc); its next report is taken again".to_owned();
    Some(Check::new("clock", "warning", skewed(skew), Some(step)))
}

fn gpus(node: &NodeObject) -> Option<Check> {
    let host = node.inventory.as_ref().filter(|host| !host.gpus.is_empty())?;
    let all = host.gpus.len();
    let bad: Vec<String> = host
        .gpus
        .iter()
        .filter(|gpu| is_gone(gpu))
        .map(|gpu| {
            let seen = ago(gpu.last_seen_at);
            let seen = if seen.is_empty() { String::new() } else { format!(", last seen {seen} ago") };
            format!("GPU {} ({}) is {}{seen}", gpu.index, gpu.name, gpu.state.as_str())
        })
        .collect();
    if bad.is_empty() {
        let driver = host.driver_version.as_deref().map_or_else(String::new, |v| format!(", driver {v}"));
        return Some(Check::new("gpus", "passed", format!("{all} of {all} answer{driver}"), None));
    }
    let message = format!("{} of {all} answer; {}", all - bad.len(), bad.join("; "));
    Some(Check::new("gpus", "warning", message, step("GPU_MISSING", node)))
}

fn engines(node: &NodeObject) -> Check {
    let available = node.providers.iter().filter(|provider| provider.status.as_str() == "available").count();
    let mut message = format!("{available} of {} available", node.providers.len());
    for provider in node.providers.iter().filter(|provider| provider.status.as_str() != "available") {
        let cause = provider.cause.as_deref().map_or_else(String::new, |cause| format!(": {cause}"));
        let engine = engine_name(&provider.provider_id);
        let status = match provider.status.as_str() {
            "failed" => "has failed".to_owned(),
            other => format!("is {other}"),
        };
        message.push_str(&format!("; {engine} ({}) {status}{cause}", provider.model));
    }
    let step = "umbel node status on its host tells of each engine; its file declares them".to_owned();
    Check::new("engines", if available > 0 { "passed" } else { "failed" }, message, Some(step))
}

/// Problems that want a person and do not by themselves keep requests away.
fn is_warning(code: &str) -> bool {
    ["CLOCK_", "CERTIFICATE_", "SETTINGS_", "GPU_", "ENGINE_", "SAME_HARDWARE", "FILE_", "CONFIG_", "STATE_"]
        .iter()
        .any(|kind| code.starts_with(kind))
}

/// What to do about a problem, where the command is known; the problem's own words say the rest.
fn step(code: &str, node: &NodeObject) -> Option<String> {
    let name = &node.name;
    let step = match code {
        "DUPLICATE_IDENTITY" => format!(
            "stop the copy and remove its state directory; its host joins as a node of its own: umbel ctl token create \
             NAME (this one stays {name})"
        ),
        "SAME_HARDWARE" => {
            format!("keep one of the two; the other: umbel ctl node decommission {name} --preview")
        }
        "CLOCK_AHEAD" | "CLOCK_BEHIND" => {
            "set the host's clock (timedatectl, chronyc); its next report is taken again".to_owned()
        }
        "CERTIFICATE_ENDS" | "CERTIFICATE_EXPIRED" => format!("umbel ctl node rotate {name}"),
        "SETTINGS_REFUSED" => format!("umbel ctl settings show --node {name}"),
        "GPU_MISSING" | "GPU_LOST" => format!(
            "dmesg and nvidia-smi on its host say more; to repair it: umbel ctl node drain {name} -m 'GPU'"
        ),
        "MODEL_MISMATCH" | "NAME_TAKEN" => format!(
            "umbel ctl settings show --node {name}, or the [[engine]] tables in its file: describe the model alike on all nodes"
        ),
        "NODE_OFFLINE" if super::is_revoked(node) => super::comes_back(node),
        "NODE_OFFLINE" => "umbel node doctor on its host".to_owned(),
        "ENGINE_FAILED" => "umbel node status on its host has the engine's last lines".to_owned(),
        _ => return None,
    };
    Some(step)
}

#[cfg(test)]
mod tests {
    use super::is_warning;

    #[test]
    fn problems_that_keep_requests_away_are_failures() {
        for code in ["NODE_OFFLINE", "DUPLICATE_IDENTITY", "MODEL_MISMATCH", "SOMETHING_NEW"] {
            assert!(!is_warning(code), "{code}");
        }
        assert!(is_warning("CLOCK_AHEAD") && is_warning("GPU_MISSING"));
    }
}
