//! What an edge does: sockets, tasks and the store around the cores.

pub(crate) mod dispatch;
pub(crate) mod keys;
