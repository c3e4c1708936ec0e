//! The verbs of `ctl job`, with their arguments.
//!
//! Owns parsing only; the room of the same name below `ctl` does the work.

use clap::{Args, Subcommand};

#[derive(Debug, Clone, Args)]
pub(crate) struct JobFilter {
    /// Only those that have not ended
    #[arg(long)]
    pub(crate) running: bool,
    /// Only those that ended
    #[arg(long, conflicts_with = "running")]
    pub(crate) ended: bool,
    /// Only of this kind, as in artifact.acquire
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Option<String>,
    /// Only of these nodes
    #[arg(long, value_name = "SELECTOR")]
    pub(crate) node: Option<String>,
    /// Only of this deployment
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// The newest N of each site
    #[arg(short = 'n', long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobVerb {
    /// List jobs, newest first
    #[command(alias = "ls")]
    List {
        #[command(flatten)]
        filter: JobFilter,
    },
    /// Show one job with its report or failure
    Show {
        /// An id, or the start of one
        id: String,
    },
    /// Follow jobs to their ends; Ctrl-C detaches
    #[command(visible_alias = "follow")]
    Watch {
        /// Ids, or the starts of them
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Ask for a job's end
    Cancel {
        /// An id, or the start of one
        id: String,
    },
}
