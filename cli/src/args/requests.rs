//! The verbs of `ctl request`, with their arguments.
//!
//! Owns parsing only; the room of the same name below `ctl` does the work.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::span::span;

#[derive(Debug, Clone, Args)]
pub(crate) struct RequestFilter {
    /// Only of this model
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Only with this API key: a name or id, or the start of one
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Only with this status: a number, or a hundred as in 5xx; 499 are clients that left
    #[arg(long, value_name = "STATUS", conflicts_with = "running")]
    pub(crate) status: Option<String>,
    /// Only those that take or took at least this
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub(crate) slow: Option<Duration>,
    /// Only those that run
    #[arg(long)]
    pub(crate) running: bool,
    /// Only those that ended
    #[arg(long, conflicts_with = "running")]
    pub(crate) ended: bool,
    /// Only leases whose end no node confirmed
    #[arg(long, conflicts_with_all = ["running", "ended", "status", "slow", "key", "model"])]
    pub(crate) unconfirmed: bool,
    /// The newest N of each site
    #[arg(short = 'n', long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RequestVerb {
    /// List requests, newest first
    #[command(alias = "ls")]
    List {
        #[command(flatten)]
        filter: RequestFilter,
    },
    /// Show one request
    Show {
        /// Its x-request-id
        id: String,
    },
    /// Give a lease free whose end its node never confirmed
    Release {
        /// The lease's id, as --unconfirmed lists it
        lease: String,
    },
}
