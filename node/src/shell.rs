//! What the agent does: sockets, processes, files, the connection to the edge.

pub(crate) mod engine_http;
pub(crate) mod output;
pub(crate) mod process;
