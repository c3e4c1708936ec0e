//! What one request used, in tokens.
//!
//! Owns the words for it. Leaves who tells it to `http::exchange`, and what follows to admission (fair turns, the
//! estimate of a prompt's tokens), to keys (limits, totals) and to metrics.

/// Tokens that one request used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Tokens of the prompt, cached ones included.
    pub(crate) prompt_tokens: u64,
    /// Tokens of the answer.
    pub(crate) completion_tokens: u64,
    /// Of the prompt's tokens, those that the engine had in its prefix cache.
    pub(crate) cached_tokens: u64,
    /// Whose numbers they are.
    pub(crate) source: UsageSource,
}

/// Whose numbers a request's tokens are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum UsageSource {
    /// The engine's own.
    Reported,
    /// Ours: the prompt by its estimate, the answer by its events.
    Counted,
    /// Nobody's: nothing was used, or nothing is known of it.
    #[default]
    None,
}

impl Usage {
    /// Tokens of prompt and answer.
    pub(crate) fn total(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }
}
