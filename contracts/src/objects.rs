//! The JSON objects of the operator API: what `-o json` prints, what an operation returns, what the HTTP API serves.
//!
//! Owns: their shapes and the one conversion a message of the wire. Leaves to others: where the figures come from.
//! Invariant: snake_case, times in RFC 3339 UTC, bytes as integers; fields and words are only ever added, and a reader
//! takes words and fields it does not know.

mod deployment;
mod fleet;
mod job;
mod node;
mod placement;
mod queue;
mod request;
mod site;
mod words;

pub use deployment::*;
pub use fleet::*;
pub use job::*;
pub use node::*;
pub use placement::*;
pub use queue::*;
pub use request::*;
pub use site::*;
pub use words::*;
