//! A hub's list of a repository's files.
//!
//! Owns reading the answer of `GET /api/models/REPOSITORY/tree/REVISION?recursive=true`; leaves asking for it, and the
//! digests that it does not give, to whoever asks. Invariant: a file is listed whole or the list is refused.

use serde::Deserialize;

use super::{FILES_MAX, check_path, is_sha256};

/// A file as a hub lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubFile {
    /// Its name within the repository.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of the content. A hub knows it of large files; a small one has to be fetched to know it.
    pub sha256: Option<String>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Large>,
}

#[derive(Deserialize)]
struct Large {
    oid: String,
    size: u64,
}

/// Reads a hub's tree. Folders are left out, and so is what `wanted` says no to: before names are judged, so that an odd
/// file that nobody asked for is no obstacle.
///
/// # Errors
/// A sentence: it is no such list, has too many files, a name that is refused, or a digest that is none.
pub fn hub_tree(json: &[u8], wanted: impl Fn(&str) -> bool) -> Result<Vec<HubFile>, String> {
    let entries: Vec<Entry> = serde_json::from_slice(json)
        .map_err(|error| format!("the hub's list of files cannot be read: {error}"))?;
    let mut files = Vec::new();
    for entry in entries.into_iter().filter(|entry| entry.kind == "file" && wanted(&entry.path)) {
        check_path(&entry.path)?;
        if files.len() == FILES_MAX {
            return Err(format!("there are more than {FILES_MAX} files: name those that are wanted"));
        }
        let (bytes, sha256) = match entry.lfs {
            None => (entry.size, None),
            Some(large) => {
                let digest = large.oid.strip_prefix("sha256:").unwrap_or(&large.oid).to_ascii_lowercase();
                if !is_sha256(&digest) {
                    return Err(format!("the hub gives no SHA-256 of {:?}", entry.path));
                }
                (large.size, Some(digest))
            }
        };
        files.push(HubFile { path: entry.path, bytes, sha256 });
    }
    files.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}
