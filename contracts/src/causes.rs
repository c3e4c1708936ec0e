//! Names of what an engine or a job failed for, and which of them may be over by themselves.
//!
//! Owns the names that more than one tier judges by; every other name is its sender's own. Invariant: what has no name here
//! lasts, as far as anybody who does not know better is concerned.

/// An engine fell over again and again, or never got ready.
pub const CRASH_LOOP: &str = "CRASH_LOOP";
/// Memory of the host or of a GPU was not enough for it.
pub const OUT_OF_MEMORY: &str = "OUT_OF_MEMORY";
/// The driver, or a GPU under it, failed.
pub const CUDA_ERROR: &str = "CUDA_ERROR";
/// Memory of a GPU that a process which has ended held is not free yet.
pub const GPU_MEMORY_HELD: &str = "GPU_MEMORY_HELD";
/// Another process listens where it should.
pub const PORT_TAKEN: &str = "PORT_TAKEN";
/// It serves other hosts past the edge, although it was told to listen on its own only.
pub const ENGINE_EXPOSED: &str = "ENGINE_EXPOSED";
/// What runs under its name runs as something else, and is to be unloaded first.
pub const ENGINE_DIFFERS: &str = "ENGINE_DIFFERS";

/// A node's agent was stopped while it ran a job, and gives it back: that is no attempt.
pub const AGENT_STOPPED: &str = "AGENT_STOPPED";

/// What the host, another process or the node's own work stands in the way of, or what is fetched once more: it may be over
/// in a while.
const PASSING: [&str; 12] = [
    CUDA_ERROR,
    GPU_MEMORY_HELD,
    PORT_TAKEN,
    ENGINE_DIFFERS,
    "ARTIFACT_MISSING",
    "GPU_IN_USE",
    "GPU_MISSING",
    "LEFT_OVER",
    "MEMORY",
    "STALLED",
    "STILL_LEAVING",
    "UNLOADED",
];

/// Whether what failed for this may go well later without anybody's doing: a driver that is reset, a port, a GPU or memory that
/// somebody still has.
#[must_use]
pub fn passes(code: &str) -> bool {
    PASSING.contains(&code)
}
