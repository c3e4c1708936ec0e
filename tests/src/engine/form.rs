//! The fields of a form, as JSON: what a transcription asks for.
//!
//! Enough for the forms of the official clients; a file's bytes are left out.

use serde_json::{Map, Value};

/// Its fields without file names; those that are JSON are parsed. Nothing where it is no form.
pub(super) fn fields(body: &[u8]) -> Value {
    let text = String::from_utf8_lossy(body);
    let Some(boundary) = text.lines().next().filter(|line| line.starts_with("--")) else {
        return Value::Null;
    };
    let mut fields = Map::new();
    for part in text.split(boundary) {
        let Some((head, value)) = part.split_once("\r\n\r\n") else { continue };
        let name = head.split("name=\"").nth(1).and_then(|rest| rest.split('"').next());
        if let (Some(name), false) = (name, head.contains("filename=")) {
            let value = value.trim_end_matches("\r\n");
            fields.insert(name.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| value.into()));
        }
    }
    Value::Object(fields)
}
