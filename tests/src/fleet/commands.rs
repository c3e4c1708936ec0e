//! Runs of the binary that end by themselves: `init`, `enroll`, `ctl ...`.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use super::binary;

/// What a finished command gave.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The words after the binary.
    pub line: String,
    /// Exit code; -1 when a signal ended it.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Ran {
    /// Itself, if it succeeded.
    ///
    /// # Panics
    /// When it did not.
    #[track_caller]
    #[must_use]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "umbel {} failed\nstdout: {}\nstderr: {}", self.line, self.out, self.err);
        self
    }

    /// Standard output as JSON.
    ///
    /// # Panics
    /// When it is none.
    #[track_caller]
    #[must_use]
    #[allow(clippy::panic, reason = "a command that does not answer as documented fails its test")]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| {
            panic!("umbel {}: not JSON ({e})\nstdout: {}\nstderr: {}", self.line, self.out, self.err)
        })
    }
}

/// Runs the binary with these words.
///
/// # Panics
/// When it cannot be started.
#[allow(clippy::expect_used, reason = "a rig that cannot start a process fails its test")]
pub fn run<S: AsRef<OsStr>>(words: &[S]) -> Ran {
    let output = Command::new(binary())
        .args(words)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .output()
        .expect("the binary starts");
    Ran {
        line: words.iter().map(|w| w.as_ref().to_string_lossy()).collect::<Vec<_>>().join(" "),
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
