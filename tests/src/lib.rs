//! What the end-to-end tests and the benchmarks are made of: the scripted engine, the fault proxy, the fleet of real
//! processes, and a plain HTTP client that shows how a body ended.
//!
//! Everything here blocks threads on purpose: a rig that shares no runtime with the product cannot hide its faults.

pub mod engine;
pub mod fault_proxy;
pub mod fleet;
pub mod http;
pub mod hub;
pub mod nvml_stub;
pub mod peer;
pub mod shifted_clock;
pub mod stub_library;
pub mod wait;
