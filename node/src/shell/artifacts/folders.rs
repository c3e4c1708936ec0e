//! Quarantine and roots: what is where, and how an artifact gets from the one to the other.
//!
//! Owns names and shapes of files there; leaves what is in an artifact's files to `fetch`. Invariant: a root has whole
//! artifacts only, each with its manifest: they come by one rename and go by one. All of it may block.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use umbel_contracts::artifact::{self, ArtifactFile, MANIFEST};
use umbel_wire::files;

use super::sink::disk;
use crate::core::artifacts::{Failure, Kept, Left, Reason, Wanted};

/// Artifacts that are told of one root; a hello has a bound.
const TOLD_MAX: usize = 256;
/// What stands in the quarantine beside the files of a download.
const STATE: &str = "state.json";
const FILES: &str = "files";
/// Begins the name of what is on its way out.
const LEAVING: &str = "leaving-";

/// An artifact that is here, whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Present {
    pub(crate) repository: String,
    pub(crate) revision: String,
    /// Of the list of its files.
    pub(crate) digest: String,
    pub(crate) bytes: u64,
    pub(crate) files: Vec<ArtifactFile>,
    /// Of which source it came.
    #[serde(default)]
    pub(crate) source: String,
    /// The name of its root.
    #[serde(skip)]
    pub(crate) root: String,
}

/// What an earlier try knows of its files.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct State {
    /// Whole and hashed, by name: the digest that was found.
    #[serde(default)]
    verified: BTreeMap<String, String>,
    /// The version that the first bytes of a file are of.
    #[serde(default)]
    etags: BTreeMap<String, String>,
    /// Whose versions they are.
    #[serde(default)]
    source: String,
}

/// The folder of one download.
#[derive(Debug)]
pub(super) struct Parts {
    folder: PathBuf,
    state: State,
}

/// The name of a download's folder in the quarantine.
pub(super) fn parts_name(root: &str, folder: &str) -> String {
    let digest = Sha256::digest(format!("{root}/{folder}"));
    data_encoding::HEXLOWER.encode(digest.get(..16).unwrap_or(&digest))
}

impl Parts {
    /// Opens it, made if it is not there. What came from another source is gone on with: at the end its digest says whether it fits.
    pub(super) fn open(quarantine: &Path, name: &str, source: &str) -> Result<Self, Failure> {
        let folder = quarantine.join(name);
        make(&folder, 0o700)?;
        make(&folder.join(FILES), 0o755)?;
        // What does not read is of a crash: all is hashed again.
        let state = files::read(&folder.join(STATE)).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let mut state: State = state.unwrap_or_default();
        if state.source != source {
            // Another source's names of the same bytes: asked with them, it would begin anew.
            state.etags.clear();
            source.clone_into(&mut state.source);
        }
        Ok(Self { folder, state })
    }

    /// Where a file is filled; its folders are made.
    pub(super) fn file(&self, path: &str) -> Result<PathBuf, Failure> {
        let mut at = self.folder.join(FILES);
        let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
        for part in folders.split('/').filter(|part| !part.is_empty()) {
            at.push(part);
            make(&at, 0o755)?;
        }
        Ok(at.join(name))
    }

    /// What is there of a file.
    pub(super) fn kept(&self, file: &ArtifactFile) -> Option<Kept> {
        let facts = fs::symlink_metadata(self.folder.join(FILES).join(&file.path)).ok()?;
        if !facts.is_file() {
            return None;
        }
        let whole = facts.len() == file.bytes && self.state.verified.get(&file.path) == Some(&file.sha256);
        Some(if whole { Kept::Verified } else { Kept::Part(facts.len()) })
    }

    pub(super) fn etag(&self, path: &str) -> Option<&String> {
        self.state.etags.get(path)
    }

    /// The version that what comes now is of.
    pub(super) fn set_etag(&mut self, path: &str, etag: Option<String>) -> Result<(), Failure> {
        if self.state.etags.get(path) == etag.as_ref() {
            return Ok(());
        }
        match etag {
            Some(etag) => drop(self.state.etags.insert(path.to_owned(), etag)),
            None => drop(self.state.etags.remove(path)),
        }
        self.save()
    }

    /// A file is whole, synced and as its digest says.
    pub(super) fn verified(&mut self, file: &ArtifactFile) -> Result<(), Failure> {
        self.state.etags.remove(&file.path);
        self.state.verified.insert(file.path.clone(), file.sha256.clone());
        self.save()
    }

    /// Throws away what is there of a file.
    pub(super) fn forget(&mut self, path: &str) -> Result<(), Failure> {
        self.state.verified.remove(path);
        self.state.etags.remove(path);
        match fs::remove_file(self.folder.join(FILES).join(path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(disk(&error)),
            _ => {}
        }
        self.save()
    }

    fn save(&self) -> Result<(), Failure> {
        let text = serde_json::to_vec(&self.state).unwrap_or_default();
        files::write_private(&self.folder.join(STATE), &text).map_err(|error| disk(&error))
    }

    /// Brings all of it into its place below a root, in one rename.
    pub(super) fn promote(self, root: &Path, wanted: &Wanted) -> Result<(), Failure> {
        let from = self.folder.join(FILES);
        only(&from, &wanted.files)?;
        let manifest = Present {
            repository: wanted.repository.clone(),
            revision: wanted.revision.clone(),
            digest: wanted.digest.clone(),
            bytes: wanted.bytes(),
            files: wanted.files.clone(),
            source: wanted.source.clone(),
            root: String::new(),
        };
        let text = serde_json::to_vec_pretty(&manifest).unwrap_or_default();
        files::write_public(&from.join(MANIFEST), &text).map_err(|error| disk(&error))?;
        sync_folders(&from).map_err(|error| disk(&error))?;
        let to = root.join(wanted.folder());
        let above = to.parent().unwrap_or(root);
        make(above, 0o755)?;
        let placed = fs::rename(&from, &to).or_else(|error| {
            if !is_taken(&error) || !is_of(&to, &wanted.digest) {
                return Err(error);
            }
            // What is left of this very artifact, and is not whole any more, makes room.
            remove(self.folder.parent().unwrap_or(&self.folder), root, &wanted.folder())
                .map_err(|failure| io::Error::other(failure.says))?;
            make(above, 0o755).map_err(|failure| io::Error::other(failure.says))?;
            fs::rename(&from, &to)
        });
        placed.map_err(|error| match is_taken(&error) {
            true => Failure::new(
                Reason::Disk,
                "something else is where the artifact belongs; remove it from the root by hand",
            ),
            false => disk(&error),
        })?;
        for folder in [above, root, &self.folder] {
            sync(folder).map_err(|error| disk(&error))?;
        }
        // Only what is known of it is left.
        let _ = fs::remove_dir_all(&self.folder);
        Ok(())
    }
}

/// Something is where a folder should go.
fn is_taken(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory
    )
}

/// Whether a folder was once brought as the artifact of this digest, whatever is left of it.
fn is_of(folder: &Path, digest: &str) -> bool {
    manifest(folder).is_some_and(|found| found.digest == digest)
}

fn manifest(folder: &Path) -> Option<Present> {
    serde_json::from_slice(&files::read(&folder.join(MANIFEST)).ok()?).ok()
}

/// Whether the bytes of a file are not those that were brought. Reads all of it.
pub(super) fn is_damaged(present: &Present, folder: &Path, path: &str) -> bool {
    let brought = present.files.iter().find(|file| file.path == path);
    let found = super::listing::of_disk(&folder.join(path), path.to_owned());
    brought.zip(found.ok()).is_some_and(|(brought, found)| brought.sha256 != found.sha256)
}

/// Makes a folder, or sees that one is there: a link to one is none.
fn make(path: &Path, mode: u32) -> Result<(), Failure> {
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match fs::symlink_metadata(path) {
            Ok(facts) if facts.is_dir() => Ok(()),
            Ok(_) => Err(Failure::new(Reason::Disk, "a file or a link is where a folder belongs")),
            Err(error) => Err(disk(&error)),
        },
        Err(error) => Err(disk(&error)),
    }
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Syncs a folder and all folders in it.
fn sync_folders(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_folders(&entry.path())?;
        }
    }
    sync(folder)
}

/// Removes what is no file of the list: of an earlier list with the same beginning, or of a crash.
fn only(folder: &Path, wanted: &[ArtifactFile]) -> Result<(), Failure> {
    fn clean(folder: &Path, within: &str, wanted: &[ArtifactFile]) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let path = format!("{within}{}", name.to_string_lossy());
            if entry.file_type()?.is_dir() {
                let below = format!("{path}/");
                if wanted.iter().any(|file| file.path.starts_with(&below)) {
                    clean(&entry.path(), &below, wanted)?;
                } else {
                    fs::remove_dir_all(entry.path())?;
                }
            } else if !wanted.iter().any(|file| file.path == path) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
    clean(folder, "", wanted).map_err(|error| disk(&error))
}

/// The artifact in a folder, if it is whole: a manifest that fits the folder, and every file in its size.
pub(super) fn present(root_name: &str, root: &Path, folder: &str) -> Option<Present> {
    let path = root.join(folder);
    let mut found = manifest(&path)?;
    let fits = artifact::check_files(&found.files).is_ok()
        && artifact::digest(&found.files) == found.digest
        && artifact::folder(&found.repository, &found.revision, &found.digest) == folder;
    let whole = || {
        found.files.iter().all(|file| {
            fs::symlink_metadata(path.join(&file.path))
                .is_ok_and(|facts| facts.is_file() && facts.len() == file.bytes)
        })
    };
    if !fits || !whole() {
        tracing::warn!(
            root = root_name,
            folder,
            "a folder of the root is no whole artifact, and is not told"
        );
        return None;
    }
    root_name.clone_into(&mut found.root);
    Some(found)
}

/// All artifacts of a root.
pub(super) fn scan(root_name: &str, root: &Path) -> Vec<Present> {
    let mut found = Vec::new();
    // What was moved to a larger disk and linked from here is as present as before.
    let linked = |entry: &fs::DirEntry| entry.path().is_dir();
    for repository in named(root, linked) {
        for revision in named(&root.join(&repository), linked) {
            let folder = format!("{repository}/{revision}");
            if root.join(&folder).join(MANIFEST).exists() {
                found.extend(present(root_name, root, &folder));
            }
            if found.len() == TOLD_MAX {
                return found;
            }
        }
    }
    found
}

/// Names of folders in a folder, in order; a link to one is none.
fn folders(path: &Path) -> Vec<String> {
    named(path, |entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
}

fn named(path: &Path, is: impl Fn(&fs::DirEntry) -> bool) -> Vec<String> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let mut names: Vec<_> =
        entries.flatten().filter(is).filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// Whether a folder of a root is but a link to where somebody has moved it.
pub(super) fn is_linked(root: &Path, folder: &str) -> bool {
    root.join(folder).is_symlink()
}

/// Takes an artifact out of its root in one rename, then removes it; of one that is linked the link.
pub(super) fn remove(quarantine: &Path, root: &Path, folder: &str) -> Result<(), Failure> {
    let from = root.join(folder);
    let leaving = quarantine.join(format!("{LEAVING}{}", uuid::Uuid::new_v4().simple()));
    fs::rename(&from, &leaving).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::new(Reason::NotFound, "no such artifact is here"),
        io::ErrorKind::CrossesDevices => Failure::new(
            Reason::Disk,
            "it is on another file system than artifacts.quarantine, behind a link or a mount in its root: remove it there by hand",
        ),
        _ => disk(&error),
    })?;
    if let Some(above) = from.parent() {
        let _ = sync(above);
        // The last revision takes its repository with it.
        let _ = fs::remove_dir(above);
    }
    match fs::remove_dir_all(&leaving) {
        // Somebody who tidied up was quicker.
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(disk(&error)),
        _ => Ok(()),
    }
}

/// What unfinished downloads have left; what was on its way out goes at once.
pub(super) fn left(quarantine: &Path, running: impl Fn(&str) -> bool) -> Vec<Left> {
    let mut found = Vec::new();
    for name in folders(quarantine) {
        let path = quarantine.join(&name);
        if name.starts_with(LEAVING) {
            // A removal that runs is helped, not disturbed.
            let _ = fs::remove_dir_all(&path);
        } else if path.join(FILES).is_dir() {
            let (bytes, changed) = weigh(&path);
            let age = SystemTime::now().duration_since(changed).unwrap_or(Duration::ZERO);
            found.push(Left { running: running(&name), name, age, bytes });
        }
    }
    found
}

/// Bytes below a folder, and when it was last written to.
fn weigh(folder: &Path) -> (u64, SystemTime) {
    let (mut bytes, mut changed) = (0, SystemTime::UNIX_EPOCH);
    let Ok(entries) = fs::read_dir(folder) else { return (bytes, changed) };
    for entry in entries.flatten() {
        let Ok(facts) = entry.metadata() else { continue };
        let (more, later) =
            if facts.is_dir() { weigh(&entry.path()) } else { (facts.len(), SystemTime::UNIX_EPOCH) };
        bytes += more;
        changed = changed.max(later).max(facts.modified().unwrap_or(SystemTime::UNIX_EPOCH));
    }
    (bytes, changed)
}

/// Throws away what a download has left.
pub(super) fn forget(quarantine: &Path, name: &str) {
    if let Err(error) = fs::remove_dir_all(quarantine.join(name)) {
        tracing::warn!(name, %error, "what a download has left cannot be removed");
    }
}

/// Bytes that this user may still fill where the quarantine is.
pub(super) fn free(quarantine: &Path) -> Result<u64, Failure> {
    let facts = rustix::fs::statvfs(quarantine).map_err(|error| disk(&error.into()))?;
    Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
}
