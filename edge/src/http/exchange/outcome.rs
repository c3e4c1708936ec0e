//! How tries at engines and whole requests end: the words, and the reading of a stream's terminal.
//!
//! Leaves what follows to the account, to second tries and to the relay. Invariant: an end that nobody confirmed is none.

use umbel_contracts::inference::reading;
use umbel_contracts::proto::node::{InferenceEnd, InferenceOutcome};
use umbel_wire::{Code, SLOW_READER, Terminal};

use crate::http::error::Failure;
use crate::shell::dispatch::Outcome as Try;
use crate::shell::requests::{CLIENT_LEFT, Phase};

/// How a try at an engine failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Miss {
    /// Nothing was sent to an engine.
    NotProcessed,
    /// The node's connection or the engine's process is gone, and the work with it.
    Lost,
    /// The engine closed or broke its connection; it may have done the work.
    Broke,
    /// The engine was silent for too long.
    TimedOut,
    /// The engine's answer is none.
    BadAnswer,
}

impl Miss {
    pub(in crate::http) fn failure(self) -> Failure {
        match self {
            Self::NotProcessed => Failure::engine_refused(),
            Self::Lost | Self::Broke => Failure::engine_lost(),
            Self::TimedOut => Failure::engine_timeout(),
            Self::BadAnswer => Failure::engine_bad_answer("The engine's answer could not be read."),
        }
    }

    /// What it says of the provider.
    pub(in crate::http) fn outcome(self) -> Try {
        match self {
            Self::TimedOut => Try::TimedOut,
            _ => Try::Failed,
        }
    }

    /// The same of one behind the engine's head.
    pub(super) fn behind_head(self) -> Try {
        if self == Self::TimedOut { Try::Stalled } else { Try::Failed }
    }

    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::NotProcessed => "connect",
            Self::Lost => "lost",
            Self::Broke => "reset",
            Self::TimedOut => "timeout",
            Self::BadAnswer => "protocol",
        }
    }
}

/// Whether this edge gave the stream up since nothing of it was read, which is the client's doing.
pub(in crate::http) fn is_unread(terminal: &Terminal) -> bool {
    matches!(terminal, Terminal::Ended { error: Some(error), .. } if error.reason == SLOW_READER)
}

/// The node's message in a terminal, if it can be read.
pub(in crate::http) fn told(terminal: &Terminal) -> Option<InferenceEnd> {
    match terminal {
        Terminal::Ended { payload, .. } => reading::end(payload).ok(),
        Terminal::Lost(_) => None,
    }
}

/// What a terminal says, and the node's message in it, if that can be read; `None` if the engine's request came to its
/// end.
pub(in crate::http) fn judge(terminal: &Terminal, end: Option<&InferenceEnd>) -> Option<Miss> {
    let (error, not_processed) = match terminal {
        Terminal::Lost(_) => return Some(Miss::Lost),
        Terminal::Ended { error, not_processed, .. } => (error, *not_processed),
    };
    if not_processed {
        return Some(Miss::NotProcessed);
    }
    let outcome = end.map_or(InferenceOutcome::Unspecified, InferenceEnd::outcome);
    match (outcome, error) {
        (InferenceOutcome::Complete, None) => None,
        (InferenceOutcome::EngineRefused, _) => Some(Miss::NotProcessed),
        (InferenceOutcome::EngineGone, _) => Some(Miss::Lost),
        (InferenceOutcome::TimedOut, _) => Some(Miss::TimedOut),
        (InferenceOutcome::BadAnswer, _) => Some(Miss::BadAnswer),
        (_, Some(error)) if error.code == Code::DeadlineExceeded => Some(Miss::TimedOut),
        _ => Some(Miss::Broke),
    }
}

/// How a request came to its end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    /// An engine's answer went out whole, or on its way as a whole.
    Answered(u16),
    /// The edge answered with a failure of its own.
    Failed { status: u16, reason: &'static str },
    /// The answer ended with an error after its head.
    Broken(Miss),
    /// The client left.
    Left(Phase),
}

impl Outcome {
    pub(super) fn status(self) -> u16 {
        match self {
            Self::Answered(status) | Self::Failed { status, .. } => status,
            Self::Broken(_) => 200,
            Self::Left(_) => CLIENT_LEFT,
        }
    }

    /// The machine reason, where it went wrong.
    pub(super) fn reason(self) -> Option<&'static str> {
        match self {
            Self::Answered(_) | Self::Left(_) => None,
            Self::Failed { reason, .. } => Some(reason),
            Self::Broken(miss) => Some(miss.kind()),
        }
    }
}
