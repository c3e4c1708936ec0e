//! `ctl node why`: every condition for a node to get requests, with its result, numbers and the next step.
//!
//! Invariant: conditions are listed in the order in which an operator can change them, and none is left out.

use serde::Serialize;
use umbel_contracts::objects::SiteNode;

use crate::{
    ctl::Ctl,
    exit::{Exit, Failure, Outcome},
    output::{Tone, printable, put},
};

/// One condition.
#[derive(Debug, Serialize)]
struct Check {
    name: String,
    /// `passed`, `failed` or `not_reported`.
    result: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_step: Option<String>,
}

#[derive(Debug, Serialize)]
struct Why<'a> {
    node_id: &'a str,
    name: &'a str,
    edge_id: &'a str,
    serving: bool,
    checks: Vec<Check>,
}

/// Prints why a node serves or not; exit code 3 when it does not.
pub(crate) fn run(ctl: &Ctl, node: &SiteNode) -> Outcome {
    let checks = checks(node);
    let failed = checks.iter().filter(|check| check.result == "failed").count();
    let serving = failed == 0;
    let name = node.node.name.as_str();
    if ctl.global.output.is_json() {
        let why = Why { node_id: &node.node.node_id, name, edge_id: &node.edge_id, serving, checks };
        let raw = serde_json::to_string(&why).map_err(|error| Failure::failed(error.to_string()))?;
        ctl.put_object(&raw);
    } else {
        let word = if serving { "is serving" } else { "gets no requests" };
        let mut text = format!("{} at {} {word}.\n\n", printable(name), printable(&node.edge_id));
        let width = checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
        for check in &checks {
            let mark = match check.result {
                "passed" => ctl.style.paint(Tone::Good, "ok  "),
                "failed" => ctl.style.paint(Tone::Bad, "fail"),
                _ => ctl.style.paint(Tone::Dim, "n/a "),
            };
            text.push_str(&format!("  {mark}  {:<width$}  {}\n", check.name, printable(&check.message)));
            if let Some(step) = check.next_step.as_deref().filter(|_| check.result == "failed") {
                text.push_str(&format!("        {:<width$}  try: {}\n", "", printable(step)));
            }
        }
        put(&text);
    }
    if serving {
        return Ok(());
    }
    Err(Failure::new(Exit::Condition, format!("{name} gets no requests: {failed} of these failed")))
}

fn checks(site_node: &SiteNode) -> Vec<Check> {
    let node = &site_node.node;
    let name = &node.name;
    let mut checks = Vec::new();
    let mut add = |name: &str, passed: bool, message: String, step: Option<String>| {
        let result = if passed { "passed" } else { "failed" };
        checks.push(Check { name: name.to_owned(), result, message, next_step: step });
    };
    let lifecycle = node.lifecycle.as_str();
    add("lifecycle", lifecycle == "enrolled", format!("it is {lifecycle}"), None);
    add(
        "eligible",
        node.eligible,
        if node.eligible { "it may get requests" } else { "it was not declared fit for requests" }.to_owned(),
        Some(format!("umbel ctl node eligible {name}")),
    );
    add(
        "draining",
        !node.draining,
        if node.draining { "it is draining or drained" } else { "it is not draining" }.to_owned(),
        Some(format!("umbel ctl node undrain {name}")),
    );
    for check in &node.readiness {
        let result = match check.result.as_str() {
            "passed" => "passed",
            "not_reported" => "not_reported",
            _ => "failed",
        };
        checks.push(Check {
            name: check.name.clone(),
            result,
            message: check.message.clone(),
            next_step: check.next_step.clone(),
        });
    }
    let available = node.providers.iter().filter(|provider| provider.status.as_str() == "available").count();
    let mut message = format!("{available} of {} available", node.providers.len());
    for provider in node.providers.iter().filter(|provider| provider.status.as_str() != "available") {
        let cause = provider.cause.as_deref().map_or_else(String::new, |cause| format!(": {cause}"));
        let engine = super::engine_name(&provider.provider_id);
        let status = match provider.status.as_str() {
            "failed" => "has failed".to_owned(),
            other => format!("is {other}"),
        };
        message.push_str(&format!("; {engine} ({}) {status}{cause}", provider.model));
    }
    let step = "umbel node status on its host tells of each engine; its file declares them".to_owned();
    let result = if available > 0 { "passed" } else { "failed" };
    checks.push(Check { name: "engines".to_owned(), result, message, next_step: Some(step) });
    for problem in &node.problems {
        checks.push(Check {
            name: problem.code.clone(),
            result: "failed",
            message: problem.message.clone(),
            next_step: None,
        });
    }
    checks
}
