//! The five checks of one node, each with its next step.
//!
//! Owns what `ready` means. Invariant: a node that is connected is not thereby ready; all five count. A check that has not
//! passed says what to do; one that has passed does so only where something will go wrong later.

use std::time::Duration;

use umbel_contracts::proto::control::{CheckResult, ReadinessCheck};
use umbel_contracts::proto::node::AgentHealth;
use umbel_wire::clock::Wall;
use umbel_wire::liveness::State;
use umbel_wire::rotation::acceptor::lost;

use super::Moment;
use super::gpus::Absence;
use super::node::{Lifecycle, Node};
use super::problems::{CLOCK_AHEAD, CLOCK_BEHIND, DUPLICATE_IDENTITY, LEASES_CARRIED};
use super::snapshot::{self, FIGURES_AGE, Reports};
use crate::core::rotation::WARNED;

/// An inventory older than this says nothing of the host as it is.
pub(crate) const INVENTORY_AGE: Duration = Duration::from_secs(15 * 60);
/// Telemetry older than this has stopped.
pub(crate) const TELEMETRY_AGE: Duration = Duration::from_secs(30);
const DAY_MS: i64 = 24 * 3_600 * 1_000;
/// The capability of an agent that sends telemetry.
const TELEMETRY: &str = "hardware.telemetry";

/// All five checks of exactly this node.
pub(crate) fn checks(node: &Node, reports: &Reports, moment: Moment) -> Vec<ReadinessCheck> {
    vec![
        connection(node, moment),
        inventory(node, reports, moment),
        protocol(node),
        agent(node),
        telemetry(node, reports, moment),
    ]
}

fn check(
    name: &str,
    result: CheckResult,
    message: impl Into<String>,
    next: impl Into<String>,
) -> ReadinessCheck {
    ReadinessCheck {
        name: name.to_owned(),
        result: result.into(),
        message: message.into(),
        next_step: next.into(),
    }
}

fn passed(name: &str, message: impl Into<String>) -> ReadinessCheck {
    check(name, CheckResult::Passed, message, "")
}

fn failed(name: &str, message: impl Into<String>, next: impl Into<String>) -> ReadinessCheck {
    check(name, CheckResult::Failed, message, next)
}

fn connection(node: &Node, moment: Moment) -> ReadinessCheck {
    let name = "connection";
    let who = &node.row.name;
    let credential = &node.row.credential;
    match node.row.lifecycle {
        Lifecycle::Disabled => {
            let next = format!("An operator can enable it again: umbel ctl node enable {who}");
            return failed(name, "the node is disabled: it may not connect", next);
        }
        Lifecycle::Decommissioned => {
            let next = "Enroll the host anew with a token of its own; this identity is gone for ever.";
            return failed(name, "the node is decommissioned", next);
        }
        Lifecycle::Enrolled => {}
    }
    if credential.revoked_at_unix_ms.is_some() {
        let next = format!(
            "Give the host a new credential: umbel ctl token create --replace {who}, then `umbel node enroll` on it, \
             where it stands."
        );
        return failed(name, "its credential is revoked", next);
    }
    if node.connected() {
        return connected(node, moment);
    }
    let ends = Wall(credential.not_after_unix_ms);
    if credential.not_after_unix_ms > 0 && lost(ends, Wall(moment.wall)) {
        let ended = moment.wall.saturating_sub(ends.unix_ms());
        let next = format!(
            "It is too late to renew it: umbel ctl token create --replace {who}, then enroll the host."
        );
        return failed(name, format!("its certificate ended {} days ago", ended / DAY_MS), next);
    }
    match node.liveness {
        State::Never => failed(
            name,
            "it has enrolled and never connected",
            "Start `umbel node` on the host; `umbel node doctor` there says what is in the way.",
        ),
        State::Unknown => failed(
            name,
            format!("the edge has just started and has not heard it yet{}", seen(node, moment)),
            "Wait for its next dial, at most half a minute; then run `umbel node doctor` on the host.",
        ),
        _ if node.session.is_some() && node.problems.keys().any(|(code, _)| *code == LEASES_CARRIED) => {
            failed(
                name,
                "it is connected and still carries streams of an older connection",
                "It is complete once they have ended. Restart its agent (systemctl restart umbel-node) if that lasts.",
            )
        }
        State::Online if node.session.is_some() => {
            failed(name, "it has just connected and is completing", "Wait some seconds.")
        }
        State::Online => failed(
            name,
            format!("its connection has ended{}", seen(node, moment)),
            "Wait some seconds for its next dial; then run `umbel node doctor` on the host.",
        ),
        state @ (State::Stale | State::Offline) => failed(
            name,
            format!("{}{}", state.name(), seen(node, moment)),
            "Look whether the host is up and its agent runs (systemctl status umbel-node); `umbel node doctor` there \
             says whether it reaches its edge.",
        ),
    }
}

/// A connected node may still be about to lose its connection.
fn connected(node: &Node, moment: Moment) -> ReadinessCheck {
    let name = "connection";
    let said = format!("connected, generation {}", node.generation);
    let ends = Wall(node.row.credential.not_after_unix_ms);
    if node.problems.keys().any(|(code, _)| *code == DUPLICATE_IDENTITY) {
        let next = "A state directory was copied: stop the second agent, remove its state directory and enroll that \
                    host with a token of its own.";
        return check(name, CheckResult::Passed, format!("{said}; another process shows its identity"), next);
    }
    if node.row.credential.not_after_unix_ms > 0 && ends < Wall(moment.wall) + WARNED {
        let ends_in = ends.unix_ms().saturating_sub(moment.wall);
        let when = match ends_in {
            ..0 => format!("ended {} days ago", -ends_in / DAY_MS),
            _ => format!("ends in {} days", ends_in / DAY_MS),
        };
        let next = format!(
            "It renews itself at two thirds of its life and did not: umbel ctl node rotate {}, then look at its \
             agent's log.",
            node.row.name
        );
        return check(name, CheckResult::Passed, format!("{said}; its certificate {when}"), next);
    }
    passed(name, said)
}

/// How long ago the node was heard.
fn seen(node: &Node, moment: Moment) -> String {
    match node.report.last_seen_at_unix_ms {
        0 => String::new(),
        at => format!(", last heard {} ago", ago(moment.wall.saturating_sub(at))),
    }
}

fn ago(milliseconds: i64) -> String {
    match milliseconds.max(0) / 1_000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// What the node's clock has to do with a report that is missing, and the remedy.
fn clock(node: &Node) -> Option<(String, String)> {
    let problem =
        node.problems.values().find(|problem| problem.code == CLOCK_AHEAD || problem.code == CLOCK_BEHIND)?;
    let skew = node.clock_skew_ms?;
    let way = if skew > 0 { "ahead of" } else { "behind" };
    let message = format!("the node's clock is {} s {way} this edge's", skew.unsigned_abs() / 1_000);
    Some((
        message,
        format!("Set the host's clock, with a time server: timedatectl set-ntp true ({})", problem.code),
    ))
}

fn inventory(node: &Node, reports: &Reports, moment: Moment) -> ReadinessCheck {
    let name = "inventory";
    let (Some(kept), Some(report)) = (&node.report.inventory, &reports.inventory) else {
        return failed(
            name,
            "never reported",
            "It comes with the node's next connection; start `umbel node` on the host.",
        );
    };
    let age = kept.age(moment);
    let old = format!("{} old", ago(i64::try_from(age.as_millis()).unwrap_or(i64::MAX)));
    if age > INVENTORY_AGE || !kept.good {
        if let Some((message, next)) = clock(node) {
            return failed(name, format!("{old}; {message}"), next);
        }
        let next = match node.connected() {
            true => "Restart the agent; look for its inventory errors in its log.",
            false => "It comes with the node's next connection.",
        };
        return failed(name, old, next);
    }
    if !report.complete {
        return failed(
            name,
            format!("incomplete: {}", report.incomplete_reason),
            "Run `umbel node --preflight` on the host: it names the remedy, for the driver too. It is read again by \
             itself.",
        );
    }
    if let Some(gpu) = node.report.absent.first() {
        let (word, next) = match gpu.why {
            Absence::Lost => {
                ("does not answer", "Look for its Xid with `dmesg` on the host; reset the GPU or reboot.")
            }
            Absence::Missing => {
                ("is gone", "Look at `nvidia-smi -L` and `dmesg` on the host; reseat the GPU or reboot.")
            }
        };
        let more = match node.report.absent.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        return failed(name, format!("{old}; {} {word}{more}", gpu.words()), next);
    }
    let note =
        if report.gpus.is_empty() { "no GPU".to_owned() } else { format!("{} GPUs", report.gpus.len()) };
    passed(name, format!("{old}, complete, {note}"))
}

fn protocol(node: &Node) -> ReadinessCheck {
    if node.protocol == 0 {
        return failed("protocol", "no version negotiated since the edge started", "Start `umbel node`.");
    }
    passed("protocol", format!("COMPATIBLE, version {}", node.protocol))
}

fn agent(node: &Node) -> ReadinessCheck {
    if let Some((version, why)) = node.settings_refusal() {
        let name = &node.row.name;
        let why: String = why.chars().take(512).collect();
        let next = format!(
            "Correct what it refused, or take it back: umbel ctl settings set agents.nodes.{name}..., umbel ctl settings \
             rollback"
        );
        return failed("agent", format!("it refused settings version {version}: {why}"), next);
    }
    match node.health {
        AgentHealth::Ok => passed("agent", "ok"),
        AgentHealth::Degraded => {
            let reasons: Vec<_> =
                snapshot::problems(node).into_iter().map(|problem| problem.message).take(4).collect();
            let why = if reasons.is_empty() { "it does not say why".to_owned() } else { reasons.join("; ") };
            let why: String = why.chars().take(1_024).collect();
            failed("agent", format!("degraded: {why}"), "Do what the node's problems say.")
        }
        AgentHealth::Unspecified => {
            failed("agent", "no heartbeat since the edge started", "Wait for one, at most ten seconds.")
        }
    }
}

fn telemetry(node: &Node, reports: &Reports, moment: Moment) -> ReadinessCheck {
    let name = "telemetry";
    let (Some(kept), Some(report)) = (&node.report.telemetry, &reports.telemetry) else {
        // An agent that does not name the capability is not missing anything.
        return match node.capabilities.iter().any(|name| name == TELEMETRY) {
            true => failed(name, "none received yet", "Wait for one, at most ten seconds."),
            false => check(name, CheckResult::NotReported, "this agent reports no telemetry", ""),
        };
    };
    let age = kept.age(moment);
    let old = format!("{} old", ago(i64::try_from(age.as_millis()).unwrap_or(i64::MAX)));
    if age > TELEMETRY_AGE || !kept.good {
        if let Some((message, next)) = clock(node) {
            return failed(name, format!("{old}; {message}"), next);
        }
        let next = match node.connected() {
            true => "Restart the agent; look for telemetry errors in its log.",
            false => "It comes again once the node is connected.",
        };
        return failed(name, old, next);
    }
    let driver = report.gpus.iter().map(|gpu| gpu.age_ms).max().unwrap_or(0);
    if Duration::from_millis(driver.into()) > FIGURES_AGE {
        return failed(
            name,
            format!("{old}; the GPU driver has not answered for {} s", driver / 1_000),
            "Look at `dmesg` on the host: a driver call hangs. The agent reads again once it returns; else reboot.",
        );
    }
    passed(name, old)
}
