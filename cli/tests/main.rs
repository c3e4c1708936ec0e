//! The binary from outside: exit codes, what goes to which stream, tables and JSON from canned answers, secrets.
//!
//! Everything runs the real `umbel` as a process. Golden files are rewritten with `UMBEL_BLESS=1`.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod artifacts;
mod configuration;
mod ctl;
mod dev;
mod keys;
mod nodes;
mod placement;
mod records;
mod run;
mod secrets;
mod server;
mod usage;
