//! The operator HTTP API under `/api/v1`, for whoever serves it: the control plane for its fleet, an edge's local
//! socket for a fleet of one. [`Fleet`] is what a server answers with, [`router`] is the routes, roles, bounds,
//! problem documents and event streams around it.
//!
//! It leaves listening, TLS and the meaning of every answer to the server. Invariant: no route is reached without
//! a caller, and without a configured token the network door has no callers.

mod api;
