//! The site's settings: one document, its versions, and what each node should have of it.
//!
//! Owns proposing a change (validated, with its differences), the rows that store it, and going back in the history.
//! Leaves what is valid to `umbel_contracts::settings`, storing and sending to the shell. Invariants: versions only
//! grow; a version once made never says anything else; a node's desired version changes only with what it is told.

mod reported;
mod targets;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use umbel_contracts::operations::{SettingsDifference, SettingsSetArgs};
use umbel_contracts::settings::{self, Fault, Path};
use umbel_store::{Commit, Position};
use umbel_wire::{Code, Error};

pub(crate) use reported::{NodeSettings, Reported, Rollout};
pub(crate) use targets::{Desired, Targets};

/// Table of the document as it is now.
pub(crate) const SETTINGS: &str = "settings";
/// Key of its one row.
pub(crate) const CURRENT: &str = "current";
/// Table of the versions, by number.
pub(crate) const HISTORY: &str = "settings_history";
/// Versions that are kept.
pub(crate) const KEPT: u64 = 1_000;
/// Changes of one `settings.set`.
const CHANGES: usize = 256;

/// The stored document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DocumentRow {
    /// 0: never changed.
    pub(crate) version: u64,
    pub(crate) document: Value,
    /// The last version that changed `agents.default`.
    #[serde(default)]
    pub(crate) default_version: u64,
    /// The last version that changed `agents.nodes.ID`, of each that was ever named.
    #[serde(default)]
    pub(crate) node_versions: BTreeMap<String, u64>,
}

impl Default for DocumentRow {
    fn default() -> Self {
        Self { version: 0, document: json!({}), default_version: 0, node_versions: BTreeMap::new() }
    }
}

/// One stored version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct VersionRow {
    pub(crate) version: u64,
    pub(crate) at_unix_ms: i64,
    pub(crate) author: String,
    #[serde(default)]
    pub(crate) reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rolled_back_to: Option<u64>,
    /// The version that it was made from, where that is not the number before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) made_from: Option<u64>,
    pub(crate) diff: Vec<SettingsDifference>,
}

/// Who changes it, when and why.
#[derive(Clone, Debug)]
pub(crate) struct Author {
    pub(crate) name: String,
    pub(crate) reason: String,
    pub(crate) at_unix_ms: i64,
}

/// A change that is valid, to be committed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Proposal {
    pub(crate) row: DocumentRow,
    pub(crate) version: VersionRow,
}

impl Proposal {
    /// It says what the newest version says.
    pub(crate) fn is_empty(&self) -> bool {
        self.version.diff.is_empty()
    }

    /// It changes the edge's own settings.
    pub(crate) fn changes_edge(&self) -> bool {
        self.version.diff.iter().any(|one| one.path.starts_with("edge"))
    }

    /// What stores it, on top of the row at this position.
    pub(crate) fn commit(&self, at: Option<Position>) -> Commit {
        let commit = match at {
            Some(position) => Commit::new().require_at(SETTINGS, CURRENT, position),
            None => Commit::new().require_absent(SETTINGS, CURRENT),
        };
        let commit = commit.put_json(SETTINGS, CURRENT, &self.row).put_json(
            HISTORY,
            key(self.version.version),
            &self.version,
        );
        match self.version.version.checked_sub(KEPT).filter(|old| *old > 0) {
            Some(old) => commit.remove(HISTORY, key(old)),
            None => commit,
        }
    }
}

/// The key of a version: in the order of the numbers.
pub(crate) fn key(version: u64) -> String {
    format!("{version:020}")
}

/// Finds the node of an id or a name; decommissioned ones are not found.
pub(crate) type Find<'a> = &'a dyn Fn(&str) -> Option<String>;

fn wrong(fault: &Fault) -> Error {
    Error::new(Code::InvalidArgument, "SETTINGS", fault.to_string())
}

fn too_large(message: &'static str) -> Error {
    Error::new(Code::TooLarge, "SETTINGS", message)
}

/// The document that a `settings.set` asks for.
///
/// # Errors
/// The first field that is wrong, by its path; CONFLICT if `base_version` is not the newest.
pub(crate) fn wanted(row: &DocumentRow, args: &SettingsSetArgs, find: Find<'_>) -> Result<Value, Error> {
    if let Some(base) = args.base_version
        && base != row.version
    {
        let message = format!(
            "version {base} is not the newest: that is {}; read it, then make the change again",
            row.version
        );
        return Err(Error::new(Code::Conflict, "SETTINGS_CHANGED", message));
    }
    if args.changes.is_empty() && args.document.is_none() {
        let message = "say what to change: fields in `changes`, or a whole `document`";
        return Err(Error::new(Code::InvalidArgument, "SETTINGS", message));
    }
    if args.changes.len() > CHANGES {
        return Err(too_large("at most 256 fields can be changed at once"));
    }
    // One that is there already may stay, also where its node was decommissioned meanwhile.
    let find = |name: &str| find(name).or_else(|| known(&row.document, name));
    let find: Find<'_> = &find;
    let mut document = match &args.document {
        Some(document) => by_id(document.clone(), find)?,
        None => row.document.clone(),
    };
    for change in &args.changes {
        let mut path: Path =
            change.path.parse().map_err(|error| wrong(&Fault::new(&*change.path, format!("{error}"))))?;
        if let [agents, nodes, name, ..] = path.0.as_mut_slice()
            && agents == "agents"
            && nodes == "nodes"
        {
            *name = id_of(name, &change.path, find)?;
        }
        if !path.put(&mut document, change.value.clone()) {
            return Err(wrong(&Fault::new(&*change.path, "what stands above it is not a table")));
        }
    }
    Ok(settings::tidy(document))
}

fn known(document: &Value, id: &str) -> Option<String> {
    settings::nodes_of(document).map(|(known, _)| known).find(|known| *known == id).cloned()
}

fn id_of(name: &str, path: &str, find: Find<'_>) -> Result<String, Error> {
    find(name).ok_or_else(|| {
        Error::new(Code::NotFound, "NODE_UNKNOWN", format!("{path}: this site has no node `{name}`"))
    })
}

/// Names nodes by their ids: a name may change.
fn by_id(mut document: Value, find: Find<'_>) -> Result<Value, Error> {
    let nodes = document.get_mut("agents").and_then(|agents| agents.get_mut("nodes"));
    if let Some(nodes) = nodes.and_then(Value::as_object_mut) {
        let mut named = serde_json::Map::new();
        for (name, value) in std::mem::take(nodes) {
            let path = Path::from_iter(["agents", "nodes", name.as_str()]).to_string();
            if named.insert(id_of(&name, &path, find)?, value).is_some() {
                return Err(wrong(&Fault::new(path, "the same node stands there twice")));
            }
        }
        *nodes = named;
    }
    Ok(document)
}

/// A new version with this document.
///
/// # Errors
/// The first field that is wrong, by its path.
pub(crate) fn propose(
    row: &DocumentRow,
    document: Value,
    rolled_back_to: Option<u64>,
    author: Author,
) -> Result<Proposal, Error> {
    settings::check(&document).map_err(|fault| wrong(&fault))?;
    let diff = settings::diff(&row.document, &document);
    let version = if diff.is_empty() { row.version } else { row.version + 1 };
    let mut next = DocumentRow { version, document, ..row.clone() };
    for one in &diff {
        match one.path.parse::<Path>().map(|path| path.0).unwrap_or_default().as_slice() {
            [agents, default, ..] if agents == "agents" && default == "default" => {
                next.default_version = version;
            }
            [agents, nodes, id, ..] if agents == "agents" && nodes == "nodes" => {
                next.node_versions.insert(id.clone(), version);
            }
            _ => {}
        }
    }
    let Author { name, reason, at_unix_ms } = author;
    let version =
        VersionRow { version, at_unix_ms, author: name, reason, rolled_back_to, made_from: None, diff };
    let bytes = serde_json::to_vec(&version).map_or(usize::MAX, |bytes| bytes.len());
    if bytes > umbel_store::limits::VALUE {
        return Err(too_large("the change is too large for one version: make it in several steps"));
    }
    Ok(Proposal { row: next, version })
}

/// The document of an older version. `newer`: every version above it, in any order.
///
/// # Errors
/// NOT_FOUND if the history does not reach back so far.
pub(crate) fn document_of(row: &DocumentRow, newer: &[VersionRow], version: u64) -> Result<Value, Error> {
    let unknown = || {
        let message =
            format!("version {version} is not kept here: the newest is {}, and {KEPT} are kept", row.version);
        Error::new(Code::NotFound, "VERSION_UNKNOWN", message)
    };
    let mut document = row.document.clone();
    let mut reached = row.version;
    while reached > version {
        let step = newer.iter().find(|one| one.version == reached).ok_or_else(unknown)?;
        document = settings::undo(&document, &step.diff);
        reached = step.made_from.unwrap_or(reached - 1);
    }
    if reached == version { Ok(document) } else { Err(unknown()) }
}

/// How far above this edge's newest version a node's may be: settings of a site that was restored from a backup.
const AHEAD: u64 = 1_000_000;

/// The same document under a version above what a node has: this edge was restored, and versions only grow. Nothing
/// if no node is ahead, or by more than a backup could explain.
pub(crate) fn renumber(row: &DocumentRow, seen: u64, at_unix_ms: i64) -> Option<Proposal> {
    if seen <= row.version || seen - row.version > AHEAD {
        return None;
    }
    let version = seen + 1;
    let reason =
        format!("a node had version {seen}: an edge that was restored sends its settings anew above it");
    let mut next = DocumentRow { version, default_version: version, ..row.clone() };
    // Each node is sent what it should have, whatever it has.
    next.node_versions.values_mut().for_each(|own| *own = version);
    let version = VersionRow {
        version,
        at_unix_ms,
        author: "edge".to_owned(),
        reason,
        rolled_back_to: None,
        made_from: Some(row.version),
        diff: Vec::new(),
    };
    Some(Proposal { row: next, version })
}
