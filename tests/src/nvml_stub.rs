//! Builds the stub libraries; of NVML each test gets a copy of its own, with its own file of GPUs beside it.
//!
//! Owns the build and the file; leaves what the file may say to `nvml-stub/nvml.rs`. Invariant: a copy has its own
//! path, so that one process can load several, each with its own GPUs. The node's tests include this file.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// A library that shows the GPUs of a file.
#[derive(Debug)]
pub struct NvmlStub {
    library: PathBuf,
}

impl NvmlStub {
    /// A copy of the library in `folder`, with these lines in its file.
    ///
    /// # Panics
    /// If it cannot be built or written.
    #[must_use]
    pub fn new(folder: &Path, lines: &[&str]) -> Self {
        let stub = Self { library: folder.join("libnvidia-ml.so.1") };
        stub.set(lines);
        std::fs::copy(built(), &stub.library).expect("a copy of the stub");
        stub
    }

    /// The path for `node.nvml_library`.
    #[must_use]
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// Replaces the file: counts from the library's next call on.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn set(&self, lines: &[&str]) {
        let file = self.library.with_extension("1.gpus");
        let new = self.library.with_extension("1.gpus.new");
        std::fs::write(&new, lines.join("\n")).expect("the stub's file");
        std::fs::rename(new, file).expect("the stub's file");
    }
}

/// A library that sets the wall clock of a process that preloads it (`LD_PRELOAD`); `clock-stub/clock.rs` says how.
///
/// # Panics
/// If it cannot be built.
#[must_use]
pub fn clock_stub() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("tests/clock-stub/clock.rs", "clock_stub"))
}

fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("tests/nvml-stub/nvml.rs", "nvml_stub"))
}

/// Builds a library beside this test's own program.
fn build(source: &str, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join(source);
    let own = std::env::current_exe().expect("this program");
    let folder = own.parent().expect("a folder");
    // Whole at once: another process may build it as well.
    let new = folder.join(format!("{name}-{}.so", std::process::id()));
    // The compiler that built this test, where cargo runs it.
    let beside = std::env::var_os("CARGO").map(|cargo| Path::new(&cargo).with_file_name("rustc"));
    let compiler = beside.filter(|path| path.exists()).unwrap_or_else(|| "rustc".into());
    let built = Command::new(compiler)
        .args([
            "--edition",
            "2024",
            "--crate-type",
            "cdylib",
            "-C",
            "panic=abort",
            "--crate-name",
            name,
            "-o",
        ])
        .arg(&new)
        .arg(&source)
        .status()
        .expect("the compiler runs");
    assert!(built.success(), "the stub library does not compile");
    let library = folder.join(format!("lib{name}.so"));
    std::fs::rename(new, &library).expect("the stub in its place");
    library
}
