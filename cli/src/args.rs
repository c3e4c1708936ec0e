//! The command line of `umbel`: every command, flag and help text.
//!
//! Owns parsing only; leaves doing to the rooms named after each command. Invariant: no argument takes a
//! secret; the hidden ones that look as if they did exist to refuse it with an explanation.

mod artifact;
mod ctl;
mod engine;
mod jobs;
mod keys;
mod model;
mod node;
mod records;
mod requests;
mod span;
mod verbs;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use artifact::{ArtifactFilter, ArtifactResolve, ArtifactVerb};
pub(crate) use ctl::{CtlArgs, Global, Noun};
pub(crate) use engine::{EngineProbe, EngineVerb};
pub(crate) use jobs::{JobFilter, JobVerb};
pub(crate) use keys::{By, KeyCreate, KeyUpdate, KeyUsage, KeyVerb};
pub(crate) use model::{ModelVerb, ReplicaChoice};
pub(crate) use node::NodeVerb;
pub(crate) use records::{AuditFilter, AuditVerb, CaVerb, SettingsVerb, Step};
pub(crate) use requests::{RequestFilter, RequestVerb};
pub(crate) use verbs::{CommandVerb, EdgeTokenVerb, EdgeVerb, EventsArgs, OperatorVerb, Role, TokenVerb};

/// Runs LLM engines on many sites and lets operators steer all of them from one place.
#[derive(Debug, Parser)]
#[command(name = "umbel", version, max_term_width = 110, after_help = ROOT_EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const ROOT_EXAMPLES: &str = "Examples:
  umbel dev                        try a whole fleet on this machine
  umbel ctl status                 every site, problems first
  umbel ctl node why gpu-3         what keeps a node from serving

Exit codes: 0 done, 1 failed, 2 usage, 3 condition not met or failed preflight,
4 unreachable, 5 not allowed, 6 not found or ambiguous, 7 conflict,
78 bad configuration, 124 timed out, 130 interrupted";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the control plane, or set it up
    ControlPlane(ControlPlaneArgs),
    /// Run a site's edge, or set it up
    Edge(EdgeArgs),
    /// Run a host's agent, or set it up
    Node(NodeArgs),
    /// Run a whole fleet on loopback, to try things out
    Dev(DevArgs),
    /// Operate a fleet or a site
    Ctl(Box<CtlArgs>),
    /// Check and show configuration files
    Config {
        #[command(subcommand)]
        verb: ConfigVerb,
    },
    /// Print a completion script
    ///
    /// Example: umbel completions bash > /etc/bash_completion.d/umbel
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the version and the wire protocols
    Version {
        /// How to print it
        #[arg(short, long, value_enum, default_value = "table")]
        output: crate::output::Format,
    },
}

/// What every daemon command takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct DaemonFlags {
    /// The configuration file [default: this tier's in /etc/umbel]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// End when standard input ends: `umbel dev` holds the other end of a pipe
    #[arg(long, global = true, hide = true)]
    pub(crate) parent_pipe: bool,
}

#[derive(Debug, Args)]
#[command(mut_arg("config", |config| config.help("The configuration file [default: /etc/umbel/control-plane.toml]")))]
pub(crate) struct ControlPlaneArgs {
    #[command(flatten)]
    pub(crate) flags: DaemonFlags,
    #[command(subcommand)]
    pub(crate) verb: Option<ControlPlaneVerb>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ControlPlaneVerb {
    /// Make the CA and the first admin token (a file that only you can read)
    Init(DoctorFlags),
    /// Check the file, the state directory and the ports
    Doctor(DoctorFlags),
    /// Copy the store, consistently, also while the control plane runs
    Backup(BackupFlags),
    /// Put a backup in place of the store; the control plane must not run
    Restore(RestoreFlags),
}

#[derive(Debug, Args)]
#[command(mut_arg("config", |config| config.help("The configuration file [default: /etc/umbel/edge.toml]")))]
pub(crate) struct EdgeArgs {
    #[command(flatten)]
    pub(crate) flags: DaemonFlags,
    #[command(subcommand)]
    pub(crate) verb: Option<EdgeDaemonVerb>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EdgeDaemonVerb {
    /// Make a site that stands alone: its name, CA and store
    Init {
        /// The site's name, a DNS label [default: the file's]
        #[arg(long, value_name = "NAME")]
        site: Option<String>,
    },
    /// Join a control plane with a single-use token
    ///
    /// The token is asked for without echo; or it is read from standard input with `-`, or from a file.
    Enroll(TokenSource),
    /// Check the file, the state directory, the ports and the way to each control plane
    Doctor(DoctorFlags),
    /// Copy the store, consistently, also while the edge runs
    Backup(BackupFlags),
    /// Put a backup in place of the store; the edge must not run
    Restore(RestoreFlags),
}

#[derive(Debug, Args)]
#[command(mut_arg("config", |config| config.help("The configuration file [default: /etc/umbel/node.toml]")))]
pub(crate) struct NodeArgs {
    #[command(flatten)]
    pub(crate) flags: DaemonFlags,
    /// Only check the accelerators and end; never connects
    #[arg(long)]
    pub(crate) preflight: bool,
    #[command(subcommand)]
    pub(crate) verb: Option<NodeDaemonVerb>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeDaemonVerb {
    /// Join an edge with a single-use token
    ///
    /// The token is asked for without echo; or it is read from standard input with `-`, or from a file.
    Enroll(TokenSource),
    /// Check the file, the accelerators, the engines and the way to the edge
    Doctor(DoctorFlags),
    /// Ask the running agent how it is; works without the edge
    Status(DoctorFlags),
    /// End the engines that run on without the agent; the agent must not run
    StopEngines(DoctorFlags),
}

/// How checks are printed.
#[derive(Debug, Clone, Args)]
pub(crate) struct DoctorFlags {
    /// How to print it: table, json, jsonl or yaml
    #[arg(short, long, value_enum, default_value = "table", hide_possible_values = true)]
    pub(crate) output: crate::output::Format,
}

/// What is put back, and the assurance that it is meant.
#[derive(Debug, Clone, Args)]
pub(crate) struct RestoreFlags {
    /// The backup
    pub(crate) file: PathBuf,
    /// Do not ask
    #[arg(short = 'y', long)]
    pub(crate) yes: bool,
    /// How to print what was done: table, json, jsonl or yaml
    #[arg(short, long, value_enum, default_value = "table", hide_possible_values = true)]
    pub(crate) output: crate::output::Format,
}

/// Where a copy goes.
#[derive(Debug, Clone, Args)]
pub(crate) struct BackupFlags {
    /// Copy to this new file; only while the daemon does not run [default: into the backup directory of its file]
    #[arg(long, value_name = "FILE")]
    pub(crate) to: Option<PathBuf>,
    /// How to print what was made: table, json, jsonl or yaml
    #[arg(short, long, value_enum, default_value = "table", hide_possible_values = true)]
    pub(crate) output: crate::output::Format,
}

/// Where an enrollment token is read from.
#[derive(Debug, Clone, Args)]
pub(crate) struct TokenSource {
    /// `-` reads the token from standard input
    #[arg(value_name = "-", allow_hyphen_values = true)]
    pub(crate) source: Option<String>,
    /// Reads the token from a file
    #[arg(long, value_name = "FILE", conflicts_with = "source")]
    pub(crate) token_file: Option<PathBuf>,
    /// Refused: other users of this host can read command lines
    #[arg(long, hide = true, value_name = "TOKEN", num_args = 0..=1)]
    pub(crate) token: Option<Option<String>>,
    /// How to print what it joined as: table, json, jsonl or yaml
    #[arg(short, long, value_enum, default_value = "table", hide_possible_values = true)]
    pub(crate) output: crate::output::Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineKind {
    /// Built in: answers by rule, needs no model
    Sim,
    /// llama.cpp's server with a GGUF file
    LlamaServer,
}

/// A control plane, its sites and their nodes on loopback, one process each.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  umbel dev                                     one site, one node, the built-in engine
  umbel dev --sites 2 --nodes 3 --keep fleet    kept in ./fleet; the same command starts it again
  umbel dev --engine llama-server --model SmolLM2-135M.gguf")]
pub(crate) struct DevArgs {
    /// Sites, each with an edge [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) sites: Option<u16>,
    /// Nodes in all, spread over the sites in turn [default: one a site]
    #[arg(long, value_name = "N")]
    pub(crate) nodes: Option<u16>,
    /// What the nodes run [default: sim]
    #[arg(long, value_enum)]
    pub(crate) engine: Option<EngineKind>,
    /// The GGUF file that llama-server loads
    #[arg(long, value_name = "FILE")]
    pub(crate) model: Option<PathBuf>,
    /// The llama-server program [default: the one in PATH]
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
    /// Keeps everything in this folder, and starts again what is in it
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tier {
    /// control-plane.toml
    ControlPlane,
    /// edge.toml
    Edge,
    /// node.toml
    Node,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigVerb {
    /// Check files: unknown keys, wrong values, with file and line
    Check(ConfigArgs),
    /// Print a file as it is, after checking it
    Show(ConfigArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ConfigArgs {
    /// Which tier's file it is [default: by the file's name or its first table]
    #[arg(long, value_enum)]
    pub(crate) tier: Option<Tier>,
    /// The files [default: those in /etc/umbel]
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
}
