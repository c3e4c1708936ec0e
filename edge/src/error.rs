//! Why an entry point failed: a sentence with the remedy, and the process's exit code.

/// What keeps the edge from starting, or a command of it from finishing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The file or an argument is not usable. Exit code 78.
    #[error("{0}")]
    Config(String),
    /// The state directory has not what is needed, or too much. Exit code 1.
    #[error("{0}")]
    State(String),
    /// Anything else: a port in use, a file that cannot be written, a control plane that refuses. Exit code 1.
    #[error("{0}")]
    Failed(String),
}

impl StartError {
    /// The process's exit code: 78 for bad configuration, 1 for the rest.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) => 78,
            Self::State(_) | Self::Failed(_) => 1,
        }
    }
}
