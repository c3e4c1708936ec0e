//! What a scripted answer looks like: the fields of `x_script`, and the bytes that they stand for.
//!
//! `Script::stream_bytes` is what the engine writes and what a client must get: tests compare the two byte for byte.

use serde::{Deserialize, Serialize};

/// How a scripted answer ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// `data: [DONE]` and a blank line, then the end of the body.
    #[default]
    Done,
    /// The body ends well formed, but `[DONE]` never came.
    NoDone,
    /// `data: [DONE]` without any newline after it.
    NoNewline,
    /// `data: [DONE]` with one newline after it.
    OneNewline,
    /// The last event and `[DONE]` in one write.
    Joined,
    /// The connection is reset.
    Rst,
    /// The connection is closed without the body's end.
    Close,
    /// Half of an event, then the connection is reset.
    MidEvent,
    /// Nothing more is ever written; the connection stays open until the client leaves.
    Hang,
}

/// One scripted answer. Every field has a default, so a request names only what matters to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// Status of the answer; other than 200 it has `body` and no events.
    pub status: u16,
    /// Further headers of the answer.
    pub headers: Vec<(String, String)>,
    /// So many times the same body gets 503 first.
    pub fails_first: usize,
    /// Milliseconds of silence before the head.
    pub before_head_ms: u64,
    /// The head waits until this gate is opened.
    pub head_gate: Option<String>,
    /// No head at all: the ending (`rst`, `close`, `hang`) happens before it.
    pub no_head: bool,
    /// Events with text in the stream.
    pub events: usize,
    /// Milliseconds between events.
    pub delay_ms: u64,
    /// Bytes in one write and one HTTP chunk; 0: a whole event.
    pub piece: usize,
    /// Lines end with CR LF.
    pub crlf: bool,
    /// Text of an event; its number is put after it.
    pub text: String,
    /// A usage event before the end.
    pub usage: bool,
    /// The ending comes after so many events; absent: after all.
    pub after: Option<usize>,
    /// How it ends.
    pub ending: Ending,
    /// This gate must be opened before event number `gate_at` is written.
    pub gate: Option<String>,
    /// See `gate`.
    pub gate_at: usize,
    /// Body of an answer that is not a stream (default: the route's own object, or an error object).
    pub body: Option<String>,
    /// The content type of `body`.
    pub content_type: Option<String>,
    /// The events of a stream, as they are, in place of the made ones; the ending comes behind them.
    pub raw_events: Option<Vec<String>>,
    /// An answer that is not a stream is padded to at least so many bytes.
    pub body_bytes: usize,
    /// So many milliseconds behind the whole answer, which does not say so, the connection is closed.
    pub closes_after_ms: Option<u64>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            status: 200,
            headers: Vec::new(),
            fails_first: 0,
            before_head_ms: 0,
            head_gate: None,
            no_head: false,
            events: 4,
            delay_ms: 0,
            piece: 0,
            crlf: false,
            text: "tok".to_owned(),
            usage: false,
            after: None,
            ending: Ending::Done,
            gate: None,
            gate_at: 0,
            body: None,
            content_type: None,
            raw_events: None,
            body_bytes: 0,
            closes_after_ms: None,
        }
    }
}

impl Script {
    /// The events before the ending, each with its blank line.
    #[must_use]
    pub fn events(&self, model: &str) -> Vec<Vec<u8>> {
        if let Some(events) = &self.raw_events {
            let mut all: Vec<_> = events.iter().map(|event| event.clone().into_bytes()).collect();
            all.truncate(self.after.unwrap_or(all.len()));
            return all;
        }
        let end = if self.crlf { "\r\n\r\n" } else { "\n\n" };
        let head = |delta: &str, finish: &str| {
            format!(
                "data: {{\"id\":\"chatcmpl-scripted\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":{},\
                 \"x_vendor\":{{\"a\":[1,2]}},\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish}}}]}}{end}",
                serde_json::Value::from(model)
            )
            .into_bytes()
        };
        let mut all = vec![head("{\"role\":\"assistant\",\"content\":\"\"}", "null")];
        for n in 0..self.events {
            let text = serde_json::Value::from(format!("{}{n} ", self.text));
            all.push(head(&format!("{{\"content\":{text}}}"), "null"));
        }
        all.push(head("{}", "\"stop\""));
        if self.usage {
            all.push(
                format!(
                    "data: {{\"id\":\"chatcmpl-scripted\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"choices\":[],\
                     \"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":{n},\"total_tokens\":{total}}}}}{end}",
                    n = self.events,
                    total = self.events + 7
                )
                .into_bytes(),
            );
        }
        if let Some(after) = self.after {
            all.truncate(after);
        }
        all
    }

    /// What comes after the events.
    #[must_use]
    pub fn last(&self) -> &'static [u8] {
        match (self.ending, self.crlf) {
            (Ending::Done | Ending::Joined, false) => b"data: [DONE]\n\n",
            (Ending::Done | Ending::Joined, true) => b"data: [DONE]\r\n\r\n",
            (Ending::NoNewline, _) => b"data: [DONE]",
            (Ending::OneNewline, false) => b"data: [DONE]\n",
            (Ending::OneNewline, true) => b"data: [DONE]\r\n",
            (Ending::MidEvent, _) => b"data: {\"id\":\"chatcmpl-scr",
            (Ending::NoDone | Ending::Rst | Ending::Close | Ending::Hang, _) => b"",
        }
    }

    /// All bytes that the engine writes as the body of a stream.
    #[must_use]
    pub fn stream_bytes(&self, model: &str) -> Vec<u8> {
        let mut all = self.events(model).concat();
        all.extend_from_slice(self.last());
        all
    }

    /// The text that a client reads from a whole stream.
    #[must_use]
    pub fn text(&self) -> String {
        (0..self.events).map(|n| format!("{}{n} ", self.text)).collect()
    }

    /// The body of an answer that is not a stream.
    #[must_use]
    pub fn plain_body(&self, model: &str) -> Vec<u8> {
        if let Some(body) = &self.body {
            return body.clone().into_bytes();
        }
        if self.status != 200 {
            return format!(
                "{{\"error\":{{\"message\":\"scripted status {}\",\"type\":\"scripted\",\"param\":null,\"code\":\"scripted\"}}}}",
                self.status
            )
            .into_bytes();
        }
        let mut text = self.text();
        while text.len() < self.body_bytes {
            text.push('x');
        }
        format!(
            "{{\"id\":\"chatcmpl-scripted\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":{},\"x_vendor\":{{\"b\":1e-05}},\
             \"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":{}}},\"finish_reason\":\"stop\"}}],\
             \"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":{n},\"total_tokens\":{total}}}}}",
            serde_json::Value::from(model),
            serde_json::Value::from(text),
            n = self.events,
            total = self.events + 7
        )
        .into_bytes()
    }
}
