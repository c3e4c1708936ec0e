//! Why a connection ended, and what a GOAWAY says.
//!
//! Invariant: an end of input without a farewell is `Truncated`, never a clean end.

use std::fmt;
use std::time::Duration;

use crate::error::millis;
use crate::proto;

/// Why a session ended. `Protocol` to `Shutdown` can be told to the peer; the others are only observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The peer broke the rules; the text says which.
    Protocol(String),
    /// The identity was disabled or decommissioned.
    Revoked,
    /// A newer connection of the same identity took over.
    Superseded,
    /// The peer stopped reading for too long, or is stuck.
    Stalled,
    /// This side moved to another connection and the old one is drained.
    Reconnect,
    /// This side ends.
    Shutdown,
    /// The peer said why with a closing GOAWAY.
    ByPeer(Goaway),
    /// The input ended, inside a frame or without a farewell.
    Truncated,
    /// Nothing arrived for the dead time.
    Silent,
    /// This side panicked over what the peer sent: it comes again and begins anew.
    Broke,
    /// The transport failed; the text is for this host's log only.
    Transport(String),
}

impl CloseReason {
    /// A word for logs and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Protocol(_) => "protocol",
            Self::Revoked => "revoked",
            Self::Superseded => "superseded",
            Self::Stalled => "stalled",
            Self::Reconnect => "reconnect",
            Self::Shutdown => "shutdown",
            Self::ByPeer(_) => "by_peer",
            Self::Truncated => "truncated",
            Self::Silent => "silent",
            Self::Broke => "broke",
            Self::Transport(_) => "transport",
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol(what) => write!(f, "the peer broke the protocol: {what}"),
            Self::Revoked => f.write_str("the identity was disabled or decommissioned"),
            Self::Superseded => f.write_str("a newer connection of the same identity took over"),
            Self::Stalled => f.write_str("the peer accepted no data for too long"),
            Self::Reconnect => f.write_str("replaced by a new connection"),
            Self::Shutdown => f.write_str("this side shuts down"),
            Self::ByPeer(goaway) => write!(f, "the peer closed ({}): {}", goaway.reason, goaway.message),
            Self::Truncated => f.write_str("the connection ended without a farewell"),
            Self::Silent => f.write_str("nothing arrived for too long"),
            Self::Broke => f.write_str("a defect of this side ended it; its log says where"),
            Self::Transport(what) => write!(f, "the transport failed: {what}"),
        }
    }
}

/// Why a peer drains this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoawayReason {
    /// The dialer should dial anew first.
    Reconnect,
    /// This side ends; the dialer tries its other addresses.
    Shutdown,
}

impl GoawayReason {
    /// The word on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reconnect => "reconnect",
            Self::Shutdown => "shutdown",
        }
    }
}

/// A GOAWAY as it was received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Goaway {
    /// False: draining. True: the connection ends within 2 s.
    pub closing: bool,
    /// `reconnect`, `shutdown`, `protocol`, `revoked`, `superseded`, `stalled`; newer peers may say others.
    pub reason: String,
    /// For people.
    pub message: String,
    /// When dialing again makes sense.
    pub retry_after: Option<Duration>,
}

impl Goaway {
    pub(crate) fn closing(reason: &CloseReason) -> Self {
        let word = match reason {
            CloseReason::ByPeer(_)
            | CloseReason::Transport(_)
            | CloseReason::Truncated
            | CloseReason::Broke => "shutdown",
            CloseReason::Silent => "stalled",
            other => other.name(),
        };
        Self { closing: true, reason: word.to_owned(), message: reason.to_string(), retry_after: None }
    }

    pub(crate) fn to_proto(&self) -> proto::Goaway {
        proto::Goaway {
            closing: self.closing,
            reason: self.reason.clone(),
            message: self.message.chars().take(512).collect(),
            retry_after_ms: self.retry_after.map_or(0, millis),
        }
    }

    pub(crate) fn from_proto(goaway: proto::Goaway) -> Self {
        Self {
            closing: goaway.closing,
            reason: goaway.reason,
            message: goaway.message,
            retry_after: (goaway.retry_after_ms > 0)
                .then(|| Duration::from_millis(u64::from(goaway.retry_after_ms))),
        }
    }
}
