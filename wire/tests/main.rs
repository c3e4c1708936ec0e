//! The wire over real TLS on loopback: handshakes, calls, streams, hostile and stuck peers.
//!
//! Each test names the row of the fault catalogue it covers, if it covers one. No test asserts a duration; each
//! waits for a condition with a limit.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "a test stops at the first surprise"
)]

#[path = "link/rig.rs"]
mod rig;

#[path = "link/calls.rs"]
mod calls;
#[path = "link/handshake.rs"]
mod handshake;
#[path = "link/hostile.rs"]
mod hostile;
#[path = "link/reconnect.rs"]
mod reconnect;
#[path = "link/streams.rs"]
mod streams;
