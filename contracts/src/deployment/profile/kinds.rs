//! What a key of a profile holds, and the values that JSON has no type for.
//!
//! Invariant: equal values have equal JSON: a figure has at most three decimals and is written without needless ones.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// One key of a profile.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name: the engine's option with `_` for `-`.
    pub name: &'static str,
    /// What it holds.
    pub holds: Holds,
    /// What it is for: a sentence.
    pub says: &'static str,
}

/// What a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// A whole number, both ends included.
    Number(u32, u32),
    /// A whole number, or one of these words.
    NumberOr(u32, u32, &'static [&'static str]),
    /// A figure with at most three decimals: thousandths, both ends included.
    Figure(u64, u64),
    /// Bytes as a size (`4GiB`), both ends included.
    Size(u64, u64),
    /// Milliseconds as a duration (`10m`), both ends included: Umbel's own, no engine's option.
    Duration(u64, u64),
    /// `true` or `false`: an option that can be said both ways.
    Flag,
    /// `true`, or not said: an option that can only be switched on.
    Switch,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A name of letters, digits, `-`, `_` and `.`.
    Name,
    /// A file of the artifact, below its folder.
    File,
    /// Numbers by these names, each at most so large.
    Counts(&'static [&'static str], u32),
}

/// A figure with at most three decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Figure {
    /// Thousandths.
    pub milli: u64,
}

impl Figure {
    /// From a number of JSON; none if it is negative, too large or has more decimals.
    pub(super) fn from_number(number: f64) -> Option<Self> {
        let scaled = number * 1000.0;
        let rounded = scaled.round();
        // 0.29 * 1000 is 290.00000000000006 and the like.
        let whole = (scaled - rounded).abs() < 1e-6 && (0.0..1e15).contains(&rounded);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "within 0..1e15 and whole"
        )]
        whole.then_some(Self { milli: rounded as u64 })
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.milli / 1000, self.milli % 1000);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        f.write_str(format!("{whole}.{rest:03}").trim_end_matches('0'))
    }
}

impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.milli.is_multiple_of(1000) {
            return serializer.serialize_u64(self.milli / 1000);
        }
        #[expect(clippy::cast_precision_loss, reason = "below 1e15")]
        serializer.serialize_f64(self.milli as f64 / 1000.0)
    }
}

impl<'de> Deserialize<'de> for Figure {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        Self::from_number(number).ok_or_else(|| D::Error::custom("is no figure with at most three decimals"))
    }
}

/// A number or a word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum NumberOrWord {
    /// A number.
    Number(u32),
    /// A word.
    Word(String),
}

/// Numbers by name.
pub type Counts = BTreeMap<String, u32>;
