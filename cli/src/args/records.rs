//! The verbs of `ctl settings`, `ctl audit` and `ctl ca`, with their arguments.
//!
//! Owns parsing only; the rooms of the same names below `ctl` do the work.

use std::{path::PathBuf, str::FromStr, time::Duration};

use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;

use super::span::span;

#[derive(Debug, Subcommand)]
pub(crate) enum SettingsVerb {
    /// Show what is set; with --node, what is in force there and where each value comes from
    Show {
        /// An older version [default: the newest]
        #[arg(long, value_name = "N")]
        version: Option<u64>,
        /// The settings of this node: its name or id
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
    },
    /// Change fields, or everything with -f; told to the nodes within a second
    Set {
        /// PATH=VALUE; a value that is not JSON is a text
        #[arg(value_name = "PATH=VALUE", required_unless_present = "file")]
        changes: Vec<String>,
        /// The whole document, as JSON or TOML; `-` reads standard input
        #[arg(short, long, value_name = "FILE", conflicts_with = "changes")]
        file: Option<PathBuf>,
        /// Only if this is still the newest version
        #[arg(long, value_name = "N")]
        base: Option<u64>,
    },
    /// Take fields away, so that the hosts' own files decide again
    Unset {
        /// Paths
        #[arg(value_name = "PATH", required = true)]
        paths: Vec<String>,
        /// Only if this is still the newest version
        #[arg(long, value_name = "N")]
        base: Option<u64>,
    },
    /// Change the document in $EDITOR
    Edit,
    /// How far the newest version has got: who has it, who has not, who refused it
    Status {
        /// Exit 3 unless every node has it
        #[arg(long)]
        check: bool,
    },
    /// The versions: who, when, what, why
    History {
        /// The last N versions
        #[arg(short = 'n', long, default_value_t = 20, value_name = "N")]
        limit: u32,
    },
    /// What is different between two versions
    Diff {
        /// The older one [default: the one before]
        from: Option<u64>,
        /// The newer one [default: the newest]
        to: Option<u64>,
    },
    /// Make a new version that says what an older one said
    Rollback {
        /// Which
        version: u64,
    },
    /// Every key with what it may hold; asks no server
    Keys {
        /// Only keys that begin with this
        prefix: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditVerb {
    /// The last records; with -f those that come, too
    Tail {
        /// Keep following
        #[arg(short, long)]
        follow: bool,
        /// First the last N records
        #[arg(short = 'n', long, default_value_t = 20, value_name = "N")]
        recent: u32,
    },
    /// Check that the chain of records is whole; exit 3 if it is not
    Verify {
        /// An exported file instead: asks no server
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Write the records as they are chained, one JSON object a line, oldest first
    Export {
        /// Only records above this number
        #[arg(long, value_name = "N")]
        after: Option<u64>,
        /// Write to this new file (mode 0600) instead of standard output
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
}

/// Which records are meant; every condition must hold.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct AuditFilter {
    /// By whom: exactly, or a prefix that ends with `*`
    #[arg(long, value_name = "WHO")]
    pub(crate) actor: Option<String>,
    /// What: exactly, or a prefix that ends with `*`: `node.*`
    #[arg(long, value_name = "ACTION", value_parser = pattern)]
    pub(crate) action: Option<String>,
    /// Of what: a part of it
    #[arg(long, value_name = "TEXT")]
    pub(crate) about: Option<String>,
    /// The beginning of the result: `refused`
    #[arg(long, value_name = "RESULT")]
    pub(crate) result: Option<String>,
    /// Of this command
    #[arg(long, value_name = "UUID")]
    pub(crate) command: Option<uuid::Uuid>,
    /// Of this request
    #[arg(long, value_name = "ID")]
    pub(crate) request: Option<String>,
    /// Since: a time, or how long ago (2h, 3d)
    #[arg(long, value_name = "WHEN")]
    pub(crate) since: Option<Moment>,
    /// Before: a time, or how long ago
    #[arg(long, value_name = "WHEN")]
    pub(crate) until: Option<Moment>,
}

/// The name of an action, or the beginning of some with one `*` at its end.
fn pattern(text: &str) -> Result<String, String> {
    let name = text.strip_suffix('*').unwrap_or(text);
    if name.contains('*') {
        return Err(format!("`{text}`: only one `*` may stand in it, at the end (node.*)"));
    }
    Ok(text.to_owned())
}

/// A time, or a span before now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment(pub(crate) Timestamp);

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(at) = text.parse::<Timestamp>() {
            return Ok(Self(at));
        }
        let ago: Duration = span(text)
            .map_err(|_| format!("`{text}` is neither a time (2026-08-22T09:00:00Z) nor a span (2h, 3d)"))?;
        let at = Timestamp::now().checked_sub(ago).map_err(|_| format!("`{text}` is too long ago"))?;
        Ok(Self(at))
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum CaVerb {
    /// Show the authorities, where a change stands, and which nodes lack the newest
    Show,
    /// Go one step of a change: begin, switch, finish; or abort, which takes begin back
    Rotate {
        /// Which step
        #[arg(value_enum)]
        step: Step,
        /// Go on although nodes lack the new authority: each has to be enrolled anew
        #[arg(long)]
        leave_behind: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    /// Make a new authority and give it to the nodes; the old one still signs
    Begin,
    /// Sign with the new one; every node gets a new certificate
    Switch,
    /// Trust only the new one
    Finish,
    /// Take `begin` back
    Abort,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use jiff::Timestamp;

    use super::Moment;

    #[test]
    fn a_moment_is_a_time_or_a_span_ago() {
        let at: Moment = "2026-08-22T09:00:00Z".parse().unwrap();
        assert_eq!(at.0.as_second(), 1_787_389_200);
        let ago: Moment = "2h".parse().unwrap();
        let seconds = Timestamp::now().as_second() - ago.0.as_second();
        assert!((7200..7260).contains(&seconds), "{seconds}");
        assert!("yesterday".parse::<Moment>().is_err_and(|error| error.contains("2h")));
    }
}
