//! A program that may not outlive its agent: one that is asked for its version, or runs for one request.
//!
//! Owns the small process between the two (the same binary): it starts the program, gives it its own input and output, and
//! ends with the program's code. Leaves what the program is for to others. Invariant: when the program has ended, when the
//! leash is told to end, and when the agent is gone, however it went, nothing that descends from the program is left.
//!
//! An engine is held by a holder instead, and outlives the agent.

use std::{
    io,
    os::{fd::OwnedFd, unix::process::ExitStatusExt},
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};
use tokio::{
    io::unix::AsyncFd,
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep},
};

use super::process::{self, Waited};
use crate::{core::process_tree::Family, engines::adapter};

/// The variable that makes a leash of what is started as a holder: its order, as JSON.
const ORDER: &str = "UMBEL_LEASH";
/// What is killed and does not go in this time hangs in the kernel.
const LIMIT: Duration = Duration::from_secs(5);
/// Between two looks at what is left.
const LOOK: Duration = Duration::from_millis(10);
/// The code of a program that could not be started, as shells have it.
const NOT_STARTED: u8 = 127;

/// What a leash is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    program: PathBuf,
    arguments: Vec<String>,
    /// The process whose end is the program's.
    agent: i32,
}

/// A program on its leash, seen by the agent; dropped, it ends.
#[derive(Debug)]
pub(crate) struct Leashed {
    pub(crate) child: Child,
    group: Option<Pid>,
    over: bool,
    /// The reaper leaves it alone until this is dropped.
    _waited: Waited,
}

impl Leashed {
    /// Starts a program. `holder`: how this program becomes a leash; empty only in tests of other things, which then start
    /// the program itself. `with` sets its input and output.
    ///
    /// # Errors
    /// If the leash cannot be started; a program that cannot be ends with 127.
    pub(crate) fn start(
        holder: &[&str],
        program: &Path,
        arguments: &[&str],
        with: impl FnOnce(&mut Command),
    ) -> io::Result<Self> {
        let mut command = if holder.is_empty() {
            let mut command = Command::new(program);
            command.args(arguments).env_clear().envs(adapter::inherited());
            command
        } else {
            let order = Order {
                program: program.to_owned(),
                arguments: arguments.iter().map(ToString::to_string).collect(),
                agent: rustix::process::getpid().as_raw_nonzero().get(),
            };
            // This very file, also if another has taken its place on the disk since.
            let mut command = Command::new("/proc/self/exe");
            command
                .arg0("umbel")
                .args(holder)
                .env_clear()
                .envs(adapter::inherited())
                .env(ORDER, serde_json::to_string(&order).map_err(io::Error::other)?)
                .env(process::NONCE, process::NO_ENGINE);
            command
        };
        with(&mut command);
        command.process_group(0);
        let (child, waited) = Waited::spawn(&mut command)?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(Self { child, group, over: false, _waited: waited })
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If how it ended cannot be told.
    pub(crate) async fn ended(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await;
        self.over = true;
        status
    }
}

impl Drop for Leashed {
    fn drop(&mut self) {
        if let Some(group) = self.group.filter(|_| !self.over) {
            // Its id is its own until somebody waits for it. The leash ends all else; it may have ended already.
            let _ = rustix::process::kill_process_group(group, Signal::TERM);
        }
    }
}

/// The order of this process, if it shall be a leash.
pub(super) fn order() -> Option<Order> {
    serde_json::from_str(&std::env::var(ORDER).ok()?).ok()
}

/// Leads a program to its end; the code to exit with.
pub(super) async fn lead(order: Order) -> u8 {
    let (Ok(mut told), Ok(agent)) = (signal(SignalKind::terminate()), watched(order.agent)) else {
        return NOT_STARTED;
    };
    let mut command = Command::new(&order.program);
    command.args(&order.arguments).env_remove(ORDER).env_remove(process::NONCE).process_group(0);
    let Ok(mut child) = command.spawn() else { return NOT_STARTED };
    let born = child.id().and_then(|id| i32::try_from(id).ok()).map(process::born);
    // Only the program has them: it decides when they end.
    let _ = let_go();
    let code = tokio::select! {
        status = child.wait() => status.map_or(NOT_STARTED, code),
        _ = told.recv() => NOT_STARTED,
        _ = agent.readable() => NOT_STARTED,
    };
    // What it started and left, and itself if it still runs.
    let mut family = Family::new(born.as_slice());
    let until = Instant::now() + LIMIT;
    while Instant::now() < until {
        let left = process::descendants(&mut family);
        let lives: Vec<_> = left.into_iter().filter(|facts| !facts.zombie).collect();
        if lives.is_empty() {
            break;
        }
        process::signal(&lives, Signal::KILL);
        sleep(LOOK).await;
    }
    code
}

/// A process that is this one's parent now; readable once it has ended.
fn watched(agent: i32) -> io::Result<AsyncFd<OwnedFd>> {
    let gone = || io::Error::from(io::ErrorKind::NotFound);
    let pid = Pid::from_raw(agent).ok_or_else(gone)?;
    let handle = rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK)?;
    // Looked at after the handle was opened: it is that process's, or the agent was gone already.
    if rustix::process::getppid() != Some(pid) {
        return Err(gone());
    }
    #[expect(
        deprecated,
        reason = "the others are unsafe, and an OwnedFd is open for as long as it is registered"
    )]
    AsyncFd::new(handle)
}

fn let_go() -> io::Result<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// A program's end as a code: signals as shells have them.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(NOT_STARTED)
}

#[cfg(test)]
mod tests;
