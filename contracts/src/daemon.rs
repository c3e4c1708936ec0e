//! What every daemon promises to whoever runs it: exit codes, the steps of its doctor, signals, a local socket that
//! only its owner can open, metrics in one form, memory that goes back to the system, and as many descriptors as it
//! may have.
//!
//! It leaves what is checked, started and served to each tier. Invariant: a new daemon behaves as the others do
//! without writing any of this again.

mod build;
mod check;
mod descriptors;
pub mod exposition;
mod log_level;
pub mod memory;
mod ports;
mod process;
mod signals;
mod socket;
mod start_error;

pub use build::BUILD;
pub use check::Check;
pub use descriptors::raise_descriptors;
pub use log_level::{on_log_level, set_log_level};
pub use ports::{bind, bind_if_on};
pub use process::{ProcessFigure, process_figures};
pub use signals::Signals;
pub use socket::{LocalListener, answers};
pub use start_error::StartError;
