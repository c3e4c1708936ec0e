//! Durations (`250ms`, `30s`, `15m`, `1h`, `2d`) and sizes (`512B`, `64KiB`, `32MiB`, `1GiB`) in configuration files.
//!
//! Invariant: a unit is always written, so that no reader has to guess it; what is printed parses to the same.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::{Serialize, Serializer};

const DURATIONS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
const SIZES: [(&str, u64); 5] =
    [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// Not a number with one of the units.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write {example}: a whole number and one of {units}")]
pub struct InvalidUnit {
    example: &'static str,
    units: &'static str,
}

/// A time span as people write it, in whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HumanDuration(pub Duration);

/// A number of bytes as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

impl HumanDuration {
    const INVALID: InvalidUnit = InvalidUnit { example: "\"30s\"", units: "ms, s, m, h, d" };

    /// So many seconds, for defaults.
    #[must_use]
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl ByteSize {
    const INVALID: InvalidUnit = InvalidUnit { example: "\"64MiB\"", units: "B, KiB, MiB, GiB, TiB" };

    /// So many mebibytes, for defaults.
    #[must_use]
    pub const fn mebibytes(mebibytes: u64) -> Self {
        Self(mebibytes << 20)
    }
}

impl From<HumanDuration> for Duration {
    fn from(duration: HumanDuration) -> Self {
        duration.0
    }
}

impl FromStr for HumanDuration {
    type Err = InvalidUnit;

    fn from_str(text: &str) -> Result<Self, InvalidUnit> {
        let milliseconds = scaled(text, &DURATIONS).ok_or(Self::INVALID)?;
        Ok(Self(Duration::from_millis(milliseconds)))
    }
}

impl FromStr for ByteSize {
    type Err = InvalidUnit;

    fn from_str(text: &str) -> Result<Self, InvalidUnit> {
        scaled(text, &SIZES).map(Self).ok_or(Self::INVALID)
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        write_scaled(f, milliseconds, &DURATIONS, "s")
    }
}

impl ByteSize {
    /// With one decimal in powers of 1024, rounded down: `1.2 GiB`.
    #[must_use]
    pub fn rounded(self) -> String {
        self.in_tenths(0)
    }

    /// The same rounded up: what is needed.
    #[must_use]
    pub fn rounded_up(self) -> String {
        self.in_tenths(1)
    }

    fn in_tenths(self, up: u128) -> String {
        const UNITS: [(&str, u64); 4] =
            [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        let Some((unit, size)) = UNITS.into_iter().find(|(_, size)| self.0 >= *size) else {
            return format!("{} B", self.0);
        };
        let size = u128::from(size);
        let tenths = (u128::from(self.0) * 10 + up * (size - 1)) / size;
        format!("{}.{} {unit}", tenths / 10, tenths % 10)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0, &SIZES, "B")
    }
}

fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let number: u64 = number.parse().ok()?;
    match units.iter().find(|(name, _)| *name == unit) {
        Some((_, factor)) => number.checked_mul(*factor),
        // Zero needs no unit.
        None if unit.is_empty() && number == 0 => Some(0),
        None => None,
    }
}

/// In the largest unit that leaves no rest.
fn write_scaled(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)], zero: &str) -> fmt::Result {
    match units.iter().rev().find(|(_, factor)| value > 0 && value.is_multiple_of(*factor)) {
        Some((name, factor)) => write!(f, "{}{name}", value / factor),
        None => write!(f, "0{zero}"),
    }
}

struct Text<T>(std::marker::PhantomData<T>, &'static str);

impl<T: FromStr<Err = InvalidUnit>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.1)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Text(std::marker::PhantomData, "a duration in quotes, such as \"30s\""))
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Text(std::marker::PhantomData, "a size in quotes, such as \"64MiB\""))
    }
}

impl Serialize for HumanDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for HumanDuration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^([0-9]+(ms|s|m|h|d)|0)$", "examples": ["30s"] })
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^([0-9]+(B|KiB|MiB|GiB|TiB)|0)$", "examples": ["64MiB"] })
    }
}
