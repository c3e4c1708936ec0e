//! HTTP/1.1 (RFC 9112) as text: heads of requests, chunked bodies, heads and framing of answers.
//!
//! Owns what bytes mean. Leaves the bytes' way to [`super::socket`] and the order of a conversation to
//! [`super::connection`]. Invariants: a head that two servers could read differently is not read; nothing here waits or
//! allocates beyond the bounds of a head.

mod chunked;
mod head;
mod reply;

pub(super) use chunked::Chunked;
pub(super) use head::{Announced, Fields, HEAD_BYTES_MAX, HEADERS_MAX, Head, Unread, may_be_whole, read};
pub(super) use reply::{Framing, To, write};

/// Bytes that break the rules of HTTP/1.1: nothing behind them can be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;
