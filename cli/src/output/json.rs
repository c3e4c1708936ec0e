//! JSON as the API gave it: keys keep their order and fields that this version does not know stay.
//!
//! Owns the text of JSON, not its meaning. Invariant: the values printed are the bytes that came.

use serde_json::value::RawValue;

const INDENT: &str = "  ";

/// `raw` with line breaks and indentation. `raw` is valid JSON, as every [`RawValue`] is.
pub(crate) fn indent(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len() * 2);
    let mut depth = 0usize;
    let mut in_string = false;
    let mut escaped = false;
    let mut chars = raw.chars().filter(|c| !matches!(c, '\u{feff}')).peekable();
    while let Some(c) = chars.next() {
        if in_string {
            out.push(c);
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
            continue;
        }
        match c {
            '"' => {
                in_string = true;
                out.push(c);
            }
            '{' | '[' => {
                out.push(c);
                while chars.next_if(|next| next.is_ascii_whitespace()).is_some() {}
                if let Some(close) = chars.next_if(|next| matches!(next, '}' | ']')) {
                    out.push(close);
                } else {
                    depth += 1;
                    line_break(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line_break(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                line_break(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => out.push(c),
        }
    }
    out.push('\n');
    out
}

/// `raw` on one line.
pub(crate) fn line(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len() + 1);
    let mut in_string = false;
    let mut escaped = false;
    for c in raw.chars() {
        if in_string {
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
            out.push(c);
        } else if !c.is_ascii_whitespace() {
            in_string = c == '"';
            out.push(c);
        }
    }
    out.push('\n');
    out
}

/// The members of the list that stands under `key` in `raw`, or of `raw` itself when it is a list.
pub(crate) fn members(raw: &str, key: &str) -> Vec<Box<RawValue>> {
    if let Ok(list) = serde_json::from_str::<Vec<Box<RawValue>>>(raw) {
        return list;
    }
    let object = serde_json::from_str::<std::collections::BTreeMap<String, Box<RawValue>>>(raw);
    let list = object.ok().and_then(|mut object| object.remove(key));
    list.and_then(|list| serde_json::from_str(list.get()).ok()).unwrap_or_default()
}

fn line_break(out: &mut String, depth: usize) {
    out.push('\n');
    for _ in 0..depth {
        out.push_str(INDENT);
    }
}
