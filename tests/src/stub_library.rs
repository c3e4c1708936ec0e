//! Builds libraries that stand in for those of a host, with plain rustc and outside the workspace.
//!
//! Owns the build. Invariant: a library is whole when it stands in its place, also where two processes build it. The
//! node's tests include this file.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Builds `source`, a path in the repository, as `libNAME.so` beside this test's own program.
///
/// # Panics
/// If it cannot be built.
#[must_use]
#[allow(clippy::expect_used, reason = "a rig that cannot build its library fails its test")]
pub fn build(source: &str, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join(source);
    let own = std::env::current_exe().expect("this program");
    let folder = own.parent().expect("a folder");
    let new = folder.join(format!("{name}-{}.so", std::process::id()));
    // The compiler that built this test, where cargo runs it.
    let beside = std::env::var_os("CARGO").map(|cargo| Path::new(&cargo).with_file_name("rustc"));
    let compiler = beside.filter(|path| path.exists()).unwrap_or_else(|| "rustc".into());
    let built = Command::new(compiler)
        .args(["--edition", "2024", "--crate-type", "cdylib", "-C", "panic=abort", "-O", "--crate-name"])
        .arg(name.replace('-', "_"))
        .arg("-o")
        .arg(&new)
        .arg(&source)
        .status()
        .expect("the compiler runs");
    assert!(built.success(), "{name} does not compile");
    let library = folder.join(format!("lib{name}.so"));
    std::fs::rename(new, &library).expect("the library in its place");
    library
}
