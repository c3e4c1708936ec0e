//! Tokens that a request used.

/// Who counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UsageSource {
    /// The engine reported them.
    Reported,
    /// This edge counted events and estimated the prompt.
    Counted,
    /// Nobody.
    #[default]
    None,
}

/// Tokens that a request used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Of the prompt, cached ones included.
    pub(crate) prompt_tokens: u64,
    /// Of the answer.
    pub(crate) completion_tokens: u64,
    /// Of the prompt's, those that the engine had cached.
    pub(crate) cached_tokens: u64,
    /// Who counted.
    pub(crate) source: UsageSource,
}
