//! The stub NVML library: each test gets a copy of its own, with its own file of GPUs beside it.
//!
//! Owns the copy and the file; leaves what the file may say to `nvml-stub/nvml.rs`. Invariant: a copy has its own
//! path, so that one process can load several, each with its own GPUs. The node's tests include this file.

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

use super::stub_library::build;

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

fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("tests/nvml-stub/nvml.rs", "nvml-stub"))
}
