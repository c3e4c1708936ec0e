//! The wire: frames, sessions, streams, identity and TLS, for both hops. Knows nothing of edges or nodes.
//!
//! A connection is a [`Connection`] on both ends: dialed by [`keep_connected`] or accepted by [`serve`]. It
//! carries requests and events in both directions and streams with credit of their own.

pub mod backoff;
pub mod ca;
pub mod clock;
pub mod close;
pub mod enroll;
pub mod error;
pub mod files;
pub mod frame;
pub mod guesses;
pub mod ids;
pub mod io;
pub mod limits;
pub mod liveness;
pub mod numbered;
pub mod peer;
pub mod proto;
pub mod repeats;
pub mod rotation;
pub mod secret;
pub(crate) mod session;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod slots;
#[cfg(test)]
mod testing;
pub mod text;
pub mod tls;
pub mod token;
pub mod version;

pub use close::{CloseReason, Goaway, GoawayReason};
pub use error::{Code, Error, SLOW_READER};
pub use ids::{Attempt, EdgeId, Generation, InstanceId, KeyHash, NodeId};
pub use io::accept::{Door, HelloIn, Newcomer, WelcomeOut, serve};
pub use io::dial::{
    DialError, DialStep, DialTarget, HelloOut, Intervals, NoHandler, Purpose, Rejection, Welcome,
    dial_attempt, dial_once, dial_over,
};
pub use io::handle::{BoxFuture, Connection, Handler, IncomingRequest, Open, Stats, Terminal};
pub use io::keep::{DialRole, keep_connected};
pub use io::parts::{Parts, Trouble};
pub use io::patience::{Patience, within};
pub use io::streams::{IncomingStream, OutgoingStream, Reset};
pub use io::tasks::{Broken, UnderWay, attend, contained, contained_now};
pub use version::{Verdict, VersionRange, negotiate};
