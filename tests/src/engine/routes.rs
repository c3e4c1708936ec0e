//! What the scripted engine answers on each route, where the script says nothing of it.
//!
//! The shapes are those of OpenAI's routes (rerank: of those engines that have it), with a vendor's field in each.

use serde_json::{Value, json};

use super::{Ending, Script};

impl Script {
    /// The script as it is for a route: its own object, its own events, and a usage where it was asked for.
    pub(super) fn for_route(mut self, path: &str, model: &str, streaming: bool, asks_usage: bool) -> Self {
        if asks_usage {
            self.usage = true;
        }
        if self.status != 200 {
            return self;
        }
        if streaming && path == "/v1/responses" && self.raw_events.is_none() {
            self.raw_events = Some(response_events(model, &self.text()));
            if self.ending == Ending::Done {
                self.ending = Ending::NoDone;
            }
        }
        if streaming && path == "/v1/audio/transcriptions" && self.raw_events.is_none() {
            self.raw_events = Some(vec![
                event(&json!({"type": "transcript.text.delta", "delta": self.text()})),
                event(&json!({"type": "transcript.text.done", "text": self.text()})),
            ]);
            self.ending = Ending::NoDone;
        }
        if self.body.is_none() && self.body_bytes == 0 {
            self.body = object(path, model, &self.text(), self.events).map(|object| object.to_string());
        }
        self
    }
}

fn event(data: &Value) -> String {
    format!("data: {data}\n\n")
}

fn object(path: &str, model: &str, text: &str, tokens: usize) -> Option<Value> {
    Some(match path {
        "/v1/completions" => json!({
            "id": "cmpl-scripted", "object": "text_completion", "created": 1_700_000_000, "model": model,
            "choices": [{"index": 0, "text": text, "finish_reason": "stop", "logprobs": null}],
            "usage": {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": tokens + 7},
        }),
        "/v1/embeddings" => json!({
            "object": "list", "model": model, "x_vendor": 1e-5,
            "data": [{"object": "embedding", "index": 0, "embedding": [0.25, -0.5]}],
            "usage": {"prompt_tokens": 7, "total_tokens": 7},
        }),
        "/v1/responses" => response(model, text, "completed"),
        "/v1/rerank" => json!({
            "id": "rerank-scripted", "model": model, "x_vendor": true,
            "results": [{"index": 1, "relevance_score": 0.75}, {"index": 0, "relevance_score": 0.25}],
            "usage": {"prompt_tokens": 7, "total_tokens": 7},
        }),
        "/v1/audio/transcriptions" => json!({
            "text": text, "x_vendor": 1,
            "usage": {"type": "tokens", "input_tokens": 7, "output_tokens": tokens, "total_tokens": tokens + 7},
        }),
        _ => return None,
    })
}

fn response(model: &str, text: &str, status: &str) -> Value {
    let content = json!([{"type": "output_text", "text": text, "annotations": []}]);
    json!({
        "id": "resp_scripted", "object": "response", "created_at": 1_700_000_000, "model": model, "status": status,
        "output": [{"type": "message", "id": "msg_scripted", "status": status, "role": "assistant", "content": content}],
        "error": null, "incomplete_details": null, "instructions": null, "metadata": {}, "parallel_tool_calls": true,
        "temperature": 1.0, "tool_choice": "auto", "tools": [], "top_p": 1.0, "x_vendor": {"a": [1, 2]},
        "usage": {
            "input_tokens": 7, "input_tokens_details": {"cached_tokens": 5}, "output_tokens": 4,
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 11,
        },
    })
}

fn response_events(model: &str, text: &str) -> Vec<String> {
    let (empty, whole) = (response(model, "", "in_progress"), response(model, text, "completed"));
    let delta = json!({
        "type": "response.output_text.delta", "sequence_number": 1, "item_id": "msg_scripted", "output_index": 0,
        "content_index": 0, "delta": text, "logprobs": [],
    });
    [
        json!({"type": "response.created", "sequence_number": 0, "response": empty}),
        delta,
        json!({"type": "response.completed", "sequence_number": 2, "response": whole}),
    ]
    .iter()
    .map(|data| format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap_or_default()))
    .collect()
}
