//! What a control plane's last refusal was, in a file that the doctor reads.
//!
//! Owns the writing, off the thread that serves the site: one write at a time, and of what waits only the newest counts.
//! Invariant: whoever has something to note waits for no disk.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use umbel_wire::files;

type Keep = dyn Fn(&Path, Option<&str>) -> Result<(), String> + Send + Sync;

/// One file, there with a text or not there.
pub(super) struct Note {
    control_plane: String,
    file: PathBuf,
    keep: Box<Keep>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    // What is to be kept and is not being written yet.
    wanted: Option<Option<String>>,
    writing: bool,
    // Why the last one could not be kept.
    unkept: Option<String>,
}

impl Note {
    pub(super) fn new(control_plane: &str, file: PathBuf) -> Arc<Self> {
        Self::kept_by(control_plane, file, |file, text| {
            let kept = match text {
                Some(text) => files::write_private(file, text.as_bytes()),
                None => files::remove(file),
            };
            kept.map_err(|error| error.to_string())
        })
    }

    fn kept_by(
        control_plane: &str,
        file: PathBuf,
        keep: impl Fn(&Path, Option<&str>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let keep = Box::new(keep);
        Arc::new(Self { control_plane: control_plane.to_owned(), file, keep, state: Mutex::default() })
    }

    /// Keeps a text, or that there is none, soon. A disk that takes no note of it is told once, until it does.
    pub(super) fn keep(self: &Arc<Self>, text: Option<String>) {
        let mut state = self.lock();
        state.wanted = Some(text);
        if !std::mem::replace(&mut state.writing, true) {
            let note = Arc::clone(self);
            drop(tokio::task::spawn_blocking(move || note.write()));
        }
    }

    fn write(&self) {
        while let Some(text) = self.next() {
            let trouble = (self.keep)(&self.file, text.as_deref()).err();
            let mut state = self.lock();
            if let Some(error) = trouble.as_ref().filter(|_| state.unkept != trouble) {
                tracing::warn!(
                    control_plane = %self.control_plane,
                    "the note of its refusal cannot be kept, so that the doctor tells of an older one: {error}"
                );
            }
            state.unkept = trouble;
        }
    }

    fn next(&self) -> Option<Option<String>> {
        let mut state = self.lock();
        let wanted = state.wanted.take();
        state.writing = wanted.is_some();
        wanted
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    /// A disk that does not answer holds up nobody, and gets the newest word once it does.
    #[tokio::test]
    async fn a_disk_that_hangs_is_waited_for_by_nobody() {
        let (told, kept) = mpsc::sync_channel(8);
        let (go, hang) = mpsc::sync_channel::<()>(8);
        let hang = Mutex::new(hang);
        let note = Note::kept_by("cp", PathBuf::from("unused"), move |_, text| {
            told.send(text.map(str::to_owned)).unwrap();
            hang.lock().unwrap().recv_timeout(LIMIT).map_err(|error| error.to_string())
        });
        note.keep(Some("first".into()));
        assert_eq!(kept.recv_timeout(LIMIT).unwrap().as_deref(), Some("first"));
        for text in ["second", "third"] {
            note.keep(Some(text.into()));
        }
        note.keep(None);
        note.keep(Some("last".into()));
        assert!(kept.try_recv().is_err(), "one write at a time");
        go.send(()).unwrap();
        assert_eq!(kept.recv_timeout(LIMIT).unwrap().as_deref(), Some("last"));
        go.send(()).unwrap();
        let end = std::time::Instant::now() + LIMIT;
        while note.lock().writing {
            assert!(std::time::Instant::now() < end, "it has nothing more to write within the limit");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        note.keep(None);
        assert_eq!(kept.recv_timeout(LIMIT).unwrap(), None);
        go.send(()).unwrap();
    }
}
