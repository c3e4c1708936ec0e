//! One step of a doctor. Leaves the steps and their names to each tier's `doctor.rs`, printing to the command line.
//!
//! Invariant: what is not as it should be comes with what to do about it.

/// What a doctor found in one step.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    /// The step, within its tier: `state`, `port listen.api`.
    pub name: String,
    /// It is as it should be.
    pub passed: bool,
    /// What was found.
    pub message: String,
    /// What to do; empty when it passed.
    pub next_step: String,
}

impl Check {
    /// A step that found all well.
    #[must_use]
    pub fn passed(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self { name: name.into(), passed: true, message: message.into(), next_step: String::new() }
    }

    /// A step that found something to do.
    #[must_use]
    pub fn failed(name: impl Into<String>, message: impl Into<String>, next_step: impl Into<String>) -> Self {
        Self { name: name.into(), passed: false, message: message.into(), next_step: next_step.into() }
    }
}
