//! What a run says of the limits: this project's processor time and latency beside its peers', stage by stage.
//!
//! Peers of two hops with mutual TLS do what edge and node do, so the best of them counts; routers for engines take one
//! plain hop. Ratios are of medians of one run.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use serde_json::Value;

/// Two hops with mutual TLS between.
const TWO_HOPS: [&str; 4] = ["nginx2", "haproxy2", "envoy2", "envoy2h1"];
/// The router that counts.
const ROUTER: &str = "vllm-router";

/// What is compared.
enum Limit {
    /// Processor time a request or event, at most this part of the best of two hops, and of the router.
    Cpu { two_hops: f64, router: f64 },
    /// Median latency added to direct access, at most that of this peer.
    AddedBy(&'static str),
}

/// Stage, what it is called, the column, the limit.
const LIMITS: [(&str, &str, &str, Limit); 8] = [
    (
        "unary conc=64 tokens=1",
        "a request, 64 at a time",
        "cpu_us/rq",
        Limit::Cpu { two_hops: 0.75, router: 0.75 },
    ),
    (
        "stream conc=32 tokens=128",
        "a burst token, 32 streams",
        "cpu_us/ev",
        Limit::Cpu { two_hops: 0.75, router: 0.75 },
    ),
    (
        "stream conc=256 tokens=128",
        "a burst token, 256 streams",
        "cpu_us/ev",
        Limit::Cpu { two_hops: 0.75, router: 0.75 },
    ),
    (
        "stream-fresh conc=32 tokens=128",
        "the same, 32, a new connection each",
        "cpu_us/ev",
        Limit::Cpu { two_hops: 0.75, router: 0.75 },
    ),
    (
        "stream conc=32 tokens=32 pace_us=25000",
        "a paced token, 32 streams",
        "cpu_us/ev",
        Limit::Cpu { two_hops: 0.75, router: 1.0 },
    ),
    (
        "stream conc=256 tokens=32 pace_us=25000",
        "a paced token, 256 streams",
        "cpu_us/ev",
        Limit::Cpu { two_hops: 0.75, router: 1.0 },
    ),
    ("unary conc=1 tokens=1", "added p50, 1 at a time", "+p50", Limit::AddedBy(ROUTER)),
    ("unary conc=1 tokens=1 one core", "added p50, 1 at a time, one core", "+p50", Limit::AddedBy("nginx2")),
];

type Stages = BTreeMap<String, Value>;

fn figure(stages: &Stages, stage: &str, target: &str, column: &str) -> Option<f64> {
    stages.get(stage)?.get(target)?.get(column)?.as_f64()
}

/// Who passes less or more of what a stage's pace asks for has done other work than who keeps it: fewer and larger pieces
/// cost less, who is overloaded costs anything, and who does not ask the engine for the pace has bursts.
const KEPT: RangeInclusive<f64> = 0.95..=1.05;

/// What part of a stage's pace a target kept with so many events a second; nothing where there is no pace.
fn part(stage: &str, events: f64) -> Option<f64> {
    let word = |name: &str| {
        let word = stage.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        word.and_then(|word| word.parse::<f64>().ok())
    };
    Some(events / (word("conc")? * 1e6 / word("pace_us")?))
}

/// What is said of a target that did other work than its stage asks for.
pub(crate) fn remark(stage: &str, target: &str, events: f64) -> Option<String> {
    let part = part(stage, events).filter(|part| !KEPT.contains(part))?;
    Some(format!("{target} kept {:.0} % of the pace: its figures are of other work", part * 100.0))
}

fn kept(stages: &Stages, stage: &str, target: &str) -> Option<f64> {
    part(stage, figure(stages, stage, target, "events/s")?)
}

/// One row: the peer, its figure, the ratio or difference, the limit, and whether it is met. Of unequal work nothing is
/// said but the figures.
fn row(what: &str, unit: &str, ours: f64, peer: (&str, f64), limit: f64, behind: Option<(&str, f64)>) {
    let (name, theirs) = peer;
    let ratio = ours / theirs;
    let verdict = match behind {
        Some((who, part)) => format!("not equal work: {who} kept {:.0} % of the pace", part * 100.0),
        None if ratio <= limit => "met".to_owned(),
        None => "MISSED".to_owned(),
    };
    println!(
        "{what:<38} {ours:>8.1} {name:>12} {theirs:>8.1} {ratio:>7.2} {limit:>7.2} {unit:>4}  {verdict}"
    );
}

/// Prints the table. Stages or peers that were not measured are left out.
pub(crate) fn print(file: &Path) {
    let text = std::fs::read_to_string(file).expect("the JSON lines");
    let stages: Stages = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|line| Some((line.get("stage")?.as_str()?.to_owned(), line.get("targets")?.clone())))
        .collect();
    println!(
        "\n# limits (ours is edge and node together)\n{:<38} {:>8} {:>12} {:>8} {:>7} {:>7} {:>4}",
        "figure", "umbel", "peer", "its", "ratio", "limit", ""
    );
    for (stage, what, column, limit) in &LIMITS {
        let Some(ours) = figure(&stages, stage, "umbel", column) else { continue };
        let behind = |peer: &'static str| {
            let part = |who| kept(&stages, stage, who).map(|part| (who, part));
            ["umbel", peer].into_iter().filter_map(part).find(|(_, part)| !KEPT.contains(part))
        };
        match limit {
            Limit::Cpu { two_hops, router } => {
                let of = |name| figure(&stages, stage, name, column).map(|theirs| (name, theirs));
                // Of those that kept the pace, if any did.
                let best = TWO_HOPS.into_iter().filter_map(of).min_by(|a, b| {
                    behind(a.0).is_some().cmp(&behind(b.0).is_some()).then(a.1.total_cmp(&b.1))
                });
                if let Some(best) = best {
                    row(what, "us", ours, best, *two_hops, behind(best.0));
                }
                if let Some(theirs) = of(ROUTER) {
                    row(what, "us", ours, theirs, *router, behind(ROUTER));
                }
            }
            Limit::AddedBy(peer) => {
                if let Some(theirs) = figure(&stages, stage, peer, column) {
                    row(what, "us", ours, (peer, theirs), 1.0, None);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_keep_the_pace_is_not_judged_at_it() {
        let stage = "stream conc=32 tokens=32 pace_us=25000";
        for (events, is_equal) in [(1_280.0, true), (1_331.0, true), (1_100.0, false), (180_000.0, false)] {
            assert_eq!(remark(stage, "peer", events).is_none(), is_equal, "{events}");
        }
        assert_eq!(remark("stream conc=32 tokens=128", "peer", 180_000.0), None, "no pace is asked for");
    }
}
