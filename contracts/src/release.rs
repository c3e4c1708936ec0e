//! Versions of numbers with points between: a GPU driver's, a compute capability, an engine's.
//!
//! Owns how they are read, compared and written. Invariant: they are compared number by number, so 550.54 is above 550.9, and
//! 8 and 8.0 are one version.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

/// Numbers of one version; what stands behind them decides nothing.
const NUMBERS: usize = 4;

/// A version: one to four numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release([u32; NUMBERS]);

/// Not one to four numbers with points between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write one to four numbers with points between, as 8.9 or 550.54.14")]
pub struct InvalidRelease;

impl Release {
    /// Reads what software says of itself: `v0.11.0rc2+cu129`, `b6527`, `550.54.14`. Only the numbers count, up to the first
    /// other character; `None` where there is no number.
    #[must_use]
    pub fn found(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = text.strip_prefix(['v', 'V', 'b', 'B']).unwrap_or(text);
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let mut numbers = [0; NUMBERS];
        let parts = text.get(..end)?.split('.').take_while(|part| !part.is_empty());
        let mut any = false;
        for (number, part) in numbers.iter_mut().zip(parts) {
            *number = part.parse().ok()?;
            any = true;
        }
        any.then_some(Self(numbers))
    }
}

impl FromStr for Release {
    type Err = InvalidRelease;

    fn from_str(text: &str) -> Result<Self, InvalidRelease> {
        let mut numbers = [0; NUMBERS];
        let mut places = numbers.iter_mut();
        for part in text.split('.') {
            let place = places.next().ok_or(InvalidRelease)?;
            if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(InvalidRelease);
            }
            *place = part.parse().map_err(|_| InvalidRelease)?;
        }
        Ok(Self(numbers))
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.0.iter().rposition(|number| *number != 0).unwrap_or(0).max(1);
        for (index, number) in self.0.iter().take(last + 1).enumerate() {
            if index > 0 {
                f.write_str(".")?;
            }
            number.fmt(f)?;
        }
        Ok(())
    }
}

impl Serialize for Release {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Release {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Release {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Release".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "type": "string" })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn release(text: &str) -> Release {
        text.parse().unwrap()
    }

    #[test]
    fn versions_are_compared_number_by_number() {
        assert!(release("550.54") > release("550.9"));
        assert!(release("8.9") < release("9"));
        assert_eq!(release("8"), release("8.0"));
        assert!(release("0.11.1") > release("0.11"));
    }

    #[test]
    fn they_are_written_as_people_write_them() {
        for (text, shown) in
            [("8", "8.0"), ("9.0", "9.0"), ("550.54.14", "550.54.14"), ("0.11.0", "0.11"), ("0", "0.0")]
        {
            assert_eq!(release(text).to_string(), shown);
            assert_eq!(release(shown), release(text));
        }
    }

    #[test]
    fn a_wish_is_read_strictly_and_a_finding_leniently() {
        for text in ["", "8.", ".8", "8.x", "1.2.3.4.5", "-1", "99999999999", "v8"] {
            assert_eq!(text.parse::<Release>(), Err(InvalidRelease), "{text}");
        }
        for (text, found) in [
            ("v0.11.0rc2+cu129", Some("0.11.0")),
            ("b6527", Some("6527")),
            ("550.54.14", Some("550.54.14")),
            ("1.2.3.4.5", Some("1.2.3.4")),
            ("12. ", Some("12")),
            ("main", None),
            ("", None),
            ("99999999999", None),
        ] {
            assert_eq!(Release::found(text), found.map(release), "{text}");
        }
    }
}
