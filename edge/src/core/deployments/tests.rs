//! The reconciler against a small world: single steps, changes by operators, and histories from seeds.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

mod changes;
mod failures;
mod histories;
mod steps;
mod waits;
mod world;
