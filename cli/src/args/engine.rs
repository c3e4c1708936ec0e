//! The verbs of `ctl engine`, with their arguments.
//!
//! Owns parsing only.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::span::span;

#[derive(Debug, Args)]
pub(crate) struct EngineProbe {
    /// A deployment's document, or the name of a deployment of the site
    pub(crate) what: String,
    /// Where, as in gpu-3 or label:rack=a
    #[arg(long, value_name = "SELECTOR")]
    pub(crate) node: String,
    /// What it is asked to go on with [default: a fixed sentence]
    #[arg(long, value_name = "TEXT")]
    pub(crate) input: Option<String>,
    /// Tokens of its answer [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) tokens: Option<u32>,
    /// How long start and answer may take together [default: as its node allows a start, and 5m]
    #[arg(long, value_name = "SPAN", value_parser = super::span::some)]
    pub(crate) within: Option<Duration>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EngineVerb {
    /// List the engines of every node
    #[command(alias = "ls")]
    List,
    /// Show one engine
    Show {
        /// Its name, NODE/NAME, or the start of one
        name: String,
    },
    /// Print an engine's output; addresses and secrets are taken out
    Logs {
        /// Its name, NODE/NAME, or the start of one
        name: String,
        /// The last N lines
        #[arg(short = 'n', long, default_value_t = 200, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=2000))]
        lines: u32,
        /// Go on with what it writes
        #[arg(short, long)]
        follow: bool,
    },
    /// End its process and start it anew; a failed one is tried again
    Restart {
        /// Its name, NODE/NAME, or the start of one
        name: String,
        /// How long running requests may take first [default: none]
        #[arg(long, value_name = "SPAN", value_parser = span)]
        deadline: Option<Duration>,
    },
    /// Look at engines layer by layer: process, port, health, model; exit code 3 if one is not well
    Health {
        /// Its name, NODE/NAME, or the start of one
        #[arg(required_unless_present = "node")]
        name: Option<String>,
        /// All engines of these nodes
        #[arg(long, value_name = "SELECTOR", conflicts_with = "name")]
        node: Option<String>,
    },
    /// Try a document or a deployment out: start its engine beside those that serve, look at it, measure an answer, end it
    Probe(EngineProbe),
    /// End and forget an engine that no deployment wants any more
    Unload {
        /// Its name, NODE/NAME, or the start of one
        name: String,
        /// How long running requests may take first [default: none]
        #[arg(long, value_name = "SPAN", value_parser = span)]
        deadline: Option<Duration>,
    },
    /// End its process; it stays so until it is restarted
    Stop {
        /// Its name, NODE/NAME, or the start of one
        name: String,
        /// How long running requests may take first [default: none]
        #[arg(long, value_name = "SPAN", value_parser = span)]
        deadline: Option<Duration>,
    },
}
