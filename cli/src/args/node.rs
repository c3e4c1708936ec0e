//! The verbs of `ctl node`, with their arguments.
//!
//! Owns parsing only; the rooms of the same name below `ctl` do the work.

use std::time::Duration;

use clap::Subcommand;

use super::span::span;

#[derive(Debug, Subcommand)]
pub(crate) enum NodeVerb {
    /// List the nodes
    #[command(alias = "ls")]
    List {
        /// Also those that were retired
        #[arg(long)]
        decommissioned: bool,
    },
    /// Show one node
    Show {
        /// A name or id, or the start of one
        name: String,
    },
    /// What keeps a node from serving: every check with the next step
    Why {
        /// A name or id, or the start of one
        name: String,
    },
    /// Give it no more requests and wait for those that run; its engines stay
    Drain {
        /// A name or id, or the start of one
        name: String,
        /// How long running requests may take
        #[arg(long, value_name = "SPAN", value_parser = span)]
        deadline: Option<Duration>,
    },
    /// Give it requests again
    Undrain {
        /// A name or id, or the start of one
        name: String,
    },
    /// Whether the site may give it requests at all
    Eligible {
        /// A name or id, or the start of one
        name: String,
        /// yes or no
        #[arg(default_value = "yes", value_parser = ["yes", "no"])]
        value: String,
    },
    /// Give it another display name
    Rename {
        /// A name or id, or the start of one
        name: String,
        /// The new name; no other node of the site may have it
        new: String,
    },
    /// Set labels, or take them away
    Label {
        /// A name or id, or the start of one
        name: String,
        /// KEY=VALUE sets one, KEY- takes it away
        #[arg(value_name = "KEY=VALUE|KEY-", required = true, allow_hyphen_values = true)]
        labels: Vec<String>,
    },
    /// Keep it out until it is enabled again; what it runs for applications ends
    Disable {
        /// A name or id, or the start of one
        name: String,
    },
    /// Let a disabled node in again
    Enable {
        /// A name or id, or the start of one
        name: String,
    },
    /// Have it make a new key and get a new certificate; its streams go on
    Rotate {
        /// A name or id, or the start of one
        name: String,
    },
    /// End its credential at once; it comes back only with a token made by `token create --replace`
    Revoke {
        /// The whole name
        name: String,
        /// The name once more
        #[arg(long, value_name = "NAME")]
        confirm: Option<String>,
    },
    /// Let in a node whose certificate is newer than the backup that the site was restored from
    Approve {
        /// SHA-256 of its public key, as the site's problem names it
        #[arg(value_parser = digest)]
        key_sha256: String,
    },
    /// Retire it for good: shows what is lost, then asks for its name
    Decommission {
        /// The whole name
        name: String,
        /// Only show what would be lost
        #[arg(long)]
        preview: bool,
        /// How long running requests may take
        #[arg(long, value_name = "SPAN", value_parser = span)]
        deadline: Option<Duration>,
        /// The name once more, where nobody can be asked
        #[arg(long, value_name = "NAME")]
        confirm: Option<String>,
    },
}

/// A SHA-256 in hex.
fn digest(text: &str) -> Result<String, String> {
    if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(text.to_owned());
    }
    Err("this is no SHA-256: 64 digits in hex (umbel ctl status names it)".to_owned())
}
