//! The table and the JSON line: medians over rounds, ratios and differences against the first target of the same round.

use std::io::Write;

use crate::{Mode, Options, Sample, Target, account, judge};

fn percentile(sorted: &[f64], p: f64) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index"
    )]
    let at = ((sorted.len() - 1) as f64 * p).round() as usize;
    sorted[at]
}

fn median(mut values: Vec<f64>) -> f64 {
    values.retain(|x| !x.is_nan());
    values.sort_by(f64::total_cmp);
    percentile(&values, 0.5)
}

#[allow(clippy::cast_precision_loss, reason = "counts of a benchmark")]
fn figures(target: &Target, mine: &[Sample], base: &[Sample]) -> Vec<(&'static str, f64)> {
    let per =
        |f: &dyn Fn(&Sample, &Sample) -> f64| median(mine.iter().zip(base).map(|(s, d)| f(s, d)).collect());
    let rate = |s: &Sample| s.done as f64 / s.wall;
    let tokens = |s: &Sample| s.events.max(s.done) as f64;
    vec![
        ("req/s", per(&|s, _| rate(s))),
        ("x", per(&|s, d| rate(s) / rate(d))),
        ("events/s", per(&|s, _| s.events as f64 / s.wall)),
        ("p50us", per(&|s, _| percentile(&s.latency_us, 0.5))),
        ("p99us", per(&|s, _| percentile(&s.latency_us, 0.99))),
        ("+p50", per(&|s, d| percentile(&s.latency_us, 0.5) - percentile(&d.latency_us, 0.5))),
        ("+p99", per(&|s, d| percentile(&s.latency_us, 0.99) - percentile(&d.latency_us, 0.99))),
        ("ttft50", per(&|s, _| percentile(&s.first_us, 0.5))),
        ("+ttft50", per(&|s, d| percentile(&s.first_us, 0.5) - percentile(&d.first_us, 0.5))),
        ("+ttft99", per(&|s, d| percentile(&s.first_us, 0.99) - percentile(&d.first_us, 0.99))),
        ("gap99", per(&|s, _| percentile(&s.gap_us, 0.99))),
        ("cpu_us/rq", per(&|s, _| if s.done > 0 { s.cpu_us / s.done as f64 } else { f64::NAN })),
        ("cpu_us/ev", per(&|s, _| if s.done > 0 { s.cpu_us / tokens(s) } else { f64::NAN })),
        ("peakMB", target.pids.iter().map(|p| account::peak_mb(*p)).sum()),
        ("errors", mine.iter().map(|s| s.errors).sum::<u64>() as f64),
    ]
}

fn shown(name: &str, value: f64) -> String {
    match name {
        _ if value.is_nan() => "-".to_owned(),
        "x" => format!("{value:.3}"),
        "cpu_us/rq" | "cpu_us/ev" | "peakMB" => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

pub(crate) fn print(options: &Options, targets: &[Target], samples: &[Vec<Sample>]) {
    let mode = if options.mode == Mode::Stream { "stream" } else { "unary" };
    let mode = if options.fresh { format!("{mode}-fresh") } else { mode.to_owned() };
    let mut stage = format!("{mode} conc={} tokens={}", options.conc, options.tokens);
    if options.pace_us > 0 {
        stage.push_str(&format!(" pace_us={}", options.pace_us));
    }
    if options.core.is_some() {
        stage.push_str(" one core");
    }
    let mut out = std::io::stdout().lock();
    let (mut rows, mut remarks) = (serde_json::Map::new(), Vec::new());
    let _ = writeln!(
        out,
        "\n# {stage} secs={} rounds={} (medians over rounds; x and + against {} of the same round)",
        options.secs, options.rounds, targets[0].name
    );
    for (i, target) in targets.iter().enumerate() {
        let figures = figures(target, &samples[i], &samples[0]);
        if i == 0 {
            let names: String = figures.iter().map(|(n, _)| format!(" {n:>9}")).collect();
            let _ = writeln!(out, "{:<12}{names}", "target");
        }
        let values: String = figures.iter().map(|(n, v)| format!(" {:>9}", shown(n, *v))).collect();
        let _ = writeln!(out, "{:<12}{values}", target.name);
        let events = figures.iter().find(|(name, _)| *name == "events/s").map(|(_, events)| *events);
        remarks.extend(events.and_then(|events| judge::remark(&stage, &target.name, events)));
        let json = figures.iter().map(|(n, v)| ((*n).to_owned(), serde_json::json!(v))).collect();
        rows.insert(target.name.clone(), serde_json::Value::Object(json));
    }
    for remark in remarks {
        let _ = writeln!(out, "{remark}");
    }
    if let Some(path) = &options.json {
        let line = serde_json::json!({"stage": stage, "secs": options.secs, "rounds": options.rounds, "targets": rows});
        let mut file = std::fs::File::options().create(true).append(true).open(path).expect("the JSON file");
        writeln!(file, "{line}").expect("the JSON file");
    }
}
