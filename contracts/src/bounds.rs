//! Decoding is validation: what a peer sends is measured before anything is allocated for it.
//!
//! Owns: for each message of both boundaries how often a field may occur and how long it may be, and the one function
//! that decodes. Leaves to others: what the values mean.
//! Invariant: a message outside its bounds is refused with the field's name and never decoded; memory for a decoded
//! message is at most a small multiple of its bytes. Fields that are not known are skipped, so that a newer peer can
//! say more (a test checks that every known list, text and message has its bound).

use prost::Message;
use prost::encoding::{WireType, decode_varint};
use umbel_wire::{Code, Error};

mod control;
mod node;

/// Largest message that travels in one frame.
pub const IN_FRAME: usize = 60 * 1024;
/// Largest message of a stream's answer, which may cross frames.
pub const IN_STREAM: usize = 1024 * 1024 + 64 * 1024;

/// What one message may hold.
#[derive(Debug)]
pub struct Shape {
    /// The message's name.
    pub name: &'static str,
    /// Its encoded length, in bytes.
    pub largest: usize,
    /// Its fields that can be long or many. Numbers and flags have no entry.
    pub fields: &'static [Field],
}

/// What one field may hold.
#[derive(Debug)]
pub struct Field {
    /// Its number.
    pub number: u32,
    /// Its name.
    pub name: &'static str,
    /// How often it may occur (packed numbers: how many).
    pub most: u32,
    /// How long one occurrence may be, in bytes.
    pub longest: u32,
    /// What is inside, if it is a message.
    pub inside: Option<&'static Shape>,
}

/// A message with bounds.
pub trait Bounded: Message + Default {
    /// Its bounds.
    const SHAPE: &'static Shape;
}

/// Decodes a message from a peer.
///
/// # Errors
/// INVALID_ARGUMENT if it is malformed or outside its bounds, with the field's name.
pub fn decode<M: Bounded>(bytes: &[u8]) -> Result<M, Error> {
    let shape = M::SHAPE;
    if bytes.len() > shape.largest {
        return Err(outside(shape.name, format!("it has more than {} bytes", shape.largest)));
    }
    scan(bytes, shape)?;
    M::decode(bytes).map_err(|_| malformed(shape.name))
}

/// The bounds of every message of both boundaries.
pub fn shapes() -> impl Iterator<Item = (&'static str, &'static Shape)> {
    let of = |package: &'static str, shapes: &'static [&'static Shape]| {
        shapes.iter().map(move |shape| (package, *shape))
    };
    of("umbel.control.v1", control::SHAPES).chain(of("umbel.node.v1", node::SHAPES))
}

/// Most fields that one shape lists; the counters of a scan stand on the stack.
const MOST_FIELDS: usize = 24;

/// Walks over the encoded message. Messages are never recursive, so the depth is that of the shapes.
fn scan(mut bytes: &[u8], shape: &'static Shape) -> Result<(), Error> {
    let broken = || malformed(shape.name);
    let mut counts = [0_u32; MOST_FIELDS];
    while !bytes.is_empty() {
        let (number, wire_type) = key(&mut bytes).ok_or_else(broken)?;
        let known = shape.fields.iter().zip(&mut counts).find(|(field, _)| field.number == number);
        let content = match wire_type {
            WireType::Varint => {
                varint(&mut bytes).ok_or_else(broken)?;
                None
            }
            WireType::ThirtyTwoBit => Some(take(&mut bytes, 4).ok_or_else(broken)?),
            WireType::SixtyFourBit => Some(take(&mut bytes, 8).ok_or_else(broken)?),
            WireType::LengthDelimited => {
                let length = varint(&mut bytes).ok_or_else(broken)?;
                let length = usize::try_from(length).map_err(|_| broken())?;
                Some(take(&mut bytes, length).ok_or_else(broken)?)
            }
            WireType::StartGroup | WireType::EndGroup => return Err(broken()),
        };
        if let Some((field, count)) = known {
            field.check(shape, count, wire_type, content)?;
        }
    }
    Ok(())
}

/// A field's number and how its content is written.
fn key(bytes: &mut &[u8]) -> Option<(u32, WireType)> {
    let key = u32::try_from(varint(bytes)?).ok()?;
    let wire_type = WireType::try_from(u64::from(key & 7)).ok()?;
    // No field has the number 0.
    (key >> 3 > 0).then_some((key >> 3, wire_type))
}

/// A number. Nearly all of them are one byte, which is not worth a call.
#[inline]
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    if let Some((&first, rest)) = bytes.split_first()
        && first < 0x80
    {
        *bytes = rest;
        return Some(u64::from(first));
    }
    decode_varint(bytes).ok()
}

impl Field {
    fn check(
        &self,
        shape: &Shape,
        count: &mut u32,
        wire_type: WireType,
        content: Option<&[u8]>,
    ) -> Result<(), Error> {
        let inside = content.unwrap_or_default();
        let packed = self.longest == 0 && wire_type == WireType::LengthDelimited;
        let elements = if packed {
            u32::try_from(inside.iter().filter(|byte| **byte < 0x80).count()).unwrap_or(u32::MAX)
        } else {
            1
        };
        *count = count.saturating_add(elements);
        if *count > self.most {
            return Err(outside(shape.name, format!("{} occurs more than {} times", self.name, self.most)));
        }
        if !packed && inside.len() > self.longest as usize && wire_type == WireType::LengthDelimited {
            return Err(outside(shape.name, format!("{} is longer than {} bytes", self.name, self.longest)));
        }
        match self.inside {
            Some(inner) if wire_type == WireType::LengthDelimited => scan(inside, inner),
            _ => Ok(()),
        }
    }
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

fn malformed(name: &str) -> Error {
    Error::new(
        Code::InvalidArgument,
        "MALFORMED_MESSAGE",
        format!("{name} is malformed: the peer is broken, or not what it says it is"),
    )
}

fn outside(name: &str, what: String) -> Error {
    Error::new(Code::InvalidArgument, "MESSAGE_OUT_OF_BOUNDS", format!("{name} is refused: {what}"))
}

/// A text or bytes of at most `longest` bytes.
const fn text(number: u32, name: &'static str, longest: u32) -> Field {
    Field { number, name, most: 1, longest, inside: None }
}

/// At most `most` texts or bytes of at most `longest` bytes each.
const fn texts(number: u32, name: &'static str, most: u32, longest: u32) -> Field {
    Field { number, name, most, longest, inside: None }
}

/// At most `most` numbers.
const fn numbers(number: u32, name: &'static str, most: u32) -> Field {
    Field { number, name, most, longest: 0, inside: None }
}

/// One message.
const fn one(number: u32, name: &'static str, inside: &'static Shape) -> Field {
    many(number, name, 1, inside)
}

/// At most `most` messages.
const fn many(number: u32, name: &'static str, most: u32, inside: &'static Shape) -> Field {
    Field { number, name, most, longest: inside.largest as u32, inside: Some(inside) }
}

/// Declares the shapes of a package's messages, their table, and [`Bounded`] for each message.
macro_rules! declare {
    ($package:path; $($shape:ident $message:ident $largest:expr => [$($field:expr),* $(,)?];)+) => {
        use $package as package;
        $(
            static $shape: Shape = Shape { name: stringify!($message), largest: $largest, fields: &[$($field),*] };
            const _: () = assert!($shape.fields.len() <= MOST_FIELDS);
            impl Bounded for package::$message {
                const SHAPE: &'static Shape = &$shape;
            }
        )+
        pub(super) static SHAPES: &[&Shape] = &[$(&$shape),+];
    };
}
use declare;

/// Lengths that many fields share, in bytes.
mod length {
    /// An id: UUIDs have 36, names of tokens and keys at most that.
    pub(super) const ID: u32 = 64;
    /// A provider's id: a UUID, a slash and an engine's name.
    pub(super) const PROVIDER: u32 = 192;
    /// A name or version or word.
    pub(super) const NAME: u32 = 128;
    /// A model's name.
    pub(super) const MODEL: u32 = 256;
    /// A sentence for people.
    pub(super) const SENTENCE: u32 = 4096;
    /// A SHA-256 in hexadecimal, with room for its algorithm's name.
    pub(super) const DIGEST: u32 = 96;
    /// One certificate or signing request, DER.
    pub(super) const CERTIFICATE: u32 = 8 * 1024;
}

#[cfg(test)]
mod tests;
