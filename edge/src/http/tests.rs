//! The front against a real wire pair: a scripted node dials over TLS, clients speak raw HTTP.
//!
//! Names of tests that begin with `row_` are rows of the fault catalogue.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod bounds;
mod client;
mod connections;
mod ends;
mod leaving;
mod limits;
mod long;
mod passing;
mod rig;
mod second_tries;
mod shutdown;
mod slots;
