//! Reading a daemon's TOML file, strictly: a key that is not known is an error with its place and the likely name.
//!
//! Owns: parsing, places, suggestions, and the units of durations and sizes. Leaves to others: which keys there are
//! (each tier's own types) and what they mean.
//! Invariant: reading has no effect but reading; an error names file, line and column, and never a value that could be
//! a secret.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

mod log_format;
mod units;
mod words;

pub use log_format::LogFormat;
pub use units::{ByteSize, HumanDuration, InvalidUnit};

/// A configuration file above this is refused: none is near it, and a wrong path should not fill memory.
const LARGEST: u64 = 1024 * 1024;

/// What is wrong with a configuration file, and where. Prints as `path:line:column: sentence`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// Line and column, counted from 1; `None` if it is about the whole file.
    pub place: Option<(usize, usize)>,
    /// What is wrong and, where possible, what to write instead.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some((line, column)) => write!(f, "{}:{line}:{column}: {}", self.path.display(), self.message),
            None => write!(f, "{}: {}", self.path.display(), self.message),
        }
    }
}

impl std::error::Error for ConfigError {}

/// A configuration file's text with its path, for errors that name the place.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    path: PathBuf,
    text: String,
}

impl ConfigFile {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, is above 1 MiB or is not UTF-8.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let whole = |message: String| ConfigError { path: path.to_owned(), place: None, message };
        let size = std::fs::metadata(path).map_err(|error| whole(format!("cannot be read: {error}")))?.len();
        if size > LARGEST {
            return Err(whole("is above 1 MiB; this is hardly a configuration file".to_owned()));
        }
        let bytes = std::fs::read(path).map_err(|error| whole(format!("cannot be read: {error}")))?;
        let text = String::from_utf8(bytes).map_err(|_| whole("is not UTF-8 text".to_owned()))?;
        Ok(Self { path: path.to_owned(), text })
    }

    /// Takes a text that is already read.
    #[must_use]
    pub fn from_text(path: &Path, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), text: text.into() }
    }

    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What stands in it.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Parses the file into the tier's own type, which refuses unknown fields itself.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        let read = toml::de::Deserializer::parse(&self.text).map_err(|error| self.explain("", &error))?;
        serde_path_to_error::deserialize(read).map_err(|error| {
            let path = error.path().to_string();
            self.explain(if path == "." { "" } else { &path }, error.inner())
        })
    }

    /// An error about a key that is there, for rules that types cannot say. `key` is dotted, with `[N]` for the N-th
    /// table of an array (from 0): `engine[1].model`. If the key is not there the error is about its table.
    #[must_use]
    pub fn error(&self, key: &str, message: impl fmt::Display) -> ConfigError {
        let place = self.find(key).map(|span| self.place(span.start));
        ConfigError { path: self.path.clone(), place, message: format!("{key}: {message}") }
    }

    /// An error about the file as a whole.
    pub(crate) fn error_of_whole(&self, message: String) -> ConfigError {
        ConfigError { path: self.path.clone(), place: None, message }
    }

    /// `path` is of the field that it is about, as far as that is known.
    fn explain(&self, path: &str, error: &toml::de::Error) -> ConfigError {
        let place = error.span().map(|span| self.place(span.start));
        let message = match error.message() {
            // Said of a file that is read without knowing its keys.
            "JSON number out of range" => {
                format!("a number that no key takes: whole ones are at most {}", u64::MAX)
            }
            message => unknown_key(message).unwrap_or_else(|| words::told(path, message)),
        };
        ConfigError { path: self.path.clone(), place, message }
    }

    fn place(&self, offset: usize) -> (usize, usize) {
        let before = self.text.get(..offset.min(self.text.len())).unwrap_or(&self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        (line, column)
    }

    /// Where the key, or the innermost table of its path that exists, stands.
    fn find(&self, key: &str) -> Option<Range<usize>> {
        let document = DeTable::parse(&self.text).ok()?;
        let mut table: &DeTable<'_> = document.get_ref();
        let mut found = None;
        for part in key.split('.') {
            let (name, index) = match part.split_once('[') {
                Some((name, index)) => (name, index.trim_end_matches(']').parse::<usize>().ok()),
                None => (part, None),
            };
            let Some((written, value)) = table.iter().find(|(written, _)| written.get_ref() == name) else {
                return found;
            };
            found = Some(written.span());
            let Some(next) = inner(value, index) else { return found };
            found = if index.is_some() { Some(next.span()) } else { found };
            match next.get_ref() {
                DeValue::Table(inner) => table = inner,
                _ => return found,
            }
        }
        found
    }
}

/// Reads and parses a file in one step.
///
/// # Errors
/// The first thing that is wrong, with its place.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    ConfigFile::read(path)?.parse()
}

fn inner<'a, 'i>(value: &'a Spanned<DeValue<'i>>, index: Option<usize>) -> Option<&'a Spanned<DeValue<'i>>> {
    match (value.get_ref(), index) {
        (DeValue::Array(items), Some(index)) => items.get(index),
        (_, None) => Some(value),
        _ => None,
    }
}

/// Turns serde's "unknown field" into words with the likely name.
pub(crate) fn unknown_key(message: &str) -> Option<String> {
    let rest = message.strip_prefix("unknown field `")?;
    let (key, rest) = rest.split_once('`')?;
    let known: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
    Some(match closest(key, &known) {
        Some(likely) => format!("unknown key \"{key}\", did you mean \"{likely}\"?"),
        None if known.is_empty() => format!("unknown key \"{key}\"; no key is known here"),
        None => format!("unknown key \"{key}\"; known here: {}", known.join(", ")),
    })
}

/// The known name that differs least from `key`, if it differs by at most a third.
pub(crate) fn closest<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|name| (distance(key, name), *name))
        .filter(|(distance, name)| distance * 3 <= name.len().max(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Characters to insert, delete or replace to get from one word to the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (taken, wanted) in from.chars().take(64).enumerate() {
        let mut next = vec![taken + 1];
        for ((above_left, above), found) in row.iter().zip(row.iter().skip(1)).zip(&to) {
            let left = next.last().copied().unwrap_or(0);
            let replaced = above_left + usize::from(wanted != *found);
            next.push(replaced.min(above + 1).min(left + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests;
