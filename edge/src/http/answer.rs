//! Bodies of answers, and an engine's head turned into an HTTP response.
//!
//! Owns the decision between an answer that is whole before its status is sent and one that flows. Leaves the
//! flowing to [`super::relay`]. Invariants: an event stream is never held back; a small answer that turns out
//! cut is a 502 and never a short 200.

use std::task::{Context, Poll};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderValue};
use http::{Response, StatusCode};
use memchr::memmem;
use umbel_contracts::inference::reading::{self, Field};
use umbel_wire::{OutgoingStream, Terminal, within};

use super::error::{Again, Failure, RETRY_AFTER_MAX};
use super::exchange::{Exchange, Miss};
use super::exposition::{Exposition, Pieces};
use super::headers;
use super::relay::{Broken, Relay};
use super::sse::Grammar;
use crate::metrics::Route;
use crate::shell::dispatch::{Outcome, Slot};

/// An answer that is not an event stream is held back up to this much, so that a failure has its own status.
/// As much as the stream's window, which would hold it otherwise.
const WHOLE_MAX: usize = 64 * 1024;

/// The body of an answer.
pub(super) enum Answer {
    Whole(Bytes),
    Flowing(Box<Relay>),
    Metrics(Pieces),
}

impl Answer {
    /// The metrics. Their text has an end of its own, so that a cut one is known by any version of HTTP.
    pub(super) fn exposition(exposition: Exposition) -> Self {
        match exposition {
            Exposition::Whole(bytes) => Self::Whole(bytes),
            Exposition::Flowing(pieces) => Self::Metrics(pieces),
        }
    }

    fn flowing(relay: Relay) -> Self {
        Self::Flowing(Box::new(relay))
    }

    /// How many bytes it has, where all of them are here.
    pub(super) fn length(&self) -> Option<u64> {
        match self {
            Self::Whole(bytes) => Some(bytes.len() as u64),
            Self::Flowing(_) | Self::Metrics(_) => None,
        }
    }

    /// The next bytes of it.
    ///
    /// # Errors
    /// It breaks off here, and its connection must.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        match self {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(std::mem::take(bytes)))),
            Self::Flowing(relay) => relay.poll(cx),
            Self::Metrics(pieces) => pieces.poll(cx),
        }
    }
}

/// Turns an engine's head into an answer.
pub(super) async fn from_engine(
    now: Instant,
    head: &Bytes,
    mut stream: OutgoingStream,
    mut slot: Slot,
    mut exchange: Box<Exchange>,
    take_usage: bool,
) -> Response<Answer> {
    let Some((status, fields)) = decode_head(head) else {
        return bad(now, &mut slot, &mut exchange, "The engine's answer has no valid status.");
    };
    let is_events = headers::of_engine(&fields, "content-type").is_some_and(is_event_stream);
    if exchange.request.stream && status.is_success() && !is_events {
        // A client that asked for events would read a JSON body as an empty stream.
        let what = "The engine answered a stream request with something else.";
        return bad(now, &mut slot, &mut exchange, what);
    }
    let outcome = match status.as_u16() {
        500.. => Outcome::Failed,
        400..500 => Outcome::ClientError,
        _ => Outcome::Answered,
    };
    slot.streaming(now, outcome);
    if is_events && status.is_success() {
        let grammar = match exchange.request.route {
            Route::Responses => Grammar::Response,
            Route::Transcriptions => Grammar::Transcript,
            _ => Grammar::Done,
        };
        let relay = Relay::events(stream, slot, exchange, grammar, take_usage);
        let mut response = Response::new(Answer::flowing(relay));
        *response.status_mut() = status;
        let to = response.headers_mut();
        headers::to_client(&fields, to);
        to.remove(header::CONTENT_LENGTH);
        to.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
        to.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
        return response;
    }
    let (body, over) = match beginning(&mut stream, &exchange).await {
        Ok(read) => read,
        Err(Elapsed) => {
            // The node did not see it: the stream's reset ends the lease.
            let failure = exchange.broke(&mut slot, Miss::TimedOut);
            return exchange.failed(&failure);
        }
    };
    if over {
        slot.ended();
        return whole(status, &fields, body, stream.terminal(), exchange, &mut slot);
    }
    let relay = Relay::bytes(stream, slot, exchange, body, announced(&fields));
    let mut response = Response::new(Answer::flowing(relay));
    *response.status_mut() = status;
    headers::to_client(&fields, response.headers_mut());
    again_from_engine(status, &fields, response.headers_mut());
    response
}

const ACCEL_BUFFERING: header::HeaderName = header::HeaderName::from_static("x-accel-buffering");

/// An answer that is none.
fn bad(now: Instant, slot: &mut Slot, exchange: &mut Exchange, what: &'static str) -> Response<Answer> {
    exchange.missed(Miss::BadAnswer);
    slot.streaming(now, Outcome::Failed);
    exchange.failed(&Failure::engine_bad_answer(what))
}

/// The node and its engine were silent for longer than the node would let its engine be.
struct Elapsed;

/// What an answer begins with, up to what is held back, and whether that is all of it.
async fn beginning(stream: &mut OutgoingStream, exchange: &Exchange) -> Result<(Bytes, bool), Elapsed> {
    let limit = {
        let options = exchange.options();
        options.idle_timeout.saturating_add(options.grace)
    };
    let mut first = Bytes::new();
    let mut parts = BytesMut::new();
    while first.len() + parts.len() < WHOLE_MAX {
        // The usual answer is here with its head.
        match within(limit, stream.data()).await {
            None => return Err(Elapsed),
            Some(None) if parts.is_empty() => return Ok((first, true)),
            Some(None) => return Ok((joined(&first, &parts), true)),
            Some(Some(part)) if first.is_empty() => first = part,
            Some(Some(part)) => parts.extend_from_slice(&part),
        }
    }
    Ok((if parts.is_empty() { first } else { joined(&first, &parts) }, false))
}

fn joined(first: &Bytes, parts: &BytesMut) -> Bytes {
    let mut all = BytesMut::with_capacity(first.len() + parts.len());
    all.extend_from_slice(first);
    all.extend_from_slice(parts);
    all.freeze()
}

/// The length that an engine said its answer has.
fn announced(fields: &[Field<'_>]) -> Option<u64> {
    std::str::from_utf8(headers::of_engine(fields, "content-length")?).ok()?.parse().ok()
}

fn decode_head(head: &Bytes) -> Option<(StatusCode, Vec<Field<'_>>)> {
    let head = reading::Head::read(head).ok()?;
    let status = StatusCode::from_u16(u16::try_from(head.status).ok()?).ok()?;
    // An interim status is never an answer.
    (!status.is_informational()).then_some((status, head.headers))
}

fn is_event_stream(content_type: &[u8]) -> bool {
    content_type.get(..17).is_some_and(|start| start.eq_ignore_ascii_case(b"text/event-stream"))
}

fn is_json(content_type: &[u8]) -> bool {
    content_type.get(..16).is_some_and(|start| start.eq_ignore_ascii_case(b"application/json"))
}

/// An answer that is whole before anything of it is sent.
fn whole(
    status: StatusCode,
    fields: &[Field<'_>],
    body: Bytes,
    terminal: Option<Terminal>,
    mut exchange: Box<Exchange>,
    slot: &mut Slot,
) -> Response<Answer> {
    let cut = || announced(fields).is_some_and(|length| length != body.len() as u64).then_some(Miss::Broke);
    if let Some(miss) = exchange.judge(terminal.as_ref()).or_else(cut) {
        let failure = exchange.broke(slot, miss);
        return exchange.failed(&failure);
    }
    let is_error = status.is_client_error() || status.is_server_error();
    let content_type = headers::of_engine(fields, "content-type").unwrap_or_default();
    if is_error && !is_json(content_type) {
        // HTML or plain text of an error reads as "no body" in the official clients.
        let mut response = exchange.failed(&Failure::of_engine(status));
        again_from_engine(status, fields, response.headers_mut());
        return response;
    }
    let body = if status == StatusCode::BAD_REQUEST { string_code(body) } else { body };
    let length = body.len();
    let mut response = Response::new(Answer::Whole(body));
    *response.status_mut() = status;
    let to = response.headers_mut();
    headers::to_client(fields, to);
    again_from_engine(status, fields, to);
    if status.is_success() {
        exchange.counted(0);
    }
    exchange.passed(length);
    exchange.answered(status.as_u16());
    response
}

/// An engine's 429 or 503 says when to try again, within what clients obey.
fn again_from_engine(status: StatusCode, fields: &[Field<'_>], to: &mut http::HeaderMap) {
    if !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return;
    }
    let said = headers::of_engine(fields, "retry-after")
        .and_then(|value| std::str::from_utf8(value).ok()?.trim().parse::<u64>().ok());
    Again::After(said.unwrap_or(1).min(RETRY_AFTER_MAX)).tell(to);
}

/// Engines send `"code":400` or none for a prompt that is too long; clients look for the code as OpenAI has it. The
/// message stays byte for byte; other bodies stay untouched.
fn string_code(body: Bytes) -> Bytes {
    const OVERFLOW: [&[u8]; 5] = [
        // vLLM, of any age.
        b"maximum context length",
        b"maximum model length",
        // SGLang.
        b"longer than the model's context length",
        // llama.cpp.
        b"exceeds the available context size",
        b"exceed_context_size",
    ];
    const KEY: &[u8] = b"\"code\"";
    if !OVERFLOW.iter().any(|words| memmem::find(&body, words).is_some()) {
        return body;
    }
    let found = memmem::find_iter(&body, KEY).find_map(|at| {
        let rest = body.get(at + KEY.len()..)?.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        let value = [&b"400"[..], b"null"].into_iter().find(|value| rest.starts_with(value))?;
        let start = body.len() - rest.len();
        Some(start..start + value.len())
    });
    let Some(at) = found else { return body };
    let mut changed = BytesMut::with_capacity(body.len() + 32);
    changed.extend_from_slice(body.get(..at.start).unwrap_or_default());
    changed.extend_from_slice(b"\"context_length_exceeded\"");
    changed.extend_from_slice(body.get(at.end..).unwrap_or_default());
    changed.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaviour_18_a_context_overflow_gets_openais_code_and_keeps_its_message() {
        for (body, number) in [
            (
                r#"{"error":{"message":"This model's maximum context length is 4096 tokens.","type":"BadRequestError","param":null,"code":400}}"#,
                "400",
            ),
            (
                r#"{"error":{"code": 400,"message":"request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":5000,"n_ctx":4096}}"#,
                "400",
            ),
            (
                r#"{"object":"error","message":"The input (9 tokens) is longer than the model's context length (8 tokens).","code" : null}"#,
                "null",
            ),
        ] {
            let expected = body
                .replace(number, "\"context_length_exceeded\"")
                .replace("\"param\":\"context_length_exceeded\"", "\"param\":null");
            assert_eq!(string_code(Bytes::from_static(body.as_bytes())), expected.as_bytes());
        }
        for other in [
            r#"{"error":{"message":"bad","code":400}}"#,
            r#"{"error":{"message":"maximum context length","code":"context_length_exceeded"}}"#,
        ] {
            let other = Bytes::from_static(other.as_bytes());
            assert_eq!(string_code(other.clone()), other);
        }
    }
}
