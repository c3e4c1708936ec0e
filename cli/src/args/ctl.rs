//! The command line of `umbel ctl`: nouns, verbs and the flags that all of them take.
//!
//! Owns parsing only. A noun alone lists, a noun with a name shows details. Invariant: flags may stand before or
//! after the verb.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};

use crate::output::{ColorChoice, Format};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  umbel ctl status                        every site, problems first
  umbel ctl node                          all nodes; `umbel ctl node gpu-3` shows one
  umbel ctl node why gpu-3                what keeps it from serving, and the next step
  umbel ctl token create gpu-4 --site berlin
  umbel ctl events -f -o jsonl

The server: --socket, or --addr with --token-file and --ca-file; else UMBEL_SOCKET, else UMBEL_ADDR, else the socket of
a control plane or an edge on this host.")]
pub(crate) struct CtlArgs {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) noun: Noun,
}

/// Flags of every `ctl` command.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// How to print data
    #[arg(short, long, global = true, value_enum, default_value = "table", help_heading = "Output")]
    pub(crate) output: Format,
    /// When to colour
    #[arg(long, global = true, value_enum, default_value = "auto", help_heading = "Output")]
    pub(crate) color: ColorChoice,
    /// Repeat a list every so often [default when given: 2s]
    #[arg(short, long, global = true, value_name = "EVERY", num_args = 0..=1, require_equals = true,
          default_missing_value = "2s", value_parser = span, help_heading = "Output")]
    pub(crate) watch: Option<Duration>,
    /// The local socket of a control plane or an edge [env: UMBEL_SOCKET]
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "addr", help_heading = "Server")]
    pub(crate) socket: Option<PathBuf>,
    /// The control plane's address: https://HOST:PORT [env: UMBEL_ADDR]
    #[arg(long, global = true, value_name = "URL", help_heading = "Server")]
    pub(crate) addr: Option<String>,
    /// The file with the operator token
    #[arg(long, global = true, env = "UMBEL_TOKEN_FILE", value_name = "FILE", help_heading = "Server")]
    pub(crate) token_file: Option<PathBuf>,
    /// The file with the CA that the server's certificate ends in
    #[arg(long, global = true, env = "UMBEL_CA_FILE", value_name = "FILE", help_heading = "Server")]
    pub(crate) ca_file: Option<PathBuf>,
    /// How long an answer may take
    #[arg(long, global = true, value_name = "SPAN", default_value = "15s", value_parser = span, help_heading = "Server")]
    pub(crate) timeout: Duration,
    /// Which sites: a name, a glob or `all`
    #[arg(short, long, global = true, value_name = "SITE", help_heading = "What")]
    pub(crate) site: Option<String>,
    /// Why; kept in the audit. Required for drain and revoke
    #[arg(short = 'm', long = "reason", global = true, value_name = "TEXT", help_heading = "Change")]
    pub(crate) reason: Option<String>,
    /// Only say what would change
    #[arg(long, global = true, help_heading = "Change")]
    pub(crate) dry_run: bool,
    /// Do not ask
    #[arg(short = 'y', long, global = true, help_heading = "Change")]
    pub(crate) yes: bool,
    /// The command's id, to repeat one without doing it twice [default: a new one]
    #[arg(long, global = true, value_name = "UUID", help_heading = "Change")]
    pub(crate) command_id: Option<uuid::Uuid>,
    /// Do not follow: print the command's id and end
    #[arg(long, global = true, help_heading = "Change")]
    pub(crate) detach: bool,
    /// Refused: other users of this host can read command lines
    #[arg(long, global = true, hide = true, value_name = "TOKEN", num_args = 0..=1)]
    pub(crate) token: Option<Option<String>>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Noun {
    /// Every site at a glance, problems first
    Status {
        /// Exit 3 when there is a problem
        #[arg(long)]
        check: bool,
    },
    /// Sites and their edges; tokens to enroll an edge
    #[command(visible_alias = "site", args_conflicts_with_subcommands = true)]
    Edge {
        /// Show this site: a name or the start of one
        name: Option<String>,
        #[command(subcommand)]
        verb: Option<EdgeVerb>,
    },
    /// Nodes: list, details, why one is not serving, drain
    #[command(args_conflicts_with_subcommands = true)]
    Node {
        /// Show this node: a name or id, or the start of one
        name: Option<String>,
        #[command(subcommand)]
        verb: Option<NodeVerb>,
    },
    /// Commands that were sent: how one ended, following one
    #[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
    Command {
        /// Show this command
        id: Option<String>,
        #[command(subcommand)]
        verb: Option<CommandVerb>,
    },
    /// What happens at the sites
    Events(EventsArgs),
    /// Enrollment tokens for nodes
    #[command(visible_alias = "enrollment", args_conflicts_with_subcommands = true)]
    Token {
        /// Show this token: an id or the start of one
        id: Option<String>,
        #[command(subcommand)]
        verb: Option<TokenVerb>,
    },
    /// API keys of applications
    #[command(visible_alias = "apikey", args_conflicts_with_subcommands = true)]
    Key {
        /// Show this key: an id or name, or the start of one
        id: Option<String>,
        #[command(subcommand)]
        verb: Option<KeyVerb>,
    },
    /// Operators of the control plane and their tokens
    #[command(args_conflicts_with_subcommands = true)]
    Operator {
        /// Show this operator: an id or name, or the start of one
        id: Option<String>,
        #[command(subcommand)]
        verb: Option<OperatorVerb>,
    },
    /// Requests that wait and run, a model each
    Queue {
        /// Only this model
        model: Option<String>,
    },
    /// Who did what
    ///
    /// Without --site the control plane's own record of commands; with --site the site's.
    Audit {
        /// The last N records
        #[arg(short = 'n', long, default_value_t = 50, value_name = "N")]
        limit: u32,
    },
}

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
        verb: EdgeTokenVerb,
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
    ///
    /// Example: umbel ctl edge token create berlin --out berlin.token
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
pub(crate) enum NodeVerb {
    /// List the nodes
    #[command(alias = "ls")]
    List,
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
    ///
    /// Example: umbel ctl node drain gpu-3 -m 'PSU swap' --deadline 10m
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
    #[arg(long, value_name = "ID")]
    pub(crate) after: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenVerb {
    /// Make a token for one node and print it once
    ///
    /// Example: umbel ctl token create gpu-4 --site berlin | ssh gpu-4 sudo umbel node enroll -
    Create {
        /// The node's name
        name: String,
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

#[derive(Debug, Subcommand)]
pub(crate) enum KeyVerb {
    /// Make a key for an application and print it once
    Create {
        /// The application's name
        name: String,
        /// Only these models; may be repeated [default: all]
        #[arg(long = "model", value_name = "MODEL")]
        models: Vec<String>,
        /// Write the key to this new file (mode 0600) instead of standard output
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// List the keys
    #[command(alias = "ls")]
    List,
    /// Revoke a key; requests that run go on
    Revoke {
        /// An id or name, or the start of one
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

/// Reads `90s`, `10m`, `1h30m`, `2d`.
fn span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a span of time (examples: 90s, 10m, 1h30m, 1d)");
    let mut total = Duration::ZERO;
    let mut rest = text;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let ms: u64 = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        let part = number.checked_mul(ms).map(Duration::from_millis).ok_or_else(wrong)?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = tail;
    }
    Ok(total)
}
