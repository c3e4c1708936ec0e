//! What the events of a stream tell of tokens.
//!
//! Owns counting events that carry content, for streams whose engine reports no usage, and taking out the event with
//! the usage where this edge asked for it and the client did not. Leaves boundaries and endings to [`super::sse`].
//! Invariants: where nothing is taken out, every byte passes at once; what is kept is bounded.

use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use memchr::{memchr_iter, memmem::Finder};
use serde::Deserialize;
use serde_json::value::RawValue;

/// An event above this passes without being looked at; one with a token has some hundred bytes.
const EVENT_MAX: usize = 64 * 1024;

/// Fields whose text is of the model's making, the usual one first: chat and reasoning, completions, tool calls,
/// responses.
static FIELDS: LazyLock<[Finder<'static>; 5]> = LazyLock::new(|| {
    [&b"content\""[..], b"text\"", b"arguments\"", b"reasoning\"", b"delta\""].map(Finder::new)
});
static USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"usage\""));

/// Follows the events of one stream.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// The usage's own event does not pass.
    taking: bool,
    /// An event that is not whole; where nothing is taken out, a copy of it.
    carry: BytesMut,
    /// In the middle of an event that was too large to be kept.
    over: bool,
    tokens: u64,
}

impl Meter {
    /// With `taking`, the event with the usage does not pass.
    pub(super) fn new(taking: bool) -> Self {
        Self { taking, ..Self::default() }
    }

    /// Events with content so far: about as many tokens.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Takes bytes of the engine and gives those that pass now.
    pub(super) fn push(&mut self, chunk: Bytes) -> Bytes {
        // As engines write and the wire brings them: whole events.
        if self.carry.is_empty() && !self.over && ends_event(&chunk) {
            return self.whole_events(chunk);
        }
        let chunk = if self.over { self.behind_large(chunk) } else { (Bytes::new(), chunk) };
        let (passed, chunk) = chunk;
        self.carry.extend_from_slice(&chunk);
        let mut whole = 0;
        while let Some(length) = event_end(self.carry.get(whole..).unwrap_or_default()) {
            whole += length;
        }
        let events = self.carry.split_to(whole).freeze();
        let events = self.whole_events(events);
        if self.carry.len() > EVENT_MAX {
            self.over = true;
            // Text, most likely, and nothing that was to be taken out.
            self.tokens += 1;
            let rest = self.carry.split().freeze();
            return if self.taking { joined(&[&passed, &events, &rest]) } else { joined(&[&passed, &chunk]) };
        }
        if self.taking { joined(&[&passed, &events]) } else { joined(&[&passed, &chunk]) }
    }

    /// What was kept back, once nothing more comes.
    pub(super) fn rest(&mut self) -> Bytes {
        let rest = self.carry.split().freeze();
        if self.taking && !is_usage(&rest) { rest } else { Bytes::new() }
    }

    /// Counts and takes out; no event is cut by the bytes' ends.
    fn whole_events(&mut self, events: Bytes) -> Bytes {
        let mut kept: Option<BytesMut> = None;
        let mut at = 0;
        while let Some(length) = event_end(events.get(at..).unwrap_or_default()) {
            let event = events.get(at..at + length).unwrap_or_default();
            self.tokens += u64::from(has_content(event));
            if self.taking && is_usage(event) {
                kept.get_or_insert_with(|| BytesMut::from(events.get(..at).unwrap_or_default()));
            } else if let Some(kept) = &mut kept {
                kept.extend_from_slice(event);
            }
            at += length;
        }
        kept.map_or(events, BytesMut::freeze)
    }

    /// Passes the rest of an event that was too large, and gives what comes after it.
    fn behind_large(&mut self, chunk: Bytes) -> (Bytes, Bytes) {
        // The blank line may have begun in an earlier piece; then the next event passes as well.
        match event_end(&chunk) {
            Some(length) => {
                self.over = false;
                (chunk.slice(..length), chunk.slice(length..))
            }
            None => (chunk, Bytes::new()),
        }
    }
}

fn joined(parts: &[&Bytes]) -> Bytes {
    let mut full = parts.iter().filter(|part| !part.is_empty());
    match (full.next(), full.next()) {
        (None, _) => Bytes::new(),
        (Some(one), None) => Bytes::clone(one),
        _ => Bytes::from(parts.iter().flat_map(|part| part.iter().copied()).collect::<Vec<u8>>()),
    }
}

fn ends_event(bytes: &[u8]) -> bool {
    bytes.ends_with(b"\n\n") || bytes.ends_with(b"\n\r\n")
}

/// How long the first event is, with its blank line.
fn event_end(bytes: &[u8]) -> Option<usize> {
    memchr_iter(b'\n', bytes).find_map(|at| match bytes.get(at + 1..)? {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}

fn has_content(event: &[u8]) -> bool {
    FIELDS.iter().any(|field| {
        field.find_iter(event).any(|at| {
            let value = event.get(at + field.needle().len()..).unwrap_or_default().trim_ascii_start();
            let value = value.strip_prefix(b":").map(<[u8]>::trim_ascii_start);
            value.is_some_and(|value| value.first() == Some(&b'"') && value.get(1) != Some(&b'"'))
        })
    })
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow)]
    choices: &'a RawValue,
    #[serde(borrow)]
    usage: &'a RawValue,
}

/// The extra event of `include_usage`: no choice, and a usage.
fn is_usage(event: &[u8]) -> bool {
    if USAGE.find(event).is_none() {
        return false;
    }
    // A comment, an id or a name may stand before the data, and those may be of several lines.
    let lines = event.split(|byte| *byte == b'\n');
    let mut data = lines.filter_map(|line| line.strip_prefix(b"data:"));
    let first = data.next().unwrap_or_default();
    let rest: Vec<&[u8]> = data.collect();
    let joined;
    let data = if rest.is_empty() {
        first
    } else {
        joined = std::iter::once(first).chain(rest).collect::<Vec<_>>().join(&b'\n');
        &joined
    };
    serde_json::from_slice::<Chunk<'_>>(data).is_ok_and(|chunk| {
        let none = chunk.choices.get().chars().filter(|c| !c.is_whitespace()).eq("[]".chars());
        none && chunk.usage.get().starts_with('{')
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn stream(end: &str) -> (String, String) {
        let events = [
            r#"data: {"choices":[{"delta":{"role":"assistant","content":""}}],"usage":null}"#,
            r#"data: {"choices":[{"delta":{"content":"é \"usage\" 😀"}}],"usage":null}"#,
            ": keepalive",
            r#"data: {"choices": [{"delta": {"reasoning_content": "hm"}}]}"#,
            r#"data: {"choices":[{"text":"x"}]}"#,
            r#"data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}"#,
            r#"data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}"#,
        ];
        let usage = r#"data: {"id":"x","choices": [ ],"usage":{"prompt_tokens":7,"completion_tokens":4}}"#;
        let whole = |more: &[&str]| -> String {
            events.iter().chain(more).map(|event| format!("{event}{end}")).collect()
        };
        (whole(&[usage, "data: [DONE]"]), whole(&["data: [DONE]"]))
    }

    fn passed(text: &str, piece: usize, taking: bool) -> (String, u64) {
        let mut meter = Meter::new(taking);
        let mut out = Vec::new();
        for chunk in text.as_bytes().chunks(piece) {
            out.extend_from_slice(&meter.push(Bytes::copy_from_slice(chunk)));
            if !taking {
                assert!(
                    text.as_bytes().starts_with(&out) && out.len().is_multiple_of(piece)
                        || out == text.as_bytes()
                );
            }
        }
        out.extend_from_slice(&meter.rest());
        (String::from_utf8(out).unwrap(), meter.tokens())
    }

    #[test]
    fn behaviour_6_the_usages_own_event_is_taken_out_however_the_bytes_are_cut() {
        for end in ["\n\n", "\r\n\r\n"] {
            let (sent, without) = stream(end);
            for piece in [1, 2, 7, 100, 4096] {
                assert_eq!(passed(&sent, piece, true), (without.clone(), 4), "in pieces of {piece}");
                assert_eq!(passed(&sent, piece, false), (sent.clone(), 4), "in pieces of {piece}");
            }
        }
        // Without its blank line, as the last thing of all.
        let (sent, _) = stream("\n\n");
        let cut = sent.strip_suffix("\n\ndata: [DONE]\n\n").unwrap();
        for piece in [1, 4096] {
            assert!(!passed(cut, piece, true).0.contains("\"completion_tokens\""));
        }
        for odd in [": c\n", "id: 7\n", "event: usage\n", "event: usage\r\nid: 1\r\n"] {
            let usage =
                format!("{odd}data: {{\"choices\":[],\ndata: \"usage\":{{\"completion_tokens\":4}}}}\n\n");
            assert_eq!(
                passed(&format!("data: {{}}\n\n{usage}data: [DONE]\n\n"), 7, true).0,
                "data: {}\n\ndata: [DONE]\n\n"
            );
        }
        let open = "data: {\"a\":1}\n\ndata: [DONE]";
        assert_eq!(passed(open, 5, true).0, open);
    }

    #[test]
    fn a_huge_event_passes_and_is_not_kept() {
        let huge = format!("data: {{\"b64\":\"{}\"}}\n\n", "x".repeat(3 * EVENT_MAX));
        let (sent, without) = stream("\n\n");
        for piece in [1000, 16 * 1024] {
            let all = format!("{huge}{sent}");
            let (text, _) = passed(&all, piece, true);
            assert_eq!(text, format!("{huge}{without}"), "in pieces of {piece}");
            assert_eq!(passed(&all, piece, false).0, all);
        }
    }

    quickcheck::quickcheck! {
        fn bytes_pass_in_order_and_nothing_grows(pieces: Vec<Vec<u8>>, taking: bool) -> bool {
            let mut meter = Meter::new(taking);
            let (mut sent, mut out) = (Vec::new(), Vec::new());
            for piece in &pieces {
                sent.extend_from_slice(piece);
                out.extend_from_slice(&meter.push(Bytes::copy_from_slice(piece)));
                if meter.carry.len() > EVENT_MAX { return false }
            }
            out.extend_from_slice(&meter.rest());
            out == sent
        }
    }
}
