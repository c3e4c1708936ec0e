//! A program that is started once a request: its text becomes an answer of OpenAI's chat and text completions.
//!
//! Owns the shape of the answer; leaves the process and the stream to `shell/relay`. Invariant: whatever bytes the program
//! writes, each event is valid JSON and no character is cut in two.

use std::{path::PathBuf, time::Duration};

use serde::Deserialize;
use serde_json::json;

/// One program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cli {
    pub(crate) program: PathBuf,
    /// Longest run of one request.
    pub(crate) timeout: Duration,
    pub(crate) model: String,
    /// How this program becomes the leash of that one.
    pub(crate) holder: &'static [&'static str],
}

/// What a request asks for, as far as it matters here.
#[derive(Debug, Default, Deserialize)]
struct Asked {
    #[serde(default)]
    stream: Option<bool>,
}

/// Which of the two shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Chat,
    Text,
}

/// The answer to one request, as it comes.
#[derive(Debug)]
pub(crate) struct Answer {
    shape: Shape,
    /// Event by event, or at once.
    pub(crate) streams: bool,
    id: String,
    model: String,
    created: i64,
    /// The beginning of a character whose rest has not come.
    cut: Vec<u8>,
    /// The whole text, where it is answered at once.
    text: String,
    begun: bool,
}

/// An error as OpenAI words it.
pub(crate) fn error(message: &str) -> Vec<u8> {
    json!({ "error": { "message": message, "type": "engine_error", "param": null, "code": null } })
        .to_string()
        .into_bytes()
}

impl Cli {
    /// How a request is answered; an error with its status if it is not.
    ///
    /// # Errors
    /// Status and body.
    pub(crate) fn answer(
        &self,
        (method, path): (&str, &str),
        body: &[u8],
        id: &str,
        created: i64,
    ) -> Result<Answer, (u16, Vec<u8>)> {
        let shape = match (method, path) {
            ("POST", "/v1/chat/completions") => Shape::Chat,
            ("POST", "/v1/completions") => Shape::Text,
            ("GET", "/v1/models") => {
                let list = json!({ "object": "list", "data": [{ "id": self.model, "object": "model", "created": created, "owned_by": "cli" }] });
                return Err((200, list.to_string().into_bytes()));
            }
            _ => return Err((404, error("this engine has no such route"))),
        };
        let Ok(asked) = serde_json::from_slice::<Asked>(body) else {
            return Err((400, error("the body is not the JSON object that this route takes")));
        };
        Ok(Answer {
            shape,
            streams: asked.stream == Some(true),
            id: id.to_owned(),
            model: self.model.clone(),
            created,
            cut: Vec::new(),
            text: String::new(),
            begun: false,
        })
    }
}

impl Answer {
    /// Bytes that the program wrote; what goes out for them, which may be nothing.
    pub(crate) fn wrote(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.cut.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.cut) {
            Ok(text) => text.len(),
            // The rest of the last character may come; what is wrong in the middle never gets right.
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => self.cut.len(),
        };
        let rest = self.cut.split_off(whole);
        let text = String::from_utf8_lossy(&std::mem::replace(&mut self.cut, rest)).into_owned();
        self.said(&text)
    }

    fn said(&mut self, text: &str) -> Vec<u8> {
        if text.is_empty() {
            return Vec::new();
        }
        if !self.streams {
            self.text.push_str(text);
            return Vec::new();
        }
        let mut out = Vec::new();
        if !std::mem::replace(&mut self.begun, true) && self.shape == Shape::Chat {
            out.extend(self.event(&json!({ "role": "assistant", "content": "" }), None));
        }
        let delta = match self.shape {
            Shape::Chat => json!({ "content": text }),
            Shape::Text => json!(text),
        };
        out.extend(self.event(&delta, None));
        out
    }

    /// The program ended well: the last that goes out.
    pub(crate) fn ended(&mut self) -> Vec<u8> {
        let cut = String::from_utf8_lossy(&std::mem::take(&mut self.cut)).into_owned();
        let mut out = self.said(&cut);
        if self.streams {
            let empty = match self.shape {
                Shape::Chat => json!({}),
                Shape::Text => json!(""),
            };
            out.extend(self.event(&empty, Some("stop")));
            out.extend_from_slice(b"data: [DONE]\n\n");
            return out;
        }
        let (object, choice) = match self.shape {
            Shape::Chat => {
                ("chat.completion", ("message", json!({ "role": "assistant", "content": self.text })))
            }
            Shape::Text => ("text_completion", ("text", json!(self.text))),
        };
        let (key, said) = choice;
        let choice = json!({ "index": 0, key: said, "logprobs": null, "finish_reason": "stop" });
        self.object(object, choice).to_string().into_bytes()
    }

    /// Bytes of an answer that are held.
    pub(crate) fn held(&self) -> usize {
        self.text.len()
    }

    fn event(&self, delta: &serde_json::Value, finish: Option<&str>) -> Vec<u8> {
        let (object, key) = match self.shape {
            Shape::Chat => ("chat.completion.chunk", "delta"),
            Shape::Text => ("text_completion", "text"),
        };
        let choice = json!({ "index": 0, key: delta, "logprobs": null, "finish_reason": finish });
        format!("data: {}\n\n", self.object(object, choice)).into_bytes()
    }

    fn object(&self, object: &str, choice: serde_json::Value) -> serde_json::Value {
        json!({ "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": [choice] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(path: &str, body: &str) -> Result<Answer, (u16, Vec<u8>)> {
        let cli = Cli { program: "/bin/cat".into(), timeout: Duration::ZERO, model: "m".into(), holder: &[] };
        cli.answer(("POST", path), body.as_bytes(), "id", 1)
    }

    fn content(bytes: &[u8]) -> String {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let events = text.split("\n\n").filter_map(|event| event.strip_prefix("data: {"));
        let values =
            events.map(|event| serde_json::from_str::<serde_json::Value>(&format!("{{{event}")).unwrap());
        values
            .filter_map(|value| Some(value["choices"][0]["delta"]["content"].as_str()?.to_owned()))
            .collect()
    }

    #[test]
    fn text_becomes_events_and_no_character_is_cut() {
        let mut answer = answer("/v1/chat/completions", "{\"stream\":true}").unwrap();
        let mut out = Vec::new();
        for byte in "a\u{e4}\u{20ac}\u{1f600}b".bytes() {
            out.extend(answer.wrote(&[byte]));
        }
        out.extend(answer.wrote(b"\xff!"));
        out.extend(answer.wrote(b"\xe2\x82"));
        out.extend(answer.ended());
        assert_eq!(content(&out), "a\u{e4}\u{20ac}\u{1f600}b\u{fffd}!\u{fffd}");
        assert!(out.ends_with(b"data: [DONE]\n\n"));
        assert_eq!(String::from_utf8_lossy(&out).matches("\"finish_reason\":\"stop\"").count(), 1);
    }

    #[test]
    fn an_answer_at_once_is_one_object() {
        let mut answer = answer("/v1/completions", "{}").unwrap();
        assert!(answer.wrote(b"one ").is_empty() && answer.wrote(b"two").is_empty());
        let value: serde_json::Value = serde_json::from_slice(&answer.ended()).unwrap();
        assert_eq!(
            (value["choices"][0]["text"].as_str(), value["object"].as_str()),
            (Some("one two"), Some("text_completion"))
        );
    }

    #[test]
    fn what_it_does_not_take() {
        assert_eq!(answer("/v1/embeddings", "{}").unwrap_err().0, 404);
        assert_eq!(answer("/v1/completions", "[").unwrap_err().0, 400);
    }
}
