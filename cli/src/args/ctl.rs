//! The command line of `umbel ctl`: its nouns and the flags that all of them take.
//!
//! Owns parsing only. A noun alone lists, a noun with a name shows details. Invariant: flags may stand before or
//! after the verb.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};

use super::{
    artifact::{ArtifactFilter, ArtifactVerb},
    engine::EngineVerb,
    jobs::{JobFilter, JobVerb},
    keys::KeyVerb,
    model::ModelVerb,
    node::NodeVerb,
    records::{AuditFilter, AuditVerb, CaVerb, SettingsVerb},
    requests::{RequestFilter, RequestVerb},
    span::span,
    verbs::{CommandVerb, EdgeVerb, EventsArgs, OperatorVerb, TokenVerb},
};
use crate::output::{ColorChoice, Format};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  umbel ctl status                        every site, problems first
  umbel ctl node                          all nodes; `umbel ctl node gpu-3` shows one
  umbel ctl node why gpu-3                what keeps it from serving, and the next step
  umbel ctl token create gpu-4 --site berlin
  umbel ctl events -f -o jsonl

The server: --socket, or --addr with --token-file and --ca-file; else UMBEL_SOCKET,
else UMBEL_ADDR, else the socket of a control plane or an edge on this host.")]
pub(crate) struct CtlArgs {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) noun: Noun,
}

/// Flags of every `ctl` command.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// table, wide (every column), json (the API's object), jsonl (one object a line), yaml, name
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        default_value = "table",
        hide_possible_values = true,
        value_name = "FORMAT",
        help_heading = "Output"
    )]
    pub(crate) output: Format,
    /// auto (on a terminal, unless NO_COLOR is set), always, never
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "auto",
        hide_possible_values = true,
        value_name = "WHEN",
        help_heading = "Output"
    )]
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
    /// The file with the operator token [env: UMBEL_TOKEN_FILE]
    #[arg(
        long,
        global = true,
        env = "UMBEL_TOKEN_FILE",
        hide_env = true,
        value_name = "FILE",
        help_heading = "Server"
    )]
    pub(crate) token_file: Option<PathBuf>,
    /// The file with the CA that the server's certificate ends in [env: UMBEL_CA_FILE]
    #[arg(
        long,
        global = true,
        env = "UMBEL_CA_FILE",
        hide_env = true,
        value_name = "FILE",
        help_heading = "Server"
    )]
    pub(crate) ca_file: Option<PathBuf>,
    /// How long an answer may take
    #[arg(long, global = true, value_name = "SPAN", default_value = "15s", value_parser = super::span::some, help_heading = "Server")]
    pub(crate) timeout: Duration,
    /// Which sites: a name, a glob or `all`
    #[arg(short, long, global = true, value_name = "SITE", help_heading = "What")]
    pub(crate) site: Option<String>,
    /// Why; kept in the audit. Required where something is taken away or back: drain, disable, revoke, unload, delete, stop, remove, rollback, ...
    #[arg(short = 'm', long = "reason", global = true, value_name = "TEXT", help_heading = "Change")]
    pub(crate) reason: Option<String>,
    /// Only say what would change
    #[arg(long, global = true, help_heading = "Change")]
    pub(crate) dry_run: bool,
    /// Do not ask; what is changed must be named in full then
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

const EDGE_EXAMPLES: &str = "Examples:
  umbel ctl edge                                  the sites
  umbel ctl edge berlin                           one of them
  umbel ctl edge token create berlin --out t      what `umbel edge enroll` takes
  umbel ctl edge revoke berlin -m stolen --confirm berlin";
const NODE_EXAMPLES: &str = "Examples:
  umbel ctl node                                  the nodes of every site
  umbel ctl node gpu-3 -o json                    one of them, as the API has it
  umbel ctl node why gpu-3                        every check with the next step
  umbel ctl node drain gpu-3 -m 'PSU swap' --deadline 10m
  umbel ctl node label gpu-3 rack=r12 spare-      sets one label, takes one away
  umbel ctl node disable gpu-3 -m 'bad memory'    keeps it out until it is enabled
  umbel ctl node decommission gpu-3 --preview     what is lost when it is retired";
const COMMAND_EXAMPLES: &str = "Examples:
  umbel ctl node drain gpu-3 -m why --detach      prints the command's id
  umbel ctl command watch ID                      follows it; Ctrl-C detaches";
const TOKEN_EXAMPLES: &str = "Examples:
  umbel ctl token create gpu-4 --site berlin --label rack=r12
  umbel ctl token create gpu-4 --eligible | ssh gpu-4 sudo umbel node enroll -
  umbel ctl token create --names-file hosts --out tokens    one for each, NODE TOKEN a line
  umbel ctl token create --replace gpu-4          its key or its machine was lost
  umbel ctl token revoke ID -m 'sent to the wrong person'";
const KEY_EXAMPLES: &str = "Examples:
  umbel ctl key create webshop --site berlin --out webshop.key
  umbel ctl key create nightly --model small --priority 10 --rpm 600 --tpm 200k --at-once 8
  umbel ctl key                                   who has one, its limits, when it was last used
  umbel ctl key update nightly --tpm 500k --at-once none -m 'the new index'
  umbel ctl key usage nightly --by day --since 7d
  umbel ctl key revoke webshop -m leaked";
const OPERATOR_EXAMPLES: &str = "Examples:
  umbel ctl operator create ada --role admin --out ada.token
  umbel ctl operator revoke ada -m 'left the team'";

const ENGINE_EXAMPLES: &str = "Examples:
  umbel ctl engine                                every engine, with its node and state
  umbel ctl engine logs qwen3.r1 -f               what it writes
  umbel ctl engine restart gpu-3/chat --deadline 1m
  umbel ctl engine stop qwen3.r1 -m 'bad GPU'
  umbel ctl engine health qwen3.r1                process, port, health, model: layer by layer
  umbel ctl engine probe qwen3.toml --node gpu-3  try it out there: start it, ask it, measure it, end it";
const ARTIFACT_EXAMPLES: &str = "Examples:
  umbel ctl artifact                              which files are on which node, and who needs them
  umbel ctl artifact resolve Qwen/Qwen3-0.6B --exclude '*.md' >>qwen3.toml
  umbel ctl artifact acquire qwen3.toml --node label:tier=gpu
  umbel ctl artifact remove Qwen/Qwen3-0.6B --node node:gpu-3 -m 'out of use'";
const MODEL_EXAMPLES: &str = "Examples:
  umbel ctl model apply qwen3.toml                have it served, and follow until it is
  umbel ctl model                                 what the site should serve, and how far it is
  umbel ctl model drain qwen3 -m 'new hardware'   until umbel ctl model load qwen3
  umbel ctl model restart qwen3 --replica 2
  umbel ctl model delete qwen3 -m 'out of use'    its files stay: umbel ctl artifact remove
  umbel ctl model plan qwen3.toml                 where it would run, without applying it
  umbel ctl model why qwen3                       why a replica has no place, and what would help";
const QUEUE_EXAMPLES: &str = "Examples:
  umbel ctl queue                                 every model: state, numbers, next step
  umbel ctl queue qwen3-32b                       whose requests wait, who serves it
  umbel ctl queue -w";
const REQUEST_EXAMPLES: &str = "Examples:
  umbel ctl request                               the newest ones
  umbel ctl request req_01kb7d2m6yq3              one, by the id that its client has
  umbel ctl request --running --slow 1m           that have been running for a minute
  umbel ctl request --model qwen3-32b --status 5xx --key webshop
  umbel ctl request --unconfirmed                 slots that no node gave back
  umbel ctl request release LEASE -m 'engine restarted by hand'";

const JOB_EXAMPLES: &str = "Examples:
  umbel ctl job                                   the newest ones
  umbel ctl job --running --kind artifact.acquire
  umbel ctl job watch 0b6c9a52                    follow one, with a bar; Ctrl-C detaches
  umbel ctl job cancel 0b6c9a52 -m 'wrong revision'";
const SETTINGS_EXAMPLES: &str = "Examples:
  umbel ctl settings                              what is set, and how far it has got
  umbel ctl settings set agents.default.log.level=debug -m 'look for a leak'
  umbel ctl settings set agents.nodes.gpu-3.engines.chat.capacity=8
  umbel ctl settings show --node gpu-3            what is in force there
  umbel ctl settings history; umbel ctl settings diff 6 7
  umbel ctl settings rollback 6 -m 'as before'";
const AUDIT_EXAMPLES: &str = "Examples:
  umbel ctl audit --site berlin --action 'node.*' --since 2d
  umbel ctl audit tail -f
  umbel ctl audit verify --site berlin
  umbel ctl audit export --site berlin --out berlin.audit; umbel ctl audit verify --file berlin.audit

Without --site the server's own record: a control plane's of commands, an edge's of its site.";
const CA_EXAMPLES: &str = "Examples, in this order:
  umbel ctl ca rotate begin --site berlin         a new authority, told to the nodes
  umbel ctl ca --site berlin                      until no node lacks it
  umbel ctl ca rotate switch --site berlin        it signs; nodes get new certificates
  umbel ctl ca rotate finish --site berlin        the old one is trusted no more";

#[derive(Debug, Subcommand)]
pub(crate) enum Noun {
    /// Every site at a glance, problems first
    Status {
        /// Exit 3 when there is a problem
        #[arg(long)]
        check: bool,
    },
    /// Sites and their edges; tokens to enroll an edge
    #[command(visible_alias = "site", args_conflicts_with_subcommands = true, after_help = EDGE_EXAMPLES)]
    Edge {
        /// Show this site: a name or the start of one
        name: Option<String>,
        #[command(subcommand)]
        verb: Option<EdgeVerb>,
    },
    /// Nodes: list, details, why one is not serving; drain, disable, rename, retire
    #[command(args_conflicts_with_subcommands = true, after_help = NODE_EXAMPLES)]
    Node {
        /// Show this node: a name or id, or the start of one
        name: Option<String>,
        #[command(subcommand)]
        verb: Option<NodeVerb>,
    },
    /// Commands that were sent: how one ended, following one
    #[command(args_conflicts_with_subcommands = true, arg_required_else_help = true, after_help = COMMAND_EXAMPLES)]
    Command {
        /// Show this command
        id: Option<String>,
        #[command(subcommand)]
        verb: Option<CommandVerb>,
    },
    /// What happens at the sites
    Events(EventsArgs),
    /// Enrollment tokens for nodes
    #[command(visible_alias = "enrollment", args_conflicts_with_subcommands = true, after_help = TOKEN_EXAMPLES)]
    Token {
        /// Show this token: an id or the start of one
        id: Option<String>,
        #[command(subcommand)]
        verb: Option<TokenVerb>,
    },
    /// API keys of applications: what each may do, and what was used with it
    #[command(visible_alias = "apikey", args_conflicts_with_subcommands = true, after_help = KEY_EXAMPLES)]
    Key {
        /// Show this key: an id or name, or the start of one
        id: Option<String>,
        #[command(subcommand)]
        verb: Option<KeyVerb>,
    },
    /// Operators of the control plane and their tokens
    #[command(args_conflicts_with_subcommands = true, after_help = OPERATOR_EXAMPLES)]
    Operator {
        /// Show this operator: an id or name, or the start of one
        id: Option<String>,
        #[command(subcommand)]
        verb: Option<OperatorVerb>,
    },
    /// Deployments: what a site should serve
    #[command(visible_alias = "deployment", args_conflicts_with_subcommands = true, after_help = MODEL_EXAMPLES)]
    Model {
        /// Show this deployment: a name or the start of one
        name: Option<String>,
        #[command(subcommand)]
        verb: Option<ModelVerb>,
    },
    /// Engines: the processes that compute, their output, ending and starting one
    #[command(visible_alias = "provider", args_conflicts_with_subcommands = true, after_help = ENGINE_EXAMPLES)]
    Engine {
        /// Show this engine: its name, NODE/NAME, or the start of one
        name: Option<String>,
        #[command(subcommand)]
        verb: Option<EngineVerb>,
    },
    /// Requests that wait and run, a model each, with the next step
    #[command(after_help = QUEUE_EXAMPLES)]
    Queue {
        /// This model, with whose requests wait and who serves it
        model: Option<String>,
    },
    /// Work that nodes do for their edge: downloads, loads, looks; following one, ending one
    #[command(args_conflicts_with_subcommands = true, after_help = JOB_EXAMPLES)]
    Job {
        /// Show this job: an id, or the start of one
        id: Option<String>,
        #[command(flatten)]
        filter: JobFilter,
        #[command(subcommand)]
        verb: Option<JobVerb>,
    },
    /// Requests of applications: those that run, the last ones that ended; one by its x-request-id
    #[command(args_conflicts_with_subcommands = true, after_help = REQUEST_EXAMPLES)]
    Request {
        /// Show this request: its x-request-id
        id: Option<String>,
        #[command(flatten)]
        filter: RequestFilter,
        #[command(subcommand)]
        verb: Option<RequestVerb>,
    },
    /// Files of models on nodes: which there are, bringing and removing them, the list that a deployment names
    #[command(args_conflicts_with_subcommands = true, after_help = ARTIFACT_EXAMPLES)]
    Artifact {
        #[command(flatten)]
        filter: ArtifactFilter,
        #[command(subcommand)]
        verb: Option<ArtifactVerb>,
    },
    /// A site's settings: the edge's own and those of its nodes' agents
    #[command(visible_alias = "config", after_help = SETTINGS_EXAMPLES)]
    Settings {
        #[command(subcommand)]
        verb: Option<SettingsVerb>,
    },
    /// Who did what
    #[command(args_conflicts_with_subcommands = true, after_help = AUDIT_EXAMPLES)]
    Audit {
        #[command(flatten)]
        filter: AuditFilter,
        /// The last N records
        #[arg(short = 'n', long, default_value_t = 50, value_name = "N")]
        limit: u32,
        #[command(subcommand)]
        verb: Option<AuditVerb>,
    },
    /// A site's certificate authority, and changing it
    #[command(after_help = CA_EXAMPLES)]
    Ca {
        #[command(subcommand)]
        verb: Option<CaVerb>,
    },
}
