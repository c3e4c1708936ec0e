//! The members of a small JSON object, where they stand.
//!
//! A parser that builds values, or checks what nobody reads, takes four times as long for an object of three counts, and each
//! answer has one. Invariant: an object that ends is shown as a parser would read it, but for escapes in names, which stay
//! (a test compares them), and one that does not end is none.

use memchr::memchr2;

/// Shows name and value of each member of the object that the bytes begin with, both as they stand, the name without its
/// quotes. Nothing if it does not end there; what is malformed inside of a value is not noticed.
pub(super) fn members<'a>(bytes: &'a [u8], mut each: impl FnMut(&'a [u8], &'a [u8])) -> Option<()> {
    let mut rest = bytes.strip_prefix(b"{")?.trim_ascii_start();
    if rest.starts_with(b"}") {
        return Some(());
    }
    loop {
        let (name, behind) = rest.split_at_checked(text(rest)?)?;
        let behind = behind.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        let (value, behind) = behind.split_at_checked(value(behind)?)?;
        each(name.strip_prefix(b"\"")?.strip_suffix(b"\"")?, value);
        match behind.trim_ascii_start().split_first()? {
            (b',', behind) => rest = behind.trim_ascii_start(),
            (b'}', _) => return Some(()),
            _ => return None,
        }
    }
}

/// How long the value is that the bytes begin with.
fn value(bytes: &[u8]) -> Option<usize> {
    match bytes.first()? {
        b'"' => text(bytes),
        b'{' | b'[' => nested(bytes),
        // A number or a word.
        _ => {
            let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b':') || byte.is_ascii_whitespace();
            bytes.iter().position(ends).filter(|length| *length > 0)
        }
    }
}

/// The same of a list or an object.
fn nested(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut depth) = (0_usize, 0_usize);
    loop {
        match bytes.get(at)? {
            b'"' => {
                at += text(bytes.get(at..)?)?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 1 => return Some(at + 1),
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
}

/// The same of a text, its quotes included.
fn text(bytes: &[u8]) -> Option<usize> {
    if bytes.first() != Some(&b'"') {
        return None;
    }
    let mut at = 1;
    loop {
        at += memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes.get(at) == Some(&b'"') {
            return Some(at + 1);
        }
        // What is escaped does not end it.
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
    use quickcheck::quickcheck;
    use serde_json::{Map, Value, json};

    use super::*;

    fn read(bytes: &[u8]) -> Option<Map<String, Value>> {
        let mut all = Map::new();
        members(bytes, |name, value| {
            let name = [b"\"", name, b"\""].concat();
            all.insert(serde_json::from_slice(&name).unwrap(), serde_json::from_slice(value).unwrap());
        })?;
        Some(all)
    }

    /// Whole, with something behind it, and cut; as short as it can be and spread over lines.
    fn agree(object: &Value, cut: usize) -> bool {
        [serde_json::to_string(object).unwrap(), serde_json::to_string_pretty(object).unwrap()].iter().all(
            |text| {
                let behind = format!("{text} }} ] \" behind");
                let cut = text.as_bytes().get(..cut % text.len()).unwrap();
                read(text.as_bytes()).as_ref() == object.as_object()
                    && read(behind.as_bytes()).as_ref() == object.as_object()
                    && members(cut, |_, _| ()).is_none()
            },
        )
    }

    quickcheck! {
        fn members_are_those_that_a_parser_reads(names: Vec<String>, text: String, number: i64, cut: usize) -> bool {
            let mut value = json!([text, number, {text.clone(): null}, true, {}, []]);
            for _ in 0..cut % 8 {
                value = json!({"x": [value], "y\\\"": number});
            }
            let mut object = Map::new();
            for (name, at) in names.into_iter().take(8).zip(0..) {
                let value = match at % 4 {
                    0 => json!(number),
                    1 => json!(text),
                    2 => json!(null),
                    _ => value.clone(),
                };
                object.insert(name, value);
            }
            agree(&Value::Object(object), cut)
        }

        fn noise_is_answered(noise: Vec<u8>) -> bool {
            members(&noise, |_, _| ());
            members(&[b"{\"a\":", &*noise].concat(), |_, _| ());
            true
        }
    }

    #[test]
    fn what_does_not_end_or_has_no_form_is_no_object() {
        for text in [
            "",
            "1",
            "{",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":}",
            "{\"a\":1",
            "{\"a\":1,",
            "{\"a\":1,}",
            "{\"a\" 1}",
            "{a:1}",
        ] {
            assert_eq!(members(text.as_bytes(), |_, _| ()), None, "{text}");
        }
        assert_eq!(members(b"{ }", |_, _| ()), Some(()));
    }
}
