//! What is wrong with a node, for people to act on.
//!
//! Owns the codes and their sentences. Invariant: a problem names what to do, and no address or secret.

use std::time::{Duration, Instant};

/// Two processes showed the same identity.
pub(crate) const DUPLICATE_IDENTITY: &str = "DUPLICATE_IDENTITY";
/// A provider differs from an earlier one of its model.
pub(crate) const MODEL_MISMATCH: &str = "MODEL_MISMATCH";
/// A provider's model or alias is a name that means another model.
pub(crate) const NAME_TAKEN: &str = "NAME_TAKEN";
/// The site knows as many names of models as it can.
pub(crate) const TOO_MANY_MODELS: &str = "TOO_MANY_MODELS";
/// A provider's model or alias is called by what cannot be seen, or by a word that means something else.
pub(crate) const MODEL_NAME: &str = "MODEL_NAME";
/// Problems of a provider, by its id, for which it is given no work whatever its engine's state.
pub(crate) const REFUSALS: [&str; 4] = [MODEL_MISMATCH, NAME_TAKEN, TOO_MANY_MODELS, MODEL_NAME];
/// The same GPU stands in two nodes' inventories.
pub(crate) const SAME_HARDWARE: &str = "SAME_HARDWARE";
/// The node's clock went back.
pub(crate) const CLOCK_BEHIND: &str = "CLOCK_BEHIND";
/// The node's clock is in the future.
pub(crate) const CLOCK_AHEAD: &str = "CLOCK_AHEAD";
/// It connects with a certificate whose time is over, within the grace time.
pub(crate) const CERTIFICATE_EXPIRED: &str = "CERTIFICATE_EXPIRED";
/// Its certificate ends soon.
pub(crate) const CERTIFICATE_ENDS: &str = "CERTIFICATE_ENDS";
/// Its certificate is over, and so is the grace time.
pub(crate) const CREDENTIAL_EXPIRED: &str = "CREDENTIAL_EXPIRED";

/// Nothing was heard of the node for the offline time.
pub(crate) const NODE_OFFLINE: &str = "NODE_OFFLINE";
/// It did not take the settings that it should have.
pub(crate) const SETTINGS_REFUSED: &str = "SETTINGS_REFUSED";
/// A GPU was found and does not answer.
pub(crate) const GPU_LOST: &str = "GPU_LOST";
/// A complete inventory no longer has a GPU.
pub(crate) const GPU_MISSING: &str = "GPU_MISSING";
/// It still carries streams of an older connection that it was told to end.
pub(crate) const LEASES_CARRIED: &str = "LEASES_CARRIED";
/// An engine of a connected node does not run.
pub(crate) const ENGINE_FAILED: &str = "ENGINE_FAILED";

/// How long a refused second copy stays visible after its last try: longer than its retry hint.
pub(crate) const DUPLICATE_SHOWN: Duration = Duration::from_secs(90);

/// How long it is shown that a node still carries older leases after it was seen last: it is looked at every 10 s.
pub(crate) const CARRIED_SHOWN: Duration = Duration::from_secs(20);

/// Most problems of one node in a snapshot.
pub(crate) const PROBLEMS_MAX: usize = 64;
/// Most problems of one node's own report.
pub(crate) const REPORTED_MAX: usize = 32;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// In capitals.
    pub(crate) code: String,
    /// One sentence with what to do.
    pub(crate) message: String,
    pub(crate) since_unix_ms: i64,
    /// A node id or a provider id.
    pub(crate) subject: String,
    /// It vanishes by itself then.
    pub(crate) until: Option<Instant>,
}
