//! The holder of one engine: a small process between the agent and the engine that outlives the agent.
//!
//! Owns being the engine's parent: its own session, the pipe and the log, orphans, the exit status, the end of everything
//! that descends from it; leaves when what is due to `core/holding`, talking with agents to `callers`, and whether the
//! engine shall run to them. Invariants: the record names the holder before the engine exists; the holder goes only when
//! nothing of the engine is left and that stands in the record, or nobody came to hear it; it writes over no record and
//! takes no socket of another.
//!
//! It gets its instruction over a socket that is its standard input: the engine's key is in it, which no command line or
//! environment of a holder ever has.

use std::{
    io,
    os::unix::net::UnixStream as StdUnixStream,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::{
    net::UnixStream,
    signal::unix::{self, SignalKind},
    sync::{mpsc, watch},
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use umbel_wire::clock::Wall;

use crate::{
    core::{
        holding::{Act, Holding, Standing, Told},
        process_tree::Family,
        supervisor::{Exit, GRACE},
    },
    shell::{
        leash,
        process::{self, Launch, Process},
        state::{EngineEnd, EngineRecord, Stands},
    },
};

mod callers;
mod cgroup;
mod link;

pub(crate) use link::{Held, Lost, attach, find, start};

/// What a holder is told by the agent that starts it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Instruction {
    pub(crate) record: EngineRecord,
    /// Of the engines' records.
    pub(crate) folder: PathBuf,
    pub(crate) launch: Launch,
}

/// The agent has written its instruction before it started the holder, or right after.
const INSTRUCTION: Duration = Duration::from_secs(20);
/// After the last process of an engine is gone its output is there at once, unless a stranger holds the pipe.
const OUTPUT_WAIT: Duration = Duration::from_secs(1);
/// Orphans that end are reaped at the latest after this; normally a signal says so.
const REAP: Duration = Duration::from_secs(30);
/// A holder whose engine is gone stays so long for an agent that is connected and does not say that it has heard it.
const KEPT: Duration = Duration::from_secs(60);
/// And so long where its record could not be written: then it is the only one who knows.
const KEPT_UNWRITTEN: Duration = Duration::from_secs(600);
/// Between two attempts to write the record, and how many there are before the start.
const WRITE_AGAIN: Duration = Duration::from_millis(50);
const WRITES: usize = 3;
/// Of a record that was removed, or is another run's.
const NOT_OWN: &str = "the one that the agent wrote is not there any more";

/// Becomes the holder of one engine, or the leash of a program that is no engine; returns with the process's exit code when the engine is gone. Blocks.
///
/// Standard input is a socket that brings the instruction, and is the first connection to the agent.
#[must_use]
pub fn hold() -> u8 {
    // From here on no terminal's signal and no end of a session reaches it or the engine.
    let _ = rustix::process::setsid();
    let leash = leash::order();
    // `ps` shows how it was started otherwise; a kernel that refuses takes only the name.
    let name = if leash.is_some() { "umbel-leash" } else { process::HOLDER };
    let _ = std::fs::write("/proc/self/comm", name);
    process::become_subreaper();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .thread_keep_alive(Duration::from_secs(1))
        .build();
    let Ok(runtime) = runtime else { return 1 };
    let code = match leash {
        Some(order) => runtime.block_on(leash::lead(order)),
        None => runtime.block_on(holder()),
    };
    // A disk that hangs is not waited for.
    runtime.shutdown_background();
    code
}

async fn holder() -> u8 {
    let mut signals = Signals::take();
    let Ok(stream) = standard_input() else { return 2 };
    let mut stream = callers::Line::new(stream);
    let Ok(Ok(Some(instruction))) = timeout(INSTRUCTION, stream.read::<Instruction>()).await else {
        // The agent ended before it had said what to start.
        return 2;
    };
    match Holder::start(instruction).await {
        Ok(mut holder) => {
            holder.callers.take(stream, true);
            holder.run(&mut signals).await;
            0
        }
        Err(why) => {
            let _ = stream.write(&Told::Refused { why }).await;
            1
        }
    }
}

/// The socket that the agent holds the other end of; standard input is empty from then on.
fn standard_input() -> io::Result<UnixStream> {
    let socket = StdUnixStream::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

/// Where the holder of an engine answers, inside the folder of engines.
pub(crate) fn socket_name(engine: &str) -> String {
    format!("{engine}.sock")
}

struct Holder {
    record: EngineRecord,
    folder: PathBuf,
    process: Process,
    family: Option<Family>,
    holding: Holding,
    /// Takes what `/proc` shows late: everything in it can be ended at one stroke.
    cgroup: Option<cgroup::Cgroup>,
    standing: watch::Sender<Standing>,
    door: callers::Door,
    callers: callers::Callers,
    orders: mpsc::Receiver<callers::Order>,
}

impl Holder {
    /// Takes the socket, completes the record and starts the engine.
    async fn start(instruction: Instruction) -> Result<Self, String> {
        let Instruction { mut record, folder, launch } = instruction;
        let unwritable = |error: Option<io::Error>| {
            let error = error.map_or_else(|| NOT_OWN.to_owned(), |error| error.to_string());
            format!("its record cannot be written to the state directory: {error}")
        };
        record.holder = process::own();
        // From here on an agent that comes new finds who answers for it.
        write(&record, &folder).await.map_err(unwritable)?;
        let (listener, door) = callers::listen(&folder, &record.name)
            .await
            .map_err(|error| format!("its holder's socket cannot be made in the state directory: {error}"))?;
        let cgroup = cgroup::Cgroup::enter(&record.nonce);
        let started = Process::start(&launch);
        // What it starts from now on stays there; it does not, so that it is not ended with it.
        let cgroup = cgroup.and_then(cgroup::Cgroup::leave);
        let process = match started {
            Ok(process) => process,
            Err(error) => {
                forget(&door, cgroup);
                return Err(format!("cannot be started: {error}"));
            }
        };
        drop(launch);
        record.engine = process.born();
        let standing = Standing {
            nonce: record.nonce.clone(),
            holder: record.holder,
            engine: record.engine,
            exit: None,
            gone: None,
        };
        let (standing, told) = watch::channel(standing);
        let (callers, orders) = callers::Callers::new(listener, told, process.output.clone());
        let family = Some(Family::new(&[record.engine]));
        let mut holder = Self {
            record,
            folder,
            process,
            family,
            holding: Holding::default(),
            cgroup,
            standing,
            door,
            callers,
            orders,
        };
        if let Err(error) = write(&holder.record, &holder.folder).await {
            holder.end_now().await;
            forget(&holder.door, holder.cgroup.take());
            return Err(unwritable(error));
        }
        Ok(holder)
    }

    /// Holds the engine until nothing of it is left.
    async fn run(&mut self, signals: &mut Signals) {
        let mut looks = interval(process::LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.holding.is_gone() {
            let now = Instant::now;
            let act = tokio::select! {
                exit = self.process.exited(), if self.standing.borrow().exit.is_none() => {
                    self.standing.send_modify(|standing| standing.exit = Some(exit));
                    self.holding.exited(now())
                }
                Some(order) = self.orders.recv() => match order {
                    callers::Order::End(grace) => self.holding.end(now(), grace),
                    callers::Order::Record => { self.record_again().await; None }
                    callers::Order::Release => None,
                },
                () = came(&mut signals.terminate) => self.holding.end(now(), GRACE),
                () = came(&mut signals.children) => { process::reap_orphans(); None }
                () = sleep(REAP) => { process::reap_orphans(); None }
                () = self.callers.accept() => None,
                _ = looks.tick(), if self.holding.is_ending() => {
                    let living = self.living().await.len();
                    self.holding.looked(now(), living)
                }
            };
            self.carry_out(act).await;
        }
        self.tell_the_end().await;
        forget(&self.door, self.cgroup.take());
    }

    async fn carry_out(&mut self, act: Option<Act>) {
        let signal = match act {
            None => return,
            Some(Act::Terminate) => Signal::TERM,
            Some(Act::Kill) => {
                if let Some(cgroup) = &self.cgroup {
                    cgroup.kill();
                }
                Signal::KILL
            }
        };
        // The look and the signals take no longer than a few milliseconds.
        process::signal(&self.living().await, signal);
    }

    /// The living processes of the engine.
    async fn living(&mut self) -> Vec<crate::core::process_tree::ProcessFacts> {
        let mut family = self.family.take().unwrap_or_else(|| Family::new(&[self.record.engine]));
        let looked = tokio::task::spawn_blocking(move || {
            let members = process::descendants(&mut family);
            (family, members)
        });
        let (family, members) =
            looked.await.unwrap_or_else(|_| (Family::new(&[self.record.engine]), Vec::new()));
        self.family = Some(family);
        process::reap_orphans();
        members
    }

    /// The engine cannot be answered for: it does not live on.
    async fn end_now(&mut self) {
        loop {
            let living = self.living().await;
            if living.is_empty() {
                return;
            }
            process::signal(&living, Signal::KILL);
            sleep(process::LOOK).await;
        }
    }

    /// Writes the record, if it is still its own: without one nobody waits for the end.
    async fn is_written(&self) -> bool {
        !matches!(write(&self.record, &self.folder).await, Err(Some(_)))
    }

    /// An agent has found no record of it: without one nobody can go on with it.
    async fn record_again(&self) {
        let (record, folder) = (self.record.clone(), self.folder.clone());
        let again = move || match record.stands(&folder) {
            Stands::Missing => record.write(&folder),
            Stands::Own | Stands::Other | Stands::Damaged => Ok(()),
        };
        // Whoever asked looks whether it is there.
        let _ = tokio::task::spawn_blocking(again).await;
        self.standing.send_modify(|_| ());
    }

    /// Writes how it ended and tells it, until somebody has heard it or nobody is there to.
    async fn tell_the_end(&mut self) {
        if let Some(all_read) = self.process.all_read.take() {
            // After that time whoever holds the pipe is no part of the engine.
            let _ = timeout(OUTPUT_WAIT, all_read).await;
        }
        let exit = self.standing.borrow().exit.unwrap_or(Exit::Unknown);
        let tail = self.process.output.report();
        self.record.end = Some(EngineEnd { exit, at_unix_ms: Wall::now().unix_ms(), tail: tail.clone() });
        let mut written = self.is_written().await;
        self.standing.send_modify(|standing| standing.gone = Some(tail));
        let since = Instant::now();
        loop {
            let over = if written { KEPT } else { KEPT_UNWRITTEN };
            if since.elapsed() >= over || (written && self.callers.are_gone()) {
                return;
            }
            tokio::select! {
                Some(order) = self.orders.recv() => if matches!(order, callers::Order::Release) { return },
                () = self.callers.accept() => {}
                () = sleep(Duration::from_secs(1)) => {
                    written = written || self.is_written().await;
                }
            }
        }
    }
}

/// The signals that a holder takes. Handlers, not dispositions: what it starts has none of them. Those of a terminal do
/// nothing.
struct Signals {
    terminate: Option<unix::Signal>,
    children: Option<unix::Signal>,
    _ignored: [Option<unix::Signal>; 3],
}

impl Signals {
    fn take() -> Self {
        let take = |kind| unix::signal(kind).ok();
        Self {
            terminate: take(SignalKind::terminate()),
            children: take(SignalKind::child()),
            _ignored: [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit()].map(take),
        }
    }
}

/// The places of a holder go with it. The record stays: an agent reads it.
fn forget(door: &callers::Door, cgroup: Option<cgroup::Cgroup>) {
    door.remove();
    if let Some(cgroup) = cgroup {
        cgroup.remove();
    }
}

/// Writes the record, where the one that stands is this run's or nobody's. An agent that starts sweeps away what half-made writes have left, and may take a whole one for such.
///
/// # Errors
/// Of the disk; nothing, if it was removed or is another run's.
async fn write(record: &EngineRecord, folder: &Path) -> Result<(), Option<io::Error>> {
    let mut result = Ok(());
    for _ in 0..WRITES {
        let (record, folder) = (record.clone(), folder.to_owned());
        let written = tokio::task::spawn_blocking(move || match record.stands(&folder) {
            Stands::Own | Stands::Damaged => record.write(&folder).map_err(Some),
            Stands::Missing | Stands::Other => Err(None),
        });
        result = written.await.unwrap_or_else(|broken| Err(Some(io::Error::other(broken))));
        if !matches!(result, Err(Some(_))) {
            return result;
        }
        sleep(WRITE_AGAIN).await;
    }
    result
}

/// A signal that cannot be taken never comes.
async fn came(signal: &mut Option<unix::Signal>) {
    let taken = match signal {
        Some(signal) => signal.recv().await,
        None => None,
    };
    if taken.is_none() {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests;
