//! Frames as bytes: a u32 big-endian length, then one protobuf `Frame`.
//!
//! Owns splitting, the header's decoding and encoding; what a kind means is decided in `session`. The header is
//! read by hand, which is cheaper than the generated code and gives kind and id even if `meta` is unknown; a test
//! holds it against the generated code. Invariant: a length is refused before anything is allocated for it.

use std::fmt;

use bytes::BufMut;
use prost::Message;

/// Flag: the opener's direction of this stream is done.
pub const END: u32 = 1;
/// Flag: do not skip this frame if its kind is unknown.
pub const CRITICAL: u32 = 2;
/// Bytes of the length in front of a frame.
pub const PREFIX: usize = 4;

/// A frame's header, borrowed from the bytes it was read from.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Frame<'a> {
    /// A `proto::Kind` by number.
    pub kind: u32,
    /// Request, stream, sequence or nonce, by kind.
    pub id: u64,
    /// `END`, `CRITICAL`.
    pub flags: u32,
    /// Data, inline body or typed message, by kind.
    pub payload: &'a [u8],
    /// CREDIT: the absolute limit.
    pub limit: u64,
    /// Field number and bytes of the kind's own part.
    pub meta: Option<(u32, &'a [u8])>,
}

/// Why bytes are no frame. The connection is over: there is no way to find the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Longer than this side takes at this point.
    #[error("a frame of {0} bytes is larger than allowed here")]
    TooLong(usize),
    /// Empty, or not a protobuf `Frame`.
    #[error("a frame is malformed")]
    Malformed,
}

/// The first frame's body in `bytes`, and how many bytes it takes with its length. `None`: more is needed.
///
/// # Errors
/// If the announced length is zero or above `max`.
pub fn split(bytes: &[u8], max: usize) -> Result<Option<(&[u8], usize)>, FrameError> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else { return Ok(None) };
    // Fits: usize has at least 32 bits on every target of this crate.
    let length = u32::from_be_bytes(*prefix) as usize;
    if length > max {
        return Err(FrameError::TooLong(length));
    }
    if length == 0 {
        // The empty message is valid protobuf, but kind 0 is not a kind.
        return Err(FrameError::Malformed);
    }
    Ok(rest.get(..length).map(|body| (body, PREFIX + length)))
}

impl<'a> Frame<'a> {
    /// Reads a frame's body. Unknown fields are skipped, the last of a repeated one wins.
    ///
    /// # Errors
    /// If it is not protobuf, or uses groups, which no peer sends.
    #[inline]
    pub fn decode(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut frame = Self::default();
        let mut rest = body;
        while !rest.is_empty() {
            let key = varint(&mut rest)?;
            match key {
                0x08 => frame.kind = varint(&mut rest)? as u32,
                0x10 => frame.id = varint(&mut rest)?,
                0x18 => frame.flags = varint(&mut rest)? as u32,
                0x22 => frame.payload = chunk(&mut rest)?,
                0x28 => frame.limit = varint(&mut rest)?,
                _ => frame.other(key, &mut rest)?,
            }
        }
        Ok(frame)
    }

    fn other(&mut self, key: u64, rest: &mut &'a [u8]) -> Result<(), FrameError> {
        let field = u32::try_from(key >> 3).map_err(|_| FrameError::Malformed)?;
        // A header field with another wire type is as malformed as an impossible field number.
        if field <= 5 || field > 0x1fff_ffff {
            return Err(FrameError::Malformed);
        }
        match key & 7 {
            0 => drop(varint(rest)?),
            1 => skip(rest, 8)?,
            2 => {
                let bytes = chunk(rest)?;
                if (16..=27).contains(&field) {
                    // Parts of one `oneof` exclude each other, so a second one is no frame of ours.
                    if self.meta.replace((field, bytes)).is_some() {
                        return Err(FrameError::Malformed);
                    }
                }
            }
            5 => skip(rest, 4)?,
            _ => return Err(FrameError::Malformed),
        }
        if (16..=27).contains(&field) && key & 7 != 2 {
            return Err(FrameError::Malformed);
        }
        Ok(())
    }

    /// The kind's own part, decoded. An absent one is the default message.
    ///
    /// # Errors
    /// If another part is there, or it does not decode.
    pub fn part<M: Message + Default>(&self, field: u32) -> Result<M, FrameError> {
        M::decode(self.part_bytes(field)?).map_err(|_| FrameError::Malformed)
    }
}

/// The parts that come with each stream, read where they stand: generated code copies their messages twice.
impl<'a> Frame<'a> {
    /// The part of an OPEN: its method, its time in milliseconds, its typed message.
    ///
    /// # Errors
    /// As [`Self::part`].
    pub fn open(&self) -> Result<(u32, u32, &'a [u8]), FrameError> {
        let (mut method, mut timeout_ms, mut message) = (0, 0, &[][..]);
        let mut rest = self.part_bytes(23)?;
        while !rest.is_empty() {
            match varint(&mut rest)? {
                0x08 => method = varint(&mut rest)? as u32,
                0x10 => timeout_ms = varint(&mut rest)? as u32,
                0x1a => message = chunk(&mut rest)?,
                key => unknown(key, 3, &mut rest)?,
            }
        }
        Ok((method, timeout_ms, message))
    }

    /// The typed message of a HEAD.
    ///
    /// # Errors
    /// As [`Self::part`].
    pub fn head(&self) -> Result<&'a [u8], FrameError> {
        let mut message = &[][..];
        let mut rest = self.part_bytes(24)?;
        while !rest.is_empty() {
            match varint(&mut rest)? {
                0x0a => message = chunk(&mut rest)?,
                key => unknown(key, 1, &mut rest)?,
            }
        }
        Ok(message)
    }

    fn part_bytes(&self, field: u32) -> Result<&'a [u8], FrameError> {
        match self.meta {
            None => Ok(&[]),
            Some((found, bytes)) if found == field => Ok(bytes),
            Some(_) => Err(FrameError::Malformed),
        }
    }
}

/// Skips a field of a part whose known ones are `1..=known`.
fn unknown(key: u64, known: u64, rest: &mut &[u8]) -> Result<(), FrameError> {
    if key >> 3 <= known || key > u64::from(u32::MAX) {
        return Err(FrameError::Malformed);
    }
    match key & 7 {
        0 => varint(rest).map(drop),
        1 => skip(rest, 8),
        2 => chunk(rest).map(drop),
        5 => skip(rest, 4),
        _ => Err(FrameError::Malformed),
    }
}

// Content stays out of logs.
impl fmt::Debug for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("kind", &self.kind)
            .field("id", &self.id)
            .field("flags", &self.flags)
            .field("payload_bytes", &self.payload.len())
            .field("limit", &self.limit)
            .field("meta", &self.meta.map(|(field, bytes)| (field, bytes.len())))
            .finish()
    }
}

#[inline]
fn varint(rest: &mut &[u8]) -> Result<u64, FrameError> {
    if let Some((&first, tail)) = rest.split_first()
        && first < 0x80
    {
        *rest = tail;
        return Ok(u64::from(first));
    }
    varint_long(rest)
}

fn varint_long(rest: &mut &[u8]) -> Result<u64, FrameError> {
    let mut value = 0u64;
    for shift in 0..10u32 {
        let Some((&byte, tail)) = rest.split_first() else { return Err(FrameError::Malformed) };
        *rest = tail;
        if shift == 9 && byte > 1 {
            return Err(FrameError::Malformed);
        }
        value |= u64::from(byte & 0x7f) << (7 * shift);
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(FrameError::Malformed)
}

#[inline]
fn chunk<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], FrameError> {
    let length = usize::try_from(varint(rest)?).map_err(|_| FrameError::Malformed)?;
    let (bytes, tail) = rest.split_at_checked(length).ok_or(FrameError::Malformed)?;
    *rest = tail;
    Ok(bytes)
}

fn skip(rest: &mut &[u8], count: usize) -> Result<(), FrameError> {
    *rest = rest.get(count..).ok_or(FrameError::Malformed)?;
    Ok(())
}

/// The flat part of a frame to be written.
#[derive(Clone, Copy, Default)]
pub struct Header<'a> {
    /// A `proto::Kind` by number.
    pub kind: u32,
    /// Request, stream, sequence or nonce, by kind.
    pub id: u64,
    /// `END`, `CRITICAL`.
    pub flags: u32,
    /// Data, inline body or typed message, by kind.
    pub payload: &'a [u8],
    /// CREDIT: the absolute limit.
    pub limit: u64,
}

impl Header<'_> {
    fn len(&self) -> usize {
        let field = |value: u64| if value == 0 { 0 } else { 1 + varint_len(value) };
        field(u64::from(self.kind))
            + field(self.id)
            + field(u64::from(self.flags))
            + if self.payload.is_empty() { 0 } else { field(self.payload.len() as u64) + self.payload.len() }
            + field(self.limit)
    }

    fn write(&self, out: &mut Vec<u8>) {
        put_field(out, 0x08, u64::from(self.kind));
        put_field(out, 0x10, self.id);
        put_field(out, 0x18, u64::from(self.flags));
        if !self.payload.is_empty() {
            put_field(out, 0x22, self.payload.len() as u64);
            out.extend_from_slice(self.payload);
        }
        put_field(out, 0x28, self.limit);
    }
}

/// Appends a frame without a part of its own: DATA, CREDIT, PING and the like.
#[inline]
pub fn put(out: &mut Vec<u8>, header: Header<'_>) {
    put_length(out, header.len());
    header.write(out);
}

/// Appends a frame with a part of its own, `field` in the `oneof`.
pub fn put_with<M: Message>(out: &mut Vec<u8>, header: Header<'_>, field: u32, part: &M) {
    let length = part.encoded_len();
    let key = u64::from(field << 3 | 2);
    put_length(out, header.len() + varint_len(key) + varint_len(length as u64) + length);
    header.write(out);
    put_varint(out, key);
    put_varint(out, length as u64);
    part.encode_raw(out);
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    out.reserve(PREFIX + length);
    // Senders keep to limits::FRAME_CEILING, far below u32.
    out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}

#[inline]
fn put_field(out: &mut Vec<u8>, key: u8, value: u64) {
    if value != 0 {
        out.push(key);
        put_varint(out, value);
    }
}

#[inline]
fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[inline]
fn varint_len(value: u64) -> usize {
    // 1 byte for each started 7 bits: (64 - leading zeros of value|1 + 6) / 7.
    (70 - (value | 1).leading_zeros() as usize) / 7
}

#[cfg(test)]
mod tests;
