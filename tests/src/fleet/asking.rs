//! What the three tiers share: writing a file, asking an operator API at its socket, `umbel ctl`, waiting for a start.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Daemon, Ran, START, run};
use crate::http::{Ask, Target, Whole};
use crate::wait;

/// Short times, as the fault catalogue scales them.
pub(super) const LIVENESS: &str =
    "[liveness]\nheartbeat = \"1s\"\nstale = \"3s\"\noffline = \"10s\"\n\n[log]\nlevel = \"debug\"\n";

#[allow(clippy::expect_used, reason = "a rig that cannot write its files fails its test")]
pub(super) fn write(path: &Path, text: &str) {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).expect("a directory");
    }
    fs::write(path, text).expect("a file");
}

/// Asks an operator API over its Unix socket.
///
/// # Panics
/// When it cannot be reached.
#[track_caller]
#[allow(clippy::panic, reason = "an API that does not answer fails its test")]
pub(super) fn ask(socket: &Path, ask: &Ask) -> Whole {
    let target = Target::Unix(socket.to_path_buf());
    ask.whole(&target).unwrap_or_else(|e| panic!("{} does not answer: {e}", socket.display()))
}

pub(super) fn answers(socket: &Path, path: &str) -> Result<Value, String> {
    let target = Target::Unix(socket.to_path_buf());
    let whole = Ask::get(path).limit(Duration::from_secs(10)).whole(&target).map_err(|e| e.to_string())?;
    if whole.status == 200 { Ok(whole.json()) } else { Err(format!("{}: {}", whole.status, whole.text())) }
}

/// What a collector gets, in Prometheus' own format; empty where nobody answers.
#[must_use]
pub fn scraped(target: &Target) -> String {
    let got = Ask::get("/metrics").limit(Duration::from_secs(10)).whole(target);
    got.map(|whole| whole.text()).unwrap_or_default()
}

#[track_caller]
pub(super) fn ready(daemon: &mut Daemon, what: &str, mut look: impl FnMut() -> Result<(), String>) {
    wait::until_some(what, START, || {
        assert!(daemon.is_running(), "{what}: it ended at once:\n{}", daemon.log());
        look()
    });
}

pub(super) fn words(words: &[&str], path: &Path) -> Vec<String> {
    words.iter().map(|w| (*w).to_owned()).chain([path.to_string_lossy().into_owned()]).collect()
}

pub(super) fn command(edge: &str, id: &str, operation: &str, selector: &str, args: &Value) -> Ask {
    let body = json!({"operation": operation, "target_selector": selector, "args": args, "reason": "a test"});
    Ask::post(&format!("/api/v1/edges/{edge}/commands?wait=20s"), body.to_string())
        .header("idempotency-key", id)
}

pub(super) fn ctl(socket: &Path, words: &[&str]) -> Ran {
    let socket = socket.to_string_lossy();
    let mut all = vec!["ctl", "--socket", &socket];
    all.extend_from_slice(words);
    run(&all)
}
