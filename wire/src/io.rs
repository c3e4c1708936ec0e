//! Sockets and tasks around the session: handles, the driver, dialing and accepting.
//!
//! Leaves every decision about frames to `session`. Invariant: the reader task waits only for the socket, the
//! writer task only for work and the socket.

pub mod accept;
pub mod dial;
pub(crate) mod driver;
pub mod handle;
pub(crate) mod handshake;
pub mod keep;
pub(crate) mod lobby;
pub(crate) mod options;
pub mod parts;
pub mod patience;
pub(crate) mod pool;
pub(crate) mod socket;
pub mod streams;
pub mod tasks;
