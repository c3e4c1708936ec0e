//! A relay forwards bytes, so that what a newer peer says survives an older one in the middle.

use prost::Message;
use umbel_wire::proto::{Frame, Kind, Open, frame::Meta};

use crate::codec::codec;
use crate::golden::vectors;

/// Field 1,999 with a text: what a version to come might add.
const OF_TOMORROW: &[u8] = b"\xfa\x7c\x05later";

fn newer(bytes: &[u8]) -> Vec<u8> {
    [bytes, OF_TOMORROW].concat()
}

#[test]
fn unknown_fields_survive_a_hop_inside_the_payload() {
    for vector in vectors() {
        let payload = newer(&vector.bytes);
        let frame =
            Frame { kind: Kind::Request as u32, id: 1, payload: payload.clone(), ..Default::default() };
        let at_the_relay = Frame::decode(frame.encode_to_vec().as_slice()).unwrap();
        let onward = Frame { id: 4, ..at_the_relay };
        let arrived = Frame::decode(onward.encode_to_vec().as_slice()).unwrap();
        assert_eq!(arrived.payload, payload, "{}", vector.path.display());
    }
}

#[test]
fn the_message_of_an_opening_is_forwarded_as_bytes_too() {
    for vector in vectors() {
        let message = newer(&vector.bytes);
        let open = Open { method: 3, timeout_ms: 0, message: message.clone() };
        let frame =
            Frame { kind: Kind::Open as u32, id: 2, meta: Some(Meta::Open(open)), ..Default::default() };
        match Frame::decode(frame.encode_to_vec().as_slice()).unwrap().meta {
            Some(Meta::Open(open)) => assert_eq!(open.message, message, "{}", vector.path.display()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_relay_that_decoded_would_lose_them() {
    // Why the two tests above matter: this is what decoding and encoding again does to every message.
    for vector in vectors() {
        let again = (codec(vector.message.full_name()).again)(&newer(&vector.bytes)).unwrap();
        assert_eq!(again, vector.bytes, "{}", vector.path.display());
    }
}

#[test]
fn a_newer_message_is_read_within_its_bounds() {
    for vector in vectors() {
        if let Some(bounded) = codec(vector.message.full_name()).bounded {
            assert_eq!(bounded(&newer(&vector.bytes)).unwrap(), vector.bytes, "{}", vector.path.display());
        }
    }
}

#[test]
fn an_unknown_kind_keeps_what_is_needed_to_answer_it() {
    // Kind 200 with a meta of number 40 that this version does not know.
    let frame = Frame { kind: 200, id: 77, flags: 2, ..Default::default() };
    let bytes = [frame.encode_to_vec(), vec![0xc2, 0x02, 0x02, 0x08, 0x01]].concat();
    let read = Frame::decode(bytes.as_slice()).unwrap();
    assert_eq!((read.kind, read.id, read.flags, read.meta), (200, 77, 2, None));
}
