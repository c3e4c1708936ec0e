//! The operator HTTP API under `/api/v1`, for whoever serves it: the control plane for its fleet, an edge's local
//! socket for a fleet of one. [`Fleet`] is what a server answers with, [`router`] is the routes, roles, bounds,
//! problem documents and event streams around it, and [`serve_tls`] and [`serve_local`] are the listeners.
//!
//! It leaves certificates and the meaning of every answer to the server. Invariant: no route is reached without
//! a caller, and without a configured token the network door has no callers.

mod api;
mod audit;
mod call;
mod fleet;
mod input;
mod large;
mod listen;
mod measured;
mod problem;
mod ring;
mod stream;

pub use api::router;
pub use call::{Bearer, Caller, Door};
pub use fleet::{AuditQuestion, CommandCall, Fleet, Follow, SECTIONS, StatusQuestion, wants_section};
pub use listen::{serve_local, serve_plain, serve_tls};
pub use measured::{Answered, measured};
pub use problem::Failure;
pub use ring::{EventRing, Feed, Told};

/// Longest request body. An operation's arguments are one JSON object of a few KiB; 4 MiB leaves room for a
/// deployment or settings document.
pub const BODY_MAX: usize = 4 * 1024 * 1024;

/// Event streams at once. Each costs a task and a cursor, never a queue; the bound keeps a forgotten script from
/// using up the server's descriptors.
pub const STREAMS_MAX: usize = 200;

#[cfg(test)]
mod tests;
