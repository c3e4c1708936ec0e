//! The five checks of one node, each with its next step.
//!
//! Owns what `ready` means. Invariant: a node that is connected is not thereby ready; all five count.

use std::time::{Duration, Instant};

use umbel_contracts::proto::control::{CheckResult, ReadinessCheck};
use umbel_contracts::proto::node::AgentHealth;
use umbel_wire::liveness::State;

use super::node::{Lifecycle, Node};
use super::snapshot;

/// An inventory older than this says nothing of the host as it is.
pub(crate) const INVENTORY_AGE: Duration = Duration::from_secs(15 * 60);
/// Telemetry older than this has stopped.
pub(crate) const TELEMETRY_AGE: Duration = Duration::from_secs(30);
/// The capability of an agent that sends telemetry.
const TELEMETRY: &str = "hardware.telemetry";

/// All five checks of exactly this node.
pub(crate) fn checks(node: &Node, now: Instant) -> Vec<ReadinessCheck> {
    vec![connection(node), inventory(node, now), protocol(node), agent(node), telemetry(node, now)]
}

fn check(name: &str, passed: bool, message: impl Into<String>, next_step: &str) -> ReadinessCheck {
    let next_step = if passed { String::new() } else { next_step.to_owned() };
    let result = if passed { CheckResult::Passed } else { CheckResult::Failed };
    ReadinessCheck { name: name.to_owned(), result: result.into(), message: message.into(), next_step }
}

fn connection(node: &Node) -> ReadinessCheck {
    let name = "connection";
    match (node.row.lifecycle, node.liveness) {
        (Lifecycle::Disabled, _) => {
            check(name, false, "the node is disabled", "An operator can enable it again.")
        }
        (Lifecycle::Decommissioned, _) => {
            check(name, false, "the node is decommissioned", "Enroll the host anew with a token of its own.")
        }
        (_, State::Never) => check(
            name,
            false,
            "it has enrolled and never connected",
            "Start `umbel node` on the host; `umbel node doctor` there says what is in the way.",
        ),
        _ if node.connected() => check(name, true, format!("connected, generation {}", node.generation), ""),
        (_, State::Unknown) => check(
            name,
            false,
            "the edge has just started and has not heard it yet",
            "Wait for its next dial, at most half a minute; then run `umbel node doctor` on the host.",
        ),
        (_, State::Online) if node.session.is_some() => {
            check(name, false, "it has just connected and is completing", "Wait some seconds.")
        }
        (_, state) => check(
            name,
            false,
            format!("not connected, {}", state.name()),
            "Check that the host is up and reaches its edge: run `umbel node doctor` there.",
        ),
    }
}

fn inventory(node: &Node, now: Instant) -> ReadinessCheck {
    let name = "inventory";
    let Some(received) = &node.inventory else {
        return check(
            name,
            false,
            "not reported since the edge started",
            "It comes with the node's next connection; start `umbel node` on the host.",
        );
    };
    let age = now.saturating_duration_since(received.at);
    if age > INVENTORY_AGE {
        let message = format!("{} min old", age.as_secs() / 60);
        return check(name, false, message, "Restart the agent; look for its inventory errors in its log.");
    }
    if !received.report.complete {
        let message = format!("incomplete: {}", received.report.incomplete_reason);
        return check(
            name,
            false,
            message,
            "Remedy what the message says on the host; it is read again by itself.",
        );
    }
    check(name, true, format!("{} s old, complete", age.as_secs()), "")
}

fn protocol(node: &Node) -> ReadinessCheck {
    if node.protocol == 0 {
        return check(
            "protocol",
            false,
            "no version negotiated since the edge started",
            "Start `umbel node`.",
        );
    }
    check("protocol", true, format!("COMPATIBLE, version {}", node.protocol), "")
}

fn agent(node: &Node) -> ReadinessCheck {
    match node.health {
        AgentHealth::Ok => check("agent", true, "ok", ""),
        AgentHealth::Degraded => {
            let reasons: Vec<_> =
                snapshot::problems(node).into_iter().map(|problem| problem.message).collect();
            let why = if reasons.is_empty() { "it does not say why".to_owned() } else { reasons.join("; ") };
            check("agent", false, format!("degraded: {why}"), "See the node's problems.")
        }
        AgentHealth::Unspecified => {
            check("agent", false, "no heartbeat since the edge started", "Wait for one, at most ten seconds.")
        }
    }
}

fn telemetry(node: &Node, now: Instant) -> ReadinessCheck {
    let name = "telemetry";
    match &node.telemetry {
        Some(received) => {
            let age = now.saturating_duration_since(received.at);
            let message = format!("{} s old", age.as_secs());
            check(
                name,
                age <= TELEMETRY_AGE,
                message,
                "Restart the agent; look for telemetry errors in its log.",
            )
        }
        // An agent that does not name the capability is not missing anything.
        None if !node.capabilities.iter().any(|name| name == TELEMETRY) => ReadinessCheck {
            name: name.to_owned(),
            result: CheckResult::NotReported.into(),
            message: "this agent reports no telemetry".to_owned(),
            next_step: String::new(),
        },
        None => check(name, false, "none received yet", "Wait for one, at most ten seconds."),
    }
}
