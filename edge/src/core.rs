//! What an edge decides, without a socket, a file, a clock or a random source.

pub(crate) mod admission;
pub(crate) mod approval;
pub(crate) mod authority;
pub(crate) mod commands;
pub(crate) mod credentials;
pub(crate) mod deployments;
pub(crate) mod door;
pub(crate) mod enrollment;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod placement;
pub(crate) mod providers;
pub(crate) mod registry;
pub(crate) mod requests;
pub(crate) mod rotation;
pub(crate) mod session;
pub(crate) mod settings;
pub(crate) mod tombstones;
pub(crate) mod usage;
