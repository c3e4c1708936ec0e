//! What the edge reads of a request's body: the model, whether a stream and its usage are wanted, how long the prompt
//! is. All else is bytes.
//!
//! Owns the fields and where they stand; leaves forms to [`form`] and how bytes of a prompt count to [`size`].
//! Invariant: the bytes go on as they came, unknown fields, number spellings and key order included; only the value
//! of `model` can be replaced, and, where the site says so, `stream_options.include_usage` be put in, in place.

pub(super) mod form;
mod size;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Longest model name; longer ones are no model of ours.
const MODEL_MAX: usize = 512;

/// The fields the edge looks at. Absent and `null` are the same for clients, but not where something is put in.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow, default)]
    model: Option<&'a RawValue>,
    #[serde(borrow, default)]
    stream: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "said")]
    stream_options: Option<&'a RawValue>,
    // The prompt: chat, completions, embeddings and responses, rerank.
    #[serde(borrow, default)]
    messages: Option<&'a RawValue>,
    #[serde(borrow, default)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow, default)]
    input: Option<&'a RawValue>,
    #[serde(borrow, default)]
    query: Option<&'a RawValue>,
    #[serde(borrow, default)]
    documents: Option<&'a RawValue>,
    // The answer's limit, in the three spellings.
    #[serde(borrow, default)]
    max_tokens: Option<&'a RawValue>,
    #[serde(borrow, default)]
    max_completion_tokens: Option<&'a RawValue>,
    #[serde(borrow, default)]
    max_output_tokens: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct StreamOptions<'a> {
    #[serde(borrow, default, deserialize_with = "said")]
    include_usage: Option<&'a RawValue>,
}

/// Also a `null` is said.
fn said<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

/// What was asked for.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// The model's name or alias.
    pub(super) model: String,
    /// Whether the answer shall be an event stream.
    pub(super) stream: bool,
    /// Bytes of the prompt as they count for an estimate of its tokens; 0 is unknown.
    pub(super) prompt_bytes: u64,
    /// Where the prompt stands in the body.
    prompt_at: Range<usize>,
    /// Most tokens of the answer, where the client said so.
    pub(super) answer_tokens: Option<u64>,
    /// Where the value of `model` stands in the body, quotes included.
    model_at: Range<usize>,
    /// A form's value stands without quotes.
    quoted: bool,
    /// What makes the engine tell the usage of a stream, and where; nothing if it does already, or cannot be told.
    usage_put: Option<(Range<usize>, &'static str)>,
}

/// Why a body is no request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BadRequest {
    /// Not a JSON object; what the parser says, without content.
    NotJson(String),
    /// Not a form, where one has to be.
    NotAForm(&'static str),
    /// No `model`.
    NoModel,
    /// `model` is no string, or a far too long one.
    BadModel,
    /// `stream` is no boolean.
    BadStream,
}

/// Reads a JSON body.
pub(super) fn read(body: &[u8]) -> Result<Asked, BadRequest> {
    // A JSON text may begin with spaces, and serde's struct would take an array as well.
    let open = body.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or_default();
    if body.get(open) != Some(&b'{') {
        return Err(BadRequest::NotJson("the body is not a JSON object".to_owned()));
    }
    let fields = match std::str::from_utf8(body) {
        // What is known to be text is not looked at again, piece by piece.
        Ok(text) => serde_json::from_str::<Fields<'_>>(text),
        // What is none may stand where nothing is read: then it is for the engine to judge.
        Err(_) => serde_json::from_slice(body),
    };
    let fields = fields.map_err(|error| not_json(&error))?;
    let raw = fields.model.map(RawValue::get).filter(|raw| *raw != "null").ok_or(BadRequest::NoModel)?;
    let model: Cow<'_, str> = match raw.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(plain) if !plain.contains('\\') => Cow::Borrowed(plain),
        _ => Cow::Owned(serde_json::from_str::<String>(raw).map_err(|_| BadRequest::BadModel)?),
    };
    let model = sound_model(&model)?;
    let stream = match fields.stream.map(RawValue::get) {
        None | Some("null" | "false") => false,
        Some("true") => true,
        Some(_) => return Err(BadRequest::BadStream),
    };
    let usage_put = usage(body, open, &fields);
    let prompts = [fields.messages, fields.prompt, fields.input, fields.query, fields.documents];
    let prompts = || prompts.iter().flatten().map(|raw| raw.get());
    let limits = [fields.max_completion_tokens, fields.max_tokens, fields.max_output_tokens];
    Ok(Asked {
        model,
        stream,
        prompt_bytes: prompts().map(|raw| size::counted(raw.as_bytes())).sum(),
        prompt_at: prompts().next().map(|raw| place(body, raw)).unwrap_or_default(),
        answer_tokens: limits.iter().flatten().find_map(|raw| raw.get().parse().ok()),
        model_at: place(body, raw),
        quoted: true,
        usage_put,
    })
}

fn not_json(error: &serde_json::Error) -> BadRequest {
    // The parser's own words can quote a field's name or value; category and place say enough.
    let what = match error.classify() {
        serde_json::error::Category::Eof => "it ends too early",
        serde_json::error::Category::Data if error.to_string().starts_with("duplicate field") => {
            "a field that this edge reads, such as `model`, stands in it twice"
        }
        _ => "it is malformed",
    };
    let (line, column) = (error.line(), error.column());
    BadRequest::NotJson(format!("the body is not valid JSON: {what} (line {line}, column {column})"))
}

fn sound_model(model: &str) -> Result<String, BadRequest> {
    match model.len() {
        0 => Err(BadRequest::NoModel),
        1..=MODEL_MAX => Ok(model.to_owned()),
        _ => Err(BadRequest::BadModel),
    }
}

/// What would ask for a stream's usage in the client's place; nothing if it did so itself.
fn usage(body: &[u8], open: usize, fields: &Fields<'_>) -> Option<(Range<usize>, &'static str)> {
    let Some(options) = fields.stream_options.map(RawValue::get) else {
        let behind = open.saturating_add(1);
        // The object has a `model`, so that a comma is right.
        return Some((behind..behind, r#""stream_options":{"include_usage":true},"#));
    };
    let whole = r#"{"include_usage":true}"#;
    if options == "null" {
        return Some((place(body, options), whole));
    }
    // What is wrong with it, the engine says.
    let parsed = serde_json::from_str::<StreamOptions<'_>>(options).ok()?;
    match parsed.include_usage.map(RawValue::get) {
        Some(said @ ("false" | "null")) => Some((place(body, said), "true")),
        Some(_) => None,
        None if options.get(1..).is_some_and(|rest| rest.trim_start().starts_with('}')) => {
            Some((place(body, options), whole))
        }
        None if options.starts_with('{') => {
            let behind = place(body, options).start.saturating_add(1);
            Some((behind..behind, r#""include_usage":true,"#))
        }
        None => None,
    }
}

/// Where a part of the body stands in it.
fn place(body: &[u8], part: &str) -> Range<usize> {
    let start = (part.as_ptr() as usize).saturating_sub(body.as_ptr() as usize);
    start..start.saturating_add(part.len())
}

impl Asked {
    /// The engine can be made to tell the usage of this stream, which its client did not ask for.
    pub(super) fn can_take_usage(&self) -> bool {
        self.stream && self.usage_put.is_some()
    }

    /// The prompt's raw bytes; none of a form.
    pub(super) fn prompt<'a>(&self, body: &'a [u8]) -> &'a [u8] {
        body.get(self.prompt_at.clone()).unwrap_or_default()
    }

    /// The body for an engine that knows the model by `name`: the same bytes, unless the caller used an alias or
    /// the usage is asked for in its place.
    pub(super) fn body_for(&self, body: &Bytes, name: &str, with_usage: bool) -> Bytes {
        let model = (name != self.model).then(|| (self.model_at.clone(), self.written(name)));
        let usage = self.usage_put.as_ref().filter(|_| with_usage && self.stream);
        let usage = usage.map(|(at, text)| (at.clone(), text.as_bytes().to_vec()));
        let mut changes = [model, usage];
        changes.sort_by_key(|change| change.as_ref().map(|(at, _)| at.start));
        if changes.iter().all(Option::is_none) {
            return body.clone();
        }
        let more: usize = changes.iter().flatten().map(|(_, text)| text.len()).sum();
        let mut changed = BytesMut::with_capacity(body.len().saturating_add(more));
        let mut from = 0;
        for (at, text) in changes.iter().flatten() {
            changed.extend_from_slice(body.get(from..at.start).unwrap_or_default());
            changed.extend_from_slice(text);
            from = at.end;
        }
        changed.extend_from_slice(body.get(from..).unwrap_or_default());
        changed.freeze()
    }

    fn written(&self, name: &str) -> Vec<u8> {
        // A string always serializes.
        if self.quoted { serde_json::to_vec(name).unwrap_or_default() } else { name.as_bytes().to_vec() }
    }
}
