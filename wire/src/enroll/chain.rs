//! How a claim's certificates are stored: base64, a third of what an array of numbers takes in JSON.
//!
//! Invariant: what was stored as arrays of numbers, before base64, reads the same.

use std::fmt;

use data_encoding::BASE64;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::Serializer;

pub(super) fn serialize<S: Serializer>(chain: &[Vec<u8>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(chain.iter().map(|der| BASE64.encode(der)))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<u8>>, D::Error> {
    let chain = Vec::<Der>::deserialize(deserializer)?;
    Ok(chain.into_iter().map(|der| der.0).collect())
}

struct Der(Vec<u8>);

impl<'de> Deserialize<'de> for Der {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EitherForm).map(Self)
    }
}

struct EitherForm;

impl<'de> Visitor<'de> for EitherForm {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a certificate in base64 or as an array of bytes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<u8>, E> {
        BASE64.decode(text.as_bytes()).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<Vec<u8>, A::Error> {
        let mut der = Vec::new();
        while let Some(byte) = numbers.next_element()? {
            der.push(byte);
        }
        Ok(der)
    }
}
