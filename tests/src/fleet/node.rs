//! A node: its file with its engines, and its enrollment.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

use super::asking::{words, write};
use super::{Daemon, Edge, Fleet, Ran, run};

/// An `[[engine]]` of a node's file.
#[derive(Clone, Debug)]
pub struct EngineDeclaration {
    /// The lines of the table.
    pub toml: String,
}

impl EngineDeclaration {
    /// An OpenAI-compatible server that is already there.
    #[must_use]
    pub fn external(name: &str, model: &str, url: &str, capacity: u32) -> Self {
        Self {
            toml: format!(
                "[[engine]]\nname = \"{name}\"\nkind = \"external\"\nmodel = \"{model}\"\nurl = \"{url}\"\ncapacity = {capacity}\n"
            ),
        }
    }

    /// The built-in engine.
    #[must_use]
    pub fn sim(name: &str, model: &str, more: &str) -> Self {
        Self { toml: format!("[[engine]]\nname = \"{name}\"\nkind = \"sim\"\nmodel = \"{model}\"\n{more}\n") }
    }
}

/// How a node differs from the usual.
#[derive(Clone, Debug, Default)]
pub struct NodeOptions {
    /// What it runs.
    pub engines: Vec<EngineDeclaration>,
    /// Added to its file, with table headers.
    pub more: String,
}

/// A node.
pub struct Node {
    /// Its process.
    pub daemon: Daemon,
    /// Its name.
    pub name: String,
    /// Its file.
    pub config: PathBuf,
    /// Its state directory.
    pub state: PathBuf,
}

impl Fleet {
    /// Writes a node's files without enrolling or starting it.
    #[must_use]
    pub fn node_files(&self, name: &str, options: &NodeOptions) -> Node {
        let dir = self.dir().join(name);
        let (config, state) = (dir.join("node.toml"), dir.join("state"));
        let engines: Vec<_> = options.engines.iter().map(|e| e.toml.as_str()).collect();
        write(
            &config,
            &format!(
                "[node]\nname = \"{name}\"\nstate_dir = {state:?}\naccelerator = \"cpu\"\nallow_sim = true\nallow_volatile_state = true\n\n\
                 [log]\nlevel = \"debug\"\n\n{}\n{}",
                options.more,
                engines.join("\n")
            ),
        );
        let daemon = Daemon::new(&format!("node-{name}"), self.dir(), words(&["node", "--config"], &config));
        Node { daemon, name: name.to_owned(), config, state }
    }

    /// Enrolls a node at the edge, starts it, and waits until it serves.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    #[must_use]
    pub fn node(&self, edge: &Edge, name: &str, options: &NodeOptions) -> Node {
        let mut node = self.node_files(name, options);
        let _ = node.enroll(&edge.token(name)).ok();
        node.daemon.start();
        edge.wait_serving(name);
        node
    }
}

impl Node {
    /// Enrolls with the token in a file.
    #[must_use]
    pub fn enroll(&self, token: &Path) -> Ran {
        run(&[
            "node",
            "enroll",
            "--config",
            &self.config.to_string_lossy(),
            "--token-file",
            &token.to_string_lossy(),
        ])
    }
}

impl Drop for Node {
    /// An engine outlives an agent that is killed, and here every agent is in the end: its engines go with it.
    fn drop(&mut self) {
        self.daemon.kill();
        for entry in fs::read_dir(self.state.join("engines")).into_iter().flatten().flatten() {
            let Ok(text) = fs::read(entry.path()) else { continue };
            let Ok(record) = serde_json::from_slice::<serde_json::Value>(&text) else { continue };
            let number = |name: &str| record.get(name).and_then(serde_json::Value::as_i64);
            let (Some(pid), Some(port)) = (number("pid"), number("port")) else { continue };
            // The pid may be another process's by now: its command line must name the recorded port.
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let is_it = line.split(|b| *b == 0).any(|word| word == port.to_string().as_bytes());
            if let (true, Some(pid)) = (is_it, i32::try_from(pid).ok().and_then(Pid::from_raw)) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}
