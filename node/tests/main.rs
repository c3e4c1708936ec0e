//! The agent as a process, between an edge and engines that the tests play themselves.
//!
//! This binary is also the agent and the engine: started by itself with a variable set, the ignored tests
//! `agent_process` and `engine_process` become one. Rows are those of the fault catalogue.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that meets the unexpected shall end at once"
)]

mod agent;
mod cancel;
mod edge;
mod engine;
mod hardware;
mod joining;
#[allow(unreachable_pub, reason = "the end-to-end tests have it as a public module")]
#[path = "../../tests/src/nvml_stub.rs"]
mod nvml_stub;
mod relay;
mod reporting;
mod settings;
mod stopping;
#[allow(unreachable_pub, reason = "the end-to-end tests have it as a public module")]
#[path = "../../tests/src/stub_library.rs"]
mod stub_library;
mod supervised;

use std::time::Duration;

/// Longest wait for anything: a machine under load is slow, a hang is for ever.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Waits until `look` finds something.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let waiting = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, waiting).await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// Not longer than [`LIMIT`].
pub(crate) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, work).await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}
