//! A process whose wall clock is wrong, and can be set while it runs.
//!
//! Owns the file that says by how much; leaves the arithmetic to `shifted-clock/clock.rs`.

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

use crate::{fleet::Daemon, stub_library::build};

/// A wall clock that is wrong by so many seconds.
#[derive(Debug)]
pub struct ShiftedClock {
    file: PathBuf,
}

impl ShiftedClock {
    /// For the process that `daemon` starts next; its file stands in `folder`.
    ///
    /// # Panics
    /// If the library cannot be built.
    #[must_use]
    pub fn of(daemon: &mut Daemon, folder: &Path, seconds: i64) -> Self {
        let clock = Self { file: folder.join("clock") };
        clock.set(seconds);
        daemon.environment.push(("LD_PRELOAD".to_owned(), library().to_string_lossy().into_owned()));
        daemon.environment.push(("UMBEL_TEST_CLOCK".to_owned(), clock.file.to_string_lossy().into_owned()));
        clock
    }

    /// Sets it, also while the process runs.
    ///
    /// # Panics
    /// If its file cannot be written.
    #[allow(clippy::expect_used, reason = "a rig that cannot write its files fails its test")]
    pub fn set(&self, seconds: i64) {
        let new = self.file.with_extension("new");
        std::fs::write(&new, seconds.to_string()).expect("the clock's file");
        std::fs::rename(new, &self.file).expect("the clock's file");
    }
}

fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("tests/shifted-clock/clock.rs", "shifted-clock"))
}
