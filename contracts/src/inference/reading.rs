//! The opening, the head and the end of an inference stream, read where they stand.
//!
//! Leaves bounds to [`crate::bounds`]. Invariant: what is read is what decoding gives, and what decoding refuses is refused
//! (a test compares them, for messages that are whole and for ones that are not).

use umbel_wire::Error;

use crate::bounds::{self, Content};
use crate::proto::node::{InferenceEnd, InferenceHead, InferenceOpen};

/// A header's name and value.
pub type Field<'a> = (&'a str, &'a [u8]);

/// An `InferenceOpen`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opening<'a> {
    /// `NODE_ID/NAME`.
    pub provider_id: &'a str,
    /// The lease.
    pub lease_id: u64,
    /// The provider's generation that the lease was given under.
    pub generation: u64,
    /// Of the request to the engine.
    pub method: &'a str,
    /// Of the request to the engine.
    pub path: &'a str,
    /// Those that pass.
    pub headers: Vec<Field<'a>>,
    /// Time to the engine's first byte; 0 says none.
    pub first_byte_timeout_ms: u32,
    /// Time between two of its bytes; 0 says none.
    pub idle_timeout_ms: u32,
    /// Length of the body.
    pub body_bytes: u64,
    /// The correlation id.
    pub request_id: &'a str,
}

impl<'a> Opening<'a> {
    /// Reads one from a peer.
    ///
    /// # Errors
    /// As [`bounds::decode`].
    pub fn read(message: &'a [u8]) -> Result<Self, Error> {
        let mut read = Self::default();
        bounds::read::<InferenceOpen>(message, |number, content| {
            match number {
                1 => read.provider_id = text(content)?,
                2 => read.lease_id = long(content)?,
                3 => read.generation = long(content)?,
                4 => read.method = text(content)?,
                5 => read.path = text(content)?,
                6 => read.headers.push(header(content)?),
                7 => read.first_byte_timeout_ms = short(content)?,
                8 => read.idle_timeout_ms = short(content)?,
                9 => read.body_bytes = long(content)?,
                10 => read.request_id = text(content)?,
                _ => {}
            }
            Some(())
        })?;
        Ok(read)
    }
}

/// An `InferenceHead`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head<'a> {
    /// The HTTP status.
    pub status: u32,
    /// Those that pass.
    pub headers: Vec<Field<'a>>,
}

impl<'a> Head<'a> {
    /// Reads one from a peer.
    ///
    /// # Errors
    /// As [`bounds::decode`].
    pub fn read(message: &'a [u8]) -> Result<Self, Error> {
        let mut read = Self::default();
        bounds::read::<InferenceHead>(message, |number, content| {
            match number {
                1 => read.status = short(content)?,
                2 => read.headers.push(header(content)?),
                _ => {}
            }
            Some(())
        })?;
        Ok(read)
    }
}

/// Reads an `InferenceEnd` from a peer.
///
/// # Errors
/// As [`bounds::decode`].
pub fn end(message: &[u8]) -> Result<InferenceEnd, Error> {
    let mut read = InferenceEnd::default();
    bounds::read::<InferenceEnd>(message, |number, content| {
        match number {
            // An enumeration is written as a number of any size, and is what is left of it.
            1 => read.outcome = short(content)?.cast_signed(),
            2 => read.prompt_tokens = Some(short(content)?),
            3 => read.completion_tokens = Some(short(content)?),
            4 => read.answer_bytes = long(content)?,
            5 => read.cached_tokens = Some(short(content)?),
            _ => {}
        }
        Some(())
    })?;
    Ok(read)
}

fn bytes(content: Content<'_>) -> Option<&[u8]> {
    match content {
        Content::Bytes(bytes) => Some(bytes),
        Content::Number(_) | Content::Fixed(_) => None,
    }
}

fn text(content: Content<'_>) -> Option<&str> {
    std::str::from_utf8(bytes(content)?).ok()
}

fn long(content: Content<'_>) -> Option<u64> {
    match content {
        Content::Number(number) => Some(number),
        Content::Bytes(_) | Content::Fixed(_) => None,
    }
}

/// Of a longer number the lower half, as protobuf has it.
#[allow(clippy::cast_possible_truncation, reason = "what is meant")]
fn short(content: Content<'_>) -> Option<u32> {
    long(content).map(|number| number as u32)
}

/// Its bounds were looked at with those of its message.
fn header(content: Content<'_>) -> Option<Field<'_>> {
    let (mut rest, mut read): (_, Field<'_>) = (bytes(content)?, ("", &[]));
    while !rest.is_empty() {
        match bounds::field(&mut rest)? {
            (1, name) => read.0 = text(name)?,
            (2, value) => read.1 = bytes(value)?,
            _ => {}
        }
    }
    Some(read)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
    use prost::Message;
    use quickcheck::quickcheck;

    use super::*;
    use crate::proto::node::Header;

    fn built(headers: &[Field<'_>]) -> Vec<Header> {
        let build = |(name, value): &Field<'_>| Header { name: (*name).to_owned(), value: value.to_vec() };
        headers.iter().map(build).collect()
    }

    /// All three readings against decoding.
    fn agree(message: &[u8]) -> bool {
        let opening = Opening::read(message).map(|read| InferenceOpen {
            provider_id: read.provider_id.to_owned(),
            lease_id: read.lease_id,
            generation: read.generation,
            method: read.method.to_owned(),
            path: read.path.to_owned(),
            headers: built(&read.headers),
            first_byte_timeout_ms: read.first_byte_timeout_ms,
            idle_timeout_ms: read.idle_timeout_ms,
            body_bytes: read.body_bytes,
            request_id: read.request_id.to_owned(),
        });
        let head = Head::read(message)
            .map(|read| InferenceHead { status: read.status, headers: built(&read.headers) });
        same(&opening, &bounds::decode(message))
            && same(&head, &bounds::decode(message))
            && same(&end(message), &bounds::decode(message))
    }

    fn same<T: PartialEq>(read: &Result<T, Error>, decoded: &Result<T, Error>) -> bool {
        match (read, decoded) {
            (Ok(read), Ok(decoded)) => read == decoded,
            // Which of two faults is named is another matter.
            (Err(read), Err(decoded)) => read.code == decoded.code,
            _ => false,
        }
    }

    fn opening(name: &str, value: &[u8], number: u64) -> InferenceOpen {
        let header = Header { name: name.to_owned(), value: value.to_vec() };
        InferenceOpen {
            provider_id: name.to_owned(),
            lease_id: number,
            generation: number.rotate_left(9),
            method: "POST".to_owned(),
            path: name.to_owned(),
            headers: vec![header.clone(), Header::default(), header],
            first_byte_timeout_ms: 1,
            idle_timeout_ms: u32::MAX,
            body_bytes: number >> 5,
            request_id: name.to_owned(),
        }
    }

    quickcheck! {
        fn a_message_is_read_as_it_is_decoded(name: String, value: Vec<u8>, number: u64) -> bool {
            let open = opening(&name, &value, number);
            let head = InferenceHead { status: 200, headers: open.headers.clone() };
            let end = InferenceEnd {
                outcome: i32::from(number as i8),
                prompt_tokens: Some(number as u32),
                answer_bytes: number,
                ..InferenceEnd::default()
            };
            agree(&open.encode_to_vec()) && agree(&head.encode_to_vec()) && agree(&end.encode_to_vec())
        }

        fn a_broken_message_is_refused_as_it_is_there(value: Vec<u8>, at: usize, byte: u8, cut: usize) -> bool {
            let mut message = opening("content-type", &value, 1 << 40).encode_to_vec();
            let place = at % message.len();
            *message.get_mut(place).unwrap() = byte;
            agree(&message) && agree(message.get(..cut % message.len()).unwrap())
        }

        fn noise_is_read_as_it_is_decoded(noise: Vec<u8>) -> bool {
            agree(&noise)
        }
    }

    #[test]
    fn bounds_hold_and_the_last_word_counts() {
        let many = InferenceHead { status: 200, headers: vec![Header::default(); 65] };
        assert!(Head::read(&many.encode_to_vec()).unwrap_err().message.contains("headers occurs"));
        let long = Header { name: "x".repeat(129), value: Vec::new() };
        let long = InferenceHead { status: 200, headers: vec![long] };
        assert!(Head::read(&long.encode_to_vec()).unwrap_err().message.contains("name is longer"));
        let twice = [opening("a", b"1", 1), opening("b", b"2", 2)].map(|open| InferenceOpen {
            provider_id: String::new(),
            method: String::new(),
            path: String::new(),
            request_id: String::new(),
            ..open
        });
        let twice: Vec<u8> = twice.iter().flat_map(Message::encode_to_vec).collect();
        assert_eq!(Opening::read(&twice).unwrap().lease_id, 2);
        assert!(agree(&twice));
        // A number of ten bytes where 32 bits are meant, and one where an enumeration is.
        let ten = [&[0xff; 9][..], &[1]].concat();
        for key in [0x08, 0x10, 0x38] {
            assert!(agree(&[&[key], &ten[..]].concat()));
        }
    }
}
