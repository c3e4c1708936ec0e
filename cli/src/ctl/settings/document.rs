//! A whole settings document as a person hands it in: JSON, or TOML as the hosts' own files.
//!
//! Owns reading it. Invariant: what cannot be read whole and in one way is refused, for a document replaces everything:
//! one cut short, one that is empty because a pipe broke, or one that says a key twice would take settings away unseen.

use std::{collections::HashSet, fmt, io::Read as _, path::Path};

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::exit::{Failure, Outcome};

/// A document above this cannot be taken: arguments of a command are smaller.
const LARGEST: u64 = 1024 * 1024;

/// The text of a file, or of standard input for `-`.
pub(super) fn read(path: &Path) -> Outcome<String> {
    let mut bytes = Vec::new();
    // One more than allowed, so that what is cut is known to be.
    let read = if path == Path::new("-") {
        std::io::stdin().lock().take(LARGEST + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes))
    };
    let cannot = |what: &dyn fmt::Display| Failure::usage(format!("cannot read {}: {what}", path.display()));
    let length = read.map_err(|error| cannot(&error))?;
    if u64::try_from(length).unwrap_or(u64::MAX) > LARGEST {
        return Err(cannot(&"it is larger than 1 MiB, which no settings are"));
    }
    String::from_utf8(bytes).map_err(|error| cannot(&error))
}

/// A document in JSON, or in TOML as the hosts' own files.
pub(super) fn document_of(text: &str) -> Outcome<Value> {
    let value = match serde_json::from_str::<Value>(text) {
        Ok(value) => {
            serde_json::from_str::<Once>(text).map_err(|error| Failure::usage(error.to_string()))?;
            value
        }
        Err(json) => {
            let table = toml::from_str::<toml::Table>(text)
                .map_err(|_| Failure::usage(format!("this is neither JSON nor TOML; as JSON: {json}")))?;
            if table.is_empty() {
                return Err(Failure::usage("there is nothing in it: nothing was changed")
                    .remedy("to take every setting away, write {}"));
            }
            serde_json::to_value(table).map_err(|error| Failure::usage(error.to_string()))?
        }
    };
    if value.is_object() { Ok(value) } else { Err(Failure::usage("the settings are a table of keys")) }
}

/// JSON in which no object says a key twice.
struct Once;

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Once)
    }
}

impl<'de> Visitor<'de> for Once {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<Once>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if seen.contains(&key) {
                return Err(A::Error::custom(format!("the key `{key}` is there twice")));
            }
            map.next_value::<Once>()?;
            seen.insert(key);
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::json;

    use super::{LARGEST, document_of, read};

    #[test]
    fn a_document_is_json_or_toml() {
        let wanted = json!({ "edge": { "queue": { "max_wait": "30s" } } });
        assert_eq!(document_of(r#"{"edge":{"queue":{"max_wait":"30s"}}}"#).unwrap(), wanted);
        assert_eq!(document_of("[edge.queue]\nmax_wait = \"30s\"\n").unwrap(), wanted);
        assert!(document_of("[1]").is_err() && document_of("nonsense").is_err());
    }

    #[test]
    fn nothing_is_not_a_document_but_an_empty_one_is() {
        for text in ["", " \n", "# only words\n"] {
            assert!(document_of(text).unwrap_err().to_string().contains("write {}"), "{text:?}");
        }
        assert_eq!(document_of("{}").unwrap(), json!({}));
    }

    #[test]
    fn a_key_that_is_there_twice_is_refused_at_any_depth() {
        let twice = r#"{"a":[{"b":1.5,"c":null}],"edge":{"x":true,"x":-1}}"#;
        assert!(document_of(twice).unwrap_err().to_string().contains("`x` is there twice"));
        assert!(document_of(r#"{"a":{"x":1},"b":{"x":1}}"#).is_ok());
    }

    #[test]
    fn a_file_that_is_too_large_is_refused_and_not_cut() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("s");
        let largest = usize::try_from(LARGEST).unwrap();
        std::fs::write(&file, format!("{{}}{}", " ".repeat(largest - 2))).unwrap();
        assert_eq!(read(&file).unwrap().len(), largest);
        std::fs::write(&file, format!("{{}}{}", " ".repeat(largest - 1))).unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("larger than 1 MiB"));
    }
}
