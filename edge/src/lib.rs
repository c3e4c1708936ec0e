//! The edge: one process that owns a site.
//!
//! It owns the site's nodes (identity and lifecycle on disk, liveness in memory), enrollment tokens, API keys,
//! admission and the OpenAI surface. It leaves engines to the nodes and operators of the fleet to the control
//! plane, without which it works as well.
//!
//! `core` decides and does no I/O; `shell` owns sockets, tasks and the store; `http` serves applications.

mod app;
mod backup;
mod config;
mod core;
#[cfg(feature = "simulation")]
pub mod crowd;
mod doctor;
mod enroll;
mod http;
mod init;
mod metrics;
#[cfg(feature = "simulation")]
pub mod placing;
mod shell;
#[cfg(feature = "simulation")]
pub mod simulation;
#[cfg(test)]
mod tests;

pub use app::run;
pub use backup::{BackedUp, Restored, backup, restore};
pub use config::{Api, Audit, Backup, Clock, Config, Listen, Liveness, Log, Queue, Upstream};
pub use doctor::doctor;
pub use enroll::{Enrolled, enroll};
pub use init::{Initialised, init};
pub use umbel_contracts::daemon::{Check, StartError};
