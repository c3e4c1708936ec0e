//! Laying one table over another, and saying what differs between two.
//!
//! Invariant: both look at fields; a list is one value. Overlaying with nothing changes nothing, and overlaying is
//! associative.

use serde_json::{Map, Value};

use super::Path;
use crate::operations::SettingsDifference;

/// `over` on top of `base`: tables are merged, everything else is replaced.
#[must_use]
pub fn overlay(base: &Value, over: &Value) -> Value {
    let (Value::Object(base), Value::Object(over)) = (base, over) else { return over.clone() };
    let mut merged = base.clone();
    for (key, value) in over {
        let value = match merged.get(key) {
            Some(below) => overlay(below, value),
            None => value.clone(),
        };
        merged.insert(key.clone(), value);
    }
    Value::Object(merged)
}

/// Without fields that are `null` and tables that hold nothing: two documents that mean the same are the same.
#[must_use]
pub fn tidy(value: Value) -> Value {
    let Value::Object(table) = value else { return value };
    let kept = table.into_iter().map(|(key, value)| (key, tidy(value)));
    let full = |value: &Value| !value.is_null() && value.as_object().is_none_or(|table| !table.is_empty());
    Value::Object(kept.filter(|(_, value)| full(value)).collect())
}

/// What a document said before these differences came about.
#[must_use]
pub fn undo(document: &Value, differences: &[SettingsDifference]) -> Value {
    let mut document = document.clone();
    // What was not there goes away first: it may stand where a table has to be again.
    let (gone, back): (Vec<_>, Vec<_>) = differences.iter().partition(|one| one.from.is_null());
    for one in gone.into_iter().chain(back) {
        if let Ok(path) = one.path.parse::<Path>() {
            path.put(&mut document, one.from.clone());
        }
    }
    tidy(document)
}

/// Every field that differs, in the order of the paths.
#[must_use]
pub fn diff(from: &Value, to: &Value) -> Vec<SettingsDifference> {
    let mut found = Vec::new();
    compare(Some(from), Some(to), &mut Path(Vec::new()), &mut found);
    found
}

fn compare(from: Option<&Value>, to: Option<&Value>, at: &mut Path, found: &mut Vec<SettingsDifference>) {
    if from == to {
        return;
    }
    let empty = Map::new();
    let table = |value: Option<&Value>| match value {
        Some(Value::Object(table)) => Some(table.clone()),
        None => Some(empty.clone()),
        Some(_) => None,
    };
    // One of them is a table: its fields are told one by one.
    if (from.is_some_and(Value::is_object) || to.is_some_and(Value::is_object))
        && let (Some(old), Some(new)) = (table(from), table(to))
    {
        let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
        keys.sort();
        keys.dedup();
        for key in keys {
            at.0.push(key.clone());
            compare(old.get(key), new.get(key), at, found);
            at.0.pop();
        }
        return;
    }
    let told = |value: Option<&Value>| value.cloned().unwrap_or(Value::Null);
    found.push(SettingsDifference { path: at.to_string(), from: told(from), to: told(to) });
}
