//! One download through the agent's own path: `download NODE_TOML SOURCE REPOSITORY REVISION PATH BYTES SHA256`. Prints seconds
//! and the most memory that the process held, in KiB.
//!
//! Not a test: figures depend on the machine. `scripts/bench artifacts` runs it.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a measurement stops at the first surprise"
)]

use std::path::Path;

use umbel_contracts::artifact::ArtifactFile;
use umbel_node::{Config, downloads::download};

fn main() {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let [config, source, repository, revision, path, bytes, sha256] = words.as_slice() else {
        panic!("download NODE_TOML SOURCE REPOSITORY REVISION PATH BYTES SHA256");
    };
    let config = Config::load(Path::new(config)).unwrap();
    let file = ArtifactFile { path: path.clone(), bytes: bytes.parse().unwrap(), sha256: sha256.clone() };
    let took = download(&config, source, (repository, revision), vec![file]).unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    println!("{:.4} {}", took.as_secs_f64(), peak.trim().trim_end_matches(" kB"));
}
