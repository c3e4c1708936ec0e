//! The one error that crosses the wire: a code, a machine reason, a sentence, and a retry hint.
//!
//! Owns the codes and their only mapping to HTTP. Invariant: an unknown number from a newer peer is `Internal`,
//! never a success.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::proto;
use crate::text::beginning;

/// Reason of a stream's end that this side makes since nobody here reads it.
pub const SLOW_READER: &str = "SLOW_READER";

/// What kind of failure it was. Numbers are those of `umbel.wire.v1.Code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Code {
    /// Malformed, or failed validation.
    InvalidArgument,
    /// No credential, or one nobody knows.
    Unauthenticated,
    /// Known, and not allowed.
    PermissionDenied,
    /// The named thing does not exist.
    NotFound,
    /// Incompatible version, replay, identity in use, stale lease or generation.
    Conflict,
    /// It existed and is gone for good.
    Gone,
    /// A frame, body or list is larger than its bound.
    TooLarge,
    /// Well formed, and cannot be done.
    Unprocessable,
    /// A limit is reached; later it may work.
    ResourceExhausted,
    /// The caller went away.
    Cancelled,
    /// A defect on the answering side.
    Internal,
    /// Unknown method, or a critical frame of an unknown kind.
    Unimplemented,
    /// An engine died or spoke nonsense.
    BadGateway,
    /// Draining, no capacity, or the link was lost.
    Unavailable,
    /// It took longer than allowed.
    DeadlineExceeded,
    /// Disk or device memory is full.
    InsufficientStorage,
}

/// Number, HTTP status, name: the one table.
const TABLE: [(Code, u32, u16, &str); 16] = [
    (Code::InvalidArgument, 1, 400, "INVALID_ARGUMENT"),
    (Code::Unauthenticated, 2, 401, "UNAUTHENTICATED"),
    (Code::PermissionDenied, 3, 403, "PERMISSION_DENIED"),
    (Code::NotFound, 4, 404, "NOT_FOUND"),
    (Code::Conflict, 5, 409, "CONFLICT"),
    (Code::Gone, 6, 410, "GONE"),
    (Code::TooLarge, 7, 413, "TOO_LARGE"),
    (Code::Unprocessable, 8, 422, "UNPROCESSABLE"),
    (Code::ResourceExhausted, 9, 429, "RESOURCE_EXHAUSTED"),
    (Code::Cancelled, 10, 499, "CANCELLED"),
    (Code::Internal, 11, 500, "INTERNAL"),
    (Code::Unimplemented, 12, 501, "UNIMPLEMENTED"),
    (Code::BadGateway, 13, 502, "BAD_GATEWAY"),
    (Code::Unavailable, 14, 503, "UNAVAILABLE"),
    (Code::DeadlineExceeded, 15, 504, "DEADLINE_EXCEEDED"),
    (Code::InsufficientStorage, 16, 507, "INSUFFICIENT_STORAGE"),
];

impl Code {
    /// All codes, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.0)
    }

    fn row(self) -> &'static (Self, u32, u16, &'static str) {
        // The table has a row for each variant (a test walks it), so the fallback is never taken.
        const FALLBACK: (Code, u32, u16, &str) = (Code::Internal, 11, 500, "INTERNAL");
        TABLE.iter().find(|row| row.0 == self).unwrap_or(&FALLBACK)
    }

    /// The number on the wire.
    pub fn number(self) -> u32 {
        self.row().1
    }

    /// The code of a number; one this build does not know is `Internal`.
    pub fn from_number(number: u32) -> Self {
        TABLE.iter().find(|row| row.1 == number).map_or(Self::Internal, |row| row.0)
    }

    /// The HTTP status it becomes.
    pub fn http(self) -> u16 {
        self.row().2
    }

    /// Its name in capitals, as operators see it.
    pub fn name(self) -> &'static str {
        self.row().3
    }

    /// The code of a name in capitals.
    pub fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.3 == name).map(|row| row.0)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A failure that can be told to a peer or a caller. It never carries addresses, secrets or message content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What kind of failure.
    pub code: Code,
    /// For machines, in capitals: `TOKEN_EXPIRED`.
    pub reason: Cow<'static, str>,
    /// For people: what was wrong and what to do.
    pub message: String,
    /// When trying again makes sense.
    pub retry_after: Option<Duration>,
    /// Joins the lines of several logs.
    pub correlation_id: Option<String>,
}

impl Error {
    /// An error without retry hint or correlation id.
    pub fn new(code: Code, reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { code, reason: reason.into(), message: message.into(), retry_after: None, correlation_id: None }
    }

    /// The same with a hint when to try again.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// The same with a correlation id.
    #[must_use]
    pub fn with_correlation_id(mut self, id: impl Into<String>) -> Self {
        self.correlation_id = Some(id.into());
        self
    }

    /// As the message on the wire. Long texts are cut, so that an error always fits into a frame.
    pub fn to_proto(&self) -> proto::Error {
        proto::Error {
            code: self.code.number(),
            reason: beginning(&self.reason, 64).to_owned(),
            message: beginning(&self.message, 2048).to_owned(),
            retry_after_ms: self.retry_after.map_or(0, millis),
            correlation_id: self
                .correlation_id
                .as_deref()
                .map_or_else(String::new, |id| beginning(id, 64).to_owned()),
        }
    }

    /// From the message on the wire.
    pub fn from_proto(error: proto::Error) -> Self {
        Self {
            code: Code::from_number(error.code),
            reason: Cow::Owned(error.reason),
            message: error.message,
            retry_after: (error.retry_after_ms > 0)
                .then(|| Duration::from_millis(u64::from(error.retry_after_ms))),
            correlation_id: (!error.correlation_id.is_empty()).then_some(error.correlation_id),
        }
    }

    pub(crate) fn cancelled() -> Self {
        Self::new(Code::Cancelled, "CANCELLED", "the caller went away")
    }

    pub(crate) fn deadline() -> Self {
        Self::new(Code::DeadlineExceeded, "DEADLINE_EXCEEDED", "the time allowed for this call has passed")
    }

    pub(crate) fn internal() -> Self {
        Self::new(
            Code::Internal,
            "HANDLER_DROPPED",
            "the answering side dropped the call; its log may say why",
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.code, self.reason, self.message)
    }
}

impl std::error::Error for Error {}

/// Whole milliseconds, rounded up so that "soon" never becomes "no hint", and capped at what fits.
pub(crate) fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_a_bijection() {
        for code in Code::all() {
            assert_eq!(Code::from_number(code.number()), code);
            assert_eq!(Code::from_name(code.name()), Some(code));
            assert_eq!(
                proto::Code::try_from(code.number() as i32).map(|c| c.as_str_name().to_owned()),
                Ok(format!("CODE_{}", code.name()))
            );
        }
        assert_eq!(Code::all().count(), 16);
        assert_eq!(Code::from_number(0), Code::Internal);
        assert_eq!(Code::from_number(4711), Code::Internal);
    }

    #[test]
    fn an_error_survives_the_wire() {
        let error = Error::new(Code::Conflict, "DUPLICATE_IDENTITY", "two nodes use one certificate")
            .with_retry_after(Duration::from_micros(1))
            .with_correlation_id("c-1");
        let back = Error::from_proto(error.to_proto());
        assert_eq!(back.retry_after, Some(Duration::from_millis(1)));
        assert_eq!(Error { retry_after: error.retry_after, ..back }, error);
    }
}
