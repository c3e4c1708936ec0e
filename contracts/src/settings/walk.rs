//! The walk over a document: does each field hold what its key may?
//!
//! Invariant: a key that stands in no table is refused by name, with the likely one; a key that stays in a host's file is
//! refused with the reason.

use serde_json::{Map, Value};

use super::table::{AGENT, DOCUMENT, EDGE, Key, Kind};
use super::{ENGINES_MAX, Fault, Path};
use crate::config::{ByteSize, HumanDuration, closest};
use crate::names;

/// Labels of one node, their bytes, and bytes of a value: as in a node's file.
const LABELS_MAX: usize = 64;
const LABELS_BYTES_MAX: usize = 8 * 1024;
const LABEL_VALUE_MAX: usize = 256;
/// How many other names a model may have.
const ALIASES_MAX: usize = 16;
/// Nodes with settings of their own.
const NODES_MAX: usize = 10_000;

pub(super) fn check_document(document: &Value) -> Result<(), Fault> {
    table(document, &DOCUMENT, &mut Path(Vec::new()))
}

pub(super) fn check_agent(settings: &Value, at: &str) -> Result<(), Fault> {
    let mut path = at.parse().unwrap_or(Path(Vec::new()));
    table(settings, &AGENT, &mut path)
}

fn fault(at: &Path, message: impl Into<String>) -> Fault {
    Fault::new(at.to_string(), message)
}

fn object<'a>(value: &'a Value, at: &Path) -> Result<&'a Map<String, Value>, Fault> {
    value.as_object().ok_or_else(|| fault(at, "is a table of keys, in JSON an object"))
}

fn table(value: &Value, keys: &'static [Key], at: &mut Path) -> Result<(), Fault> {
    for (name, value) in object(value, at)? {
        at.0.push(name.clone());
        let Some(key) = keys.iter().find(|key| key.name == name) else { return Err(unknown(name, keys, at)) };
        holds(value, key.kind, at)?;
        at.0.pop();
    }
    Ok(())
}

fn unknown(name: &str, keys: &[Key], at: &Path) -> Fault {
    let settable = keys.iter().filter(|key| !matches!(key.kind, Kind::Stays(_)));
    let names: Vec<&str> = settable.map(|key| key.name).collect();
    match closest(name, &names) {
        Some(likely) => fault(at, format!("is no key of the settings; did you mean \"{likely}\"?")),
        None => fault(at, format!("is no key of the settings; here are: {}", names.join(", "))),
    }
}

fn holds(value: &Value, kind: Kind, at: &mut Path) -> Result<(), Fault> {
    match kind {
        Kind::Stays(why) => Err(fault(at, format!("cannot be set: {why}"))),
        Kind::Table(keys) => table(value, keys, at),
        Kind::Engines(keys) => each(value, keys, at, ENGINES_MAX, engine_name),
        Kind::Nodes(keys) => each(value, keys, at, NODES_MAX, |_| Ok(())),
        Kind::Labels => labels(value, at),
        Kind::Models => models(value, at),
        kind => scalar(value, kind).map_err(|message| fault(at, message)),
    }
}

fn each(
    value: &Value,
    keys: &'static [Key],
    at: &mut Path,
    most: usize,
    name: impl Fn(&str) -> Result<(), String>,
) -> Result<(), Fault> {
    let tables = object(value, at)?;
    if tables.len() > most {
        return Err(fault(at, format!("has {} tables, at most {most} are allowed", tables.len())));
    }
    for (key, value) in tables {
        at.0.push(key.clone());
        name(key).map_err(|message| fault(at, message))?;
        table(value, keys, at)?;
        at.0.pop();
    }
    Ok(())
}

fn engine_name(name: &str) -> Result<(), String> {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 63 || !name.chars().all(legal) || name.starts_with('-') {
        return Err(
            "an engine's name has 1 to 63 of a-z, 0-9 and '-', and does not begin with '-'".to_owned()
        );
    }
    Ok(())
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| "must be a text, in quotes".to_owned())
}

fn scalar(value: &Value, kind: Kind) -> Result<(), String> {
    match kind {
        Kind::Duration(least, most) => {
            let said: HumanDuration = text(value)?.parse().map_err(|error| format!("{error}"))?;
            let said_ms = u64::try_from(said.0.as_millis()).unwrap_or(u64::MAX);
            let human = |ms| HumanDuration(std::time::Duration::from_millis(ms));
            if (least..=most).contains(&said_ms) {
                return Ok(());
            }
            Err(format!("must be {} to {}, not {said}", human(least), human(most)))
        }
        Kind::Size(least, most) => {
            let said: ByteSize = text(value)?.parse().map_err(|error| format!("{error}"))?;
            if (least..=most).contains(&said.0) {
                return Ok(());
            }
            Err(format!("must be {} to {}, not {said}", ByteSize(least), ByteSize(most)))
        }
        Kind::Number(least, most) => match value.as_u64() {
            Some(said) if (least..=most).contains(&said) => Ok(()),
            _ if value.is_number() => {
                Err(format!("must be a whole number from {least} to {most}, not {value}"))
            }
            _ => Err(format!("must be a whole number from {least} to {most}, without quotes")),
        },
        Kind::Flag if value.is_boolean() => Ok(()),
        Kind::Flag => Err("must be true or false".to_owned()),
        Kind::Word(words) if text(value).is_ok_and(|text| words.contains(&text)) => Ok(()),
        Kind::Word(words) => Err(format!("must be one of {}", words.join(", "))),
        Kind::Filter if is_filter(text(value)?) => Ok(()),
        Kind::Filter => {
            Err("must be error, warn, info, debug or trace, or as info,umbel_edge=debug".to_owned())
        }
        Kind::Model if names::is_model(text(value)?) => Ok(()),
        Kind::Model => Err(format!("a model's name {}", names::MODEL_IS)),
        Kind::Below if is_below(text(value)?) => Ok(()),
        Kind::Below => {
            Err("must be ROOT/PATH, ROOT being one of [artifacts.roots] in the node's file, without `..`"
                .to_owned())
        }
        Kind::Labels | Kind::Models | Kind::Table(_) | Kind::Engines(_) | Kind::Nodes(_) | Kind::Stays(_) => {
            Ok(())
        }
    }
}

/// Of the filters that `tracing` knows, those by target and level.
fn is_filter(filter: &str) -> bool {
    let level = |word: &str| matches!(word, "error" | "warn" | "info" | "debug" | "trace" | "off");
    let target =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "_:-".contains(c));
    filter.len() <= 256
        && filter.split(',').all(|part| match part.split_once('=') {
            Some((name, word)) => target(name) && level(word),
            None => level(part),
        })
}

fn is_below(path: &str) -> bool {
    path.contains('/')
        && path.len() <= 512
        && !path.contains(['\0', '\\', ':'])
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

fn labels(value: &Value, at: &mut Path) -> Result<(), Fault> {
    let labels = object(value, at)?;
    let bytes: usize =
        labels.iter().map(|(name, value)| name.len() + value.as_str().map_or(0, str::len)).sum();
    if labels.len() > LABELS_MAX || bytes > LABELS_BYTES_MAX {
        return Err(fault(at, format!("there are more than {LABELS_MAX}, or more than 8 KiB")));
    }
    for (name, value) in labels {
        at.0.push(name.clone());
        let legal = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if name.is_empty() || name.len() > 63 || !name.chars().all(legal) {
            return Err(fault(at, "a label's name has 1 to 63 letters, digits, '-', '_', '.' and '/'"));
        }
        let said = text(value).map_err(|message| fault(at, message))?;
        if said.len() > LABEL_VALUE_MAX || !names::is_plain(said) {
            let message =
                format!("is longer than {LABEL_VALUE_MAX} bytes or has characters that cannot be seen");
            return Err(fault(at, message));
        }
        at.0.pop();
    }
    Ok(())
}

fn models(value: &Value, at: &Path) -> Result<(), Fault> {
    let names = value.as_array().ok_or_else(|| fault(at, "must be a list of names"))?;
    if names.len() > ALIASES_MAX {
        return Err(fault(at, format!("there are more than {ALIASES_MAX}")));
    }
    let mut seen = std::collections::BTreeSet::new();
    for name in names {
        let name = name.as_str().filter(|name| names::is_model(name));
        let Some(name) = name else {
            return Err(fault(at, format!("an alias {}", names::MODEL_IS)));
        };
        if !seen.insert(name) {
            return Err(fault(at, format!("\"{name}\" is there twice")));
        }
    }
    Ok(())
}

/// Takes away keys of an agent's settings that stand in no table.
pub(super) fn drop_unknown(settings: &mut Value, most: usize, ignored: &mut Vec<String>) {
    drop_from(settings, &AGENT, &mut Path(Vec::new()), most, ignored);
}

fn drop_from(value: &mut Value, keys: &'static [Key], at: &mut Path, most: usize, ignored: &mut Vec<String>) {
    let Some(table) = value.as_object_mut() else { return };
    table.retain(|name, value| {
        at.0.push(name.clone());
        let known = keys.iter().find(|key| key.name == name);
        match known.map(|key| key.kind) {
            None if ignored.len() < most => ignored.push(at.to_string()),
            Some(Kind::Table(keys)) => drop_from(value, keys, at, most, ignored),
            Some(Kind::Engines(keys) | Kind::Nodes(keys)) => {
                for (name, value) in value.as_object_mut().into_iter().flatten() {
                    at.0.push(name.clone());
                    drop_from(value, keys, at, most, ignored);
                    at.0.pop();
                }
            }
            _ => {}
        }
        at.0.pop();
        known.is_some()
    });
}

/// A key as documents list it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// `edge.queue.max_wait`, `agents.engines.NAME.capacity`.
    pub path: String,
    /// What it holds, or why it cannot be set.
    pub holds: String,
    /// It can be set.
    pub settable: bool,
}

/// Every key of the settings, and those of the hosts' files that are refused by name.
#[must_use]
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    list(&EDGE, "edge", &mut rows);
    list(&AGENT, "agents", &mut rows);
    rows
}

fn list(keys: &'static [Key], at: &str, rows: &mut Vec<Row>) {
    let human = |ms: u64| HumanDuration(std::time::Duration::from_millis(ms));
    for key in keys {
        let path = format!("{at}.{}", key.name);
        let (holds, settable) = match key.kind {
            Kind::Table(keys) => {
                list(keys, &path, rows);
                continue;
            }
            Kind::Engines(keys) | Kind::Nodes(keys) => {
                list(keys, &format!("{path}.NAME"), rows);
                continue;
            }
            Kind::Duration(least, most) => (format!("{} to {}", human(least), human(most)), true),
            Kind::Size(least, most) => (format!("{} to {}", ByteSize(least), ByteSize(most)), true),
            Kind::Number(least, most) => (format!("{least} to {most}"), true),
            Kind::Flag => ("true or false".to_owned(), true),
            Kind::Word(words) => (words.join(", "), true),
            Kind::Filter => ("a filter".to_owned(), true),
            Kind::Model => ("a model's name".to_owned(), true),
            Kind::Models => (format!("at most {ALIASES_MAX} names"), true),
            Kind::Below => {
                ("ROOT/PATH, ROOT being one of `artifacts.roots` in the node's file".to_owned(), true)
            }
            Kind::Labels => (format!("at most {LABELS_MAX} labels"), true),
            Kind::Stays(why) => (why.to_owned(), false),
        };
        rows.push(Row { path, holds, settable });
    }
}
