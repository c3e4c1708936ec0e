//! What the agent does: sockets, processes, files, the connection to the edge.

pub(crate) mod admin;
pub(crate) mod artifacts;
pub(crate) mod credential;
pub(crate) mod deployments;
pub(crate) mod edge;
pub(crate) mod engine_http;
pub(crate) mod engines;
pub(crate) mod gpu;
pub(crate) mod holder;
pub(crate) mod host;
pub(crate) mod jobs;
pub(crate) mod leash;
pub(crate) mod metrics;
pub(crate) mod output;
pub(crate) mod places;
pub(crate) mod process;
pub(crate) mod relay;
pub(crate) mod reports;
pub(crate) mod runtimes;
pub(crate) mod settings;
pub(crate) mod state;
pub(crate) mod watch;
