//! An artifact: a model's files at one exact revision, as a list of names, sizes and digests.
//!
//! Owns which names are legal, what the whole is called by its digest, where it lies below a root, and how a hub's list of
//! files becomes one of ours. Leaves to others where the bytes come from and whether they are right (the node).
//! Invariant: a list that passed [`check_files`] names nothing outside its own folder, on any file system.

use std::collections::BTreeSet;

use data_encoding::HEXLOWER;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

mod hub;
mod names;

pub use hub::{HubFile, hub_tree};
pub use names::{check_path, check_repository, check_revision};

/// Files of one artifact: the whole list travels in one request of at most 60 KiB.
pub const FILES_MAX: usize = 256;
/// Bytes of all files' names together, for the same reason.
pub const NAMES_MAX: usize = 32 * 1024;
/// A folder of a root with this in it is a whole artifact; no file of one may be called so.
pub const MANIFEST: &str = ".umbel-artifact.json";

/// One file: its name within the artifact, its size and its SHA-256.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArtifactFile {
    /// Relative, with `/` between its parts.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of the content, 64 lower-case hexadecimal digits.
    pub sha256: String,
}

/// What is wrong with a list of files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{says}")]
pub struct ListFault {
    /// Which entry, counted from 0; nothing where it is about the whole list.
    pub index: Option<usize>,
    /// The field of the entry: `path`, `sha256`, or empty.
    pub field: &'static str,
    /// What is wrong and what would be right.
    pub says: String,
}

impl ListFault {
    fn of(index: usize, field: &'static str, says: impl Into<String>) -> Self {
        Self { index: Some(index), field, says: says.into() }
    }

    /// The field's path below that of the list: `[3].sha256`.
    #[must_use]
    pub fn place(&self) -> String {
        match self.index {
            Some(index) => format!("[{index}].{}", self.field),
            None => String::new(),
        }
    }
}

/// Checks a whole list: every name, no two that some file system takes for one, no file that is also a folder.
///
/// # Errors
/// The first entry that cannot be, and why.
pub fn check_files(files: &[ArtifactFile]) -> Result<(), ListFault> {
    let whole = |says: String| ListFault { index: None, field: "", says };
    if files.is_empty() {
        return Err(whole("has no entry; an artifact has at least one file".into()));
    }
    if files.len() > FILES_MAX {
        return Err(whole(format!("there are {} files, at most {FILES_MAX} are allowed", files.len())));
    }
    if files.iter().map(|file| file.path.len()).sum::<usize>() > NAMES_MAX {
        return Err(whole(format!("the names are longer than {NAMES_MAX} bytes together")));
    }
    let (mut names, mut folders) = (BTreeSet::new(), BTreeSet::new());
    let mut total = 0_u64;
    for (index, file) in files.iter().enumerate() {
        check_path(&file.path).map_err(|says| ListFault::of(index, "path", says))?;
        // Some file systems take upper and lower case for one, and what one host has another may get.
        let folded = file.path.to_lowercase();
        let parents = folded.match_indices('/').filter_map(|(at, _)| folded.get(..at));
        folders.extend(parents.map(ToOwned::to_owned));
        if !names.insert(folded) {
            let says = format!("{:?} is there twice, or differs from another name only by case", file.path);
            return Err(ListFault::of(index, "path", says));
        }
        if !is_sha256(&file.sha256) {
            let shown: String = file.sha256.chars().take(64).flat_map(char::escape_default).collect();
            let says = format!("must be 64 lower-case hexadecimal digits, not \"{shown}\"");
            return Err(ListFault::of(index, "sha256", says));
        }
        total = total
            .checked_add(file.bytes)
            .filter(|total| i64::try_from(*total).is_ok())
            .ok_or_else(|| ListFault::of(index, "bytes", "the sizes are more than any disk holds"))?;
    }
    match files.iter().position(|file| folders.contains(&file.path.to_lowercase())) {
        Some(index) => Err(ListFault::of(index, "path", "this file would also be a folder of another one")),
        None => Ok(()),
    }
}

/// Whether a text is a SHA-256 as it is written here.
#[must_use]
pub fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The artifact's own name: SHA-256, in hexadecimal, of its files' canonical list (a line each of digest, size and name,
/// by name). Equal for equal content, whatever order the files were listed in and wherever they came from.
#[must_use]
pub fn digest(files: &[ArtifactFile]) -> String {
    let mut sorted: Vec<_> = files.iter().collect();
    sorted.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    let mut hash = Sha256::new();
    hash.update(b"umbel artifact 1\n");
    for file in sorted {
        // A name has no line break, so that no list can read as another.
        hash.update(format!("{} {} {}\n", file.sha256, file.bytes, file.path));
    }
    HEXLOWER.encode(&hash.finalize())
}

/// By what an artifact is known to be there: the same files of another repository or revision lie in another folder.
#[must_use]
pub fn key(repository: &str, revision: &str, digest: &str) -> String {
    format!("{repository}@{revision}#{digest}")
}

/// Where an artifact lies, relative to its root: `ORG--NAME/REVISION.DIGEST`, of the digest the first 16 digits. Two lists
/// of files of one revision are two folders. All three must have been checked.
#[must_use]
pub fn folder(repository: &str, revision: &str, digest: &str) -> String {
    let short = digest.get(..16).unwrap_or(digest);
    format!("{}/{revision}.{short}", repository.replace('/', "--"))
}

#[cfg(test)]
mod tests;
