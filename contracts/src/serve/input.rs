//! What callers send: queries, bodies, ids and times, read strictly and within bounds.
//!
//! Invariant: every refusal names the field and what it may be, and repeats at most a short, printable part of it.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequestParts, Query, Request};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use umbel_wire::error::{Code, Error};

use super::BODY_MAX;
use super::fleet::clip;
use super::problem::Failure;
use crate::objects::{CommandRequestBody, ReasonBody};

/// Shortest and longest time that sites are given for an answer.
const DEADLINES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(30));
/// Bytes of a selector.
pub(super) const SELECTOR_MAX: usize = 1024;

/// A body comes within this time, or its sender holds a connection for nothing.
const BODY_TIME: Duration = Duration::from_secs(30);

/// The variable parts of a path; what cannot be read is refused in the API's words.
pub(super) struct Path<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let read = axum::extract::Path::from_request_parts(parts, state).await;
        let axum::extract::Path(path) = read.map_err(|_| {
            refuse(Code::InvalidArgument, "PATH_INVALID", "A part of the path is not UTF-8 text.")
        })?;
        Ok(Self(path))
    }
}

pub(super) fn refuse(code: Code, reason: &'static str, message: impl Into<String>) -> Failure {
    Error::new(code, reason, message).into()
}

pub(super) fn check_command(body: &CommandRequestBody) -> Result<(), Failure> {
    let bounds = [
        ("operation", body.operation.len(), 64),
        ("target_selector", body.target_selector.len(), SELECTOR_MAX),
        ("reason", body.reason.len(), 512),
        ("confirm", body.confirm.len(), 256),
        ("client", body.client.len(), 64),
    ];
    if let Some((name, _, most)) = bounds.iter().find(|(_, length, most)| length > most) {
        return Err(refuse(
            Code::InvalidArgument,
            "FIELD_TOO_LONG",
            format!("`{name}` has at most {most} bytes."),
        ));
    }
    if body.operation.is_empty() {
        return Err(refuse(
            Code::InvalidArgument,
            "OPERATION_MISSING",
            "`operation` is empty; `node.list` is one.",
        ));
    }
    Ok(())
}

pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<String, Failure> {
    let Some(value) = headers.get("idempotency-key") else {
        return Ok(uuid::Uuid::new_v4().to_string());
    };
    let id = value
        .to_str()
        .ok()
        .map(|text| text.trim().trim_matches('"'))
        .and_then(|text| uuid::Uuid::parse_str(text).ok());
    id.filter(|id| !id.is_nil()).map(|id| id.to_string()).ok_or_else(|| {
        refuse(
            Code::InvalidArgument,
            "COMMAND_ID_MALFORMED",
            "`Idempotency-Key` is the command's id and must be a UUID.",
        )
    })
}

pub(super) fn command_id(text: &str) -> Result<String, Failure> {
    uuid::Uuid::parse_str(text)
        .map(|id| id.to_string())
        .map_err(|_| refuse(Code::InvalidArgument, "COMMAND_ID_MALFORMED", "A command's id is a UUID."))
}

pub(super) fn query<Q: DeserializeOwned>(request: &Request) -> Result<Q, Failure> {
    match Query::<Q>::try_from_uri(request.uri()) {
        Ok(Query(query)) => Ok(query),
        Err(rejection) => Err(refuse(
            Code::InvalidArgument,
            "QUERY_MALFORMED",
            format!("The query is not understood: {}.", clip(&rejection.body_text())),
        )),
    }
}

async fn bytes(body: Body) -> Result<bytes::Bytes, Failure> {
    let read = tokio::time::timeout(BODY_TIME, to_bytes(body, BODY_MAX)).await;
    let late =
        |_| refuse(Code::DeadlineExceeded, "BODY_TOO_SLOW", "The request body did not arrive within 30 s.");
    read.map_err(late)?.map_err(|error| {
        if std::error::Error::source(&error).is_some_and(|cause| cause.to_string().contains("length limit")) {
            return refuse(
                Code::TooLarge,
                "BODY_TOO_LARGE",
                format!("A request body has at most {BODY_MAX} bytes."),
            );
        }
        refuse(Code::InvalidArgument, "BODY_INCOMPLETE", "The request body ended too early.")
    })
}

pub(super) async fn json<T: DeserializeOwned>(body: Body) -> Result<T, Failure> {
    let bytes = bytes(body).await?;
    serde_json::from_slice(&bytes).map_err(|error| {
        refuse(
            Code::InvalidArgument,
            "BODY_MALFORMED",
            format!("The request body is not understood: {}.", clip(&error.to_string())),
        )
    })
}

/// The reason of a write whose body has nothing else; an empty body has none.
pub(super) async fn reason(body: Body) -> Result<String, Failure> {
    let bytes = bytes(body).await?;
    if bytes.is_empty() {
        return Ok(String::new());
    }
    let ReasonBody { reason } = serde_json::from_slice(&bytes).map_err(|error| {
        refuse(
            Code::InvalidArgument,
            "BODY_MALFORMED",
            format!("The request body is not understood: {}.", clip(&error.to_string())),
        )
    })?;
    if reason.len() > 512 {
        return Err(refuse(Code::InvalidArgument, "FIELD_TOO_LONG", "`reason` has at most 512 bytes."));
    }
    Ok(reason)
}

pub(super) fn deadline(text: Option<&str>) -> Result<Option<Duration>, Failure> {
    let (least, most) = DEADLINES;
    text.map(|text| duration(text, "deadline").map(|asked| asked.clamp(least, most))).transpose()
}

/// `500ms`, `30s`, `2m`, or a bare number of seconds.
pub(super) fn duration(text: &str, name: &str) -> Result<Duration, Failure> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let milliseconds = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        _ => 0,
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(milliseconds)) {
        Some(time) if milliseconds > 0 => Ok(Duration::from_millis(time)),
        _ => Err(refuse(
            Code::InvalidArgument,
            "DURATION_MALFORMED",
            format!("`{name}` is a time such as 500ms, 30s or 2m, not `{}`.", clip(text)),
        )),
    }
}
