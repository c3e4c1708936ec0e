//! The router in front of a small fleet of its own: roles, bounds, problem documents, streams.
