//! The API's JSON as YAML: keys keep their order, and what a text could be taken for is quoted.
//!
//! Owns writing only; nothing here reads YAML. Invariant: what a YAML reader makes of the text is what the JSON said.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use umbel_contracts::names::moves_text;

/// Words that YAML readers take for something else than a text, in any case.
const RESERVED: [&str; 9] = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];

/// A JSON object with its keys in the order in which they came.
struct Members(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Members, M::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// `raw`, which is one JSON value, as a YAML document.
pub(crate) fn yaml(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len() * 2);
    match Shape::of(raw) {
        Shape::Scalar(text) => {
            out.push_str(&text);
            out.push('\n');
        }
        shape => shape.write(&mut out, 0, false),
    }
    out
}

/// What a JSON value is to the layout of YAML.
enum Shape {
    Object(Vec<(String, Box<RawValue>)>),
    List(Vec<Box<RawValue>>),
    /// Also an object or list that is empty.
    Scalar(String),
}

impl Shape {
    fn of(raw: &str) -> Self {
        let raw = raw.trim();
        match raw.chars().next() {
            Some('{') => match serde_json::from_str::<Members>(raw) {
                Ok(Members(members)) if !members.is_empty() => Self::Object(members),
                _ => Self::Scalar("{}".to_owned()),
            },
            Some('[') => match serde_json::from_str::<Vec<Box<RawValue>>>(raw) {
                Ok(items) if !items.is_empty() => Self::List(items),
                _ => Self::Scalar("[]".to_owned()),
            },
            Some('"') => {
                Self::Scalar(serde_json::from_str::<String>(raw).map_or_else(|_| raw.to_owned(), text))
            }
            _ => Self::Scalar(raw.to_owned()),
        }
    }

    /// Writes an object or list at `depth`; `begun`: its first line stands behind a dash already.
    fn write(self, out: &mut String, depth: usize, begun: bool) {
        let indent = "  ".repeat(depth);
        match self {
            Self::Scalar(text) => {
                out.push_str(&text);
                out.push('\n');
            }
            Self::Object(members) => {
                for (index, (key, value)) in members.into_iter().enumerate() {
                    if index > 0 || !begun {
                        out.push_str(&indent);
                    }
                    out.push_str(&text(key));
                    out.push(':');
                    match Self::of(value.get()) {
                        Self::Scalar(scalar) => {
                            out.push(' ');
                            out.push_str(&scalar);
                            out.push('\n');
                        }
                        // A list stands below its key without more room, as people write it.
                        list @ Self::List(_) => {
                            out.push('\n');
                            list.write(out, depth, false);
                        }
                        object => {
                            out.push('\n');
                            object.write(out, depth + 1, false);
                        }
                    }
                }
            }
            Self::List(items) => {
                for (index, item) in items.into_iter().enumerate() {
                    if index > 0 || !begun {
                        out.push_str(&indent);
                    }
                    out.push_str("- ");
                    Self::of(item.get()).write(out, depth + 1, true);
                }
            }
        }
    }
}

/// A text as a scalar: plain only where no reader can take it for anything else.
fn text(text: String) -> String {
    let plain = text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.ends_with(|last: char| last.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./ ".contains(c))
        && !RESERVED.contains(&text.to_ascii_lowercase().as_str());
    if plain {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            // Line breaks to YAML, or nothing that may stand in it as it is.
            c if moves_text(c) || c == '\u{feff}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::yaml;

    #[test]
    fn objects_and_lists_keep_their_order() {
        let raw = r#"{"name":"gpu-01","count":1,"labels":{"b":"x","a":"z"},"list":[1,{"k":"v","l":[]},[2,3]],"none":null,"o":{}}"#;
        let wanted = "name: gpu-01\ncount: 1\nlabels:\n  b: x\n  a: z\nlist:\n- 1\n- k: v\n  l: []\n- - 2\n  - 3\nnone: null\no: {}\n";
        assert_eq!(yaml(raw), wanted);
        assert_eq!(yaml(r#"[{"a":{"b":1}},{"a":2}]"#), "- a:\n    b: 1\n- a: 2\n");
    }

    #[test]
    fn texts_that_look_like_something_else_are_quoted() {
        for (raw, wanted) in [
            (r#""30s""#, "\"30s\"\n"),
            (r#""No""#, "\"No\"\n"),
            (r#""null""#, "\"null\"\n"),
            (r#""""#, "\"\"\n"),
            (r#""a: b""#, "\"a: b\"\n"),
            (r#""a #b""#, "\"a #b\"\n"),
            (r#""- a""#, "\"- a\"\n"),
            (r#""a ""#, "\"a \"\n"),
            (r#""2026-08-22T09:12:04Z""#, "\"2026-08-22T09:12:04Z\"\n"),
            (r#""say \"x\"\n\u0007\u2028""#, "\"say \\\"x\\\"\\n\\u0007\\u2028\"\n"),
            (r#""\ud83d\ude00""#, "\"\u{1f600}\"\n"),
            (r#""Qwen/Qwen3-32B""#, "Qwen/Qwen3-32B\n"),
            (r#""a sentence of words""#, "a sentence of words\n"),
            ("1.5e3", "1.5e3\n"),
            ("true", "true\n"),
        ] {
            assert_eq!(yaml(raw), wanted, "{raw}");
        }
        assert_eq!(yaml(r#"{"no":1,"1":2}"#), "\"no\": 1\n\"1\": 2\n");
    }
}
