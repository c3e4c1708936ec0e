//! Colour: only the word of a state is coloured, never a row, and every state also differs by its word.
//!
//! Owns the decision whether a stream gets colour. Invariant: no escape sequence leaves here unless the stream
//! is a terminal that wants colour, or colour was forced.

use std::env;
use std::io::IsTerminal as _;

/// The choice of `--color`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ColorChoice {
    /// Colour on a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// What a word means to the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// As it should be.
    Good,
    /// Needs a look.
    Warn,
    /// Broken.
    Bad,
    /// Not important.
    Dim,
    /// A heading.
    Strong,
    /// Nothing special.
    Plain,
}

/// Whether one stream gets colour.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    color: bool,
}

impl Style {
    /// For standard output.
    pub(crate) fn stdout(choice: ColorChoice) -> Self {
        Style { color: wants_color(choice, std::io::stdout().is_terminal()) }
    }

    /// For standard error.
    pub(crate) fn stderr(choice: ColorChoice) -> Self {
        Style { color: wants_color(choice, std::io::stderr().is_terminal()) }
    }

    /// Without colour.
    #[cfg(test)]
    pub(crate) fn plain() -> Self {
        Style { color: false }
    }

    /// `text` in the colour of `tone`.
    pub(crate) fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => "32",
            Tone::Warn => "33",
            Tone::Bad => "31",
            Tone::Dim => "2",
            Tone::Strong => "1",
            Tone::Plain => return text.to_owned(),
        };
        if self.color { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

fn wants_color(choice: ColorChoice, terminal: bool) -> bool {
    let set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0");
    match choice {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto if env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) => false,
        ColorChoice::Auto if set("FORCE_COLOR") || set("CLICOLOR_FORCE") => true,
        ColorChoice::Auto => terminal && env::var_os("TERM").is_none_or(|term| term != "dumb"),
    }
}

/// The tone of a state's word, whatever object it stands in.
pub(crate) fn state_tone(state: &str) -> Tone {
    match state {
        "online" | "available" | "ok" | "fresh" | "connected" | "ready" | "succeeded" | "yes" | "open" => {
            Tone::Good
        }
        "stale" | "loading" | "draining" | "degraded" | "cached" | "timed_out" | "unknown" | "running"
        | "accepted" | "claimed" | "read_only" => Tone::Warn,
        "offline" | "failed" | "unavailable" | "disconnected" | "revoked" | "expired" | "cancelled"
        | "credential_revoked" | "credential_expired" => Tone::Bad,
        "never" | "disabled" | "decommissioned" | "no" => Tone::Dim,
        _ => Tone::Plain,
    }
}
