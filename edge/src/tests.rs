//! The whole edge in one process, with fake nodes and a fake control plane over real TLS on loopback.
//!
//! Each test names the row of the fault catalogue that it covers, if it covers one. No test asserts a duration and
//! none sleeps for a result; each waits for a condition with a limit.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::too_many_lines,
    reason = "a test stops at the first surprise"
)]

mod admin;
mod agreement;
mod approval;
mod breaking;
mod commands;
mod control;
mod deployments;
mod doors;
mod enrollment;
mod exposition;
mod full_disk;
mod jobs;
mod keys;
mod life;
mod lifecycle;
mod minting;
mod placement;
mod requests;
mod rig;
mod rotation;
mod settings;
mod slots;
mod store;
mod views;
