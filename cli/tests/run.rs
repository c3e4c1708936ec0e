//! Running `umbel`, and comparing what it printed with a golden file.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// `umbel` without anything of the environment that would change what it does.
pub(crate) fn umbel() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umbel"));
    for name in [
        "UMBEL_SOCKET",
        "UMBEL_ADDR",
        "UMBEL_TOKEN_FILE",
        "UMBEL_CA_FILE",
        "NO_COLOR",
        "FORCE_COLOR",
        "CLICOLOR_FORCE",
    ] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Ran {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Runs `umbel` with these words.
pub(crate) fn run(words: &[&str]) -> Ran {
    umbel().args(words).output().unwrap().into()
}

/// Compares with `tests/golden/NAME`.
#[track_caller]
pub(crate) fn golden(name: &str, text: &str) {
    let path = golden_path(name);
    if std::env::var_os("UMBEL_BLESS").is_some() {
        fs::write(&path, text).unwrap();
        return;
    }
    let wanted = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        wanted == text,
        "{name} differs; rewrite with UMBEL_BLESS=1\n--- wanted\n{wanted}\n--- got\n{text}"
    );
}

/// The text of `tests/golden/NAME`.
pub(crate) fn canned(name: &str) -> String {
    fs::read_to_string(golden_path(name)).unwrap()
}

fn golden_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}
