//! A correlation id as a record keeps it: in place, where it is not unusually long.
//!
//! Invariant: it is the text that it was made of.

use std::fmt;

/// Ids of the edge's own making and UUIDs fit.
const IN_PLACE: usize = 38;

/// A correlation id.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Id {
    /// The first `length` bytes are the text.
    Short {
        /// At most [`IN_PLACE`].
        length: u8,
        /// The text, and zeros.
        bytes: [u8; IN_PLACE],
    },
    /// A client's long one.
    Long(Box<str>),
}

impl Id {
    /// The text.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            // Made of a text and cut nowhere.
            Self::Short { length, bytes } => {
                let text = bytes.get(..usize::from(*length)).unwrap_or_default();
                std::str::from_utf8(text).unwrap_or_default()
            }
            Self::Long(text) => text,
        }
    }
}

impl From<&str> for Id {
    fn from(text: &str) -> Self {
        let mut bytes = [0; IN_PLACE];
        match (bytes.get_mut(..text.len()), u8::try_from(text.len())) {
            (Some(place), Ok(length)) => {
                place.copy_from_slice(text.as_bytes());
                Self::Short { length, bytes }
            }
            _ => Self::Long(text.into()),
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    quickcheck::quickcheck! {
        fn an_id_is_the_text_it_was_made_of(text: String) -> bool {
            let long = text.repeat(3);
            Id::from(text.as_str()).as_str() == text && Id::from(long.as_str()).as_str() == long
        }
    }

    #[test]
    fn the_usual_ids_need_no_memory_of_their_own() {
        for id in ["req_01hzx3k5m7n9p1q3r5s7t9v1w3", "0b1f5c8e-6d0a-4c57-9d52-0c3f6f1e2a77"] {
            assert!(matches!(Id::from(id), Id::Short { .. }) && Id::from(id).to_string() == id);
        }
    }
}
