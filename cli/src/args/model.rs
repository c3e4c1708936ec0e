//! `ctl model`: what a site should serve, and why it cannot.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::span::span;

/// One replica instead of all.
#[derive(Debug, Args)]
pub(crate) struct ReplicaChoice {
    /// Only this replica, by its number; another one comes in its place if it is wanted
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) replica: Option<u32>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelVerb {
    /// Have the site serve what a document says, and follow until it does
    Apply {
        /// The document, TOML or JSON
        file: PathBuf,
        /// Only if the deployment is at this version; 0: only if there is none of its name
        #[arg(long, value_name = "N")]
        if_version: Option<u64>,
    },
    /// List deployments, with how many replicas are ready
    #[command(alias = "ls")]
    List,
    /// Show one deployment with its replicas
    Show {
        /// Its name, or the start of it
        name: String,
    },
    /// Have its replicas come up again, those too that were given up
    Load {
        /// Its name, or the start of it
        name: String,
    },
    /// Take no new requests, wait for those that run, then unload
    Drain {
        /// Its name, or the start of it
        name: String,
        #[command(flatten)]
        replica: ReplicaChoice,
        /// How long running requests may take [default: as the document says]
        #[arg(long, value_name = "SPAN", value_parser = span)]
        deadline: Option<Duration>,
    },
    /// Unload at once; running requests are broken off
    Unload {
        /// Its name, or the start of it
        name: String,
        #[command(flatten)]
        replica: ReplicaChoice,
    },
    /// Unload it and forget it
    Delete {
        /// Its name, or the start of it
        name: String,
        /// The name once more, for scripts
        #[arg(long, value_name = "NAME")]
        confirm: Option<String>,
    },
    /// Replace its replicas one after the other
    Restart {
        /// Its name, or the start of it
        name: String,
        #[command(flatten)]
        replica: ReplicaChoice,
    },
    /// Begin nothing for it and take nothing away, until --off
    Pause {
        /// Its name, or the start of it
        name: String,
        /// Take the pause back
        #[arg(long)]
        off: bool,
    },
    /// Say where its replicas can run and why not elsewhere, with what would help; exit code 3 if one has no place
    Why {
        /// The deployment's name
        name: String,
        /// Tell in full only of these nodes: `node:NAME`, `label:KEY=VALUE`, `gpu:GLOB`
        #[arg(long, value_name = "SELECTOR")]
        nodes: Option<String>,
        /// Nodes told of in full
        #[arg(short = 'n', long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=256))]
        limit: u32,
    },
    /// Say where a document's replicas would run, without applying it; exit code 3 if they do not fit
    Plan {
        /// The document, TOML or JSON
        file: PathBuf,
        /// Tell in full only of these nodes: `node:NAME`, `label:KEY=VALUE`, `gpu:GLOB`
        #[arg(long, value_name = "SELECTOR")]
        nodes: Option<String>,
        /// Nodes told of in full
        #[arg(short = 'n', long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=256))]
        limit: u32,
    },
}
