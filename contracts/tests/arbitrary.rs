//! Random messages of every kind, built by walking the descriptors: what one codec writes the other reads.

use std::collections::HashMap;

use prost::Message;
use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, Value,
};
use quickcheck::{Arbitrary, Gen, quickcheck};

use crate::codec::{CODECS, codec};
use crate::descriptors::{messages, pool};
use crate::golden::{from_json, to_json};

/// A random message of a random kind.
#[derive(Clone, Debug)]
struct Any(DynamicMessage);

impl Arbitrary for Any {
    fn arbitrary(g: &mut Gen) -> Self {
        let all: Vec<_> = messages().collect();
        let kind = g.choose(&all).unwrap();
        Self(message(g, kind, 4))
    }
}

fn message(g: &mut Gen, descriptor: &MessageDescriptor, depth: u8) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        if bool::arbitrary(g) && (depth > 0 || !matches!(field.kind(), Kind::Message(_))) {
            let value = if field.is_map() {
                map(g, &field, depth)
            } else if field.is_list() {
                Value::List((0..u8::arbitrary(g) % 3).map(|_| value(g, &field.kind(), depth)).collect())
            } else {
                value(g, &field.kind(), depth)
            };
            message.set_field(&field, value);
        }
    }
    message
}

fn map(g: &mut Gen, field: &FieldDescriptor, depth: u8) -> Value {
    let kind = field.kind();
    let entry = kind.as_message().unwrap();
    let pairs = (0..u8::arbitrary(g) % 3).map(|_| {
        (MapKey::String(String::arbitrary(g)), value(g, &entry.map_entry_value_field().kind(), depth))
    });
    Value::Map(pairs.collect::<HashMap<_, _>>())
}

fn value(g: &mut Gen, kind: &Kind, depth: u8) -> Value {
    match kind {
        Kind::Bool => Value::Bool(bool::arbitrary(g)),
        Kind::String => Value::String(String::arbitrary(g)),
        Kind::Bytes => Value::Bytes(Vec::<u8>::arbitrary(g).into()),
        Kind::Uint32 => Value::U32(u32::arbitrary(g)),
        Kind::Uint64 => Value::U64(u64::arbitrary(g)),
        Kind::Int32 => Value::I32(i32::arbitrary(g)),
        Kind::Int64 | Kind::Sint64 => Value::I64(i64::arbitrary(g)),
        Kind::Enum(names) => {
            let numbers: Vec<_> = names.values().map(|name| name.number()).collect();
            Value::EnumNumber(*g.choose(&numbers).unwrap())
        }
        Kind::Message(inner) => Value::Message(message(g, inner, depth - 1)),
        other => panic!("no message has a field of kind {other:?} so far; say here how to draw one"),
    }
}

/// The message as its own bytes give it: an explicitly empty list or map is then an absent one.
fn settled(message: &DynamicMessage) -> DynamicMessage {
    DynamicMessage::decode(message.descriptor(), message.encode_to_vec().as_slice()).unwrap()
}

quickcheck! {
    fn both_codecs_read_what_the_other_writes(any: Any) -> bool {
        let any = settled(&any.0);
        let typed = (codec(any.descriptor().full_name()).again)(&any.encode_to_vec()).unwrap();
        // Meanings are compared across the two, bytes only within one: they order map entries differently.
        settled(&DynamicMessage::decode(any.descriptor(), typed.as_slice()).unwrap()) == any
            && (codec(any.descriptor().full_name()).again)(&typed).unwrap() == typed
    }

    fn json_loses_nothing(any: Any) -> bool {
        let any = settled(&any.0);
        settled(&from_json(&any.descriptor(), &to_json(&any), std::path::Path::new("random"))) == any
    }

    /// Arbitrary bytes are an error or a message, for every type, with and without bounds.
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>) -> bool {
        CODECS.iter().all(|codec| {
            let plain = (codec.again)(&bytes);
            codec.bounded.is_none_or(|bounded| bounded(&bytes).is_err() || plain.is_ok())
        })
    }

    /// A changed byte in a valid message is an error or another message.
    fn a_changed_byte_never_panics(any: Any, at: usize, to: u8) -> bool {
        let mut bytes = any.0.encode_to_vec();
        if let Some(length) = bytes.len().checked_sub(1) {
            bytes[at % (length + 1)] = to;
        }
        let codec = codec(any.0.descriptor().full_name());
        let _ = (codec.again)(&bytes);
        let _ = codec.bounded.map(|bounded| bounded(&bytes));
        true
    }
}

#[test]
fn no_message_is_recursive() {
    // The scan in front of decoding and the walker above rely on it.
    for message in messages() {
        let mut inside = vec![message.clone()];
        let mut seen = Vec::new();
        while let Some(next) = inside.pop() {
            for field in next.fields() {
                if let Kind::Message(inner) = field.kind() {
                    assert_ne!(inner, message, "{} contains itself", message.full_name());
                    if !seen.contains(&inner) {
                        seen.push(inner.clone());
                        inside.push(inner);
                    }
                }
            }
        }
    }
    assert!(pool().all_messages().len() > 50);
}
