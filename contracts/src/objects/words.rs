//! The states that objects write as words, and their numbers on the wire.
//!
//! Invariant: a number or word of a newer build becomes `unrecognized`, never another state and never an error.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::proto::{control, node};

/// An enum of words with its conversion from the wire's numbers.
macro_rules! words {
    ($(#[$about:meta])* $name:ident from $proto:path { $($(#[$word_about:meta])* $word:ident = $text:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum $name {
            $($(#[$word_about])* $word,)+
            /// A word of a newer version.
            #[serde(other)]
            Unrecognized,
        }

        impl $name {
            /// From the wire's number.
            #[must_use]
            pub fn from_number(number: i32) -> Self {
                use $proto as Number;
                match Number::try_from(number) {
                    $(Ok(Number::$word) => Self::$word,)+
                    _ => Self::Unrecognized,
                }
            }

            /// Its spelling.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$word => $text,)+
                    Self::Unrecognized => "unrecognized",
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// What people decided about a node.
    NodeLifecycle from control::Lifecycle {
        /// It may work.
        Enrolled = "enrolled",
        /// It keeps its identity and may not connect for work.
        Disabled = "disabled",
        /// Gone for good.
        Decommissioned = "decommissioned",
    }
}

words! {
    /// What the edge measured of a node.
    NodeLiveness from control::Liveness {
        /// It has not been seen yet.
        Never = "never",
        /// The edge has just started and cannot judge yet.
        Unknown = "unknown",
        /// Heard within the stale time.
        Online = "online",
        /// Not heard for the stale time.
        Stale = "stale",
        /// Not heard for the offline time.
        Offline = "offline",
    }
}

words! {
    /// Whether a provider takes requests.
    ProviderState from control::ProviderStatus {
        /// It does.
        Available = "available",
        /// Its model is being loaded.
        Loading = "loading",
        /// It finishes what it has.
        Draining = "draining",
        /// Its node cannot be dispatched to, or its engine is stopped.
        Unavailable = "unavailable",
        /// Its engine failed.
        Failed = "failed",
    }
}

words! {
    /// How well a provider does.
    ProviderHealth from control::ProviderHealth {
        /// Well.
        Ok = "ok",
        /// Worse than its peers, or with an unconfirmed lease.
        Degraded = "degraded",
        /// Not reachable.
        Offline = "offline",
        /// Not known.
        Unknown = "unknown",
    }
}

words! {
    /// Whether the edge's disk takes writes.
    StoreState from control::StoreHealth {
        /// It does.
        Ok = "ok",
        /// The site serves; management is refused.
        ReadOnly = "read_only",
    }
}

words! {
    /// Whether a GPU is there and answers.
    GpuState from control::GpuState {
        /// It is and does.
        Ok = "ok",
        /// It was found and does not answer.
        Lost = "lost",
        /// A complete inventory no longer has it.
        Missing = "missing",
    }
}

words! {
    /// How a readiness check came out.
    CheckResult from control::CheckResult {
        /// Good.
        Passed = "passed",
        /// Not good; the next step says what to do.
        Failed = "failed",
        /// Nothing to judge by has been reported.
        NotReported = "not_reported",
    }
}

words! {
    /// Where an engine stands.
    EngineStateWord from node::EngineState {
        /// Its declaration is checked.
        Validating = "validating",
        /// Its process starts.
        Starting = "starting",
        /// Its model is being loaded.
        Loading = "loading",
        /// It serves.
        Ready = "ready",
        /// It finishes what it has.
        Draining = "draining",
        /// Its process is ended.
        Stopping = "stopping",
        /// It does not run.
        Stopped = "stopped",
        /// It failed.
        Failed = "failed",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
    use super::*;

    #[test]
    fn spelling_and_serde_agree_and_the_unknown_is_taken() {
        for (number, text) in
            [(1, "available"), (4, "unavailable"), (0, "unrecognized"), (99, "unrecognized")]
        {
            let word = ProviderState::from_number(number);
            assert_eq!(word.as_str(), text);
            assert_eq!(serde_json::to_value(word).unwrap(), text);
        }
        assert_eq!(
            serde_json::from_str::<CheckResult>("\"of_tomorrow\"").unwrap(),
            CheckResult::Unrecognized
        );
        assert_eq!(
            serde_json::to_value(CheckResult::NotReported).unwrap(),
            CheckResult::NotReported.as_str()
        );
        assert_eq!(serde_json::to_value(StoreState::ReadOnly).unwrap(), StoreState::ReadOnly.as_str());
    }
}
