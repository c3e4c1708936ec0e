//! The acceptor's rules of a rotation: an edge has them for its nodes, a control plane for its edges.
//!
//! Owns when a new certificate is due, which key may follow, and how long one that has ended still lets its holder in to
//! renew it. Leaves rows, writes and sentences to the acceptor. Invariant: a key is never anybody's second identity.

use crate::ca::CLIENT_GRACE;
use crate::clock::Wall;
use crate::error::{Code, Error};

/// When a certificate is to be replaced: two thirds of its life are over then.
#[must_use]
pub fn due(begun: Wall, ends: Wall) -> Wall {
    Wall(begun.0.saturating_add(ends.0.saturating_sub(begun.0) / 3 * 2))
}

/// Whether a certificate is over for good: its holder is not let in any more, not even to renew it.
#[must_use]
pub fn lost(ends: Wall, now: Wall) -> bool {
    now > ends + CLIENT_GRACE
}

/// Who has the key of a signing request already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody.
    Nobody,
    /// Whoever asks, and it was not shown yet: its answer was lost.
    Pending,
    /// Whoever asks, and it is or was in use.
    Itself,
    /// Another one.
    Another,
}

/// Why a key does not become somebody's next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// It is another one's.
    Another,
    /// It is the one in use.
    Unchanged,
}

impl Unfit {
    /// The refusal, in the acceptor's words.
    #[must_use]
    pub fn error(self, message: &'static str) -> Error {
        match self {
            Self::Another => Error::new(Code::Conflict, "KEY_IN_USE", message),
            Self::Unchanged => Error::new(Code::InvalidArgument, "KEY_UNCHANGED", message),
        }
    }
}

/// Whether a key may become the next one of whoever asks.
///
/// # Errors
/// Why not.
pub fn may_have(holder: Holder) -> Result<(), Unfit> {
    match holder {
        Holder::Nobody | Holder::Pending => Ok(()),
        Holder::Itself => Err(Unfit::Unchanged),
        Holder::Another => Err(Unfit::Another),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_due_at_two_thirds_and_lost_after_the_grace() {
        assert_eq!(due(Wall(1_000), Wall(4_000)), Wall(3_000));
        // A row that says nonsense is due at once and overflows nothing.
        assert_eq!(due(Wall(5), Wall(5)), Wall(5));
        assert!(due(Wall(i64::MIN), Wall(i64::MAX)) < Wall(i64::MAX));
        let last = Wall(7) + CLIENT_GRACE;
        assert!(!lost(Wall(7), last) && lost(Wall(7), Wall(last.0 + 1)));
    }

    #[test]
    fn a_key_is_new_or_asked_for_again() {
        assert_eq!(may_have(Holder::Nobody), Ok(()));
        assert_eq!(may_have(Holder::Pending), Ok(()));
        assert_eq!(may_have(Holder::Itself), Err(Unfit::Unchanged));
        assert_eq!(may_have(Holder::Another), Err(Unfit::Another));
        assert_eq!(Unfit::Another.error("").reason, "KEY_IN_USE");
        assert_eq!(Unfit::Unchanged.error("").reason, "KEY_UNCHANGED");
    }
}
