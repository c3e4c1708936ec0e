//! Which version of a boundary's protocol two peers speak, and why they cannot.
//!
//! Invariant: an absent, zero or inverted range is `Unknown` and never compatible.

use std::fmt;

use crate::proto;

/// The versions a side speaks, both ends included. Valid ranges start at 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VersionRange {
    /// Smallest.
    pub min: u32,
    /// Largest.
    pub max: u32,
}

/// How a peer's range relates to mine. The same words stand in rejections, snapshots and readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is a common version.
    Compatible,
    /// The peer's maximum is below my minimum: upgrade the peer.
    TooOld,
    /// The peer's minimum is above my maximum: upgrade me.
    TooNew,
    /// The peer's range is absent, zero or inverted.
    Unknown,
}

impl VersionRange {
    /// The one version both boundaries have so far.
    pub const ONE: Self = Self { min: 1, max: 1 };

    /// As the message on the wire.
    pub fn to_proto(self) -> proto::VersionRange {
        proto::VersionRange { min: self.min, max: self.max }
    }

    /// From the message on the wire; an absent one is the zero range, which is `Unknown`.
    pub fn from_proto(range: Option<proto::VersionRange>) -> Self {
        range.map_or_else(Self::default, |range| Self { min: range.min, max: range.max })
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.min, self.max)
    }
}

impl Verdict {
    /// The number on the wire.
    pub fn to_proto(self) -> i32 {
        i32::from(match self {
            Self::Compatible => 1i8,
            Self::TooOld => 2,
            Self::TooNew => 3,
            Self::Unknown => 4,
        })
    }

    /// From the number on the wire; 0 and unknown numbers are `None`.
    pub fn from_proto(number: i32) -> Option<Self> {
        match proto::Verdict::try_from(number) {
            Ok(proto::Verdict::Compatible) => Some(Self::Compatible),
            Ok(proto::Verdict::TooOld) => Some(Self::TooOld),
            Ok(proto::Verdict::TooNew) => Some(Self::TooNew),
            Ok(proto::Verdict::Unknown) => Some(Self::Unknown),
            Ok(proto::Verdict::Unspecified) | Err(_) => None,
        }
    }

    /// In capitals, as operators see it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compatible => "COMPATIBLE",
            Self::TooOld => "TOO_OLD",
            Self::TooNew => "TOO_NEW",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// The version two sides speak: the smaller maximum, if it is at least both minima.
///
/// # Errors
/// The verdict on the peer, never [`Verdict::Compatible`].
pub fn negotiate(mine: VersionRange, theirs: VersionRange) -> Result<u32, Verdict> {
    if theirs.min == 0 || theirs.max < theirs.min {
        return Err(Verdict::Unknown);
    }
    if theirs.max < mine.min {
        return Err(Verdict::TooOld);
    }
    if theirs.min > mine.max {
        return Err(Verdict::TooNew);
    }
    Ok(mine.max.min(theirs.max))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(min: u32, max: u32) -> VersionRange {
        VersionRange { min, max }
    }

    #[test]
    fn verdicts() {
        let mine = range(2, 4);
        assert_eq!(negotiate(mine, range(1, 3)), Ok(3));
        assert_eq!(negotiate(mine, range(4, 9)), Ok(4));
        assert_eq!(negotiate(mine, range(1, 1)), Err(Verdict::TooOld));
        assert_eq!(negotiate(mine, range(5, 6)), Err(Verdict::TooNew));
        for unknown in [range(0, 0), range(0, 3), range(4, 3)] {
            assert_eq!(negotiate(mine, unknown), Err(Verdict::Unknown));
        }
        for verdict in [Verdict::Compatible, Verdict::TooOld, Verdict::TooNew, Verdict::Unknown] {
            assert_eq!(Verdict::from_proto(verdict.to_proto()), Some(verdict));
        }
        assert_eq!(Verdict::from_proto(0), None);
    }
}
