//! Reads an engine's output as long as anybody writes it: the tail in memory, everything else in a bounded file.
//!
//! Owns the pipe, the log file and its rotation; leaves what is kept of the text to `core/tail`.
//! Invariant: the pipe is always read, even when the file cannot be written, so no engine ever blocks on it.
//!
//! A thread of its own: writing a file blocks, and the streams share the runtime's one thread.

use std::{
    fs::{self, File, OpenOptions},
    io::{PipeReader, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::oneshot;

use crate::core::tail::{Followed, Tail};

/// The log file is rotated at this size; one older file is kept.
const LOG_MAX: u64 = 8 * 1024 * 1024;
/// One read of the pipe: its usual capacity.
const READ: usize = 64 * 1024;

/// What an engine wrote last, shared with the thread that reads it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Output {
    tail: Arc<Mutex<Tail>>,
}

impl Output {
    /// Starts to read. The receiver resolves when nobody can write any more.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn read(pipe: PipeReader, log: &Path) -> std::io::Result<(Self, oneshot::Receiver<()>)> {
        let output = Self::default();
        let (done, all_read) = oneshot::channel();
        let (writer, log) = (output.clone(), Log::new(log));
        std::thread::Builder::new().name("engine-output".into()).stack_size(128 * 1024).spawn(move || {
            writer.drain(pipe, log);
            writer.lock().end();
            // Nobody may be waiting.
            let _ = done.send(());
        })?;
        Ok((output, all_read))
    }

    fn drain(&self, mut pipe: PipeReader, mut log: Log) {
        let mut buffer = vec![0; READ];
        loop {
            match pipe.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => {
                    let part = buffer.get(..count).unwrap_or_default();
                    self.lock().write(part);
                    log.write(part);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// The last lines, as they may leave the host.
    pub(crate) fn report(&self) -> String {
        self.lock().report()
    }

    /// At most `most` finished lines from number `after` on, or the last ones.
    pub(crate) fn since(&self, after: Option<u64>, most: usize) -> Followed {
        self.lock().since(after, most)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The log file; without one (a full disk) output is dropped.
struct Log {
    path: PathBuf,
    file: Option<File>,
    size: u64,
}

impl Log {
    fn new(path: &Path) -> Self {
        let mut log = Self { path: path.to_owned(), file: None, size: 0 };
        log.open();
        log
    }

    fn open(&mut self) {
        let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path);
        self.size = opened.as_ref().ok().and_then(|file| file.metadata().ok()).map_or(0, |facts| facts.len());
        self.file = opened.ok();
    }

    fn write(&mut self, part: &[u8]) {
        if self.size >= LOG_MAX {
            self.file = None;
            // If the old one cannot be moved, it is started over: the bound counts more than the history.
            if fs::rename(&self.path, self.path.with_extension("log.1")).is_err() {
                let _ = fs::remove_file(&self.path);
            }
            self.open();
        }
        if let Some(file) = &mut self.file {
            let _ = file.write_all(part);
        }
        self.size += part.len() as u64;
    }
}

/// Logs of engines that are gone and are kept: the newest of them.
const GONE_KEPT: usize = 16;

/// Removes the logs in `folder` of what is gone, but the newest: without that every name that was ever used keeps its own. Those
/// of which a record stands, or that `is_there`, stay. May block.
pub(crate) fn remove_outworn(folder: &Path, is_there: impl Fn(&str) -> bool) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let log_of_gone = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.strip_suffix(".log")?.to_owned();
        let is_gone = !folder.join(format!("{name}.json")).exists() && !is_there(&name);
        let at = fs::metadata(&path).and_then(|facts| facts.modified()).ok()?;
        is_gone.then_some((at, path))
    };
    let mut gone: Vec<_> = entries.flatten().filter_map(|entry| log_of_gone(entry.path())).collect();
    gone.sort_unstable_by(|a, b| b.cmp(a));
    for (_, path) in gone.iter().skip(GONE_KEPT) {
        // What cannot be removed is tried again with the next engine that goes.
        let _ = fs::remove_file(path.with_extension("log.1"));
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row 86: 100 MB, a line without end, and a bounded file.
    #[tokio::test]
    async fn row_86_a_flood_is_read_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("engine.log");
        let (reader, mut writer) = std::io::pipe().unwrap();
        let (output, all_read) = Output::read(reader, &path).unwrap();
        std::thread::spawn(move || {
            for _ in 0..50 {
                writer.write_all(&[0xff; 1024 * 1024]).unwrap();
            }
            writer.write_all(b"\n").unwrap();
            for _ in 0..50 {
                writer.write_all("0123456789abcde\n".repeat(64 * 1024).as_bytes()).unwrap();
            }
            writer.write_all(b"the last line").unwrap();
        });
        all_read.await.unwrap();
        assert!(output.report().ends_with("0123456789abcde\nthe last line"));
        let sizes: Vec<u64> = fs::read_dir(folder.path())
            .unwrap()
            .map(|file| file.unwrap().metadata().unwrap().len())
            .collect();
        assert_eq!(sizes.len(), 2);
        assert!(sizes.iter().all(|size| *size <= LOG_MAX + READ as u64), "{sizes:?}");
    }

    #[test]
    fn row_108_logs_of_what_is_gone_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: String| fs::write(folder.path().join(name), "x").unwrap();
        for n in 0..=GONE_KEPT + 2 {
            write(format!("e.r{n}.log"));
            write(format!("e.r{n}.log.1"));
        }
        write("held.r1.log".into());
        write("held.r1.json".into());
        write("here.r1.log".into());
        remove_outworn(folder.path(), |name| name == "here.r1");
        let mut left: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        left.retain(|name| !name.starts_with("held") && !name.starts_with("here"));
        assert_eq!(left.len(), 2 * GONE_KEPT, "{left:?}");
        for name in ["held.r1.log", "here.r1.log"] {
            assert!(folder.path().join(name).exists(), "{name}");
        }
    }
}
