//! One binary for everything that needs the whole repository or real processes.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "a test that cannot go on fails by panicking"
)]

mod adapters;
mod agreement;
mod artifacts;
mod audited;
mod behaviours;
mod cancel;
mod clients;
mod crowds;
mod deployments;
mod disk;
mod engines;
mod faults;
mod gpus;
mod identity;
mod jobs;
mod journey;
mod keys;
mod kills;
mod links;
mod metrics;
mod netns;
mod node_ends;
mod outlive;
mod peers;
mod probes;
mod records;
mod refusals;
mod relay;
mod restarts;
mod rigs;
mod rotation;
mod settings;
mod simulation;
mod sites;
mod starts;
mod status;
mod terminal;
mod tidy;
mod told;
mod why;
