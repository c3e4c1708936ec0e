//! Decoding is validation: what a peer sends is measured before anything is allocated for it.
//!
//! Owns: for each message of both boundaries how often a field may occur and how long it may be, and the one function
//! that decodes. Leaves to others: what the values mean.
//! Invariant: a message outside its bounds is refused with the field's name and never decoded; memory for a decoded
//! message is at most a small multiple of its bytes. Fields that are not known are skipped, so that a newer peer can
//! say more (a test checks that every known list, text and message has its bound).

use prost::Message;
use prost::encoding::decode_varint;
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
    read::<M>(bytes, |_, _| Some(()))?;
    M::decode(bytes).map_err(|_| malformed(M::SHAPE.name))
}

/// The same for whoever takes the fields from where they stand: `each` is given one after the other, unknown ones
/// included, and says nothing to what makes the message malformed.
///
/// # Errors
/// As [`decode`].
pub fn read<'a, M: Bounded>(
    bytes: &'a [u8],
    each: impl FnMut(u32, Content<'a>) -> Option<()>,
) -> Result<(), Error> {
    let shape = M::SHAPE;
    if bytes.len() > shape.largest {
        return Err(outside(shape.name, format!("it has more than {} bytes", shape.largest)));
    }
    walk(bytes, shape, each)
}

/// What one field of an encoded message holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// A number, as it stands: one that is meant shorter is to be cut.
    Number(u64),
    /// Four or eight bytes.
    Fixed(&'a [u8]),
    /// A text, bytes, a message, or packed numbers.
    Bytes(&'a [u8]),
}

/// The first field of what is left of a message; nothing if that is malformed.
#[inline]
pub(crate) fn field<'a>(bytes: &mut &'a [u8]) -> Option<(u32, Content<'a>)> {
    let key = u32::try_from(varint(bytes)?).ok()?;
    let content = match key & 7 {
        0 => Content::Number(varint(bytes)?),
        1 => Content::Fixed(take(bytes, 8)?),
        2 => {
            let length = usize::try_from(varint(bytes)?).ok()?;
            Content::Bytes(take(bytes, length)?)
        }
        5 => Content::Fixed(take(bytes, 4)?),
        // Groups, which no peer sends, and what means nothing.
        _ => return None,
    };
    // No field has the number 0.
    (key >> 3 > 0).then_some((key >> 3, content))
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
fn scan(bytes: &[u8], shape: &'static Shape) -> Result<(), Error> {
    walk(bytes, shape, |_, _| Some(()))
}

/// The same, showing each field once it is found to be within its bounds.
fn walk<'a>(
    mut bytes: &'a [u8],
    shape: &'static Shape,
    mut each: impl FnMut(u32, Content<'a>) -> Option<()>,
) -> Result<(), Error> {
    let broken = || malformed(shape.name);
    let mut counts = [0_u32; MOST_FIELDS];
    while !bytes.is_empty() {
        let (number, content) = field(&mut bytes).ok_or_else(broken)?;
        let place = shape.fields.iter().position(|field| field.number == number);
        if let Some(place) = place
            && let (Some(field), Some(count)) = (shape.fields.get(place), counts.get_mut(place))
        {
            field.check(shape, count, content)?;
        }
        each(number, content).ok_or_else(broken)?;
    }
    Ok(())
}

/// A number. Nearly all of them are one byte, which is not worth a call.
#[inline]
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    match bytes.split_first() {
        Some((&first, rest)) if first < 0x80 => {
            *bytes = rest;
            Some(u64::from(first))
        }
        _ => longer(bytes),
    }
}

/// The other numbers. Kept apart, or the short ones would be as large and called.
#[inline(never)]
fn longer(bytes: &mut &[u8]) -> Option<u64> {
    decode_varint(bytes).ok()
}

impl Field {
    fn check(&self, shape: &Shape, count: &mut u32, content: Content<'_>) -> Result<(), Error> {
        let (occurs, inside) = match content {
            // Packed numbers: the last byte of each is below 0x80.
            Content::Bytes(numbers) if self.longest == 0 => {
                (numbers.iter().filter(|byte| **byte < 0x80).count(), None)
            }
            Content::Bytes(inside) => (1, Some(inside)),
            Content::Number(_) | Content::Fixed(_) => (1, None),
        };
        *count = count.saturating_add(u32::try_from(occurs).unwrap_or(u32::MAX));
        if *count > self.most {
            return Err(outside(shape.name, format!("{} occurs more than {} times", self.name, self.most)));
        }
        let Some(inside) = inside else { return Ok(()) };
        if inside.len() > self.longest as usize {
            return Err(outside(shape.name, format!("{} is longer than {} bytes", self.name, self.longest)));
        }
        self.inside.map_or(Ok(()), |inner| scan(inside, inner))
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
