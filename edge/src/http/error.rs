//! Every refusal and failure that the edge itself tells an application.
//!
//! Owns statuses, types, codes and machine reasons, in one table, and the body's one shape:
//! `{"error":{"message","type","param","code"}}`. Leaves an engine's own errors to [`super::answer`].
//! Invariant: each 429 and 503 says when to try again, or that trying again is useless.

mod refused;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use serde::Serialize;

use super::answer::Answer;
use super::request::BadRequest;
use super::sse::Grammar;
use crate::core::keys::KeyRefusal;

/// The machine reason of an error.
pub(super) const REASON: HeaderName = HeaderName::from_static("x-umbel-reason");
/// Whether the official clients shall retry.
pub(super) const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// Clients obey `Retry-After` up to this; above it some retry at once.
pub(super) const RETRY_AFTER_MAX: u64 = 60;

/// When to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// The status says it all.
    Unsaid,
    /// After this many seconds, 1 to 60.
    After(u64),
    /// Not at all.
    Useless,
}

/// A failure with all that a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) status: StatusCode,
    kind: &'static str,
    code: &'static str,
    param: Option<&'static str>,
    /// Boxed: a failure travels in results.
    message: Box<str>,
    /// In `x-umbel-reason` and the metrics.
    pub(super) reason: &'static str,
    again: Again,
    /// For 405.
    allow: Option<&'static str>,
    /// The connection ends with this answer.
    close: bool,
}

#[derive(Serialize)]
struct Body<'a> {
    error: Fields<'a>,
}

#[derive(Serialize)]
struct Fields<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

/// The event of a responses stream that tells a failure, with the usual object beside it.
#[derive(Serialize)]
struct ErrorEvent<'a> {
    r#type: &'static str,
    code: &'a str,
    message: &'a str,
    param: Option<&'a str>,
    error: Fields<'a>,
}

const OF_CLIENT: &str = "invalid_request_error";
const OF_SERVER: &str = "server_error";

impl Failure {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let kind = if status.is_client_error() { OF_CLIENT } else { OF_SERVER };
        let again = match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Again::After(1),
            _ => Again::Unsaid,
        };
        let message = message.into().into_boxed_str();
        Self { status, kind, code, param: None, message, reason: code, again, allow: None, close: false }
    }

    fn about(mut self, param: &'static str) -> Self {
        self.param = Some(param);
        self
    }

    fn because(mut self, reason: &'static str) -> Self {
        self.reason = reason;
        self
    }

    fn again(mut self, again: Again) -> Self {
        self.again = again;
        self
    }

    /// No such route.
    pub(super) fn unknown_url() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "unknown_url",
            "Unknown request URL. See GET /v1/models and the routes below /v1.",
        )
        .because("unknown_url")
    }

    /// The route exists, with another method.
    pub(super) fn method_not_allowed(allow: &'static str) -> Self {
        let message = format!("Method not allowed; use {allow}.");
        let mut failure = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
        failure.allow = Some(allow);
        failure
    }

    /// The caller is not let in.
    pub(super) fn key(refusal: KeyRefusal) -> Self {
        let message = match refusal {
            KeyRefusal::Missing => "You didn't provide an API key. Send it as `Authorization: Bearer KEY`.",
            KeyRefusal::NotAKey => {
                "Incorrect API key provided: it is not an API key of this edge (they begin with `umk_`)."
            }
            KeyRefusal::Invalid => "Incorrect API key provided: it is unknown or revoked.",
            KeyRefusal::OnlyLoopback => {
                "No API key is configured at this edge, so it answers programs on its own host only, that call it as \
                 localhost or by address, with no proxy between and not from a web page. Create a key with \
                 `umbel ctl key create NAME`."
            }
        };
        Self::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message).because("auth")
    }

    /// Nobody serves the model, or the key may not use it.
    pub(super) fn model_not_found(model: &str) -> Self {
        let shown: String = model.chars().take(128).collect();
        let message = format!(
            "The model `{shown}` does not exist or you do not have access to it. See GET /v1/models."
        );
        Self::new(StatusCode::NOT_FOUND, "model_not_found", message).about("model").because("not_found")
    }

    /// The body is no request.
    pub(super) fn bad_request(bad: BadRequest) -> Self {
        let status = StatusCode::BAD_REQUEST;
        match bad {
            BadRequest::NotJson(message) => Self::new(status, "invalid_json", message),
            BadRequest::NotAForm(what) => {
                let message =
                    format!("The body is not a form (multipart/form-data) as this route needs it: {what}.");
                Self::new(status, "invalid_form", message)
            }
            BadRequest::NoModel => {
                let message = "You must provide a model parameter.";
                Self::new(status, "missing_required_parameter", message).about("model")
            }
            BadRequest::BadModel => {
                let message = "Invalid type for `model`: expected a string of at most 512 bytes.";
                Self::new(status, "invalid_type", message).about("model")
            }
            BadRequest::BadStream => {
                Self::new(status, "invalid_type", "Invalid type for `stream`: expected a boolean.")
                    .about("stream")
            }
        }
        .because("bad_request")
    }

    /// The body is over the limit.
    pub(super) fn too_large(limit: usize) -> Self {
        let message = format!("The request body is over this edge's limit of {limit} bytes (api.body_max).");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message).because("too_large")
    }

    /// The body did not come in time.
    pub(super) fn too_slow() -> Self {
        let message = "The request body did not arrive in time; nothing was started.";
        let mut failure =
            Self::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", message).because("slow_body");
        failure.close = true;
        failure
    }

    /// The body ended early or is not framed as HTTP wants. Often nobody is left to read this.
    pub(super) fn broken_body() -> Self {
        let message = "The request body broke off or is malformed; nothing was started.";
        let mut failure = Self::new(StatusCode::BAD_REQUEST, "incomplete_body", message);
        failure.close = true;
        failure
    }

    /// The request's line or headers are not HTTP.
    pub(super) fn malformed() -> Self {
        let message = "The request's line or headers are not valid HTTP/1.1; nothing was started.";
        let mut failure = Self::new(StatusCode::BAD_REQUEST, "malformed_request", message);
        failure.close = true;
        failure
    }

    /// The request's line and headers are over the limits.
    pub(super) fn headers_too_large(bytes: usize, headers: usize) -> Self {
        let message = format!(
            "The request's line and headers are over this edge's limits of {bytes} bytes and {headers} headers."
        );
        let mut failure =
            Self::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large", message);
        failure.close = true;
        failure
    }

    /// The edge holds as many request bytes as it may.
    pub(super) fn held(limit: u64, of_key: bool) -> Self {
        let whose = if of_key { "this key's requests" } else { "all requests" };
        let message = format!(
            "The edge holds its limit of {limit} bytes for the bodies of {whose} already (api.held_max); try again soon."
        );
        Self::new(StatusCode::TOO_MANY_REQUESTS, "overloaded", message)
            .because(if of_key { "key_held_bytes" } else { "held_bytes" })
            .server()
            .again(Again::After(2))
    }

    fn server(mut self) -> Self {
        self.kind = OF_SERVER;
        self
    }

    /// The edge is going down.
    pub(super) fn draining() -> Self {
        let message = "This edge is shutting down; try again.";
        let mut failure = Self::new(StatusCode::SERVICE_UNAVAILABLE, "draining", message);
        failure.close = true;
        failure
    }

    /// The edge went down before the answer was whole.
    pub(super) fn cut_by_shutdown() -> Self {
        let message = "This edge shut down before the answer was complete.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "draining", message).again(Again::After(1))
    }

    /// Too many connections.
    pub(super) fn connections(limit: usize) -> Self {
        let message = format!("This edge has its limit of {limit} connections; try again soon.");
        let mut failure =
            Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message).because("connections");
        failure.close = true;
        failure
    }

    /// The engine's connection or process was lost before it answered.
    pub(super) fn engine_lost() -> Self {
        let message = "The engine was lost before it answered; the request may have been started.";
        Self::new(StatusCode::BAD_GATEWAY, "engine_lost", message)
    }

    /// No engine took the request, and nothing was started.
    pub(super) fn engine_refused() -> Self {
        let message = "No engine of the model took the request; nothing was started.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "model_unavailable", message)
            .because("engine_refused")
            .again(Again::After(2))
    }

    /// The engine said nothing in time.
    pub(super) fn engine_timeout() -> Self {
        let message = "The engine did not answer in time.";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "engine_timeout", message).again(Again::Useless)
    }

    /// The engine's answer is not one.
    pub(super) fn engine_bad_answer(message: &'static str) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "engine_bad_answer", message)
    }

    /// The engine's answer ended before it was whole.
    pub(super) fn engine_truncated() -> Self {
        let message = "The engine's answer ended before it was complete.";
        Self::new(StatusCode::BAD_GATEWAY, "engine_lost", message).because("engine_truncated")
    }

    /// An engine's error that has no body an OpenAI client can read.
    pub(super) fn of_engine(status: StatusCode) -> Self {
        let message = format!("The engine answered with status {}.", status.as_u16());
        Self::new(status, "engine_error", message)
    }

    /// `{"error":{...}}`.
    pub(super) fn body(&self) -> Bytes {
        // Strings always serialize.
        Bytes::from(serde_json::to_vec(&Body { error: self.fields() }).unwrap_or_default())
    }

    fn fields(&self) -> Fields<'_> {
        Fields { message: &self.message, r#type: self.kind, param: self.param, code: Some(self.code) }
    }

    /// The one event that tells the failure inside a stream. Clients of responses tell events by their `type`.
    pub(super) fn event(&self, grammar: Grammar) -> Bytes {
        let body = match grammar {
            Grammar::Done | Grammar::Transcript => self.body(),
            Grammar::Response => {
                let (code, message, param) = (self.code, &*self.message, self.param);
                let event = ErrorEvent { r#type: "error", code, message, param, error: self.fields() };
                Bytes::from(serde_json::to_vec(&event).unwrap_or_default())
            }
        };
        let mut event = Vec::with_capacity(body.len() + 8);
        event.extend_from_slice(b"data: ");
        event.extend_from_slice(&body);
        event.extend_from_slice(b"\n\n");
        Bytes::from(event)
    }

    /// The answer.
    pub(super) fn response(&self) -> Response<Answer> {
        let mut response = Response::new(Answer::Whole(self.body()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(REASON, HeaderValue::from_static(self.reason));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(allow) = self.allow {
            headers.insert(header::ALLOW, HeaderValue::from_static(allow));
        }
        if self.close {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        self.again.tell(headers);
        response
    }
}

impl Again {
    pub(super) fn tell(self, headers: &mut HeaderMap) {
        match self {
            Self::Unsaid => {}
            Self::After(seconds) => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.clamp(1, RETRY_AFTER_MAX)));
            }
            Self::Useless => {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
            }
        }
    }
}

#[cfg(test)]
mod tests;
