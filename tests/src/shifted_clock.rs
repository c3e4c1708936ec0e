//! A process whose wall clock is wrong, and can be set while it runs.
//!
//! Owns the build of the library and the file that says by how much; leaves the arithmetic to `shifted-clock/clock.rs`.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use crate::fleet::Daemon;

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

/// Built once a process, beside this test's own program.
#[allow(clippy::expect_used, reason = "a rig that cannot build its library fails its test")]
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("shifted-clock/clock.rs");
        let own = std::env::current_exe().expect("this program");
        let folder = own.parent().expect("a folder");
        // Whole at once: another process may build it as well.
        let new = folder.join(format!("shifted-clock-{}.so", std::process::id()));
        let beside = std::env::var_os("CARGO").map(|cargo| Path::new(&cargo).with_file_name("rustc"));
        let compiler = beside.filter(|path| path.exists()).unwrap_or_else(|| "rustc".into());
        let built = Command::new(compiler)
            .args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "shifted_clock"])
            .args(["-C", "panic=abort", "-O", "-o"])
            .arg(&new)
            .arg(&source)
            .status()
            .expect("the compiler runs");
        assert!(built.success(), "the shifted clock does not compile");
        let library = folder.join("libshifted-clock.so");
        std::fs::rename(new, &library).expect("the library in its place");
        library
    })
}
