//! A node: its file with its engines, and its enrollment.

use std::fs;
use std::path::{Path, PathBuf};

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
    /// An engine outlives its agent, and here every agent is killed in the end: its engines are stopped after it.
    fn drop(&mut self) {
        self.daemon.kill();
        let has_records = fs::read_dir(self.state.join("engines")).is_ok_and(|all| {
            all.flatten().any(|entry| entry.path().extension().is_some_and(|extension| extension == "json"))
        });
        if has_records {
            let ran = run(&["node", "stop-engines", "--config", &self.config.to_string_lossy()]);
            if ran.code != 0 {
                eprintln!("--- engines of {} were not stopped: {}", self.name, ran.err);
            }
        }
    }
}
