//! The built-in engine: answers OpenAI's chat and text completions by rule, with set delays.
//!
//! Owns the answers; leaves the stream to `shell/relay`. Invariant: the same request always gets the same bytes.
//!
//! Allowed only where the node's file says so: it is for trying the system out and for tests.

use std::time::Duration;

use serde::Deserialize;

/// Words of its answers, over and over.
const WORDS: [&str; 16] = [
    "An", "umbel", "is", "a", "flower", "head", "whose", "stalks", "all", "grow", "outward", "from", "one",
    "point", "and", "so",
];
/// Tokens of one answer at most, whatever a request asks for.
const TOKENS_MAX: u32 = 1_000_000;
/// Time stamps are part of the bytes.
const CREATED: u64 = 1_700_000_000;

/// How it behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sim {
    pub(crate) model: String,
    pub(crate) first_token_delay: Duration,
    pub(crate) token_delay: Duration,
    /// Tokens of an answer that no limit cuts.
    pub(crate) tokens: u32,
}

/// What a request asks for, as far as it matters here.
#[derive(Debug, Default, Deserialize)]
struct Asked {
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    max_tokens: Option<u32>,
    #[serde(default)]
    max_completion_tokens: Option<u32>,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    #[serde(default)]
    messages: Option<serde_json::Value>,
    #[serde(default)]
    prompt: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

/// An answer.
#[derive(Debug)]
pub(crate) enum Reply {
    /// At once, after `delay`.
    Whole { status: u16, body: Vec<u8>, delay: Duration },
    /// Event by event.
    Stream(Events),
}

/// Which of the two shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Chat,
    Text,
}

/// The events of one streamed answer.
#[derive(Debug)]
pub(crate) struct Events {
    shape: Shape,
    id: String,
    model: String,
    first: Duration,
    between: Duration,
    next: u32,
    tokens: u32,
    finish: &'static str,
    usage: Option<String>,
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Opening,
    Tokens,
    Finish,
    Done,
    Over,
}

impl Sim {
    /// Answers a request.
    pub(crate) fn reply(&self, method: &str, path: &str, body: &[u8]) -> Reply {
        let shape = match (method, path) {
            ("GET", "/v1/models") => return whole(200, &self.models()),
            ("POST", "/v1/chat/completions") => Shape::Chat,
            ("POST", "/v1/completions") => Shape::Text,
            _ => return refuse(404, "this engine has no such route"),
        };
        let asked: Asked = match serde_json::from_slice(body) {
            Ok(asked) => asked,
            Err(_) => return refuse(400, "the body is not the JSON object that this route takes"),
        };
        let prompt = match shape {
            Shape::Chat => asked.messages.as_ref().filter(|messages| messages.is_array()),
            Shape::Text => asked.prompt.as_ref().filter(|prompt| prompt.is_string() || prompt.is_array()),
        };
        let Some(prompt) = prompt else {
            let field = if shape == Shape::Chat { "messages" } else { "prompt" };
            return refuse(400, &format!("'{field}' is missing or has the wrong type"));
        };
        let prompt_tokens = u32::try_from(prompt.to_string().len() / 4).unwrap_or(u32::MAX).max(1);
        let limit = asked.max_completion_tokens.or(asked.max_tokens).unwrap_or(u32::MAX).min(TOKENS_MAX);
        let tokens = self.tokens.min(limit);
        let finish = if limit < self.tokens { "length" } else { "stop" };
        let usage = format!(
            "{{\"prompt_tokens\":{prompt_tokens},\"completion_tokens\":{tokens},\"total_tokens\":{}}}",
            u64::from(prompt_tokens) + u64::from(tokens)
        );
        let id = identity(shape, body);
        if asked.stream == Some(true) {
            let wanted = asked.stream_options.is_some_and(|options| options.include_usage);
            return Reply::Stream(Events {
                shape,
                id,
                model: quoted(&self.model),
                first: self.first_token_delay,
                between: self.token_delay,
                next: 0,
                tokens,
                finish,
                usage: wanted.then_some(usage),
                step: Step::Opening,
            });
        }
        let text = quoted(&(0..tokens).map(token).collect::<String>());
        let (object, choice) = match shape {
            Shape::Chat => {
                ("chat.completion", format!("\"message\":{{\"role\":\"assistant\",\"content\":{text}}}"))
            }
            Shape::Text => ("text_completion", format!("\"text\":{text}")),
        };
        let body = format!(
            "{{\"id\":\"{id}\",\"object\":\"{object}\",\"created\":{CREATED},\"model\":{},\"choices\":[{{\"index\":0,{choice},\"logprobs\":null,\"finish_reason\":\"{finish}\"}}],\"usage\":{usage}}}",
            quoted(&self.model)
        );
        let delay =
            self.first_token_delay.saturating_add(self.token_delay.saturating_mul(tokens.saturating_sub(1)));
        Reply::Whole { status: 200, body: body.into_bytes(), delay }
    }

    fn models(&self) -> String {
        format!(
            "{{\"object\":\"list\",\"data\":[{{\"id\":{},\"object\":\"model\",\"created\":{CREATED},\"owned_by\":\"umbel\"}}]}}",
            quoted(&self.model)
        )
    }
}

impl Events {
    /// The next event, and how long before it comes; nothing after `[DONE]`.
    pub(crate) fn next(&mut self) -> Option<(Duration, Vec<u8>)> {
        let mut delay = Duration::ZERO;
        let event = match self.step {
            Step::Opening => {
                self.step = if self.tokens == 0 { Step::Finish } else { Step::Tokens };
                delay = self.first;
                match self.shape {
                    Shape::Chat => self.choice("{\"role\":\"assistant\",\"content\":\"\"}", "", None),
                    Shape::Text => return self.next().map(|(_, event)| (delay, event)),
                }
            }
            Step::Tokens => {
                let text = quoted(&token(self.next));
                if self.next > 0 {
                    delay = self.between;
                }
                self.next += 1;
                if self.next == self.tokens {
                    self.step = Step::Finish;
                }
                self.choice(&format!("{{\"content\":{text}}}"), &text, None)
            }
            Step::Finish => {
                self.step = Step::Done;
                let mut event = self.choice("{}", "\"\"", Some(self.finish));
                if let Some(usage) = &self.usage {
                    let last = self.envelope(&format!("\"choices\":[],\"usage\":{usage}"));
                    event.extend_from_slice(&last);
                }
                event
            }
            Step::Done => {
                self.step = Step::Over;
                b"data: [DONE]\n\n".to_vec()
            }
            Step::Over => return None,
        };
        Some((delay, event))
    }

    fn choice(&self, delta: &str, text: &str, finish: Option<&str>) -> Vec<u8> {
        let finish = finish.map_or("null".to_owned(), |finish| format!("\"{finish}\""));
        let content = match self.shape {
            Shape::Chat => format!("\"delta\":{delta}"),
            Shape::Text => format!("\"text\":{text}"),
        };
        // With usage asked for, every event but the last has a null there.
        let usage = if self.usage.is_some() { ",\"usage\":null" } else { "" };
        self.envelope(&format!(
            "\"choices\":[{{\"index\":0,{content},\"logprobs\":null,\"finish_reason\":{finish}}}]{usage}"
        ))
    }

    fn envelope(&self, rest: &str) -> Vec<u8> {
        let object = match self.shape {
            Shape::Chat => "chat.completion.chunk",
            Shape::Text => "text_completion",
        };
        format!(
            "data: {{\"id\":\"{}\",\"object\":\"{object}\",\"created\":{CREATED},\"model\":{},{rest}}}\n\n",
            self.id, self.model
        )
        .into_bytes()
    }
}

fn token(index: u32) -> String {
    let word = WORDS.get(index as usize % WORDS.len()).copied().unwrap_or_default();
    if index == 0 { word.to_owned() } else { format!(" {word}") }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// An id that depends on the request only (FNV-1a: it has to be the same in every build).
fn identity(shape: Shape, body: &[u8]) -> String {
    let hash = body.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let prefix = if shape == Shape::Chat { "chatcmpl" } else { "cmpl" };
    format!("{prefix}-sim-{hash:016x}")
}

fn whole(status: u16, body: &str) -> Reply {
    Reply::Whole { status, body: body.as_bytes().to_vec(), delay: Duration::ZERO }
}

fn refuse(status: u16, message: &str) -> Reply {
    let kind = if status == 404 { "not_found_error" } else { "invalid_request_error" };
    let message = quoted(message);
    whole(
        status,
        &format!("{{\"error\":{{\"message\":{message},\"type\":\"{kind}\",\"param\":null,\"code\":null}}}}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sim() -> Sim {
        Sim {
            model: "m".into(),
            first_token_delay: Duration::from_secs(1),
            token_delay: Duration::from_millis(10),
            tokens: 5,
        }
    }

    fn stream(body: &str) -> Vec<(Duration, String)> {
        let Reply::Stream(mut events) = sim().reply("POST", "/v1/chat/completions", body.as_bytes()) else {
            panic!("no stream")
        };
        std::iter::from_fn(|| events.next())
            .map(|(delay, event)| (delay, String::from_utf8(event).unwrap()))
            .collect()
    }

    fn json(reply: &Reply) -> (u16, serde_json::Value) {
        let Reply::Whole { status, body, .. } = reply else { panic!("a stream") };
        (*status, serde_json::from_slice(body).unwrap())
    }

    #[test]
    fn streams_tokens_and_ends_with_done() {
        let events = stream(r#"{"stream":true,"messages":[],"stream_options":{"include_usage":true}}"#);
        assert_eq!(events.last().unwrap().1, "data: [DONE]\n\n");
        assert_eq!(events[0].0, Duration::from_secs(1));
        assert_eq!(events[2].0, Duration::from_millis(10));
        let all: String = events.iter().map(|(_, event)| event.as_str()).collect();
        let chunks: Vec<serde_json::Value> = all
            .split("\n\n")
            .filter_map(|event| serde_json::from_str(event.strip_prefix("data: ")?).ok())
            .collect();
        let text: String =
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(text, "An umbel is a flower");
        let last = chunks.last().unwrap();
        assert_eq!(last["usage"]["completion_tokens"], 5);
        assert_eq!(chunks[chunks.len() - 2]["choices"][0]["finish_reason"], "stop");
        assert!(chunks[0]["usage"].is_null());
        assert_eq!(
            events,
            stream(r#"{"stream":true,"messages":[],"stream_options":{"include_usage":true}}"#)
        );
    }

    #[test]
    fn honours_limits() {
        let (status, body) =
            json(&sim().reply("POST", "/v1/chat/completions", br#"{"messages":[],"max_tokens":2}"#));
        assert_eq!((status, body["choices"][0]["message"]["content"].as_str()), (200, Some("An umbel")));
        assert_eq!(body["choices"][0]["finish_reason"], "length");
        assert_eq!(body["usage"]["completion_tokens"], 2);
        let (_, body) = json(&sim().reply("POST", "/v1/completions", br#"{"prompt":"x","max_tokens":0}"#));
        assert_eq!(body["choices"][0]["text"], "");
        let (_, models) = json(&sim().reply("GET", "/v1/models", b""));
        assert_eq!(models["data"][0]["id"], "m");
    }

    #[test]
    fn refuses_in_openai_words() {
        for (path, body, wanted) in [
            ("/v1/chat/completions", "[1", 400),
            ("/v1/chat/completions", "{}", 400),
            ("/v1/completions", "{\"prompt\":7}", 400),
            ("/v1/nothing", "{}", 404),
        ] {
            let (status, body) = json(&sim().reply("POST", path, body.as_bytes()));
            assert_eq!(status, wanted);
            assert!(body["error"]["message"].is_string());
        }
    }
}
