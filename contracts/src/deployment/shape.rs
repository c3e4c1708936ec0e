//! The shape of a document: which keys there are, what each holds, and which have to be there.
//!
//! Owns the words for what is of a wrong type, out of bounds, unknown or missing. Leaves what fields say together to
//! [`super::rules`].
//! Invariants: each fault has the field's path, what is legal, and what stands there; what passes can be read as its type; what
//! does not is taken out, so that all else can still be judged.

use serde_json::{Map, Value};

use super::profile::{EngineKind, Holds, holds, short};
use super::{GPUS_MAX, NODES_PER_REPLICA_MAX, REPLICAS_MAX};
use crate::artifact::FILES_MAX;
use crate::config::{ByteSize, closest};
use crate::settings::{CAPACITY_MAX, Fault};

/// Faults of one document: nobody reads more.
pub(super) const FAULTS_MAX: usize = 32;
/// Entries of a list that are looked at where it is too long.
const LISTED: usize = 16;
/// Memory of one GPU: none has as much.
const GPU_MEMORY_MAX: u64 = 16 << 40;
/// One file: no disk holds more.
const FILE_MAX: u64 = 1 << 50;
const DAY_MS: u64 = 86_400_000;

/// One key of a table.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// What has to be said, where it has to be.
    pub(super) needed: Option<&'static str>,
}

/// What a key holds.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// What a profile's key may hold, too.
    Is(Holds),
    /// A text; what may stand in it the rules say.
    Text,
    /// Bytes as a number, at most so many; in a text as a size too if it is set.
    Bytes(u64, bool),
    Table(&'static [Field]),
    /// Texts, at most so many.
    Texts(usize),
    Tables(&'static [Field], usize),
    /// A table that the engine's kind says all of.
    Profile,
}

const fn may(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, needed: None }
}

const fn must(name: &'static str, kind: Kind, what: &'static str) -> Field {
    Field { name, kind, needed: Some(what) }
}

const fn number(least: u32, most: u32) -> Kind {
    Kind::Is(Holds::Number(least, most))
}

const DELAY: Kind = Kind::Is(Holds::Duration(0, DAY_MS));

/// The whole document.
pub(super) const DOCUMENT: &[Field] = &[
    must("name", Kind::Text, "the deployment's name, 1 to 40 of a-z, 0-9 and '-'"),
    may("model", Kind::Text),
    may("aliases", Kind::Texts(16)),
    may("artifact", Kind::Table(ARTIFACT)),
    must("engine", Kind::Table(ENGINE), "a table with the engine's kind, such as kind = \"vllm\""),
    may("replicas", number(0, REPLICAS_MAX)),
    may("gpus", Kind::Table(GPUS)),
    may("nodes_per_replica", number(1, NODES_PER_REPLICA_MAX)),
    may("fabric_label", Kind::Text),
    may("selector", Kind::Text),
    may("strategy", Kind::Is(Holds::Word(&["spread", "pack"]))),
    may("capacity", number(1, CAPACITY_MAX)),
    may("max_context_tokens", number(1, u32::MAX)),
    may("long_context_threshold_tokens", number(1, u32::MAX)),
    may("long_context_capacity", number(1, CAPACITY_MAX)),
    may("category", Kind::Is(Holds::Word(&["local_inference", "api", "cli"]))),
    may("drain_deadline", DELAY),
    may("replace_delay", DELAY),
];

const ARTIFACT: &[Field] = &[
    must("repository", Kind::Text, "whose files these are, such as \"Qwen/Qwen3-8B\""),
    must("revision", Kind::Text, "the exact revision, such as a commit"),
    must("source", Kind::Text, "the name of one of the nodes' sources"),
    must(
        "files",
        Kind::Tables(FILE, FILES_MAX),
        "the list of all files; `umbel ctl artifact resolve` writes it",
    ),
    may("main_file", Kind::Text),
];

const FILE: &[Field] = &[
    must("path", Kind::Text, "the file's name within the artifact"),
    must("bytes", Kind::Bytes(FILE_MAX, false), "the file's size"),
    must("sha256", Kind::Text, "the digest of its content, 64 lower-case hexadecimal digits"),
];

const KINDS: &[&str] = &["vllm", "sglang", "llama-server", "external", "cli", "sim"];

const ENGINE: &[Field] = &[
    must("kind", Kind::Is(Holds::Word(KINDS)), "one of vllm, sglang, llama-server, external, cli, sim"),
    may("profile", Kind::Profile),
];

const GPUS: &[Field] = &[
    may("count", number(0, GPUS_MAX)),
    may("memory_bytes", Kind::Bytes(GPU_MEMORY_MAX, true)),
    may("names", Kind::Texts(16)),
    may("capability", Kind::Text),
    may("driver", Kind::Text),
];

/// All faults of an artifact's shape, as [`check`] has those of a document.
pub(super) fn check_artifact(artifact: &mut Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    mend(artifact, Kind::Table(ARTIFACT), "artifact", &mut faults);
    faults.truncate(FAULTS_MAX);
    faults
}

/// All faults of its shape. What is wrong is taken out of the document, or something legal put in its place.
pub(super) fn check(document: &mut Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    mend(document, Kind::Table(DOCUMENT), "", &mut faults);
    faults.truncate(FAULTS_MAX);
    faults
}

/// Judges one value; a wrong one becomes a stand-in of its kind.
fn mend(value: &mut Value, kind: Kind, at: &str, faults: &mut Vec<Fault>) {
    let says = match (kind, &mut *value) {
        (Kind::Table(fields), Value::Object(table)) => return mend_table(table, fields, at, faults),
        (Kind::Tables(_, most) | Kind::Texts(most), Value::Array(list)) => {
            if list.len() > most {
                faults
                    .push(Fault::new(at, format!("has {} entries, at most {most} are allowed", list.len())));
                list.truncate(LISTED);
            }
            let each = if let Kind::Tables(fields, _) = kind { Kind::Table(fields) } else { Kind::Text };
            for (index, entry) in list.iter_mut().enumerate() {
                mend(entry, each, &format!("{at}[{index}]"), faults);
            }
            return;
        }
        (kind, value) => match wrong(value, kind) {
            Some(says) => says,
            None => return,
        },
    };
    faults.push(Fault::new(at, says));
    *value = stand_in(kind);
}

fn mend_table(table: &mut Map<String, Value>, fields: &[Field], at: &str, faults: &mut Vec<Fault>) {
    let path = |name: &str| if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
    table.retain(|name, value| {
        let known = fields.iter().any(|field| field.name == name);
        if !known {
            faults.push(Fault::new(path(&shown(name)), unknown(name, fields)));
        }
        // Nothing said, in JSON's words.
        known && !value.is_null()
    });
    for Field { name, kind, needed } in fields {
        let (before, at) = (faults.len(), path(name));
        match (table.get_mut(*name), needed) {
            (Some(value), _) => mend(value, *kind, &at, faults),
            (None, Some(what)) => {
                faults.push(Fault::new(at.as_str(), format!("is missing: {what}")));
                table.insert((*name).to_owned(), stand_in(*kind));
            }
            (None, None) => {}
        }
        let itself = faults.iter().skip(before).any(|fault| fault.path == at);
        if itself && needed.is_none() && !matches!(kind, Kind::Texts(_)) {
            table.remove(*name);
        }
    }
}

fn unknown(name: &str, fields: &[Field]) -> String {
    let names: Vec<&str> = fields.iter().map(|field| field.name).collect();
    match closest(name, &names) {
        Some(likely) => format!("unknown key \"{}\", did you mean \"{likely}\"?", shown(name)),
        None => format!("unknown key \"{}\"; known here: {}", shown(name), names.join(", ")),
    }
}

/// A key as an error shows it: it may be anything.
fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(40).collect()
}

/// What is legal and what stands there, if that is not it.
fn wrong(value: &Value, kind: Kind) -> Option<String> {
    let says = |legal: &str| Some(format!("must be {legal}, not {}", short(value)));
    match kind {
        Kind::Is(legal) => holds(value, legal).err(),
        Kind::Text if value.is_string() => None,
        Kind::Text => says("a text, in quotes"),
        Kind::Bytes(most, written) => match value {
            Value::String(text) if written => match text.parse::<ByteSize>() {
                Ok(size) if size.0 <= most => None,
                _ => says(&size_is(most)),
            },
            value if value.as_u64().is_some_and(|bytes| bytes <= most) => None,
            _ if written => says(&size_is(most)),
            _ => {
                says(&format!("a whole number of bytes, without quotes, at most {most} ({})", ByteSize(most)))
            }
        },
        Kind::Table(fields) => {
            let names: Vec<&str> = fields.iter().map(|field| field.name).collect();
            says(&format!("a table with keys of {}", names.join(", ")))
        }
        Kind::Texts(most) => says(&format!("a list of at most {most} texts")),
        Kind::Tables(_, most) => says(&format!("a list of at most {most} tables")),
        Kind::Profile if value.is_object() => None,
        Kind::Profile => says("a table of the engine's options"),
    }
}

fn size_is(most: u64) -> String {
    format!("a size such as \"40GiB\", or a whole number of bytes, at most {}", ByteSize(most))
}

/// Something that can be read as that kind.
fn stand_in(kind: Kind) -> Value {
    match kind {
        Kind::Is(Holds::Word(words)) => words.first().copied().unwrap_or_default().into(),
        Kind::Is(_) => Value::Null,
        Kind::Text => "".into(),
        Kind::Bytes(..) => 0.into(),
        Kind::Table(fields) => {
            let needed = fields.iter().filter(|field| field.needed.is_some());
            Value::Object(needed.map(|field| (field.name.to_owned(), stand_in(field.kind))).collect())
        }
        Kind::Texts(_) | Kind::Tables(..) => Value::Array(Vec::new()),
        Kind::Profile => Value::Object(Map::new()),
    }
}

/// Every engine has its word here.
const _: () = assert!(KINDS.len() == EngineKind::ALL.len(), "a kind of engine has no word");
