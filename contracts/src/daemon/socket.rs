//! The local socket's file: who may open it, and when it comes and goes.
//!
//! Leaves what is said over it to each tier. Invariants: the socket is 0600 from its first moment on; a running
//! process's socket is never taken from it, and no file that is not a socket is touched.

use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

use super::StartError;

/// A Unix socket that only its owner can open; its file goes when this is dropped.
#[derive(Debug)]
pub struct LocalListener {
    listener: UnixListener,
    path: PathBuf,
}

impl LocalListener {
    /// Binds the socket of the key `listen.socket`. A file that a former process left is replaced. Needs a runtime
    /// with I/O.
    ///
    /// # Errors
    /// [`StartError::Failed`] if another process answers there or the path cannot be used, with what to do.
    pub fn bind(path: &Path) -> std::result::Result<Self, StartError> {
        let listener = make(path).map_err(|error| {
            StartError::Failed(format!(
                "cannot make the socket {} (listen.socket): {error}. End the process that uses it, or give this one \
                 another path of at most 100 characters.",
                path.display()
            ))
        })?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// The next caller. Waiting may be given up and begun again.
    ///
    /// # Errors
    /// What the system says, for instance at the limit of descriptors.
    pub async fn accept(&self) -> Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        // One that is gone already is as good.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn make(path: &Path) -> Result<UnixListener> {
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(Error::new(ErrorKind::AlreadyExists, "there is a file that is no socket"));
        }
        if answers(path) {
            return Err(Error::new(ErrorKind::AddrInUse, "another process answers there"));
        }
    }
    // Bound under another name, so that nobody can connect before the mode is set.
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    let draft = PathBuf::from(draft);
    match std::fs::remove_file(&draft) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&draft)?;
    std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&draft, path)?;
    Ok(listener)
}

/// Whether a process listens at a local socket.
#[must_use]
pub fn answers(path: &Path) -> bool {
    StdUnixStream::connect(path).is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
    use std::fs;

    use super::*;

    fn run(test: impl FnOnce(&Path)) {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _inside = runtime.enter();
        test(&folder.path().join("umbel.sock"));
    }

    #[test]
    fn only_its_owner_opens_it_and_it_goes_with_the_listener() {
        run(|path| {
            let listener = LocalListener::bind(path).unwrap();
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
            assert!(answers(path));
            drop(listener);
            assert!(!path.exists());
        });
    }

    #[test]
    fn a_running_process_keeps_its_socket_and_a_left_one_is_replaced() {
        run(|path| {
            let listener = LocalListener::bind(path).unwrap();
            let refused = LocalListener::bind(path).unwrap_err().to_string();
            assert!(refused.contains("another process answers there"), "{refused}");
            assert!(answers(path));
            drop(listener);
            drop(std::os::unix::net::UnixListener::bind(path).unwrap());
            assert!(path.exists() && !answers(path));
            let _listener = LocalListener::bind(path).unwrap();
            assert!(answers(path));
        });
    }

    #[test]
    fn a_file_that_is_no_socket_stays() {
        run(|path| {
            fs::write(path, "mine").unwrap();
            assert!(LocalListener::bind(path).unwrap_err().to_string().contains("no socket"));
            assert_eq!(fs::read(path).unwrap(), b"mine");
        });
    }
}
