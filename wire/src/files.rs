//! Small private files that must survive a crash: keys, certificates, identities.
//!
//! Owns: writing one whole file durably (temporary name, sync, rename, sync of the directory) and the permissions of
//! state directories. Leaves to others: what stands in the files.
//! Invariant: a reader sees the old content or the new, never a part; a private file is never readable by another
//! user, not even for a moment.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// No file that this module reads is larger: keys, certificates and identities are a few KiB.
pub const LARGEST: u64 = 1024 * 1024;

/// Creates a directory (and its parents) that only this user may enter, or checks that an existing one is such.
///
/// # Errors
/// If it cannot be created, belongs to another user, or is open to others; the sentence names the remedy.
pub fn private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let about = std::fs::metadata(path)?;
    if !about.is_dir() {
        return Err(io::Error::new(
            io::ErrorKind::NotADirectory,
            format!("{} is not a directory", path.display()),
        ));
    }
    if about.uid() != rustix::process::geteuid().as_raw() {
        return Err(denied(format!(
            "{} belongs to another user; run as its owner or chown it",
            path.display()
        )));
    }
    if about.mode() & 0o077 != 0 {
        std::fs::set_permissions(path, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Replaces a file that only this user may read (0600), durably.
///
/// # Errors
/// Whatever the file system says; the old content then still stands.
pub fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    replace(path, content, 0o600)
}

/// Replaces a file that others may read (0644), durably: a CA certificate, for example.
///
/// # Errors
/// Whatever the file system says; the old content then still stands.
pub fn write_public(path: &Path, content: &[u8]) -> io::Result<()> {
    replace(path, content, 0o644)
}

/// Removes a file, durably. One that is not there is no error.
///
/// # Errors
/// Whatever the file system says.
pub fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Ok(()) => sync_parent(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes what writes that a crash cut off have left in a directory; nothing ever reads it.
pub fn sweep(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let left = name.to_str().is_some_and(|name| name.starts_with('.') && name.ends_with(".new"));
        if left && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            // One that cannot be removed is overwritten by the next write of its file.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Reads a whole small file.
///
/// # Errors
/// If it cannot be read or is larger than [`LARGEST`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(LARGEST + 1).read_to_end(&mut content)?;
    if content.len() as u64 > LARGEST {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("{} is above 1 MiB", path.display()),
        ));
    }
    Ok(content)
}

/// Reads a private file, refusing one that other users can read.
///
/// # Errors
/// As [`read`], and if its mode lets others in; the sentence names the remedy.
pub fn read_private(path: &Path) -> io::Result<Vec<u8>> {
    let mode = std::fs::metadata(path)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        let path = path.display();
        return Err(denied(format!(
            "{path} can be read by other users (mode {mode:o}); run: chmod 600 {path}"
        )));
    }
    read(path)
}

fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let temporary = temporary_name(path)?;
    let written = write_synced(&temporary, content, mode).and_then(|()| std::fs::rename(&temporary, path));
    if let Err(error) = written {
        // The old file still stands; a leftover that cannot be removed either is overwritten by the next attempt.
        let _ = std::fs::remove_file(&temporary);
        return Err(error);
    }
    sync_parent(path)
}

fn write_synced(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    // A leftover of a crash may have another mode: it is removed rather than reused.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(content)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

fn temporary_name(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{} names no file", path.display()))
    })?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(".new");
    Ok(path.with_file_name(hidden))
}

fn denied(sentence: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, sentence)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
    use super::*;

    #[test]
    fn a_private_file_is_private_whole_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("a/state");
        private_dir(&state).unwrap();
        assert_eq!(std::fs::metadata(&state).unwrap().mode() & 0o777, 0o700);
        let path = state.join("key");
        std::fs::write(state.join(".key.new"), "left by a crash, open to all").unwrap();
        write_private(&path, b"one").unwrap();
        write_private(&path, b"two").unwrap();
        assert_eq!(read_private(&path).unwrap(), b"two");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&state).unwrap().count(), 1);
        remove(&path).unwrap();
        remove(&path).unwrap();
    }

    #[test]
    fn row_80_what_a_crash_left_is_swept_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        for name in [".key.new", "key", ".hidden", "other.new"] {
            std::fs::write(dir.path().join(name), b"x").unwrap();
        }
        sweep(dir.path());
        let mut left: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [".hidden", "key", "other.new"]);
    }

    #[test]
    fn what_others_can_read_is_refused_or_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        write_public(&path, b"k").unwrap();
        let error = read_private(&path).unwrap_err();
        assert!(error.to_string().contains("chmod 600"), "{error}");
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        private_dir(dir.path()).unwrap();
        assert_eq!(std::fs::metadata(dir.path()).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn an_oversized_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("big");
        File::create(&path).unwrap().set_len(LARGEST + 1).unwrap();
        assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
