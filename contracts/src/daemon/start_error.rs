//! What a daemon's entry points fail with: a sentence for people and the exit code that goes with it.
//!
//! Owns the mapping from the kind of failure to an exit code; leaves wording to where the failure is known.
//! Invariant: the sentence names the remedy and holds no secret.

/// Why a daemon could not start, or a command of it not finish.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The file or an argument is not usable. Exit code 78.
    #[error("{0}")]
    Config(String),
    /// The host is not fit for its tier. Exit code 3. `code` is for machines: `NVIDIA_DEVICE_NOT_FOUND`.
    #[error("{code}: {message}")]
    Preflight {
        /// For machines, in capitals.
        code: &'static str,
        /// What was wrong and what to do.
        message: String,
    },
    /// The state directory has not what is needed, or too much. Exit code 1.
    #[error("{0}")]
    State(String),
    /// The other side could not be reached. Exit code 1.
    #[error("{0}")]
    Unreachable(String),
    /// The other side said no, or this host does. Exit code 1.
    #[error("{0}")]
    Refused(String),
    /// Anything else: a file that cannot be written, a port in use. Exit code 1.
    #[error("{0}")]
    Failed(String),
}

impl StartError {
    /// The process's exit code: 78 for bad configuration (sysexits' `EX_CONFIG`, which service managers know), 3 for
    /// a failed preflight, 1 for the rest.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) => 78,
            Self::Preflight { .. } => 3,
            Self::State(_) | Self::Unreachable(_) | Self::Refused(_) | Self::Failed(_) => 1,
        }
    }
}
