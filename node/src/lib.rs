//! The node agent: runs the engines of one host and relays requests to them.
//!
//! Owns the host's side of the edge-node boundary: identity, engines, inventory, the stream relay.
//! Leaves to others: frames and TLS (`umbel_wire`), messages (`umbel_contracts`), who may run what (the edge).
//! Invariant: the agent opens one connection, to its edge; it listens only on a local socket.
//!
//! `core` decides and has no I/O; `shell` does; `engines` knows one kind of engine a file.

mod app;
mod config;
mod core;
mod doctor;
#[cfg(feature = "simulation")]
pub mod downloads;
mod engines;
mod enroll;
mod preflight;
mod shell;
#[cfg(feature = "simulation")]
pub mod simulation;
mod status;
mod stop_engines;

pub use app::run;
pub use config::{Accelerator, Artifacts, Config, Remote, Source};
pub use doctor::doctor;
pub use enroll::{Enrolled, enroll};
pub use preflight::{Preflight, PreflightGpu, preflight};
pub use shell::artifacts::listing::{Resolved, resolve_at_hub, resolve_in_folder};
pub use shell::holder::hold;
pub use status::status;
pub use stop_engines::stop_engines;
pub use umbel_contracts::daemon::{Check, StartError};
