//! The host's GPUs through NVIDIA's management library, loaded at run time.
//!
//! Owns the thread that alone may call it and the questions to it; leaves the calls to `driver`, what a mode asks for to
//! `preflight`, and what becomes of a sweep to `core/gpus`. Invariant: at most one question is out and at most one
//! thread can hang in the driver, and nobody waits for it longer than he said.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use nvml_wrapper::Nvml;
use tokio::sync::Notify;
use umbel_wire::contained_now;

use crate::{config::Accelerator, core::gpus::Sweep};

mod driver;
mod fabric;
mod holders;

pub(crate) use holders::{Ended, Holders};

/// The library's name where the file says no other: the one that comes with the driver, not the one of a toolkit.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// A first look that takes longer hangs; the preflight as a whole ends within 10 s.
pub(crate) const LIMIT: Duration = Duration::from_secs(9);
/// A driver in trouble is closed and opened again this often: a GPU that was reset is only seen then, and repeated
/// opening has hung on real drivers.
const REOPEN: Duration = Duration::from_secs(60);

/// Why the GPUs cannot be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No library, no driver, or a call that hangs.
    Unavailable(String),
    /// The library sees no GPU.
    NoDevice,
    /// No GPU gives figures.
    NoTelemetry(String),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unavailable(why) => write!(f, "NVIDIA_NVML_UNAVAILABLE: {why}"),
            Self::NoDevice => f.write_str("NVIDIA_DEVICE_NOT_FOUND: the driver shows no GPU"),
            Self::NoTelemetry(why) => write!(f, "NVIDIA_TELEMETRY_UNAVAILABLE: {why}"),
        }
    }
}

/// One pass over the driver, and when it ended.
type Pass = (Instant, Result<Sweep, Fault>);

/// Where the thread lays its answer down.
#[derive(Debug, Default)]
struct Desk {
    answer: Mutex<Option<Pass>>,
    /// A question is with the thread.
    out: AtomicBool,
    told: Notify,
}

impl Desk {
    fn put(&self, result: Result<Sweep, Fault>) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), result));
        self.out.store(false, Ordering::Release);
        self.told.notify_one();
    }

    fn take(&self) -> Option<Pass> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Asks the thread that owns the library.
#[derive(Debug)]
pub(crate) struct Gpus {
    /// Nothing: this host needs none.
    asks: Option<SyncSender<Vec<String>>>,
    desk: Arc<Desk>,
}

impl Gpus {
    /// Starts the thread where the mode and the host call for it. `library`: its path, if not the usual one.
    pub(crate) fn start(mode: Accelerator, library: Option<&Path>) -> Self {
        let desk = Arc::new(Desk::default());
        if !is_wanted(mode) {
            return Self { asks: None, desk };
        }
        let (asks, asked) = sync_channel(1);
        let library = library.map_or_else(|| PathBuf::from(LIBRARY), Path::to_owned);
        let thread = {
            let desk = Arc::clone(&desk);
            move || {
                while contained_now(|| serve(&asked, &library, &desk)).is_err() {
                    desk.put(Err(Fault::Unavailable(
                        "a look at them broke off by a defect of the agent".into(),
                    )));
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("nvml".into()).spawn(thread) {
            tracing::error!(%error, "the thread for GPUs cannot be started");
        }
        // Without the thread the other end is gone, and every question says so.
        Self { asks: Some(asks), desk }
    }

    /// GPUs are looked for on this host.
    pub(crate) fn are_wanted(&self) -> bool {
        self.asks.is_some()
    }

    /// One pass over all GPUs; `known` are the UUIDs of those that were seen before. Ends after `patience`; an answer
    /// that comes later is the next one's.
    pub(crate) async fn sweep(&self, known: Vec<String>, patience: Duration) -> Pass {
        let Some(asks) = &self.asks else { return (Instant::now(), Ok(Sweep::default())) };
        let failed = |why: &str| (Instant::now(), Err(Fault::Unavailable(why.into())));
        if !self.desk.out.swap(true, Ordering::AcqRel) && asks.try_send(known).is_err() {
            return failed("its thread has ended");
        }
        let answer = async {
            loop {
                match self.desk.take() {
                    Some(answer) => return answer,
                    None => self.desk.told.notified().await,
                }
            }
        };
        tokio::time::timeout(patience, answer)
            .await
            .unwrap_or_else(|_| failed("a call of the driver's library does not return"))
    }
}

/// Whether the mode asks for GPUs on this host.
fn is_wanted(mode: Accelerator) -> bool {
    let visible = std::env::var("NVIDIA_VISIBLE_DEVICES").unwrap_or_default();
    let devices = Path::new("/dev/nvidiactl").exists() || Path::new("/proc/driver/nvidia/gpus").exists();
    calls_for_gpus(mode, &visible, devices)
}

/// `visible`: what the container's environment says; `devices`: the driver's files are there.
fn calls_for_gpus(mode: Accelerator, visible: &str, devices: bool) -> bool {
    match mode {
        Accelerator::Cpu => false,
        Accelerator::Nvidia => true,
        Accelerator::Auto => !is_none(visible) && (!visible.is_empty() || devices),
    }
}

/// Words of NVIDIA's container runtime for no device.
fn is_none(visible: &str) -> bool {
    matches!(visible, "void" | "none")
}

fn serve(asked: &Receiver<Vec<String>>, library: &Path, desk: &Desk) {
    let mut next = asked.recv().ok();
    while let Some(known) = next {
        if std::env::var("NVIDIA_VISIBLE_DEVICES").is_ok_and(|visible| is_none(&visible)) {
            desk.put(Err(Fault::NoDevice));
            next = asked.recv().ok();
            continue;
        }
        match Nvml::builder().lib_path(library.as_os_str()).init() {
            Ok(nvml) => next = sweep_until_reopened(&nvml, known, asked, desk),
            Err(error) => {
                desk.put(Err(driver::unavailable(&error, library)));
                next = asked.recv().ok();
            }
        }
    }
}

/// Answers with one opened library; returns the question that wants it opened anew, nothing if nobody asks any more.
fn sweep_until_reopened(
    nvml: &Nvml,
    mut known: Vec<String>,
    asked: &Receiver<Vec<String>>,
    desk: &Desk,
) -> Option<Vec<String>> {
    let opened = Instant::now();
    let mut xids = driver::Xids::default();
    loop {
        let swept = driver::sweep(nvml, &mut xids, &known);
        let troubled = swept.as_ref().map_or(true, |sweep| !sweep.unreadable.is_empty());
        desk.put(swept);
        known = asked.recv().ok()?;
        if troubled && opened.elapsed() >= REOPEN {
            return Some(known);
        }
    }
}

#[cfg(test)]
mod tests;
