//! What the edge reads of a request's JSON: the model and whether a stream is wanted. All else is bytes.
//!
//! Invariant: the bytes go on as they came, unknown fields, number spellings and key order included; only the
//! value of `model` can be replaced, in place.

use std::borrow::Cow;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Longest model name; longer ones are no model of ours.
const MODEL_MAX: usize = 512;

/// The fields the edge looks at. Absent and `null` are the same for clients.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow, default)]
    model: Option<&'a RawValue>,
    #[serde(borrow, default)]
    stream: Option<&'a RawValue>,
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// The model's name or alias.
    pub(super) model: String,
    /// Whether the answer shall be an event stream.
    pub(super) stream: bool,
    /// Where the value of `model` stands in the body, quotes included.
    model_at: Range<usize>,
}

/// Why a body is no request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BadRequest {
    /// Not a JSON object; what the parser says, without content.
    NotJson(String),
    /// No `model`.
    NoModel,
    /// `model` is no string, or a far too long one.
    BadModel,
    /// `stream` is no boolean.
    BadStream,
}

/// Reads a body.
pub(super) fn read(body: &[u8]) -> Result<Asked, BadRequest> {
    // A JSON text may begin with spaces, and serde's struct would take an array as well.
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(BadRequest::NotJson("the body is not a JSON object".to_owned()));
    }
    let fields: Fields<'_> = serde_json::from_slice(body).map_err(|error| {
        // The parser's own words can quote a field's name or value; category and place say enough.
        let what = match error.classify() {
            serde_json::error::Category::Eof => "it ends too early",
            serde_json::error::Category::Data if error.to_string().starts_with("duplicate field") => {
                "`model` or `stream` stands in it twice"
            }
            _ => "it is malformed",
        };
        let (line, column) = (error.line(), error.column());
        BadRequest::NotJson(format!("the body is not valid JSON: {what} (line {line}, column {column})"))
    })?;
    let raw = fields.model.map(RawValue::get).filter(|raw| *raw != "null").ok_or(BadRequest::NoModel)?;
    let model: Cow<'_, str> = match raw.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(plain) if !plain.contains('\\') => Cow::Borrowed(plain),
        _ => Cow::Owned(serde_json::from_str::<String>(raw).map_err(|_| BadRequest::BadModel)?),
    };
    if model.is_empty() {
        return Err(BadRequest::NoModel);
    }
    if model.len() > MODEL_MAX {
        return Err(BadRequest::BadModel);
    }
    let stream = match fields.stream.map(RawValue::get) {
        None | Some("null" | "false") => false,
        Some("true") => true,
        Some(_) => return Err(BadRequest::BadStream),
    };
    // `raw` is a part of `body`, so its distance from the start is its place.
    let start = (raw.as_ptr() as usize).saturating_sub(body.as_ptr() as usize);
    Ok(Asked { model: model.into_owned(), stream, model_at: start..start.saturating_add(raw.len()) })
}

impl Asked {
    /// The body for an engine that knows the model by `name`: the same bytes, unless the caller used an alias.
    pub(super) fn body_for(&self, body: &Bytes, name: &str) -> Bytes {
        if name == self.model {
            return body.clone();
        }
        let (Some(before), Some(after)) = (body.get(..self.model_at.start), body.get(self.model_at.end..))
        else {
            return body.clone();
        };
        // A string always serializes.
        let quoted = serde_json::to_vec(name).unwrap_or_default();
        let mut changed = BytesMut::with_capacity(before.len() + quoted.len() + after.len());
        changed.extend_from_slice(before);
        changed.extend_from_slice(&quoted);
        changed.extend_from_slice(after);
        changed.freeze()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
    use super::*;

    #[test]
    fn it_reads_the_two_fields_and_nothing_else() {
        let body = br#" {"seed":12345678901234567890,"x":{"model":"no"},"temperature":1e-05,"model":"m","stream":true}"#;
        let asked = read(body).unwrap();
        assert_eq!((asked.model.as_str(), asked.stream), ("m", true));
        let asked = read(br#"{"model":"a\/b\u0041","stream":null}"#).unwrap();
        assert_eq!((asked.model.as_str(), asked.stream), ("a/bA", false));
    }

    #[test]
    fn only_the_models_value_changes_for_an_alias() {
        let body = Bytes::from_static(
            r#"{"a":1.0e5 ,"model" : "ali\u0061s", "é":[1, 2],"seed":9007199254740993}"#.as_bytes(),
        );
        let asked = read(&body).unwrap();
        assert_eq!(asked.model, "alias");
        assert_eq!(asked.body_for(&body, "alias"), body);
        let expected = r#"{"a":1.0e5 ,"model" : "real \"m\"", "é":[1, 2],"seed":9007199254740993}"#;
        assert_eq!(asked.body_for(&body, "real \"m\""), expected.as_bytes());
    }

    #[test]
    fn bad_bodies_are_told_apart_and_never_quoted() {
        for (body, bad) in [
            (&b"{}"[..], BadRequest::NoModel),
            (br#"{"model":null}"#, BadRequest::NoModel),
            (br#"{"model":""}"#, BadRequest::NoModel),
            (br#"{"model":7}"#, BadRequest::BadModel),
            (br#"{"model":"m","stream":"yes"}"#, BadRequest::BadStream),
        ] {
            assert_eq!(read(body).unwrap_err(), bad);
        }
        for body in
            [&b""[..], b"[\"secret\"]", b"secret", br#"{"model":"m","p":"secret"#, b"{\"model\":\"\xff\"}"]
        {
            let BadRequest::NotJson(text) = read(body).unwrap_err() else { unreachable!("{body:?}") };
            assert!(!text.contains("secret"), "{text}");
        }
        assert!(
            matches!(read(br#"{"model":"a","model":"b"}"#), Err(BadRequest::NotJson(text)) if text.contains("twice"))
        );
    }

    #[test]
    fn deep_nesting_is_no_stack_overflow() {
        let mut body = br#"{"model":"m","x":"#.to_vec();
        body.extend(std::iter::repeat_n(b'[', 200_000));
        body.extend(std::iter::repeat_n(b']', 200_000));
        body.push(b'}');
        assert_eq!(read(&body).unwrap().model, "m");
    }
}
