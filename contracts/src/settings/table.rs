//! The keys of the settings: what each may hold, and which keys of the hosts' files can not be set.
//!
//! Owns the tables. Leaves the walk over a document to `walk`, rules between fields to `rules`. Invariant: every key of a
//! host's file stands here, with what it may hold or why it stays there.

use super::CAPACITY_MAX;

const SECOND: u64 = 1_000;
const HOUR: u64 = 3_600 * SECOND;
const DAY: u64 = 24 * HOUR;

/// What a key holds.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// Milliseconds, both ends included.
    Duration(u64, u64),
    /// Bytes, both ends included.
    Size(u64, u64),
    /// Both ends included.
    Number(u64, u64),
    Flag,
    Word(&'static [&'static str]),
    /// A `tracing` filter.
    Filter,
    /// A model's name.
    Model,
    /// Other names of a model.
    Models,
    /// A file below a root that the node's own file names: `ROOT/PATH`.
    Below,
    Labels,
    Table(&'static [Key]),
    /// Engines by their names.
    Engines(&'static [Key]),
    /// Nodes by their ids.
    Nodes(&'static [Key]),
    /// A key of the host's file that can not be set, and why.
    Stays(&'static str),
}

pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
}

const fn key(name: &'static str, kind: Kind) -> Key {
    Key { name, kind }
}

const IDENTITY: &str = "it is part of the host's identity and stays in its own file";
const PLACE: &str = "directories and sockets stay in the host's own file";
const ADDRESS: &str = "addresses and ports never leave their host: it stays in the node's own file";
const PERMISSION: &str = "what a host permits stands in its own file only";
const FABRIC: &str = "what fabric a host hangs on stands in its own file";
const PROGRAM: &str = "programs are named by the host's own file only";
const OF_FILE: &str = "it stands in the node's own file, or in a deployment";
const FORMAT: &str = "the log's form is fixed when the process starts: it stays in the host's own file";

static LOG: [Key; 2] = [key("level", Kind::Filter), key("format", Kind::Stays(FORMAT))];

pub(super) static DOCUMENT: [Key; 2] = [key("edge", Kind::Table(&EDGE)), key("agents", Kind::Table(&AGENTS))];

static AGENTS: [Key; 2] = [key("default", Kind::Table(&AGENT)), key("nodes", Kind::Nodes(&AGENT))];

pub(super) static AGENT: [Key; 21] = [
    key("log", Kind::Table(&LOG)),
    key("shutdown", Kind::Table(&NODE_SHUTDOWN)),
    key("labels", Kind::Labels),
    key("engines", Kind::Engines(&ENGINE)),
    key("name", Kind::Stays(IDENTITY)),
    key("node", Kind::Stays("the keys of [node] stay in the node's own file; labels are set as labels.KEY")),
    key("state_dir", Kind::Stays(PLACE)),
    key("accelerator", Kind::Stays("what hardware a host must have stays in its own file")),
    key("nvml_library", Kind::Stays(PROGRAM)),
    key("allow_sim", Kind::Stays(PERMISSION)),
    key("allow_cli", Kind::Stays(PERMISSION)),
    key("listen", Kind::Stays(PLACE)),
    key("programs", Kind::Stays(PROGRAM)),
    key("endpoints", Kind::Stays(ADDRESS)),
    key("sources", Kind::Stays("the list of sources stays in the node's own file")),
    key("artifacts", Kind::Stays(PLACE)),
    key("allow_volatile_state", Kind::Stays(PERMISSION)),
    key("fabric_labels", Kind::Stays(FABRIC)),
    key("fabric", Kind::Stays(FABRIC)),
    key("edge", Kind::Stays("where its edge is, a node keeps from its enrollment")),
    key("engine", Kind::Stays("engines are set by name, as engines.NAME.capacity")),
];

static NODE_SHUTDOWN: [Key; 1] = [key("drain", Kind::Duration(0, 24 * HOUR))];

static ENGINE: [Key; 27] = [
    key("enabled", Kind::Flag),
    key("kind", Kind::Word(&["sim", "external", "llama-server"])),
    key("model", Kind::Model),
    key("aliases", Kind::Models),
    key("category", Kind::Word(&["local_inference", "api"])),
    key("capacity", Kind::Number(1, CAPACITY_MAX as u64)),
    key("max_context_tokens", Kind::Number(0, 100_000_000)),
    key("long_context_threshold_tokens", Kind::Number(0, 100_000_000)),
    key("long_context_capacity", Kind::Number(0, CAPACITY_MAX as u64)),
    key("first_token_delay", Kind::Duration(0, HOUR)),
    key("token_delay", Kind::Duration(0, HOUR)),
    key("tokens", Kind::Number(1, 1_000_000)),
    key("model_file", Kind::Below),
    key("context_tokens", Kind::Number(0, 100_000_000)),
    key("threads", Kind::Number(0, 1024)),
    key("start_timeout", Kind::Duration(SECOND, 24 * HOUR)),
    key("name", Kind::Stays("the name is the key of the table: engines.NAME")),
    key("url", Kind::Stays(ADDRESS)),
    key("port", Kind::Stays(ADDRESS)),
    key("program", Kind::Stays(PROGRAM)),
    key("timeout", Kind::Stays(OF_FILE)),
    key("model_folder", Kind::Stays(OF_FILE)),
    key("gpus", Kind::Stays(OF_FILE)),
    key("stall_timeout", Kind::Stays(OF_FILE)),
    key("profile", Kind::Stays(OF_FILE)),
    key("environment", Kind::Stays("an engine's environment stays in the node's own file")),
    key("args", Kind::Stays("an engine's arguments are made from its typed keys")),
];

pub(super) static EDGE: [Key; 14] = [
    key("api", Kind::Table(&API)),
    key("metrics", Kind::Table(&METRICS)),
    key("queue", Kind::Table(&QUEUE)),
    key("upstream", Kind::Table(&UPSTREAM)),
    key("liveness", Kind::Table(&LIVENESS)),
    key("log", Kind::Table(&LOG)),
    key("shutdown", Kind::Table(&EDGE_SHUTDOWN)),
    key("clock", Kind::Table(&CLOCK)),
    key("audit", Kind::Table(&AUDIT)),
    key("edge", Kind::Stays("the keys of [edge] stay in the edge's own file")),
    key("site", Kind::Stays(IDENTITY)),
    key("listen", Kind::Stays(PLACE)),
    key("tls", Kind::Stays("certificates stay in the edge's own file")),
    key("backup", Kind::Stays(PLACE)),
];

static API: [Key; 4] = [
    key("body_max", Kind::Size(1024, 16 << 30)),
    key("keepalive", Kind::Duration(SECOND, HOUR)),
    key("held_max", Kind::Size(1024, 1 << 40)),
    key("stream_usage", Kind::Word(&["as_asked", "always"])),
];

static METRICS: [Key; 1] = [key("keys", Kind::Flag)];

static QUEUE: [Key; 3] = [
    key("max_requests", Kind::Number(1, 1_000_000)),
    key("max_wait", Kind::Duration(1, 24 * HOUR)),
    key("max_wait_loading", Kind::Duration(1, 24 * HOUR)),
];

static UPSTREAM: [Key; 2] = [
    key("first_byte_timeout", Kind::Duration(SECOND, 24 * HOUR)),
    key("idle_timeout", Kind::Duration(SECOND, 24 * HOUR)),
];

static LIVENESS: [Key; 3] = [
    key("stale", Kind::Duration(1, 24 * HOUR)),
    key("offline", Kind::Duration(1, 7 * DAY)),
    key("heartbeat", Kind::Stays("nodes are told it when they connect: it stays in the edge's own file")),
];

static EDGE_SHUTDOWN: [Key; 1] = [key("drain", Kind::Duration(0, 7 * DAY))];

static CLOCK: [Key; 1] = [key("allowed_skew", Kind::Duration(SECOND, 24 * HOUR))];

static AUDIT: [Key; 2] =
    [key("keep", Kind::Duration(DAY, 36_500 * DAY)), key("max_entries", Kind::Number(1_000, 100_000_000))];
