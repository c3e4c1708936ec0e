//! Varint-delimited messages out of a stream's bytes, whose chunks cut them anywhere.
//!
//! Invariant: a length is refused before anything is kept for it, and all of one answer together has a bound.

use bytes::{Buf, Bytes, BytesMut};
use umbel_contracts::bounds::{Bounded, IN_STREAM, decode};
use umbel_wire::error::{Code, Error};

/// Takes bytes, gives messages.
pub(crate) struct Delimited {
    buffer: BytesMut,
    taken: usize,
    most: usize,
}

impl Delimited {
    /// A reader of an answer that has at most `most` bytes in all.
    pub(crate) fn new(most: usize) -> Self {
        Self { buffer: BytesMut::new(), taken: 0, most }
    }

    /// Adds bytes. TOO_LARGE beyond the bound of the answer.
    pub(crate) fn push(&mut self, chunk: &Bytes) -> Result<(), Error> {
        self.taken = self.taken.saturating_add(chunk.len());
        if self.taken > self.most {
            return Err(too_large());
        }
        self.buffer.extend_from_slice(chunk);
        Ok(())
    }

    /// The next whole message, if it is there.
    pub(crate) fn next<M: Bounded>(&mut self) -> Result<Option<M>, Error> {
        let Some((length, header)) = self.length()? else {
            return Ok(None);
        };
        if length > IN_STREAM {
            return Err(too_large());
        }
        if self.buffer.len() < header + length {
            return Ok(None);
        }
        self.buffer.advance(header);
        let message = self.buffer.split_to(length).freeze();
        decode(&message).map(Some).map_err(|error| {
            tracing::warn!("an edge's answer cannot be read: {error}");
            malformed()
        })
    }

    /// Whether bytes of an unfinished message are left.
    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    fn length(&self) -> Result<Option<(usize, usize)>, Error> {
        let mut length = 0_usize;
        for (place, byte) in self.buffer.iter().take(5).enumerate() {
            length |= usize::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                return Ok(Some((length, place + 1)));
            }
        }
        if self.buffer.len() >= 5 { Err(malformed()) } else { Ok(None) }
    }
}

/// The edge's answer is beyond its bound.
fn too_large() -> Error {
    Error::new(
        Code::TooLarge,
        "ANSWER_TOO_LARGE",
        "The edge's answer is larger than is taken. Ask for less of it.",
    )
}

/// The edge's answer cannot be read.
pub(crate) fn malformed() -> Error {
    Error::new(
        Code::BadGateway,
        "ANSWER_MALFORMED",
        "The edge's answer cannot be read. Compare the versions of both.",
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use prost::Message;
    use umbel_contracts::proto::control::EdgeHelloResponse;

    use super::*;

    fn response(name: &str) -> EdgeHelloResponse {
        EdgeHelloResponse { fleet_name: name.into(), ..EdgeHelloResponse::default() }
    }

    #[test]
    fn messages_come_out_however_they_are_cut() {
        let messages = [response("a"), response(""), response(&"x".repeat(128)), response("end")];
        let mut bytes = Vec::new();
        messages.iter().for_each(|message| message.encode_length_delimited(&mut bytes).unwrap());
        for size in 1..=bytes.len() {
            let mut reader = Delimited::new(bytes.len());
            let mut read = Vec::new();
            for chunk in bytes.chunks(size) {
                reader.push(&Bytes::copy_from_slice(chunk)).unwrap();
                while let Some(message) = reader.next::<EdgeHelloResponse>().unwrap() {
                    read.push(message);
                }
            }
            assert_eq!(read, messages, "chunks of {size}");
            assert!(reader.is_empty());
        }
    }

    #[test]
    fn lengths_are_refused_before_anything_is_kept() {
        for bytes in [vec![0xff; 5], vec![0xff, 0xff, 0xff, 0xff, 0x0f]] {
            let mut reader = Delimited::new(100);
            reader.push(&bytes.into()).unwrap();
            assert!(reader.next::<EdgeHelloResponse>().is_err());
        }
        let mut reader = Delimited::new(3);
        assert_eq!(reader.push(&Bytes::from_static(b"1234")).unwrap_err().code, Code::TooLarge);
    }

    #[test]
    fn rubbish_is_an_error() {
        let mut reader = Delimited::new(100);
        reader.push(&Bytes::from_static(&[2, 0xff, 0xff])).unwrap();
        assert_eq!(reader.next::<EdgeHelloResponse>().unwrap_err().code, Code::BadGateway);
    }
}
