//! What is said to a supervisor and by it: states, inputs, outputs.
//!
//! Owns the words; leaves what follows from them to the parent. Invariant: a state is one of these, never two flags.

use std::time::Duration;

use umbel_contracts::proto::node::EngineState;

/// State of an engine, as the boundary has it.
///
/// ```text
/// validating -> starting -> loading -> ready -> draining -> stopping -> stopped
///    |   ^         ^           |         |
///    v   |         |           +-- crash-+
///  failed '--------+-- wait -- restarting (everything of it is ended) -- CRASH_LOOP -> failed
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// Its profile is checked against the host.
    Validating,
    /// Its process is about to be started, or waits for its next start.
    Starting,
    /// It runs and is not ready yet, or not any more.
    Loading,
    /// It takes requests.
    Ready,
    /// It takes no new requests and finishes the running ones.
    Draining,
    /// It crashed: what is left of it is ended before the next start.
    #[serde(rename = "starting")]
    Restarting,
    /// Its processes are being ended, as asked.
    Stopping,
    /// Nothing of it is left, as asked.
    Stopped,
    /// It does not run, and will not by itself.
    Failed,
}

impl From<State> for EngineState {
    fn from(state: State) -> Self {
        match state {
            State::Validating => Self::Validating,
            State::Starting | State::Restarting => Self::Starting,
            State::Loading => Self::Loading,
            State::Ready => Self::Ready,
            State::Draining => Self::Draining,
            State::Stopping => Self::Stopping,
            State::Stopped => Self::Stopped,
            State::Failed => Self::Failed,
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Validating => "validating",
            Self::Starting | Self::Restarting => "starting",
            Self::Loading => "loading",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        })
    }
}

/// How an engine's process came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Exit {
    /// It exited by itself with this code.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
    /// Its parent could not learn how.
    Unknown,
    /// Its holder was ended by somebody, and the engine was ended after it: nobody read its output any more.
    Unheld,
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(0) => f.write_str("exited with code 0 without being asked"),
            Self::Code(code) => write!(f, "exited with code {code}"),
            // The signal that the kernel's out-of-memory killer sends, and few others do.
            Self::Signal(9) => {
                f.write_str("was ended by signal 9 (killed; the kernel does so when memory runs out)")
            }
            Self::Signal(signal) => write!(f, "was ended by signal {signal}"),
            Self::Unknown => f.write_str("exited"),
            Self::Unheld => f.write_str(
                "lost its holder, which somebody ended; it was ended too, since nobody read its output any more",
            ),
        }
    }
}

/// What the supervisor is told.
#[derive(Debug, Clone)]
pub(crate) enum Input {
    /// The answer to [`Output::Validate`]: fine, or why not.
    Validated(Result<(), String>),
    /// The answer to [`Output::Start`]: it runs, or why not.
    Started(Result<(), String>),
    /// The answer to [`Output::Probe`]: ready, or why not.
    Probed(Result<(), String>),
    /// The process ended; others that it started may be left.
    Exited(Exit),
    /// Nothing of the process is left. The last lines of its output come along.
    Gone {
        /// At most 4 KiB.
        tail: String,
    },
    /// End it: finish running requests for at most `drain`, then SIGTERM, and SIGKILL after `grace`.
    Stop {
        /// Time for running requests.
        drain: Duration,
        /// Time from SIGTERM to SIGKILL.
        grace: Duration,
    },
    /// It says that it is well, and is not: its requests show it.
    Unhealthy(String),
    /// It is not what may run here: it ends, and is not started again by itself.
    Refused(String),
    /// A request of the agent's own was well: there was no more to it than requests that fail.
    Healthy,
    /// An operator wants it anew: running requests get `drain` first. One that failed gets a new chance.
    Restart {
        /// Time for running requests.
        drain: Duration,
    },
    /// An operator wants it stopped until somebody restarts it.
    Park {
        /// Time for running requests.
        drain: Duration,
    },
    /// No request runs any more; only said while draining.
    Drained,
    /// What it shall be has changed. A process that runs keeps running as it was started; one that failed, or waits for
    /// its next start, gets a new chance.
    Changed(Traits),
    /// The deadline has come.
    Tick,
}

/// What the supervisor asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// Check the profile against the host, then say `Validated`.
    Validate,
    /// Start the process, then say `Started`.
    Start,
    /// Look whether it is ready, then say `Probed`.
    Probe,
    /// SIGTERM to everything of it.
    Terminate,
    /// SIGKILL to everything of it.
    Kill,
    /// The state or its cause changed: tell whoever listens.
    Report,
}

/// Fixed facts about an engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traits {
    /// It has a process that the agent starts.
    pub(crate) supervised: bool,
    /// From start to ready.
    pub(crate) start_timeout: Duration,
}
