//! One process of the fleet: start, signals, waiting for its end, its log; ended by its pid on drop.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, kill_process};

use super::binary;
use crate::wait;

/// The signals that tests send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM.
    Term,
    /// SIGINT.
    Int,
    /// SIGKILL.
    Kill,
    /// SIGSTOP.
    Stop,
    /// SIGCONT.
    Continue,
}

/// A process that was or is running.
pub struct Daemon {
    name: String,
    arguments: Vec<String>,
    /// Put before the binary: `["sh", "-c", "ulimit -n 256; exec \"$@\"", "sh"]`.
    pub wrapper: Vec<String>,
    /// Further environment.
    pub environment: Vec<(String, String)>,
    log: PathBuf,
    child: Option<Child>,
}

impl Daemon {
    pub(super) fn new(name: &str, dir: &Path, arguments: Vec<String>) -> Self {
        Self {
            name: name.to_owned(),
            arguments,
            wrapper: Vec::new(),
            environment: Vec::new(),
            log: dir.join(format!("{name}.log")),
            child: None,
        }
    }

    /// Starts it; its output is added to its log.
    ///
    /// # Panics
    /// When it runs already or cannot be started.
    #[allow(clippy::expect_used, reason = "a rig that cannot start a process fails its test")]
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "{} runs already", self.name);
        let out = fs::File::options().create(true).append(true).open(&self.log).expect("the log");
        let err = out.try_clone().expect("the log");
        let mut words = self.wrapper.iter();
        let mut command = match words.next() {
            Some(first) => {
                let mut command = Command::new(first);
                command.args(words).arg(binary());
                command
            }
            None => Command::new(binary()),
        };
        command.args(&self.arguments).stdin(Stdio::null()).stdout(out).stderr(err);
        command.env_remove("RUST_LOG").envs(self.environment.iter().map(|(k, v)| (k, v)));
        self.child = Some(command.spawn().expect("the binary starts"));
    }

    /// Its process id.
    ///
    /// # Panics
    /// When it was not started.
    #[must_use]
    #[allow(clippy::expect_used, reason = "asking for the pid of nothing is the test's mistake")]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("started").id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let Some(child) = &self.child else { return };
        let signal = match signal {
            Signal::Term => rustix::process::Signal::TERM,
            Signal::Int => rustix::process::Signal::INT,
            Signal::Kill => rustix::process::Signal::KILL,
            Signal::Stop => rustix::process::Signal::STOP,
            Signal::Continue => rustix::process::Signal::CONT,
        };
        if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|c| matches!(c.try_wait(), Ok(None)))
    }

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    /// When it still runs after `limit`.
    #[track_caller]
    pub fn wait_end(&mut self, limit: Duration) -> ExitStatus {
        let name = self.name.clone();
        let status = wait::until_some(&format!("{name} ends"), limit, || match &mut self.child {
            Some(child) => match child.try_wait() {
                Ok(Some(status)) => Ok(status),
                other => Err(format!("{other:?}")),
            },
            None => Err("never started".to_owned()),
        });
        self.child = None;
        status
    }

    /// SIGKILL, and gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGTERM, and gone within `limit`.
    ///
    /// # Panics
    /// When it still runs after `limit`.
    #[track_caller]
    pub fn stop(&mut self, limit: Duration) -> ExitStatus {
        self.signal(Signal::Term);
        self.wait_end(limit)
    }

    /// SIGKILL, then a start with the same files.
    pub fn restart(&mut self) {
        self.kill();
        self.start();
    }

    /// All that it has written.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Open files, threads and resident kilobytes, from /proc.
    #[must_use]
    pub fn figures(&self) -> (usize, usize, u64) {
        let pid = self.pid();
        let count = |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).map_or(0, Iterator::count);
        (count("fd"), count("task"), resident_kb(pid))
    }
}

/// Resident memory of a process in kilobytes; 0 when it is gone.
#[must_use]
pub fn resident_kb(pid: u32) -> u64 {
    memory_kb(pid, "VmRSS:")
}

/// The most address space that a process ever had, in kilobytes: memory that was asked for and never touched is in it.
#[must_use]
pub fn reserved_kb(pid: u32) -> u64 {
    memory_kb(pid, "VmPeak:")
}

fn memory_kb(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .find_map(|l| l.strip_prefix(name))
        .and_then(|l| l.split_whitespace().next())
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}

/// Processor seconds that a process has used, those of its ended threads included.
///
/// # Panics
/// When it is gone.
#[must_use]
#[allow(
    unsafe_code,
    reason = "rustix has no clock of another process; files in /proc forget threads or count in ticks"
)]
pub fn cpu_seconds(pid: u32) -> f64 {
    let mut clock = 0;
    let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both are given a place of the right type that lives as long as the call.
    let done = unsafe {
        libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut used) == 0
    };
    assert!(done, "process {pid} has no clock");
    Duration::new(used.tv_sec.cast_unsigned(), u32::try_from(used.tv_nsec).unwrap_or(0)).as_secs_f64()
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<_> = log.lines().rev().take(25).collect();
            eprintln!("--- {} (last lines of its log)", self.name);
            for line in tail.iter().rev() {
                let short: String = line.chars().take(400).collect();
                eprintln!("    {short}");
            }
        }
        // A stopped process dies of SIGKILL too.
        self.kill();
    }
}
