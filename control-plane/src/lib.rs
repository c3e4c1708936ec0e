//! The control plane: which edges may connect, what they last said, and operations relayed to them.
//!
//! It owns the edges' identities, the operators' tokens and the audit of commands, and holds one view an edge in
//! memory. It leaves everything of a site to its edge: it schedules nothing, dials nobody, and after a restart
//! knows nothing of a site until the edge says it again.
//!
//! `core` decides and does no I/O; `shell` owns sockets, tasks and the store; `http` answers operators.

mod app;
mod backup;
mod config;
mod core;
mod doctor;
mod http;
mod init;
mod metrics;
mod shell;
#[cfg(feature = "simulation")]
pub mod simulation;

pub use app::{Running, run};
pub use backup::{BackedUp, Restored, backup, restore};
pub use config::{Backup, Config};
pub use doctor::doctor;
pub use init::{Initialised, init};
pub use umbel_contracts::daemon::{Check, StartError};
