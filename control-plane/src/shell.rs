//! What the control plane does: sockets, tasks, the store and certificates around the decisions of `core`.

pub(crate) mod authority;
pub(crate) mod clock;
pub(crate) mod delimited;
pub(crate) mod edges;
pub(crate) mod enrollment;
pub(crate) mod plane;
pub(crate) mod relay;
pub(crate) mod rotation;
pub(crate) mod settle;
pub(crate) mod status;
pub(crate) mod vitals;
pub(crate) mod witness;
