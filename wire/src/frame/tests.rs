//! The hand-made header against the generated code, and the splitter against tokio-util's codec.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use bytes::BytesMut;
use quickcheck::{Arbitrary, Gen, QuickCheck};
use tokio_util::codec::{Decoder, LengthDelimitedCodec};

use super::*;
use crate::proto;

#[derive(Clone, Debug)]
struct AnyFrame(proto::Frame);

fn text(g: &mut Gen) -> String {
    String::arbitrary(g)
}

fn any_error(g: &mut Gen) -> Option<proto::Error> {
    bool::arbitrary(g).then(|| proto::Error {
        code: u32::arbitrary(g),
        reason: text(g),
        message: text(g),
        retry_after_ms: u32::arbitrary(g),
        correlation_id: text(g),
    })
}

impl Arbitrary for AnyFrame {
    fn arbitrary(g: &mut Gen) -> Self {
        use proto::frame::Meta;
        let meta = match u8::arbitrary(g) % 8 {
            0 => Some(Meta::Hello(proto::Hello {
                purpose: i32::arbitrary(g),
                protocol_min: u32::arbitrary(g),
                protocol_max: u32::arbitrary(g),
                instance_id: Vec::arbitrary(g),
                attempt: u64::arbitrary(g),
            })),
            1 => Some(Meta::Request(proto::Request {
                method: u32::arbitrary(g),
                timeout_ms: u32::arbitrary(g),
            })),
            2 => Some(Meta::Response(proto::Response { error: any_error(g) })),
            3 => Some(Meta::Open(proto::Open {
                method: u32::arbitrary(g),
                timeout_ms: u32::arbitrary(g),
                message: Vec::arbitrary(g),
            })),
            4 => Some(Meta::End(proto::End { error: any_error(g), not_processed: bool::arbitrary(g) })),
            5 => Some(Meta::Goaway(proto::Goaway {
                closing: bool::arbitrary(g),
                reason: text(g),
                message: text(g),
                retry_after_ms: u32::arbitrary(g),
            })),
            _ => None,
        };
        Self(proto::Frame {
            kind: u32::arbitrary(g) % 20,
            id: u64::arbitrary(g),
            flags: u32::arbitrary(g) % 4,
            payload: Vec::arbitrary(g),
            limit: u64::arbitrary(g),
            meta,
        })
    }
}

fn header(frame: &proto::Frame) -> Header<'_> {
    Header { kind: frame.kind, id: frame.id, flags: frame.flags, payload: &frame.payload, limit: frame.limit }
}

fn encode(frame: &proto::Frame) -> Vec<u8> {
    use proto::frame::Meta;
    let mut out = Vec::new();
    let head = header(frame);
    match &frame.meta {
        None => put(&mut out, head),
        Some(Meta::Hello(part)) => put_with(&mut out, head, 16, part),
        Some(Meta::Request(part)) => put_with(&mut out, head, 19, part),
        Some(Meta::Response(part)) => put_with(&mut out, head, 20, part),
        Some(Meta::Open(part)) => put_with(&mut out, head, 23, part),
        Some(Meta::End(part)) => put_with(&mut out, head, 25, part),
        Some(Meta::Goaway(part)) => put_with(&mut out, head, 27, part),
        Some(other) => panic!("not made by the generator: {other:?}"),
    }
    out
}

#[test]
fn encoding_is_that_of_the_generated_code() {
    fn property(any: AnyFrame) -> bool {
        let mut expected = (any.0.encoded_len() as u32).to_be_bytes().to_vec();
        any.0.encode(&mut expected).unwrap();
        encode(&any.0) == expected
    }
    QuickCheck::new().tests(2_000).quickcheck(property as fn(AnyFrame) -> bool);
}

#[test]
fn decoding_is_that_of_the_generated_code() {
    fn property(any: AnyFrame, noise: Vec<(usize, u8)>) -> bool {
        let mut bytes = any.0.encode_to_vec();
        for (at, byte) in noise.into_iter().take(2) {
            let length = bytes.len().max(1);
            if let Some(slot) = bytes.get_mut(at % length) {
                *slot = byte;
            }
        }
        match (Frame::decode(&bytes), proto::Frame::decode(bytes.as_slice())) {
            (Ok(mine), Ok(theirs)) => {
                mine.kind == theirs.kind
                    && mine.id == theirs.id
                    && mine.flags == theirs.flags
                    && mine.payload == theirs.payload
                    && mine.limit == theirs.limit
                    && mine.meta.is_some() == theirs.meta.is_some()
            }
            // Stricter is fine (groups, two parts); and `meta` is judged when its kind is known.
            (Err(_), _) | (Ok(Frame { meta: Some(_), .. }), Err(_)) => true,
            (Ok(_), Err(_)) => false,
        }
    }
    QuickCheck::new().tests(5_000).quickcheck(property as fn(AnyFrame, Vec<(usize, u8)>) -> bool);
}

#[test]
fn parts_of_streams_are_read_as_the_generated_code_reads_them() {
    fn property(method: u32, timeout_ms: u32, message: Vec<u8>, noise: Vec<(usize, u8)>) -> bool {
        let agrees = |field: u32, mut bytes: Vec<u8>| {
            for (at, byte) in noise.iter().take(2) {
                let length = bytes.len().max(1);
                if let Some(slot) = bytes.get_mut(at % length) {
                    *slot = *byte;
                }
            }
            let frame = Frame { meta: Some((field, &bytes)), ..Frame::default() };
            let other = Frame { meta: Some((field + 1, &bytes)), ..Frame::default() };
            match field {
                23 => match (frame.open(), frame.part::<proto::Open>(23)) {
                    (Ok(mine), Ok(theirs)) => mine == (theirs.method, theirs.timeout_ms, &theirs.message),
                    // Stricter is fine: groups.
                    (mine, _) => mine.is_err() && other.open().is_err(),
                },
                _ => match (frame.head(), frame.part::<proto::Head>(24)) {
                    (Ok(mine), Ok(theirs)) => mine == theirs.message,
                    (mine, _) => mine.is_err() && other.head().is_err(),
                },
            }
        };
        let open = proto::Open { method, timeout_ms, message: message.clone() };
        agrees(23, open.encode_to_vec()) && agrees(24, proto::Head { message }.encode_to_vec())
    }
    QuickCheck::new().tests(5_000).quickcheck(property as fn(u32, u32, Vec<u8>, Vec<(usize, u8)>) -> bool);
    assert_eq!((Frame::default().open(), Frame::default().head()), (Ok((0, 0, &[][..])), Ok(&[][..])));
}

#[test]
fn splitting_is_that_of_the_length_delimited_codec() {
    fn property(frames: Vec<Vec<u8>>, cuts: Vec<usize>, max: u8) -> bool {
        let max = usize::from(max);
        let mut bytes = Vec::new();
        for frame in frames.iter().filter(|frame| !frame.is_empty()) {
            bytes.extend_from_slice(&(frame.len() as u32).to_be_bytes());
            bytes.extend_from_slice(frame);
        }
        let mut codec = LengthDelimitedCodec::builder().max_frame_length(max).new_codec();
        let (mut theirs, mut mine) = (BytesMut::new(), Vec::new());
        let mut rest = bytes.as_slice();
        for cut in cuts.into_iter().map(|cut| cut % 40).chain([usize::MAX]) {
            let (now, later) = rest.split_at(cut.min(rest.len()));
            rest = later;
            theirs.extend_from_slice(now);
            mine.extend_from_slice(now);
            loop {
                let expected = codec.decode(&mut theirs);
                let (got, used) = match split(&mine, max) {
                    Ok(Some((body, used))) => (Ok(Some(body.to_vec())), used),
                    Ok(None) => (Ok(None), 0),
                    Err(error) => (Err(error), 0),
                };
                mine.drain(..used);
                match (expected, got) {
                    (Ok(Some(expected)), Ok(Some(got))) if expected == got => {}
                    (Ok(None), Ok(None)) => break,
                    (Err(_), Err(_)) => return true,
                    _ => return false,
                }
            }
        }
        true
    }
    QuickCheck::new().tests(2_000).quickcheck(property as fn(Vec<Vec<u8>>, Vec<usize>, u8) -> bool);
}

/// Fault row 38: lengths 0, max, max+1 and the largest.
#[test]
fn lengths_at_the_bound() {
    let framed = |length: u32| [length.to_be_bytes().as_slice(), &[8, 15]].concat();
    assert_eq!(split(&framed(0), 64), Err(FrameError::Malformed));
    assert_eq!(split(&framed(2), 2), Ok(Some((&[8u8, 15][..], 6))));
    assert_eq!(split(&framed(3), 2), Err(FrameError::TooLong(3)));
    assert_eq!(split(&framed(u32::MAX), 64 * 1024), Err(FrameError::TooLong(u32::MAX as usize)));
    assert_eq!(split(&framed(64), 64), Ok(None));
}

/// Fault rows 39 and 43: nothing cut, random or hostile panics.
#[test]
fn any_bytes_decode_or_fail() {
    fn property(bytes: Vec<u8>) -> bool {
        let _ = Frame::decode(&bytes);
        true
    }
    QuickCheck::new().tests(20_000).quickcheck(property as fn(Vec<u8>) -> bool);
    let groups: Vec<u8> = std::iter::repeat_n(0x33, 10_000).collect();
    assert_eq!(Frame::decode(&groups), Err(FrameError::Malformed));
    let mut whole = Vec::new();
    put_with(
        &mut whole,
        Header { kind: 9, id: 1, ..Header::default() },
        23,
        &proto::Open { method: 3, timeout_ms: 9, message: vec![7; 90] },
    );
    for cut in 0..whole.len() {
        assert_eq!(split(&whole[..cut], 1024), Ok(None));
        let _ = Frame::decode(&whole[PREFIX.min(cut)..cut]);
    }
}
