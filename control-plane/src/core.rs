//! What the control plane decides. Nothing here names a socket, a file, a task, a clock that ticks or a random
//! source; time and randomness are arguments.

pub(crate) mod audit;
pub(crate) mod commands;
pub(crate) mod edges;
pub(crate) mod enrollments;
pub(crate) mod fleet;
pub(crate) mod identities;
pub(crate) mod operators;
pub(crate) mod views;
pub(crate) mod witness;
