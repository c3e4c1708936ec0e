//! What the agent decides, without I/O: time, randomness and bytes are arguments.
//!
//! Owns the engines' states, the node's identity rules and its sequences; leaves sockets, files and processes to
//! `shell`. Invariant: nothing here can block or fail for a reason outside its arguments.

pub(crate) mod artifacts;
pub(crate) mod deployments;
pub(crate) mod gpus;
pub(crate) mod holding;
pub(crate) mod identity;
pub(crate) mod inventory;
pub(crate) mod jobs;
pub(crate) mod listening;
pub(crate) mod problems;
pub(crate) mod process_tree;
pub(crate) mod sequence;
pub(crate) mod settings;
pub(crate) mod supervisor;
pub(crate) mod tail;
pub(crate) mod telemetry;
pub(crate) mod usage;
