//! What a daemon's entry points fail with: a sentence for people and the exit code that goes with it.
//!
//! Owns the mapping from the kind of failure to an exit code; leaves wording to where the failure is known.
//! Invariant: the sentence names the remedy and holds no secret.

use umbel_wire::Code;

/// Why a daemon could not start, or a command of it not finish.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The file or an argument is not usable. Exit code 78.
    #[error("{0}")]
    Config(String),
    /// What was given with the command is not usable: a token that is none. Exit code 2.
    #[error("{0}")]
    Usage(String),
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
    /// The other side could not be reached. Exit code 4.
    #[error("{0}")]
    Unreachable(String),
    /// The other side said no. Exit code as `umbel ctl` has it: 7 for a conflict, such as a used token, 5 where it does
    /// not know or allow the caller, 6 where something is not there, else 1.
    #[error("{message}")]
    Rejected {
        /// The other side's code.
        code: Code,
        /// What was wrong and what to do.
        message: String,
    },
    /// This host says no. Exit code 1.
    #[error("{0}")]
    Refused(String),
    /// Anything else: a file that cannot be written, a port in use. Exit code 1.
    #[error("{0}")]
    Failed(String),
}

impl StartError {
    /// The process's exit code: 78 for bad configuration (sysexits' `EX_CONFIG`, which service managers know), 2 for what
    /// was typed, 3 for a failed preflight, 4 to 7 for what another server said, 1 for the rest.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) => 78,
            Self::Usage(_) => 2,
            Self::Preflight { .. } => 3,
            Self::Unreachable(_) => 4,
            Self::Rejected { code, .. } => match code {
                Code::Unauthenticated | Code::PermissionDenied => 5,
                Code::NotFound | Code::Gone => 6,
                Code::Conflict => 7,
                _ => 1,
            },
            Self::State(_) | Self::Refused(_) | Self::Failed(_) => 1,
        }
    }
}
