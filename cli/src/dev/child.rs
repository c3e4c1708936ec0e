//! The processes of a fleet on loopback: the same binary, one a tier.
//!
//! Owns starting, logs and ending. Each child reads a pipe whose other end is held here: when this process goes,
//! even by SIGKILL, the pipe ends and the child drains. Invariant: only processes started here are signalled, by
//! their own handle, so never a reused pid.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{Read as _, Seek as _, SeekFrom},
    os::unix::{fs::OpenOptionsExt as _, process::ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::AsyncWriteExt as _,
    process::{Child, ChildStdin, Command},
    time::{Instant, timeout_at},
};

use crate::exit::{Failure, Outcome};

/// From SIGTERM to SIGKILL: the drain of the files (2 s), engines that end, and some room.
const GRACE: Duration = Duration::from_secs(10);
/// A set-up step makes keys and a store; on a slow disk that takes seconds.
const STEP: Duration = Duration::from_secs(60);
/// How much of a log is shown when its process ended.
const TAIL_BYTES: u64 = 4096;
const TAIL_LINES: usize = 15;

/// A running daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    name: String,
    pid: u32,
    log: PathBuf,
    child: Child,
    /// Its end tells the child that this process is gone.
    _lifeline: Option<ChildStdin>,
    ended: Option<ExitStatus>,
}

impl Daemon {
    /// Starts `umbel TIER --config FILE` with its output in `log`.
    pub(crate) fn start(name: &str, tier: &str, config: &Path, log: &Path) -> Outcome<Self> {
        let output = open_log(log)?;
        let errors = output.try_clone()?;
        let mut command =
            base_command(&[tier.into(), "--config".into(), config.into(), "--parent-pipe".into()])?;
        command.stdin(Stdio::piped()).stdout(output).stderr(errors).kill_on_drop(true);
        let mut child =
            command.spawn().map_err(|error| Failure::failed(format!("cannot start {name}: {error}")))?;
        let pid = child.id().ok_or_else(|| Failure::failed(format!("{name} ended at once")))?;
        let lifeline = child.stdin.take();
        Ok(Daemon {
            name: name.to_owned(),
            pid,
            log: log.to_owned(),
            child,
            _lifeline: lifeline,
            ended: None,
        })
    }

    /// What people call it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it was seen to end.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Waits for its end. Cancel safe.
    pub(crate) async fn wait(&mut self) -> Option<ExitStatus> {
        if let Ok(status) = self.child.wait().await {
            self.ended = Some(status);
        }
        self.ended
    }

    /// Its end, if it was there already.
    pub(crate) fn poll(&mut self) -> Option<ExitStatus> {
        if let Ok(Some(status)) = self.child.try_wait() {
            self.ended = Some(status);
        }
        self.ended
    }

    /// How it ended and what it said last, for people.
    pub(crate) fn epitaph(&self, status: ExitStatus) -> String {
        let tail = tail(&self.log);
        let log = self.log.display();
        format!("{} ended: {}. The end of {log}:\n{tail}", self.name, describe(status))
    }

    /// Asks it to end.
    fn terminate(&self) {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        if let (Some(pid), None) = (pid, self.ended) {
            // It was not waited for, so the pid is still its own.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

/// Ends all: SIGTERM to each at once, SIGKILL to those that are left after the grace. `over` cuts the grace short.
pub(crate) async fn end_all(daemons: &mut [Daemon], over: impl Future<Output = ()>) {
    for daemon in daemons.iter_mut() {
        if daemon.poll().is_none() {
            daemon.terminate();
        }
    }
    let deadline = Instant::now() + GRACE;
    let all = async {
        for daemon in daemons.iter_mut() {
            if daemon.ended.is_none() {
                daemon.wait().await;
            }
        }
    };
    tokio::select! {
        _ = timeout_at(deadline, all) => {}
        () = over => {}
    }
    for daemon in daemons.iter_mut().filter(|daemon| daemon.ended.is_none()) {
        // Already ended is as good as killed.
        let _ = daemon.child.start_kill();
        daemon.wait().await;
    }
}

/// Runs a set-up command to its end, with `secret` on its standard input.
pub(crate) async fn set_up(what: &str, args: &[OsString], secret: Option<&str>) -> Outcome<String> {
    let mut command = base_command(args)?;
    let input = if secret.is_some() { Stdio::piped() } else { Stdio::null() };
    command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child =
        command.spawn().map_err(|error| Failure::failed(format!("cannot start: {error}")).during(what))?;
    if let (Some(mut input), Some(secret)) = (child.stdin.take(), secret) {
        // A child that ended without reading says why on its standard error.
        let _ = input.write_all(secret.as_bytes()).await;
    }
    let done = timeout_at(Instant::now() + STEP, child.wait_with_output()).await;
    let done = done.map_err(|_| Failure::failed("took longer than 60s").during(what))??;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(Failure::failed(format!("{what}: {}\n{}", describe(done.status), said.trim_end())))
}

fn base_command(args: &[OsString]) -> Outcome<Command> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("cannot find this program's own file: {error}")))?;
    let mut command = Command::new(program);
    // A group of its own: Ctrl-C reaches this process only, which then ends the children in its own way.
    command.args(args).process_group(0);
    for name in ["UMBEL_SOCKET", "UMBEL_ADDR", "UMBEL_TOKEN_FILE", "UMBEL_CA_FILE"] {
        command.env_remove(name);
    }
    Ok(command)
}

fn open_log(path: &Path) -> Outcome<File> {
    let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    opened.map_err(|error| Failure::failed(format!("cannot open {}: {error}", path.display())))
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "for an unknown reason".to_owned(),
    }
}

fn tail(path: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let kept = lines.iter().skip(lines.len().saturating_sub(TAIL_LINES));
    let text: Vec<String> = kept.map(|line| format!("    {}", crate::output::printable(line))).collect();
    if text.is_empty() { "    (it wrote nothing)".to_owned() } else { text.join("\n") }
}
