//! Answers on connections of which no request could be read: badly framed HTTP, one connection too many.
//!
//! Owns their bytes; no request of theirs reaches a service. Leaves the socket to [`super::socket`] and
//! [`super::listen`]. Invariant: they have the body, the id and the count of any other refusal, and each ends its
//! connection.

use umbel_wire::clock::Wall;

use super::Front;
use super::error::Failure;
use super::h1::{self, HEAD_BYTES_MAX, HEADERS_MAX, To, Unread};
use super::headers::REQUEST_ID;
use crate::metrics::{Route, UNKNOWN_MODEL};

/// What to say of a head that could not be read.
pub(super) fn failure(unread: Unread) -> Failure {
    match unread {
        Unread::TooLarge => Failure::headers_too_large(HEAD_BYTES_MAX, HEADERS_MAX),
        Unread::Malformed => Failure::malformed(),
    }
}

/// A refusal, counted, as it goes over the connection.
pub(super) fn refusal(failure: &Failure, front: &Front) -> Vec<u8> {
    front.metrics.answered(Route::Other, UNKNOWN_MODEL, failure.status.as_u16());
    front.metrics.rejected(UNKNOWN_MODEL, failure.reason);
    let mut response = failure.response();
    response.headers_mut().insert(REQUEST_ID, front.request_ids.make(Wall::now()));
    let (mut bytes, body) = (Vec::new(), failure.body());
    let mut framing = h1::write(&response, Some(body.len() as u64), &mut To::anyone(), &mut bytes);
    framing.push(&body, &mut bytes);
    bytes
}
