//! Golden vectors: for every message at least one case as canonical JSON and as the exact bytes.
//!
//! `golden/PACKAGE/MESSAGE/CASE.json` and `.hex` are append-only: what was once on the wire must decode for ever.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use prost::Message;
use prost_reflect::{DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions};

use crate::codec::codec;
use crate::descriptors::{files_below, messages, pool, root};

/// One case of one message.
pub(crate) struct Vector {
    pub(crate) message: MessageDescriptor,
    pub(crate) path: PathBuf,
    pub(crate) json: String,
    pub(crate) bytes: Vec<u8>,
}

/// Every vector; new ones get their bytes under `UMBEL_REGENERATE`.
pub(crate) fn vectors() -> Vec<Vector> {
    let files = files_below(&root().join("golden"));
    files
        .iter()
        .filter(|path| path.extension().is_some_and(|kind| kind == "json") && !of_operations(path))
        .map(|path| read(path))
        .collect()
}

/// Examples of operations have no bytes; schemas.rs looks at them.
fn of_operations(path: &Path) -> bool {
    path.starts_with(root().join("golden/operations"))
}

fn read(path: &Path) -> Vector {
    let parts: Vec<_> = path.iter().rev().take(3).map(|part| part.to_str().unwrap()).collect();
    let name = format!("{}.{}", parts[2], parts[1]);
    let message =
        pool().get_message_by_name(&name).unwrap_or_else(|| panic!("{}: no message {name}", path.display()));
    let mut json = std::fs::read_to_string(path).unwrap();
    let hex = path.with_extension("hex");
    if std::env::var_os("UMBEL_REGENERATE").is_some() && !hex.exists() {
        let dynamic = from_json(&message, &json, path);
        let bytes = (codec(&name).again)(&dynamic.encode_to_vec()).unwrap();
        json = to_json(&DynamicMessage::decode(message.clone(), bytes.as_slice()).unwrap());
        std::fs::write(path, &json).unwrap();
        std::fs::write(&hex, HEXLOWER.encode(&bytes) + "\n").unwrap();
    }
    let text = std::fs::read_to_string(&hex).unwrap_or_else(|_| panic!("{} is missing", hex.display()));
    let bytes =
        HEXLOWER.decode(text.trim().as_bytes()).unwrap_or_else(|error| panic!("{}: {error}", hex.display()));
    Vector { message, path: path.to_owned(), json, bytes }
}

/// From JSON that has no key that the message lacks.
pub(crate) fn from_json(message: &MessageDescriptor, json: &str, path: &Path) -> DynamicMessage {
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let strict = DeserializeOptions::new().deny_unknown_fields(true);
    let dynamic = DynamicMessage::deserialize_with_options(message.clone(), &mut deserializer, &strict);
    dynamic.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The canonical JSON: lowerCamelCase, 64-bit numbers as strings, nothing that has its default.
pub(crate) fn to_json(message: &DynamicMessage) -> String {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::pretty(&mut bytes);
    message.serialize_with_options(&mut serializer, &SerializeOptions::new()).unwrap();
    String::from_utf8(bytes).unwrap() + "\n"
}

#[test]
fn every_message_has_a_vector() {
    let covered: BTreeSet<_> = vectors().iter().map(|vector| vector.message.full_name().to_owned()).collect();
    let missing: Vec<_> = messages()
        .map(|message| message.full_name().to_owned())
        .filter(|name| !covered.contains(name))
        .collect();
    assert_eq!(missing, Vec::<String>::new(), "write golden/PACKAGE/MESSAGE/CASE.json for these");
}

#[test]
fn every_field_is_in_some_vector() {
    let mut unseen: BTreeSet<_> = messages().flat_map(|message| fields(&message)).collect();
    for vector in vectors() {
        let dynamic = DynamicMessage::decode(vector.message.clone(), vector.bytes.as_slice()).unwrap();
        for (field, _) in dynamic.fields() {
            unseen.remove(field.full_name());
        }
    }
    assert_eq!(unseen, BTreeSet::new(), "no vector shows these fields");
}

fn fields(message: &MessageDescriptor) -> Vec<String> {
    message.fields().map(|field| field.full_name().to_owned()).collect()
}

#[test]
fn bytes_decode_and_encode_to_themselves() {
    for vector in vectors() {
        let again = (codec(vector.message.full_name()).again)(&vector.bytes);
        assert_eq!(again.as_deref(), Ok(vector.bytes.as_slice()), "{}", vector.path.display());
        if let Some(bounded) = codec(vector.message.full_name()).bounded {
            assert_eq!(
                bounded(&vector.bytes).as_deref(),
                Ok(vector.bytes.as_slice()),
                "{}",
                vector.path.display()
            );
        }
    }
}

#[test]
fn json_gives_the_bytes_and_the_bytes_give_the_json() {
    for vector in vectors() {
        let dynamic = from_json(&vector.message, &vector.json, &vector.path);
        let encoded = (codec(vector.message.full_name()).again)(&dynamic.encode_to_vec()).unwrap();
        assert_eq!(HEXLOWER.encode(&encoded), HEXLOWER.encode(&vector.bytes), "{}", vector.path.display());
        let decoded = DynamicMessage::decode(vector.message.clone(), vector.bytes.as_slice()).unwrap();
        // As values, because maps have no order of their own.
        let read = |json: &str| serde_json::from_str::<serde_json::Value>(json).unwrap();
        assert_eq!(
            read(&to_json(&decoded)),
            read(&vector.json),
            "{} is not canonical",
            vector.path.display()
        );
    }
}

#[test]
fn every_truncation_is_an_error_or_a_shorter_message() {
    for vector in vectors() {
        let codec = codec(vector.message.full_name());
        for length in 0..vector.bytes.len() {
            let cut = &vector.bytes[..length];
            // Never more than was there, and what decodes within bounds decodes without them too.
            let plain = (codec.again)(cut);
            assert!(
                plain.as_ref().map_or(true, |again| again.len() <= length),
                "{} at {length}",
                vector.path.display()
            );
            if let Some(bounded) = codec.bounded {
                assert!(bounded(cut).is_err() || plain.is_ok(), "{} at {length}", vector.path.display());
            }
        }
    }
}

#[test]
fn no_bytes_stand_without_their_json() {
    for path in files_below(&root().join("golden")).iter().filter(|path| !of_operations(path)) {
        let other = path.with_extension(if path.extension().is_some_and(|kind| kind == "hex") {
            "json"
        } else {
            "hex"
        });
        assert!(other.exists(), "{} has no {}", path.display(), other.display());
    }
}
