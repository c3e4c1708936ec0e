//! The opening and the head of an inference stream, written from where their parts are, and [`reading`] where they stand.
//!
//! Each request has one of each, and building the messages first takes more memory and time than the rest of their way.
//! Invariant: what is written decodes to the message that has the same parts (a test compares them).

pub mod reading;

use prost::encoding::{WireType, encode_varint};

/// A message being written. A part that is empty or 0 is left out, as protobuf has it.
#[derive(Clone, Debug, Default)]
struct Writing(Vec<u8>);

impl Writing {
    fn number(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.key(field, WireType::Varint);
            self.varint(value);
        }
    }

    fn length(&mut self, field: u32, length: usize) {
        self.key(field, WireType::LengthDelimited);
        self.varint(length as u64);
    }

    fn key(&mut self, field: u32, kind: WireType) {
        self.varint(u64::from(field << 3 | kind as u32));
    }

    /// Nearly all of them are one byte, which is not worth a call.
    #[inline]
    fn varint(&mut self, value: u64) {
        match u8::try_from(value) {
            Ok(byte) if byte < 0x80 => self.0.push(byte),
            _ => encode_varint(value, &mut self.0),
        }
    }

    fn bytes(&mut self, field: u32, value: &[u8]) {
        if !value.is_empty() {
            self.length(field, value.len());
            self.0.extend_from_slice(value);
        }
    }

    fn header(&mut self, field: u32, name: &str, value: &[u8]) {
        let size = |bytes: &[u8]| match bytes.len() {
            0 => 0,
            length => 1 + prost::encoding::encoded_len_varint(length as u64) + length,
        };
        self.length(field, size(name.as_bytes()) + size(value));
        self.bytes(1, name.as_bytes());
        self.bytes(2, value);
    }
}

/// What an `InferenceOpen` says of the request itself, whichever engine is asked.
#[derive(Clone, Debug)]
pub struct Asked(Vec<u8>);

/// What an `InferenceOpen` says of one try.
#[derive(Clone, Copy, Debug)]
pub struct Try<'a> {
    /// `NODE_ID/NAME`.
    pub provider_id: &'a str,
    /// The lease.
    pub lease_id: u64,
    /// The provider's generation that the lease was given under.
    pub generation: u64,
    /// Time to the engine's first byte.
    pub first_byte_timeout_ms: u32,
    /// Time between two of its bytes.
    pub idle_timeout_ms: u32,
    /// Length of the body.
    pub body_bytes: u64,
}

impl Asked {
    /// Of a request by its method, its path, its headers that pass, and its correlation id.
    pub fn new<'a>(
        method: &str,
        path: &str,
        headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
        request_id: &[u8],
    ) -> Self {
        // Room for the usual two headers.
        let parts = method.len() + path.len() + request_id.len();
        let mut to = Writing(Vec::with_capacity(parts + 72));
        to.bytes(4, method.as_bytes());
        to.bytes(5, path.as_bytes());
        for (name, value) in headers {
            to.header(6, name, value);
        }
        to.bytes(10, request_id);
        // It waits as long as its request does.
        if to.0.capacity() > 2 * to.0.len() {
            to.0.shrink_to_fit();
        }
        Self(to.0)
    }

    /// The whole `InferenceOpen` of one try.
    #[must_use]
    pub fn open(&self, one: &Try<'_>) -> Vec<u8> {
        // Four numbers and an id: 60 bytes and the provider's name.
        let mut to = Writing(Vec::with_capacity(64 + one.provider_id.len() + self.0.len()));
        to.bytes(1, one.provider_id.as_bytes());
        to.number(2, one.lease_id);
        to.number(3, one.generation);
        to.number(7, u64::from(one.first_byte_timeout_ms));
        to.number(8, u64::from(one.idle_timeout_ms));
        to.number(9, one.body_bytes);
        to.0.extend_from_slice(&self.0);
        to.0
    }
}

/// An `InferenceHead`.
pub fn head<'a>(status: u16, headers: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let mut to = Writing(Vec::with_capacity(128));
    to.number(1, u64::from(status));
    for (name, value) in headers {
        to.header(2, name, value);
    }
    to.0
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::proto::node::{Header, InferenceHead, InferenceOpen};

    fn built(headers: &[(&str, &[u8])]) -> Vec<Header> {
        let build =
            |(name, value): &(&str, &[u8])| Header { name: (*name).to_owned(), value: value.to_vec() };
        headers.iter().map(build).collect()
    }

    #[test]
    fn what_is_written_is_the_message() {
        let long = [b'x'; 1024];
        let some: [(&str, &[u8]); 3] = [("content-type", b"application/json"), ("x", b""), ("long", &long)];
        for (headers, method, id, number) in
            [(&some[..], "POST", "req_1", 1), (&[], "", "", 0), (&some[..1], "GET", "i", u64::MAX)]
        {
            let small = u32::try_from(number).unwrap_or(u32::MAX);
            let one = Try {
                provider_id: "node/engine",
                lease_id: number,
                generation: number,
                first_byte_timeout_ms: small,
                idle_timeout_ms: small,
                body_bytes: number,
            };
            let written = Asked::new(method, "/v1/x", headers.iter().copied(), id.as_bytes()).open(&one);
            let expected = InferenceOpen {
                provider_id: one.provider_id.to_owned(),
                lease_id: number,
                generation: number,
                method: method.to_owned(),
                path: "/v1/x".to_owned(),
                headers: built(headers),
                first_byte_timeout_ms: small,
                idle_timeout_ms: small,
                body_bytes: number,
                request_id: id.to_owned(),
            };
            assert_eq!(InferenceOpen::decode(&*written), Ok(expected));
            let status = u16::try_from(number).unwrap_or(200);
            let expected = InferenceHead { status: u32::from(status), headers: built(headers) };
            assert_eq!(head(status, headers.iter().copied()), expected.encode_to_vec());
        }
    }
}
