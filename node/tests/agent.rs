//! The agent as a child process with a folder of its own.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use umbel_node::{Config, Enrolled, StartError};

use crate::{LIMIT, until};

const CONFIG: &str = "UMBEL_TEST_NODE_CONFIG";
/// How this binary becomes the holder of an engine.
const HOLDER: &[&str] = &["--exact", "agent::holder_process", "--ignored", "--nocapture"];

/// Becomes a holder when an agent of these tests starts it.
#[test]
#[ignore = "a process that an agent starts"]
fn holder_process() {
    if std::env::var_os("UMBEL_ENGINE_NONCE").is_some() {
        std::process::exit(i32::from(umbel_node::hold()));
    }
}

/// Becomes the agent when started by [`Agent::start`].
#[test]
#[ignore = "a process that other tests start"]
fn agent_process() {
    let Some(path) = std::env::var_os(CONFIG) else { return };
    let code = match Config::load(Path::new(&path)).and_then(|config| umbel_node::run(config, HOLDER)) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            i32::from(error.exit_code())
        }
    };
    std::process::exit(code);
}

/// A node's folder: file, state, logs.
pub(crate) struct Folder {
    folder: tempfile::TempDir,
}

impl Folder {
    /// A node with these engines (`[[engine]]` tables).
    pub(crate) fn new(engines: &str) -> Self {
        Self::with(engines, "")
    }

    /// The same with further lines of the file. Its engines end with its agent, unless `engines` says what becomes of them.
    pub(crate) fn with(engines: &str, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let shutdown = if engines.contains("[shutdown]") { "" } else { "[shutdown]\nengines = \"stop\"\n" };
        let text = format!(
            "[node]\nname = \"test\"\nstate_dir = \"state\"\naccelerator = \"cpu\"\nallow_sim = true\nallow_volatile_state = true\n{more}\n{shutdown}{engines}"
        );
        std::fs::write(folder.path().join("node.toml"), text).unwrap();
        Self { folder }
    }

    /// Replaces a part of the node's file that must be there.
    pub(crate) fn edit(&self, from: &str, to: &str) {
        let file = self.path("node.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(file, text.replace(from, to)).unwrap();
    }

    /// Puts further lines behind the node's file.
    pub(crate) fn append(&self, lines: &str) {
        let file = self.path("node.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(file, format!("{text}\n{lines}")).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn config(&self) -> Config {
        Config::load(&self.path("node.toml")).unwrap()
    }

    /// Enrolls with a token.
    pub(crate) async fn enroll(&self, token: String) -> Result<Enrolled, StartError> {
        let config = self.config();
        tokio::task::spawn_blocking(move || umbel_node::enroll(&config, &token)).await.unwrap()
    }

    /// What `umbel node status` shows, once an agent answers.
    pub(crate) async fn status(&self) -> serde_json::Value {
        let socket = self.path("state/node.sock");
        until("the local socket", async || umbel_node::status(&socket).ok()).await
    }

    /// Starts an agent; its log goes to `agent.log` of the folder.
    pub(crate) fn start(&self) -> Agent {
        self.start_with(Command::new(std::env::current_exe().unwrap()), false)
    }

    /// The same with variables set.
    pub(crate) fn start_in(&self, environment: &[(&str, &Path)]) -> Agent {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.envs(environment.iter().copied());
        self.start_with(command, false)
    }

    /// The same as process 1 of a PID namespace of its own; needs root.
    pub(crate) fn start_as_first(&self) -> Agent {
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
            .arg(std::env::current_exe().unwrap());
        self.start_with(command, true)
    }

    fn start_with(&self, mut command: Command, is_first: bool) -> Agent {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.path("agent.log")).unwrap();
        let child = command
            .args(["--exact", "agent::agent_process", "--ignored", "--nocapture"])
            .env(CONFIG, self.path("node.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Agent { child, is_first }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("agent.log")).unwrap_or_default()
    }
}

impl Drop for Folder {
    /// What runs on of its engines is ended, so that nothing outlives the test.
    fn drop(&mut self) {
        let Ok(config) = Config::load(&self.path("node.toml")) else { return };
        // Within the test's own runtime no other may be.
        let ended = std::thread::spawn(move || umbel_node::stop_engines(&config)).join();
        if let Ok(Err(error)) = ended {
            eprintln!("engines of a test run on: {error}");
        }
    }
}

/// A running agent. When dropped it is asked to end, and then killed. It is dropped before its folder.
pub(crate) struct Agent {
    child: Child,
    is_first: bool,
}

impl Agent {
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid()).unwrap(), signal).unwrap();
    }

    /// Waits for its end; the exit code, nothing if a signal ended it.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        until("the agent's end", async || self.child.try_wait().unwrap()).await.code()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let asked = std::time::Instant::now();
        // The process in front of a namespace takes no signal; with its end the namespace ends, and all in it.
        while !self.is_first && matches!(self.child.try_wait(), Ok(None)) && asked.elapsed() < LIMIT {
            // The second one ends it at once.
            self.signal(Signal::TERM);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
