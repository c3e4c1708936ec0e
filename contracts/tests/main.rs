//! The contract tests: documents, golden vectors, frozen descriptors and code must say the same.
//!
//! `UMBEL_REGENERATE=1` writes the bytes of new vectors (never over existing ones) and the schemas of the operations.
//! `UMBEL_FREEZE=1` replaces the frozen descriptor sets: a deliberate act, done when a protocol version is released.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod arbitrary;
mod bounded;
mod codec;
mod descriptors;
mod documents;
mod frames;
mod frozen;
mod golden;
mod relay;
mod schemas;
mod secrets;
