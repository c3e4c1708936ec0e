//! Admission under pressure, on a real edge and node before mock engines: fairness, overload, a frozen engine, memory of
//! those who wait. Each stage prints what was asked for beside what was measured.
//!
//! `pressure fairness|overload|memory [--secs N] [--json FILE]`, with `UMBEL_BIN` and the mock engine beside this binary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    missing_docs,
    reason = "a measuring program ends at the first thing that is not as expected"
)]

#[path = "../load/conn.rs"]
#[expect(dead_code, reason = "the load generator counts events, these stages do not")]
mod conn;
mod fairness;
mod memory;
mod overload;
mod site;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    stage: Stage,
    /// Seconds of each measurement.
    #[arg(long, global = true, default_value_t = 20)]
    secs: u64,
    /// Adds the figures as JSON lines to this file.
    #[arg(long, global = true)]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Stage {
    /// A key that floods with long prompts beside one that sends short ones; short ones beside full long slots.
    Fairness,
    /// Ten times what the engines can take; then one of three engines stopped.
    Overload,
    /// A thousand waiting requests with bodies of 100 KB.
    Memory,
}

/// One line of the result: what, measured, limit.
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) measured: f64,
    /// At most this, or at least where it is negative; 0 is only shown.
    pub(crate) limit: f64,
}

pub(crate) fn row(what: impl Into<String>, measured: f64, limit: f64) -> Row {
    Row { what: what.into(), measured, limit }
}

fn main() {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let rows = runtime.block_on(async {
        match options.stage {
            Stage::Fairness => fairness::run(options.secs).await,
            Stage::Overload => overload::run(options.secs).await,
            Stage::Memory => memory::run().await,
        }
    });
    println!("\n{:<72} {:>10} {:>10}", format!("# {:?}", options.stage).to_lowercase(), "measured", "limit");
    let mut text = String::new();
    for Row { what, measured, limit } in &rows {
        let (word, holds) = match *limit {
            0.0 => (String::new(), true),
            least if least < 0.0 => (format!(">= {:.1}", -least), *measured >= -least),
            most => (format!("<= {most:.1}"), *measured <= most),
        };
        println!("{what:<72} {measured:>10.1} {word:>10}{}", if holds { "" } else { "  MISSED" });
        text += &format!(
            "{}\n",
            serde_json::json!({ "what": what, "measured": measured, "limit": limit, "holds": holds })
        );
    }
    if let Some(path) = options.json {
        let before = std::fs::read_to_string(&path).unwrap_or_default();
        std::fs::write(path, before + &text).unwrap();
    }
}
