//! What an edge does: sockets, tasks and the store around the cores.

pub(crate) mod admin;
pub(crate) mod authority;
pub(crate) mod backups;
pub(crate) mod commands;
pub(crate) mod control;
pub(crate) mod deployments;
pub(crate) mod dispatch;
pub(crate) mod events;
pub(crate) mod gather;
pub(crate) mod gauges;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod names;
pub(crate) mod nodes;
pub(crate) mod operations;
pub(crate) mod owing;
pub(crate) mod requests;
pub(crate) mod settings;
pub(crate) mod site;
pub(crate) mod status;
pub(crate) mod vitals;
