//! HELLO, WELCOME and REJECT: the frames before a session, as validated types.
//!
//! Invariant: decoding is validation; what passes has a purpose, a 16-byte instance and an attempt.

use std::time::Duration;

use bytes::Bytes;

use crate::close::Goaway;
use crate::error::{Code, Error, millis};
use crate::frame::{self, Frame, FrameError, Header};
use crate::ids::{Attempt, Generation, InstanceId};
use crate::limits;
use crate::proto::{self, Kind};
use crate::version::{Verdict, VersionRange};

/// What a HELLO is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A session.
    Hello,
    /// One exchange that gives an identity.
    Enroll,
}

/// A HELLO as it was received.
#[derive(Clone)]
pub struct HelloIn {
    /// What it is for.
    pub purpose: Purpose,
    /// Versions the dialer speaks.
    pub versions: VersionRange,
    /// Random per start of its process.
    pub instance: InstanceId,
    /// Counts the dials of that process.
    pub attempt: Attempt,
    /// The typed message.
    pub payload: Bytes,
}

/// What the acceptor suggests for periodic messages; zero: the other side's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Intervals {
    /// Between heartbeats.
    pub heartbeat: Duration,
    /// Between telemetry events.
    pub telemetry: Duration,
    /// Between inventory events.
    pub inventory: Duration,
}

/// The WELCOME to send.
#[derive(Clone, Debug)]
pub struct WelcomeOut {
    /// Negotiated version.
    pub protocol: u32,
    /// Number of this connection.
    pub generation: Generation,
    /// Suggested intervals.
    pub intervals: Intervals,
    /// `max(200 ms, peers x 5 ms)`.
    pub reconnect_spread: Duration,
    /// Streams open at once in each direction.
    pub max_streams: u32,
    /// The typed message, at most 60 KiB.
    pub payload: Vec<u8>,
}

impl Default for WelcomeOut {
    fn default() -> Self {
        Self {
            protocol: 1,
            generation: Generation(0),
            intervals: Intervals::default(),
            reconnect_spread: Duration::from_millis(200),
            max_streams: limits::STREAMS_NODE,
            payload: Vec::new(),
        }
    }
}

/// A WELCOME as it was received.
#[derive(Clone, Debug)]
pub struct Welcome {
    /// Negotiated version.
    pub protocol: u32,
    /// Number of this connection.
    pub generation: Generation,
    /// Suggested intervals.
    pub intervals: Intervals,
    /// The first redial after a loss is uniform in this time.
    pub reconnect_spread: Duration,
    /// Streams open at once in each direction.
    pub max_streams: u32,
    /// The typed message.
    pub payload: Bytes,
}

/// A REJECT: the reason, and for versions both ranges. `yours` and `mine` are as the rejecting side sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Why, and when to try again.
    pub error: Error,
    /// Set if the versions are the reason.
    pub verdict: Option<Verdict>,
    /// The range of the dialer.
    pub yours: VersionRange,
    /// The range of the acceptor.
    pub mine: VersionRange,
}

impl Rejection {
    /// One that has nothing to do with versions.
    pub fn new(error: Error) -> Self {
        Self { error, verdict: None, yours: VersionRange::default(), mine: VersionRange::default() }
    }

    /// The versions do not meet: says who must be upgraded.
    pub fn versions(verdict: Verdict, mine: VersionRange, yours: VersionRange) -> Self {
        let remedy = match verdict {
            Verdict::TooOld => "upgrade the dialing side",
            Verdict::TooNew => "upgrade the accepting side first",
            Verdict::Unknown | Verdict::Compatible => "the dialing side must say which versions it speaks",
        };
        let text = format!("the accepting side speaks versions {mine}, the dialing side {yours}: {remedy}");
        let error = Error::new(Code::Conflict, format!("VERSION_{}", verdict.name()), text);
        Self { error, verdict: Some(verdict), yours, mine }
    }
}

/// What the acceptor answered to HELLO.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// A session, or the end of an enrollment.
    Welcome(Welcome),
    /// No.
    Rejected(Rejection),
}

/// The bytes of a HELLO.
///
/// # Errors
/// `TOO_LARGE` if the payload does not fit into a first frame.
pub(crate) fn hello(
    purpose: Purpose,
    versions: VersionRange,
    instance: InstanceId,
    attempt: Attempt,
    payload: &[u8],
) -> Result<Vec<u8>, Error> {
    if payload.len() > limits::MESSAGE_MAX {
        return Err(Error::new(Code::TooLarge, "HELLO_TOO_LARGE", "the hello does not fit into a frame"));
    }
    let part = proto::Hello {
        purpose: match purpose {
            Purpose::Hello => proto::Purpose::Hello.into(),
            Purpose::Enroll => proto::Purpose::Enroll.into(),
        },
        protocol_min: versions.min,
        protocol_max: versions.max,
        instance_id: instance.0.to_vec(),
        attempt: attempt.0,
    };
    let mut out = Vec::new();
    frame::put_with(&mut out, header(Kind::Hello, payload), 16, &part);
    Ok(out)
}

/// Reads a HELLO from a frame's body.
///
/// # Errors
/// What a REJECT shall say.
pub(crate) fn read_hello(body: &[u8]) -> Result<HelloIn, Error> {
    let bad = |what: &'static str| Error::new(Code::InvalidArgument, "BAD_HELLO", what);
    let malformed = |_: FrameError| bad("the first frame is malformed");
    let frame = Frame::decode(body).map_err(malformed)?;
    if frame.kind != Kind::Hello as u32 {
        return Err(bad("the first frame is no hello"));
    }
    let part: proto::Hello = frame.part(16).map_err(malformed)?;
    let purpose = match proto::Purpose::try_from(part.purpose) {
        Ok(proto::Purpose::Hello) => Purpose::Hello,
        Ok(proto::Purpose::Enroll) => Purpose::Enroll,
        Ok(proto::Purpose::Unspecified) | Err(_) => return Err(bad("the hello has an unknown purpose")),
    };
    let instance =
        part.instance_id.try_into().map_err(|_| bad("the hello has no instance id of 16 bytes"))?;
    if part.attempt == 0 {
        return Err(bad("the hello has no attempt"));
    }
    Ok(HelloIn {
        purpose,
        versions: VersionRange { min: part.protocol_min, max: part.protocol_max },
        instance: InstanceId(instance),
        attempt: Attempt(part.attempt),
        payload: Bytes::copy_from_slice(frame.payload),
    })
}

/// The bytes of a WELCOME. A payload that does not fit is a defect of this side: it becomes a REJECT.
pub(crate) fn welcome(welcome: &WelcomeOut) -> Vec<u8> {
    if welcome.payload.len() > limits::MESSAGE_MAX {
        let what = "the answer to the hello does not fit into a frame";
        return reject(&Rejection::new(Error::new(Code::Internal, "WELCOME_TOO_LARGE", what)));
    }
    let part = proto::Welcome {
        protocol: welcome.protocol,
        generation: welcome.generation.0,
        limits: Some(proto::Limits {
            max_frame_bytes: limits::FRAME_MAX as u32,
            max_streams: welcome.max_streams,
            max_requests: limits::REQUESTS_MAX as u32,
            request_window_bytes: limits::REQUEST_WINDOW as u32,
            response_window_bytes: limits::RESPONSE_WINDOW as u32,
        }),
        intervals: Some(proto::Intervals {
            heartbeat_ms: millis(welcome.intervals.heartbeat),
            telemetry_ms: millis(welcome.intervals.telemetry),
            inventory_ms: millis(welcome.intervals.inventory),
        }),
        reconnect_spread_ms: millis(welcome.reconnect_spread),
    };
    let mut out = Vec::new();
    frame::put_with(&mut out, header(Kind::Welcome, &welcome.payload), 17, &part);
    out
}

/// The bytes of a REJECT.
pub(crate) fn reject(rejection: &Rejection) -> Vec<u8> {
    let part = proto::Reject {
        error: Some(rejection.error.to_proto()),
        verdict: rejection.verdict.map_or(0, Verdict::to_proto),
        yours: rejection.verdict.map(|_| rejection.yours.to_proto()),
        mine: rejection.verdict.map(|_| rejection.mine.to_proto()),
    };
    let mut out = Vec::new();
    frame::put_with(&mut out, header(Kind::Reject, &[]), 18, &part);
    out
}

/// The bytes of a closing GOAWAY.
pub(crate) fn farewell(goaway: &Goaway) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put_with(&mut out, header(Kind::Goaway, &[]), 27, &goaway.to_proto());
    out
}

/// Reads the acceptor's answer from a frame's body. A GOAWAY in this place is a rejection too.
///
/// # Errors
/// If it is none.
pub(crate) fn read_answer(body: &[u8]) -> Result<Answer, FrameError> {
    let frame = Frame::decode(body)?;
    match i32::try_from(frame.kind).ok().and_then(|kind| Kind::try_from(kind).ok()) {
        Some(Kind::Welcome) => {
            let part: proto::Welcome = frame.part(17)?;
            let intervals = part.intervals.unwrap_or_default();
            let time = |ms: u32| Duration::from_millis(u64::from(ms));
            Ok(Answer::Welcome(Welcome {
                protocol: part.protocol,
                generation: Generation(part.generation),
                intervals: Intervals {
                    heartbeat: time(intervals.heartbeat_ms),
                    telemetry: time(intervals.telemetry_ms),
                    inventory: time(intervals.inventory_ms),
                },
                reconnect_spread: time(part.reconnect_spread_ms),
                max_streams: match part.limits.unwrap_or_default().max_streams {
                    0 => limits::STREAMS_NODE,
                    some => some.min(limits::STREAMS_NODE),
                },
                payload: Bytes::copy_from_slice(frame.payload),
            }))
        }
        Some(Kind::Reject) => {
            let part: proto::Reject = frame.part(18)?;
            Ok(Answer::Rejected(Rejection {
                error: Error::from_proto(part.error.unwrap_or_default()),
                verdict: Verdict::from_proto(part.verdict),
                yours: VersionRange::from_proto(part.yours),
                mine: VersionRange::from_proto(part.mine),
            }))
        }
        Some(Kind::Goaway) => {
            let goaway = Goaway::from_proto(frame.part(27)?);
            let mut error = Error::new(Code::Unavailable, goaway.reason.to_uppercase(), goaway.message);
            error.retry_after = goaway.retry_after;
            Ok(Answer::Rejected(Rejection::new(error)))
        }
        _ => Err(FrameError::Malformed),
    }
}

fn header(kind: Kind, payload: &[u8]) -> Header<'_> {
    Header { kind: kind as u32, payload, ..Header::default() }
}

#[cfg(test)]
mod tests;
