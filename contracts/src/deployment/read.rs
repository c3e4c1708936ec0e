//! Reading a deployment's document, from TOML and from JSON, and its canonical form.
//!
//! Invariant: both ways give the same value; an error names the field by its path whatever the format; the canonical form
//! of equal values is the same bytes (keys sorted, no blanks, defaults as they are written by serde).

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{ArtifactSpec, DeploymentSpec, shape};
use crate::config::{ByteSize, ConfigError, ConfigFile};
use crate::settings::Fault;

/// All that is wrong with a document; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            fault.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Self(vec![fault])
    }
}

impl DeploymentSpec {
    /// Takes a document out of JSON's value, and checks it.
    ///
    /// # Errors
    /// All that is wrong, at most 32 of them.
    pub fn from_value(value: Value) -> Result<Self, Faults> {
        let (spec, faults) = shaped::<Self>(value, shape::check)?;
        spec.judge(faults)?;
        Ok(spec)
    }

    /// Reads one document out of JSON's text, and checks it.
    ///
    /// # Errors
    /// As [`DeploymentSpec::from_value`].
    pub fn from_json(text: &str) -> Result<Self, Faults> {
        let value =
            serde_json::from_str(text).map_err(|error| Fault::new("", format!("is no JSON: {error}")))?;
        Self::from_value(value)
    }

    /// Reads a file: TOML, or JSON if its name ends so. Each error has its place in the file.
    ///
    /// # Errors
    /// All that is wrong.
    pub fn from_file(file: &ConfigFile) -> Result<Self, Vec<ConfigError>> {
        let read = if file.path().extension().is_some_and(|end| end.eq_ignore_ascii_case("json")) {
            Self::from_json(file.text())
        } else {
            Self::from_value(file.parse::<Value>().map_err(|error| vec![error])?)
        };
        read.map_err(|faults| {
            faults
                .0
                .into_iter()
                .map(|fault| match fault.path.as_str() {
                    "" => file.error_of_whole(fault.message),
                    path => file.error(path, fault.message),
                })
                .collect()
        })
    }
}

impl ArtifactSpec {
    /// Reads what a document says of its files, standing for itself, and checks it.
    ///
    /// # Errors
    /// All that is wrong, with paths that begin with its own fields.
    pub fn from_value(value: Value) -> Result<Self, Faults> {
        let (spec, faults) = shaped::<Self>(value, shape::check_artifact)?;
        spec.judge(faults)?;
        Ok(spec)
    }
}

/// Reads what has the right shape, with stand-ins for what has not, and all faults of the shape.
fn shaped<T: de::DeserializeOwned>(
    mut value: Value,
    check: fn(&mut Value) -> Vec<Fault>,
) -> Result<(T, Vec<Fault>), Faults> {
    let faults = check(&mut value);
    match serde_path_to_error::deserialize(value) {
        Ok(read) => Ok((read, faults)),
        // A type that knows better than the shape: its own words are better than none.
        Err(error) => {
            let path = error.path().to_string();
            let told = Fault::new(if path == "." { "" } else { &path }, error.inner().to_string());
            Err(Faults(faults.into_iter().chain([told]).collect()))
        }
    }
}

/// The canonical JSON of a value: keys sorted, no blanks.
#[must_use]
pub fn canonical<T: Serialize>(value: &T) -> Vec<u8> {
    // Through a value, whose maps are sorted; neither step can fail for types without maps of other keys than text.
    serde_json::to_value(value).and_then(|value| serde_json::to_vec(&value)).unwrap_or_default()
}

/// SHA-256 in lower-case hexadecimal.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(&Sha256::digest(bytes))
}

/// Bytes as a number, or as people write them.
pub(super) fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(u64),
        Text(String),
    }
    match Option::<Written>::deserialize(from).map_err(|_| de::Error::custom(BYTES))? {
        None => Ok(None),
        Some(Written::Number(bytes)) => Ok(Some(bytes)),
        Some(Written::Text(text)) => {
            text.parse::<ByteSize>().map(|size| Some(size.0)).map_err(|_| de::Error::custom(BYTES))
        }
    }
}

const BYTES: &str = "must be a whole number of bytes, or a size in quotes such as \"40GiB\"";
