//! What one side writes the other reads; what is incomplete is refused with a reason.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use super::*;
use crate::frame::PREFIX;

#[test]
fn a_hello_survives() {
    let range = VersionRange { min: 1, max: 3 };
    let bytes = hello(Purpose::Enroll, range, InstanceId([7; 16]), Attempt(4), b"payload").unwrap();
    let read = read_hello(&bytes[PREFIX..]).unwrap();
    assert_eq!((read.purpose, read.versions, read.attempt), (Purpose::Enroll, range, Attempt(4)));
    assert_eq!((read.instance, &read.payload[..]), (InstanceId([7; 16]), &b"payload"[..]));
    assert!(hello(Purpose::Hello, range, InstanceId([7; 16]), Attempt(4), &[0; 62_000]).is_err());
}

#[test]
fn an_incomplete_hello_is_refused() {
    let whole =
        proto::Hello { purpose: 1, protocol_min: 1, protocol_max: 1, instance_id: vec![1; 16], attempt: 1 };
    let bytes = |part: &proto::Hello, kind: Kind| {
        let mut out = Vec::new();
        frame::put_with(&mut out, header(kind, b""), 16, part);
        out.split_off(PREFIX)
    };
    assert!(read_hello(&bytes(&whole, Kind::Hello)).is_ok());
    assert!(read_hello(&bytes(&whole, Kind::Ping)).is_err());
    for broken in [
        proto::Hello { purpose: 0, ..whole.clone() },
        proto::Hello { purpose: 9, ..whole.clone() },
        proto::Hello { instance_id: vec![1; 15], ..whole.clone() },
        proto::Hello { attempt: 0, ..whole.clone() },
    ] {
        assert_eq!(
            read_hello(&bytes(&broken, Kind::Hello)).err().map(|error| error.reason),
            Some("BAD_HELLO".into())
        );
    }
    assert!(read_hello(&[]).is_err());
}

#[test]
fn answers_survive() {
    let out = WelcomeOut {
        generation: Generation(9),
        intervals: Intervals { heartbeat: Duration::from_secs(10), ..Intervals::default() },
        max_streams: 64,
        payload: b"hi".to_vec(),
        ..WelcomeOut::default()
    };
    let Ok(Answer::Welcome(read)) = read_answer(&welcome(&out)[PREFIX..]) else { panic!("no welcome") };
    assert_eq!((read.generation, read.max_streams, &read.payload[..]), (Generation(9), 64, &b"hi"[..]));
    assert_eq!((read.intervals, read.reconnect_spread), (out.intervals, Duration::from_millis(200)));

    let mine = VersionRange { min: 2, max: 2 };
    let rejection = Rejection::versions(Verdict::TooOld, mine, VersionRange::ONE);
    let Ok(Answer::Rejected(read)) = read_answer(&reject(&rejection)[PREFIX..]) else { panic!("no reject") };
    assert_eq!(read, rejection);

    let goaway = Goaway { closing: true, reason: "revoked".into(), ..Goaway::default() };
    let Ok(Answer::Rejected(read)) = read_answer(&farewell(&goaway)[PREFIX..]) else { panic!("no goaway") };
    assert_eq!(read.error.reason, "REVOKED");
    assert!(read_answer(&[8, 15]).is_err());
}
