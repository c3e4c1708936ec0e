//! Headers that pass between an application and an engine.
//!
//! Owns the lists and what a value may be, for edge and node alike: what the edge lets through the node does not drop.
//! Invariant: no credential, nothing that says whose or which way a request is (`host`, `origin`, `via`, `forwarded`,
//! `x-forwarded-*`, `x-real-ip`), and nothing that holds for one connection only is in a list.

/// Of a client's headers, those that its engine sees.
pub const TO_ENGINE: [&str; 6] =
    ["content-type", "accept", "user-agent", "traceparent", "tracestate", "x-session-id"];

/// Of an engine's headers, those that leave its node. Of them `retry-after` is judged by the edge before a client sees it.
pub const TO_CLIENT: [&str; 10] = [
    "content-type",
    "content-length",
    "content-encoding",
    "content-language",
    "content-disposition",
    "cache-control",
    "retry-after",
    "openai-processing-ms",
    "openai-version",
    "openai-model",
];

/// Bytes of a value that passes to an engine: the boundary of a form is the longest that one needs.
pub const VALUE_MAX: usize = 1024;

/// Whether a value passes to an engine: visible characters, spaces and tabs (RFC 9110, 5.5, without obs-text).
#[must_use]
pub fn is_value(value: &[u8]) -> bool {
    // To the end in any case, so that many bytes are looked at at a time.
    let fits = |so_far: bool, byte: &u8| so_far & matches!(byte, b'\t' | b' '..=b'~');
    value.len() <= VALUE_MAX && value.iter().fold(true, fits)
}
