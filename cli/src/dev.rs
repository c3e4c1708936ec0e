//! `umbel dev`: a control plane, its sites and their nodes on loopback, each a process of its own.
//!
//! Owns the order of starting and ending. Leaves what each tier is to its daemon: this only writes files, runs
//! the same commands that an operator would, and waits. Invariant: whatever happens, no child outlives it.

mod banner;
mod child;
mod files;
mod plan;
mod ports;
mod ready;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, flock};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    args::DevArgs,
    exit::{Exit, Failure, Outcome},
    output::{put, say},
};
use child::Daemon;
use plan::Plan;
use ports::Ports;

/// How long a whole fleet may take to serve: a model of some GB loads from a slow disk in minutes.
const READY: Duration = Duration::from_secs(300);

/// Runs a fleet until a signal ends it.
pub(crate) async fn run(args: DevArgs) -> Outcome {
    let started = Instant::now();
    let mut signals = Signals::new()?;
    let folder = Folder::open(args.keep.as_deref())?;
    let mut ports = Ports::default();
    let mut plan = match Plan::find_or_make(&folder.path, &args, &mut ports).await {
        Ok(plan) => plan,
        Err(failure) => {
            folder.close(true);
            return Err(failure);
        }
    };
    let mut daemons = Vec::new();
    let outcome = {
        let up = async {
            tokio::time::timeout(READY, ready::bring_up(&mut plan, &mut daemons)).await.unwrap_or_else(|_| {
                Err(Failure::new(Exit::TimedOut, "the fleet did not serve within 5 minutes")
                    .remedy(format!("look into {}", folder.path.join("logs").display())))
            })
        };
        tokio::select! {
            outcome = up => outcome.map(|()| true),
            () = signals.next() => Ok(false),
        }
    };
    let result = match outcome {
        Ok(true) => {
            let record = ready::record(&plan, &daemons);
            let text =
                serde_json::to_vec_pretty(&record).map_err(|error| Failure::failed(error.to_string()))?;
            files::write_private(&folder.path.join("dev.json"), &text)?;
            put(&banner::text(&plan, &record, folder.kept, started.elapsed())?);
            watch(&mut daemons, &mut signals).await;
            Ok(())
        }
        Ok(false) => Err(Failure::new(Exit::Interrupted, "interrupted before the fleet was ready")),
        Err(failure) => Err(failure),
    };
    say("Ending the fleet. Once more to end it at once.");
    child::end_all(&mut daemons, signals.next()).await;
    // A record of pids that are gone would mislead.
    let _ = fs::remove_file(folder.path.join("dev.json"));
    let wanted = result.as_ref().map_or_else(|failure| failure.exit() == Exit::Interrupted, |()| true);
    folder.close(wanted);
    result
}

/// Tells of children that end, until a signal comes or none is left.
async fn watch(daemons: &mut [Daemon], signals: &mut Signals) {
    loop {
        let ended = async {
            let waits = daemons.iter_mut().filter(|daemon| !daemon.has_ended()).map(|daemon| {
                Box::pin(async move {
                    let status = daemon.wait().await;
                    status.map(|status| daemon.epitaph(status))
                })
            });
            let waits: Vec<_> = waits.collect();
            if waits.is_empty() {
                return None;
            }
            Some(futures_util::future::select_all(waits).await.0)
        };
        tokio::select! {
            () = signals.next() => return,
            ended = ended => match ended {
                Some(epitaph) => say(&format!("{}\nThe others go on.", epitaph.unwrap_or_default())),
                None => {
                    say("Every process of the fleet has ended.");
                    return;
                }
            },
        }
    }
}

/// The signals that end a fleet.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> Outcome<Self> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

/// The folder of a fleet, locked while it is used.
struct Folder {
    path: PathBuf,
    kept: bool,
    _lock: File,
}

impl Folder {
    fn open(keep: Option<&Path>) -> Outcome<Self> {
        let path = match keep {
            Some(path) => {
                files::make_dir(path)?;
                fs::canonicalize(path)?
            }
            None => temporary()?,
        };
        files::make_dir(&path.join("logs"))?;
        let lock =
            fs::OpenOptions::new().create(true).truncate(false).write(true).open(path.join("dev.lock"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Failure::new(Exit::Conflict, format!("another `umbel dev` runs in {}", path.display()))
                .remedy("end it first, or name another folder with --keep")
        })?;
        Ok(Folder { path, kept: keep.is_some(), _lock: lock })
    }

    /// Removes a temporary folder. After a failure it stays, since its logs say why.
    fn close(self, well: bool) {
        if self.kept {
            return;
        }
        if !well {
            say(&format!("Its logs stay in {}", self.path.join("logs").display()));
        } else if let Err(error) = fs::remove_dir_all(&self.path) {
            say(&format!("warning: cannot remove {}: {error}", self.path.display()));
        }
    }
}

/// A new folder that only its owner can enter; its name is short, since sockets stand in it.
fn temporary() -> Outcome<PathBuf> {
    use std::os::unix::fs::DirBuilderExt as _;
    for _ in 0..16 {
        let mut random = [0u8; 4];
        umbel_wire::secret::random_bytes(&mut random);
        let name = format!("umbel-dev-{}", data_encoding::BASE32_NOPAD.encode(&random).to_ascii_lowercase());
        let path = std::env::temp_dir().join(name);
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(fs::canonicalize(&path)?),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Failure::failed(format!("cannot make {}: {error}", path.display()))),
        }
    }
    Err(Failure::failed("cannot find a free name for a temporary folder"))
}
