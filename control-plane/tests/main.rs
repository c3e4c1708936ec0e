//! The control plane on loopback, with edges made here that speak the real protocol over real TLS, and operators that
//! speak HTTP.
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

#[path = "plane/client.rs"]
mod client;
#[path = "plane/rig.rs"]
mod rig;
#[path = "plane/site.rs"]
mod site;

#[path = "plane/audit.rs"]
mod audit;
#[path = "plane/commands.rs"]
mod commands;
#[path = "plane/crowd.rs"]
mod crowd;
#[path = "plane/doors.rs"]
mod doors;
#[path = "plane/enrollment.rs"]
mod enrollment;
#[path = "plane/hello.rs"]
mod hello;
#[path = "plane/starts.rs"]
mod starts;
#[path = "plane/status.rs"]
mod status;
