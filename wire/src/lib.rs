//! The wire: frames, sessions, streams, identity and TLS, for both hops. Knows nothing of edges or nodes.

pub mod proto;
