//! Paths into the settings: `agents.nodes.gpu-1.labels."example.net/rack"`.
//!
//! Invariant: what is printed parses to the same; a part that has a dot stands in quotes.

use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value};

/// Parts of a path: the document is not deeper.
const PARTS: usize = 8;

/// Not a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidPath(&'static str);

/// Where a field stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(pub Vec<String>);

impl Path {
    /// The value that stands there.
    #[must_use]
    pub fn of<'a>(&self, document: &'a Value) -> Option<&'a Value> {
        self.0.iter().try_fold(document, |value, part| value.get(part))
    }

    /// Puts a value there, with the tables that lead to it; `null` takes the field away, and tables that are empty
    /// then. False if something that is no table stands in the way.
    pub fn put(&self, document: &mut Value, value: Value) -> bool {
        put(document, &self.0, value)
    }
}

fn put(at: &mut Value, parts: &[String], value: Value) -> bool {
    let Some((first, rest)) = parts.split_first() else { return false };
    let Some(table) = at.as_object_mut() else { return false };
    if rest.is_empty() {
        if value.is_null() {
            table.remove(first);
        } else {
            table.insert(first.clone(), value);
        }
        return true;
    }
    let taken_away = value.is_null();
    if taken_away && !table.contains_key(first) {
        return true;
    }
    let inner = table.entry(first.clone()).or_insert_with(|| Value::Object(Map::new()));
    let done = put(inner, rest, value);
    if taken_away && inner.as_object().is_some_and(Map::is_empty) {
        table.remove(first);
    }
    done
}

impl<'a> FromIterator<&'a str> for Path {
    fn from_iter<T: IntoIterator<Item = &'a str>>(parts: T) -> Self {
        Self(parts.into_iter().map(str::to_owned).collect())
    }
}

impl FromStr for Path {
    type Err = InvalidPath;

    fn from_str(text: &str) -> Result<Self, InvalidPath> {
        let mut parts = Vec::new();
        let mut rest = text;
        loop {
            let part = if let Some(quoted) = rest.strip_prefix('"') {
                let (part, after) =
                    quoted.split_once('"').ok_or(InvalidPath("a quote in the path is not closed"))?;
                rest = after;
                part
            } else {
                let end = rest.find('.').unwrap_or(rest.len());
                let (part, after) = rest.split_at(end);
                rest = after;
                part
            };
            if part.is_empty() {
                return Err(InvalidPath("a path is names joined by dots, as agents.default.log.level"));
            }
            parts.push(part.to_owned());
            if parts.len() > PARTS {
                return Err(InvalidPath("the path is deeper than the settings are"));
            }
            if rest.is_empty() {
                return Ok(Self(parts));
            }
            rest = rest
                .strip_prefix('.')
                .ok_or(InvalidPath("after a quoted name a dot comes, or the path's end"))?;
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(".")?;
            }
            if part.contains(['.', ' ']) { write!(f, "\"{part}\"")? } else { f.write_str(part)? }
        }
        Ok(())
    }
}
