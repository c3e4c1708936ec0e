//! Token counts out of an answer, from its last bytes, or from its first ones where it is one JSON object.
//!
//! Owns the bounded look; leaves the bytes to the relay. Invariant: at most [`KEPT`] bytes of either end are looked at,
//! and an answer without a `usage` object there has no counts rather than zeros.

use memchr::memmem;

/// Bytes of each of an answer's ends that are looked at. A usage object has a few hundred; some engines put their timings
/// behind it, and vectors or documents, of any length.
pub(crate) const KEPT: usize = 4096;

/// The last bytes of an answer, and the first ones of an object. In a stream of events only the last word counts.
#[derive(Debug, Default)]
pub(crate) struct UsageTail {
    head: Vec<u8>,
    /// The head is as long as it gets, or the answer is no object.
    past_head: bool,
    bytes: Vec<u8>,
}

/// The counts an engine gave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: Option<u32>,
    pub(crate) completion_tokens: Option<u32>,
    /// Of the prompt's tokens, those that the engine had cached.
    pub(crate) cached_tokens: Option<u32>,
}

impl Usage {
    /// Reads each count on its own, in the words of chat or of responses: some servers give both, and one that cannot be
    /// read takes none of the others away.
    fn of(object: &serde_json::Map<String, serde_json::Value>) -> Self {
        let either = |names: [&str; 2]| names.into_iter().find_map(|name| count(object.get(name)?));
        let cached = |details| count(object.get(details)?.get("cached_tokens")?);
        Self {
            prompt_tokens: either(["prompt_tokens", "input_tokens"]),
            completion_tokens: either(["completion_tokens", "output_tokens"]),
            cached_tokens: ["prompt_tokens_details", "input_tokens_details"].into_iter().find_map(cached),
        }
    }
}

/// A whole number, however it is spelled: 12, 1.2e1, "12".
fn count(value: &serde_json::Value) -> Option<u32> {
    let number = match value {
        serde_json::Value::Number(number) => number.as_f64()?,
        serde_json::Value::String(text) => text.parse().ok()?,
        _ => return None,
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole and within the bounds"
    )]
    (number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number)).then_some(number as u32)
}

impl UsageTail {
    /// Takes a part of the answer.
    pub(crate) fn push(&mut self, part: &[u8]) {
        if !self.past_head {
            // Nothing of a stream of events is kept: it begins otherwise.
            let begun = !self.head.trim_ascii_start().is_empty();
            let is_object = begun || part.trim_ascii_start().first().is_none_or(|first| *first == b'{');
            if is_object {
                let room = KEPT - self.head.len();
                self.head.extend_from_slice(part.get(..room).unwrap_or(part));
                self.past_head = self.head.len() >= KEPT;
            } else {
                (self.head, self.past_head) = (Vec::new(), true);
            }
        }
        if part.len() >= KEPT {
            self.bytes.clear();
        } else if self.bytes.len() + part.len() > 2 * KEPT {
            // Moved once in a while, not with each token.
            let cut = self.bytes.len().saturating_sub(KEPT);
            self.bytes.drain(..cut);
        }
        let from = part.len().saturating_sub(KEPT);
        self.bytes.extend_from_slice(part.get(from..).unwrap_or_default());
    }

    /// The last usage object that is there in full, else the first one of an object's beginning.
    pub(crate) fn usage(&self) -> Usage {
        // Forwards and then back: only the way forwards looks at many bytes at a time.
        let places: Vec<usize> = memmem::find_iter(&self.bytes, KEY).collect();
        let last = || places.iter().rev().find_map(|at| usage_at(&self.bytes, *at));
        let first = || memmem::find_iter(&self.head, KEY).find_map(|at| usage_at(&self.head, at));
        last().or_else(first).unwrap_or_default()
    }
}

const KEY: &[u8] = b"\"usage\"";

/// The object behind the key that stands there.
fn usage_at(bytes: &[u8], at: usize) -> Option<Usage> {
    // In a text the quotes are escaped: that is the model talking.
    let quoted = at.checked_sub(1).and_then(|before| bytes.get(before)) == Some(&b'\\');
    let rest = bytes.get(at + KEY.len()..).unwrap_or_default().trim_ascii_start();
    let value = rest.strip_prefix(b":").map(<[u8]>::trim_ascii_start)?;
    if quoted || value.first() != Some(&b'{') {
        return None;
    }
    let object = serde_json::Deserializer::from_slice(value).into_iter().next()?.ok()?;
    Some(Usage::of(&object))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(parts: &[&str]) -> Usage {
        let mut tail = UsageTail::default();
        for part in parts {
            tail.push(part.as_bytes());
        }
        tail.usage()
    }

    fn counts(prompt: u32, completion: u32) -> Usage {
        Usage { prompt_tokens: Some(prompt), completion_tokens: Some(completion), ..Usage::default() }
    }

    /// Row 51: with and without a line's end, and cut anywhere.
    #[test]
    fn row_51_found_wherever_it_ends() {
        let event = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,\"x\":{}}}";
        for end in ["", "\n", "\r\n\r\n", "\n\ndata: [DONE]\n\n"] {
            let text = format!("{}{event}{end}", "data: {\"usage\":null}\n\n".repeat(1000));
            for at in [1, text.len() - 40, text.len() - 3] {
                let (a, b) = text.split_at(at);
                assert_eq!(usage(&[a, b]), counts(7, 3));
            }
        }
    }

    #[test]
    fn responses_have_words_of_their_own_and_cached_tokens_are_told() {
        let text = "{\"usage\":{\"input_tokens\":9,\"input_tokens_details\":{\"cached_tokens\":8},\"output_tokens\":2}}";
        let found = usage(&[text]);
        assert_eq!(
            (found.prompt_tokens, found.completion_tokens, found.cached_tokens),
            (Some(9), Some(2), Some(8))
        );
        let text = "{\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":null}}";
        assert_eq!((usage(&[text]).prompt_tokens, usage(&[text]).cached_tokens), (Some(9), None));
    }

    #[test]
    fn a_count_that_cannot_be_read_takes_no_other_away() {
        let of = |fields: &str| {
            let found = usage(&[&format!("{{\"usage\":{{{fields}}}}}")]);
            (found.prompt_tokens, found.completion_tokens)
        };
        let both = "\"prompt_tokens\":11,\"input_tokens\":11,\"completion_tokens\":22,\"output_tokens\":22";
        assert_eq!(of(both), (Some(11), Some(22)));
        assert_eq!(of("\"prompt_tokens\":1.1e1,\"completion_tokens\":\"22\""), (Some(11), Some(22)));
        assert_eq!(
            of("\"prompt_tokens\":1,\"prompt_tokens\":11,\"completion_tokens\":22.0"),
            (Some(11), Some(22))
        );
        for odd in ["null", "[]", "-1", "1.5", "4294967296", "\"many\""] {
            assert_eq!(
                of(&format!("\"prompt_tokens\":{odd},\"completion_tokens\":22")),
                (None, Some(22)),
                "{odd}"
            );
        }
    }

    #[test]
    fn null_and_text_are_no_usage() {
        assert_eq!(usage(&["{\"usage\":null}"]), Usage::default());
        assert_eq!(usage(&["{\"content\":\"\\\"usage\\\":{\\\"prompt_tokens\\\":1}\"}"]), Usage::default());
        assert_eq!(usage(&["{\"usage\":{\"prompt_tokens\":1"]), Usage::default());
        assert_eq!(
            usage(&["{\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":6},\"usage\":null}"]),
            counts(5, 6)
        );
    }

    #[test]
    fn an_object_that_begins_with_it_has_counts_however_long_it_is() {
        let vectors = "0.12345,".repeat(100_000);
        let text =
            format!(" {{\"usage\" : {{\"prompt_tokens\":9,\"total_tokens\":9}},\"data\":[{vectors}1]}}");
        for piece in [1_000, 16_384, text.len()] {
            let mut tail = UsageTail::default();
            text.as_bytes().chunks(piece).for_each(|part| tail.push(part));
            assert_eq!(
                (tail.usage().prompt_tokens, tail.head.len()),
                (Some(9), KEPT),
                "in pieces of {piece}"
            );
        }
        // Of a stream only the last word counts: what its first event said is not what it came to.
        let event = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":1}}\n\n";
        let text = format!("{event}{}", "data: {\"usage\":null}\n\n".repeat(1_000));
        assert_eq!(usage(&[&text]), Usage::default());
    }

    quickcheck::quickcheck! {
        fn bounded(parts: Vec<Vec<u8>>) -> bool {
            let mut tail = UsageTail::default();
            for part in &parts {
                for _ in 0..100 {
                    tail.push(part);
                }
            }
            let _ = tail.usage();
            tail.bytes.len() <= 2 * KEPT && tail.head.len() <= KEPT
        }
    }
}
