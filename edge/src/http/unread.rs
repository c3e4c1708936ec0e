//! Answers on connections of which no request could be read: badly framed HTTP, one connection too many.
//!
//! Owns their bytes; they come from no service, so no HTTP driver writes them. Leaves the socket to
//! [`super::socket`] and [`super::listen`]. Invariant: they have the body, the id and the count of any
//! other refusal, and each ends its connection.

use bytes::Bytes;
use http::StatusCode;
use umbel_wire::clock::Wall;

use super::Front;
use super::connection::{HEAD_BYTES_MAX, HEADERS_MAX};
use super::error::Failure;
use super::headers::REQUEST_ID;
use crate::metrics::{Route, UNKNOWN_MODEL};

/// What to say in place of hyper's own answer to a head it could not read, which has a status and no body.
pub(super) fn instead_of(bare: &[u8], front: &Front) -> Bytes {
    // `HTTP/1.1 431 ...`
    let status = bare.get(9..12).and_then(|digits| StatusCode::from_bytes(digits).ok());
    let failure = match status {
        Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE) => {
            Failure::headers_too_large(HEAD_BYTES_MAX, HEADERS_MAX)
        }
        _ => Failure::malformed(),
    };
    refusal(&failure, front)
}

/// A refusal, counted, as it goes over the connection.
pub(super) fn refusal(failure: &Failure, front: &Front) -> Bytes {
    front.metrics.answered(Route::Other, UNKNOWN_MODEL, failure.status.as_u16());
    front.metrics.rejected(UNKNOWN_MODEL, failure.reason);
    let body = failure.body();
    let mut response = failure.response();
    response.headers_mut().insert(REQUEST_ID, front.request_ids.make(Wall::now()));
    let mut bytes = format!("HTTP/1.1 {}\r\ncontent-length: {}\r\n", failure.status, body.len()).into_bytes();
    for (name, value) in response.headers() {
        bytes.extend_from_slice(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&body);
    Bytes::from(bytes)
}
