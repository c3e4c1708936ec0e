//! The verbs of each noun of `umbel ctl`, with their arguments.
//!
//! Owns parsing only; the rooms of the same names below `ctl` do the work.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};

use super::span::span;

#[derive(Debug, Subcommand)]
pub(crate) enum EdgeVerb {
    /// List the sites
    #[command(alias = "ls")]
    List,
    /// Show one site
    Show {
        /// A name or the start of one
        name: String,
    },
    /// Single-use tokens with which an edge joins this control plane
    Token {
        #[command(subcommand)]
        verb: Option<EdgeTokenVerb>,
    },
    /// Revoke a site's credential at this control plane; its edge keeps serving
    Revoke {
        /// The whole name
        name: String,
        /// The name once more: the edge must enroll anew afterwards
        #[arg(long, value_name = "NAME")]
        confirm: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum EdgeTokenVerb {
    /// Make a token for one site and print it once
    Create {
        /// The site's name
        site: String,
        /// How long it may be used
        #[arg(long, default_value = "15m", value_name = "SPAN", value_parser = span)]
        expires: Duration,
        /// Write the token to this new file (mode 0600) instead of standard output
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// List the tokens
    #[command(alias = "ls")]
    List,
    /// Revoke a token that was not used
    Revoke {
        /// An id or the start of one
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum CommandVerb {
    /// Show how a command stands
    Show {
        /// The command's id
        id: String,
    },
    /// Follow a command to its end; Ctrl-C detaches
    Watch {
        /// The command's id
        id: String,
    },
    /// Ask the site to stop a command
    Cancel {
        /// The command's id
        id: String,
    },
}

#[derive(Debug, Clone, Args)]
pub(crate) struct EventsArgs {
    /// Keep following
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// First the last N events
    #[arg(short = 'n', long, default_value_t = 20, value_name = "N")]
    pub(crate) recent: u32,
    /// Only events after this one
    #[arg(long, value_name = "ID", value_parser = event_id)]
    pub(crate) after: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenVerb {
    /// Make a token for a node, or for each of many, and print it once
    Create {
        /// The node's name
        #[arg(required_unless_present_any = ["replace", "names_file"])]
        name: Option<String>,
        /// A token for each name of this file, one a line (`-`: standard input); each is printed after its name
        #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "replace"])]
        names_file: Option<PathBuf>,
        /// For a node that lost its key or its machine: it stays the same node, and its old credential is revoked when
        /// the token is used
        #[arg(long, value_name = "NODE", conflicts_with_all = ["name", "label", "eligible"])]
        replace: Option<String>,
        /// A label, KEY=VALUE; may be repeated
        #[arg(long, value_name = "KEY=VALUE")]
        label: Vec<String>,
        /// How long it may be used
        #[arg(long, default_value = "15m", value_name = "SPAN", value_parser = span)]
        expires: Duration,
        /// The node may get requests as soon as it is ready
        #[arg(long)]
        eligible: bool,
        /// Write the token to this new file (mode 0600) instead of standard output
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// List the tokens
    #[command(alias = "ls")]
    List,
    /// Revoke a token that was not used
    Revoke {
        /// An id or the start of one
        id: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Reads
    Viewer,
    /// Reads, and changes what runs
    Operator,
    /// Everything: tokens, credentials, operators
    Admin,
}

#[derive(Debug, Subcommand)]
pub(crate) enum OperatorVerb {
    /// Make a token for a person or a program and print it once
    Create {
        /// Whose it is
        name: String,
        /// What it may do
        #[arg(long, value_enum, default_value = "viewer")]
        role: Role,
        /// Write the token to this new file (mode 0600) instead of standard output
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// List the operators
    #[command(alias = "ls")]
    List,
    /// Revoke an operator's token
    Revoke {
        /// An id or name, or the start of one
        id: String,
    },
}

/// An event's id as servers give it: `INCARNATION.NUMBER`.
fn event_id(text: &str) -> Result<String, String> {
    let parts = text.rsplit_once('.').filter(|(incarnation, _)| !incarnation.is_empty());
    match parts.map(|(_, number)| number.parse::<u64>()) {
        Some(Ok(_)) => Ok(text.to_owned()),
        _ => Err("this is no event's id (umbel ctl events -o name prints them)".to_owned()),
    }
}
