#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

mod changes;
mod histories;
mod steps;
mod world;
