//! The adapters: each knows one kind of engine, and nothing else does.
//!
//! Owns what differs between kinds: checks of the host, command line, environment, whether it is ready.
//! Leaves processes and states to the supervisor. Invariant: no value of a profile becomes anything but one
//! argument, and no name of a program, variable or option comes from outside the node's own file.

pub(crate) mod adapter;
pub(crate) mod cli;
mod llama_server;
pub(crate) mod model_files;
#[cfg(test)]
mod options;
pub(crate) mod ready;
mod sglang;
pub(crate) mod sim;
mod vllm;
