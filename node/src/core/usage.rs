//! Token counts out of an answer, from its last bytes, or from its first ones where it is one JSON object.
//!
//! Owns the bounded look; leaves the bytes to the relay. Invariant: at most [`KEPT`] bytes of either end are looked at,
//! and an answer without a `usage` object there has no counts rather than zeros.

use std::{borrow::Cow, fmt, sync::LazyLock};

use memchr::memmem::Finder;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Bytes of each of an answer's ends that are looked at. A usage object has a few hundred; some engines put their timings
/// behind it, and vectors or documents, of any length.
pub(crate) const KEPT: usize = 4096;

/// The last bytes of an answer, and the first ones of an object. In a stream of events only the last word counts.
#[derive(Debug, Default)]
pub(crate) struct UsageTail {
    /// The answer's first bytes, once they are no more among the last ones; nothing of an answer that is no object.
    head: Vec<u8>,
    /// Some of the answer was let go of.
    cut: bool,
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

/// What a usage object says of tokens, in the words of chat and of responses; the last word of a name counts.
#[derive(Default)]
struct Words<'a> {
    prompt: [Option<&'a RawValue>; 2],
    completion: [Option<&'a RawValue>; 2],
    details: [Option<&'a RawValue>; 2],
    /// In the details.
    cached: Option<&'a RawValue>,
}

impl<'a> Words<'a> {
    fn place(&mut self, name: &str) -> Option<&mut Option<&'a RawValue>> {
        let [prompt, input] = &mut self.prompt;
        let [completion, output] = &mut self.completion;
        let [prompt_details, input_details] = &mut self.details;
        Some(match name {
            "prompt_tokens" => prompt,
            "input_tokens" => input,
            "completion_tokens" => completion,
            "output_tokens" => output,
            "prompt_tokens_details" => prompt_details,
            "input_tokens_details" => input_details,
            "cached_tokens" => &mut self.cached,
            _ => return None,
        })
    }
}

impl<'de> Deserialize<'de> for Words<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Words<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut object: M) -> Result<Self::Value, M::Error> {
                let mut words = Words::default();
                while let Some(Name(name)) = object.next_key()? {
                    match words.place(&name) {
                        Some(place) => *place = Some(object.next_value()?),
                        None => drop(object.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(words)
            }
        }

        from.deserialize_map(Object)
    }
}

/// A name, as it stands in the text where it can.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl Usage {
    /// Reads each count on its own: some servers give both words, and one that cannot be read takes none of the others
    /// away.
    fn of(words: &Words<'_>) -> Self {
        let either = |counts: [Option<&RawValue>; 2]| counts.into_iter().flatten().find_map(count);
        let cached =
            |details: &RawValue| count(serde_json::from_str::<Words<'_>>(details.get()).ok()?.cached?);
        Self {
            prompt_tokens: either(words.prompt),
            completion_tokens: either(words.completion),
            cached_tokens: words.details.into_iter().flatten().find_map(cached),
        }
    }
}

/// A whole number, however it is spelled: 12, 1.2e1, "12".
fn count(value: &RawValue) -> Option<u32> {
    let text = value.get();
    let number: f64 = match text.as_bytes().first()? {
        b'-' | b'0'..=b'9' => match text.parse() {
            Ok(plain) => return Some(plain),
            Err(_) => text.parse().ok()?,
        },
        b'"' => serde_json::from_str::<String>(text).ok()?.parse().ok()?,
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
        if self.bytes.len() + part.len() > 2 * KEPT {
            if !std::mem::replace(&mut self.cut, true) {
                self.keep_head(part);
            }
            // Moved once in a while, not with each token.
            let kept = KEPT.saturating_sub(part.len());
            let cut = self.bytes.len().saturating_sub(kept);
            self.bytes.drain(..cut);
        }
        let from = part.len().saturating_sub(2 * KEPT);
        self.bytes.extend_from_slice(part.get(from..).unwrap_or_default());
    }

    /// The first bytes are about to be let go of. Nothing of a stream of events is kept: it begins otherwise.
    fn keep_head(&mut self, part: &[u8]) {
        let mut all = self.bytes.iter().chain(part).copied();
        if all.clone().find(|byte| !byte.is_ascii_whitespace()) == Some(b'{') {
            self.head.extend(all.by_ref().take(KEPT));
        }
    }

    /// The last usage object that is there in full, else the first one of an object's beginning.
    pub(crate) fn usage(&self) -> Usage {
        // Forwards and then back: only the way forwards looks at many bytes at a time.
        let places: Vec<usize> = KEY.find_iter(&self.bytes).collect();
        let last = || places.iter().rev().find_map(|at| usage_at(&self.bytes, *at));
        let first = || KEY.find_iter(&self.head).find_map(|at| usage_at(&self.head, at));
        last().or_else(first).unwrap_or_default()
    }
}

static KEY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"usage\""));

/// The object behind the key that stands there.
fn usage_at(bytes: &[u8], at: usize) -> Option<Usage> {
    // In a text the quotes are escaped: that is the model talking.
    let quoted = at.checked_sub(1).and_then(|before| bytes.get(before)) == Some(&b'\\');
    let rest = bytes.get(at + KEY.needle().len()..).unwrap_or_default().trim_ascii_start();
    let value = rest.strip_prefix(b":").map(<[u8]>::trim_ascii_start)?;
    if quoted || value.first() != Some(&b'{') {
        return None;
    }
    // What stands behind the object is not looked at.
    let words = Words::deserialize(&mut serde_json::Deserializer::from_slice(value)).ok()?;
    Some(Usage::of(&words))
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
        for odd in ["null", "[]", "{\"x\":[1]}", "-1", "1.5", "1e999", "4294967296", "\"many\""] {
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
