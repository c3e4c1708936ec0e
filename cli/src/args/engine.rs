//! The verbs of `ctl engine`, with their arguments.
//!
//! Owns parsing only.

use std::time::Duration;

use clap::Subcommand;

use super::span::span;

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
    /// End its process; it stays so until it is restarted
    Stop {
        /// Its name, NODE/NAME, or the start of one
        name: String,
        /// How long running requests may take first [default: none]
        #[arg(long, value_name = "SPAN", value_parser = span)]
        deadline: Option<Duration>,
    },
}
