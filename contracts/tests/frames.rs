//! The wire's own reader and writer of frames, held against the golden vectors of `Frame`.

use prost::Message;
use umbel_wire::frame::{self, Header};
use umbel_wire::proto;
use umbel_wire::proto::frame::Meta;

use crate::golden::{Vector, vectors};

fn frames() -> Vec<Vector> {
    let of_frame = |vector: &Vector| vector.message.full_name() == "umbel.wire.v1.Frame";
    let frames: Vec<_> = vectors().into_iter().filter(of_frame).collect();
    assert!(frames.len() >= 17, "one for each kind");
    frames
}

#[test]
fn the_wires_reader_reads_what_was_on_the_wire() {
    for vector in frames() {
        let said = proto::Frame::decode(vector.bytes.as_slice()).unwrap();
        let read = frame::Frame::decode(&vector.bytes).unwrap();
        let header = (read.kind, read.id, read.flags, read.payload, read.limit);
        let expected = (said.kind, said.id, said.flags, said.payload.as_slice(), said.limit);
        assert_eq!(header, expected, "{}", vector.path.display());
        assert_eq!(read.meta.is_some(), said.meta.is_some(), "{}", vector.path.display());
    }
}

#[test]
fn the_wires_writer_writes_what_was_on_the_wire() {
    for vector in frames() {
        let said = proto::Frame::decode(vector.bytes.as_slice()).unwrap();
        let header = Header {
            kind: said.kind,
            id: said.id,
            flags: said.flags,
            payload: &said.payload,
            limit: said.limit,
        };
        let mut out = Vec::new();
        match &said.meta {
            None => frame::put(&mut out, header),
            Some(Meta::Hello(part)) => frame::put_with(&mut out, header, 16, part),
            Some(Meta::Welcome(part)) => frame::put_with(&mut out, header, 17, part),
            Some(Meta::Reject(part)) => frame::put_with(&mut out, header, 18, part),
            Some(Meta::Request(part)) => frame::put_with(&mut out, header, 19, part),
            Some(Meta::Response(part)) => frame::put_with(&mut out, header, 20, part),
            Some(Meta::Event(part)) => frame::put_with(&mut out, header, 21, part),
            Some(Meta::Ack(part)) => frame::put_with(&mut out, header, 22, part),
            Some(Meta::Open(part)) => frame::put_with(&mut out, header, 23, part),
            Some(Meta::Head(part)) => frame::put_with(&mut out, header, 24, part),
            Some(Meta::End(part)) => frame::put_with(&mut out, header, 25, part),
            Some(Meta::Reset(part)) => frame::put_with(&mut out, header, 26, part),
            Some(Meta::Goaway(part)) => frame::put_with(&mut out, header, 27, part),
        }
        let length = u32::try_from(vector.bytes.len()).unwrap().to_be_bytes();
        assert_eq!(out, [length.as_slice(), &vector.bytes].concat(), "{}", vector.path.display());
    }
}

#[test]
fn every_kind_has_a_frame() {
    let shown: Vec<_> =
        frames().iter().map(|vector| proto::Frame::decode(vector.bytes.as_slice()).unwrap().kind).collect();
    let kinds = crate::descriptors::pool().get_enum_by_name("umbel.wire.v1.Kind").unwrap();
    for kind in kinds.values().filter(|kind| kind.number() != 0) {
        assert!(shown.contains(&u32::try_from(kind.number()).unwrap()), "no vector of {}", kind.name());
    }
}
