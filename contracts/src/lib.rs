//! What the tiers say to each other: the generated messages of both boundaries, the operations with their
//! classes and schemas, and the JSON objects that operators see. The documents beside this crate say what each
//! message means; the tests keep documents, vectors and code together.

pub mod artifact;
pub mod bounds;
pub mod causes;
pub mod config;
#[cfg(feature = "daemon")]
pub mod daemon;
pub mod deployment;
pub mod headers;
pub mod inference;
pub mod names;
pub mod numbers;
pub mod objects;
pub mod operations;
pub mod proto;
pub mod release;
pub mod selector;
#[cfg(feature = "serve")]
pub mod serve;
pub mod settings;

pub use numbers::{CONTROL_PROTOCOL, NODE_PROTOCOL, event, method};
