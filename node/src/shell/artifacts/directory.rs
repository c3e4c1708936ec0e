//! A directory of this host as a source.
//!
//! Owns finding a file in one of the layouts; leaves copying to `fetch`. Invariant: nothing outside the directory is opened,
//! whatever links are in it, and only plain files are.

use std::{fs::File, path::Path};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags},
    io::Errno,
};

use super::http::Trouble;
use crate::core::artifacts::{Reason, Wanted};

/// Opens a file of an artifact: by revision, without one, or in a cache as Hugging Face's tools leave it. Where what should be
/// mounted there is away, it may be back with the next try.
pub(super) fn open(source: &str, folder: &Path, wanted: &Wanted, path: &str) -> Result<File, Trouble> {
    let refused = |why: String| Trouble::never(Reason::SourceRefused, format!("source {source} {why}"));
    let later = |why: String| Trouble::later(format!("source {source} {why}"));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let base = rustix::fs::open(folder, flags, Mode::empty()).map_err(|error| {
        tracing::warn!(source, %error, "the directory of a source cannot be opened");
        match error {
            Errno::NOENT => later("has a directory that is not there (is it mounted?)".into()),
            _ if may_pass(error) => later(format!("has a directory that does not answer ({})", kind(error))),
            _ => refused("has a directory that cannot be opened (the node's log says why)".into()),
        }
    })?;
    let Wanted { repository, revision, .. } = wanted;
    let cached = repository.replace('/', "--");
    for place in [
        format!("{repository}/{revision}/{path}"),
        format!("models--{cached}/snapshots/{revision}/{path}"),
        format!("{repository}/{path}"),
    ] {
        // A pipe or a device must not be waited for. Links are followed as long as they stay within the directory.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file = match rustix::fs::openat2(&base, &place, flags, Mode::empty(), within) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::NOTDIR) => continue,
            Err(Errno::XDEV) => {
                return Err(refused(format!("has {path:?} as a link that leads out of it")));
            }
            Err(error) => {
                tracing::warn!(source, path, %error, "a file of a source cannot be opened");
                if may_pass(error) {
                    return Err(later(format!("does not give {path:?} ({})", kind(error))));
                }
                return Err(refused(format!(
                    "has {path:?}, and it cannot be opened (the node's log says why)"
                )));
            }
        };
        return match file.metadata() {
            Ok(facts) if facts.is_file() => Ok(file),
            _ => Err(refused(format!("has {path:?}, and it is no plain file"))),
        };
    }
    // What a mount belongs on is there without it, and empty.
    if std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none()) {
        return Err(later("has an empty directory (is it mounted?)".into()));
    }
    Err(refused(format!("has no {path:?} of {repository} at {revision}")))
}

/// Whether an error is of a file system that may come back, and not of what a person set.
fn may_pass(error: Errno) -> bool {
    matches!(
        error,
        Errno::IO
            | Errno::STALE
            | Errno::NOTCONN
            | Errno::TIMEDOUT
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH
            | Errno::NETUNREACH
            | Errno::NODEV
            | Errno::NXIO
            | Errno::AGAIN
            | Errno::INTR
            | Errno::MFILE
            | Errno::NFILE
    )
}

/// Its name, without a path.
fn kind(error: Errno) -> std::io::ErrorKind {
    std::io::Error::from(error).kind()
}
