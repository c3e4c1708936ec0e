//! An agent's side of a held engine: starting its holder, finding one that an earlier agent started, following its end.
//!
//! Owns the connection; leaves what the engine is and when it shall end to `shell/engines`. Invariant: an engine is only
//! taken for the one of a record if its holder says so and names the record's run, and the kernel says that its process
//! is still that one.

use std::{
    collections::VecDeque,
    io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdUnixStream},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use tokio::{
    net::UnixStream,
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use super::{Instruction, callers::Line, callers::short_path, socket_name};
use crate::{
    core::{
        holding::{Ask, Standing, Told},
        process_tree::{Born, Family, ProcessFacts},
        supervisor::Exit,
        tail::Followed,
    },
    shell::{process, state::EngineRecord},
};

/// A holder writes two small files and starts a process; a slow disk takes seconds for that.
const START: Duration = Duration::from_secs(30);
/// A holder that lives answers in milliseconds.
const ANSWER: Duration = Duration::from_secs(2);
/// Orders that are not sent yet.
const ORDERS: usize = 8;

/// The holder has ended without having said that nothing of its engine is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost;

/// What an agent asks on one connection.
#[derive(Debug)]
enum Order {
    Ask(Ask),
    Output { after: Option<u64>, lines: usize, answer: oneshot::Sender<Followed> },
}

/// What is known of a held engine now.
#[derive(Debug, Clone)]
struct Known {
    standing: Standing,
    lost: bool,
}

/// A running engine and the connection to its holder.
#[derive(Debug)]
pub(crate) struct Held {
    known: watch::Receiver<Known>,
    orders: mpsc::Sender<Order>,
}

/// Starts a holder, and an engine by it. The record must stand on the disk. `holder`: how this program becomes one.
///
/// # Errors
/// Why there is no engine, in one sentence. If the holder was lost on the way, something of the engine may be left:
/// whoever asked ends it by the record's nonce.
pub(crate) async fn start(holder: &[&str], instruction: Instruction) -> Result<Held, String> {
    let failed = |error: io::Error| format!("its holder cannot be started: {error}");
    let (ours, theirs) = StdUnixStream::pair().map_err(failed)?;
    ours.set_nonblocking(true).map_err(failed)?;
    let (arguments, folder) = (holder.iter().map(ToString::to_string).collect(), instruction.folder.clone());
    let (nonce, name) = (instruction.record.nonce.clone(), instruction.record.name.clone());
    let spawned =
        tokio::task::spawn_blocking(move || spawn(arguments, &folder, (&nonce, &name), theirs.into()));
    spawned.await.unwrap_or_else(|broken| Err(io::Error::other(broken))).map_err(failed)?;
    let mut line = Line::new(UnixStream::from_std(ours).map_err(failed)?);
    let told = async {
        line.write(&instruction).await?;
        line.read::<Told>().await
    };
    match timeout(START, told).await {
        Ok(Ok(Some(Told::Standing(standing)))) if standing.nonce == instruction.record.nonce => {
            Ok(follow(line, standing))
        }
        Ok(Ok(Some(Told::Refused { why }))) => Err(why),
        Ok(Ok(_)) => Err("its holder ended before the engine was there".into()),
        Ok(Err(error)) => Err(format!("its holder cannot be talked to: {error}")),
        Err(_) => Err(format!("its holder did not start it within {} s", START.as_secs())),
    }
}

/// This program again: the very file that this process runs, also if another has taken its place on the disk since.
fn spawn(
    arguments: Vec<String>,
    folder: &Path,
    (nonce, name): (&str, &str),
    socket: OwnedFd,
) -> io::Result<()> {
    let mut command = Command::new("/proc/self/exe");
    std::os::unix::process::CommandExt::arg0(&mut command, "umbel");
    command
        .args(arguments)
        .env_clear()
        // Where nothing else is known of a run, this finds its holder as well.
        .env(process::NONCE, nonce)
        .env(process::ENGINE, name)
        .env(process::HOME, process::home(folder))
        .current_dir(folder)
        .stdin(Stdio::from(socket))
        // It outlives whoever reads these of the agent.
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // Not waited for: it is reaped with the orphans.
    command.spawn().map(drop)
}

/// Finds the engine of a record that an earlier agent left.
///
/// # Errors
/// Nobody answers for it, or not as the record says.
pub(crate) async fn attach(record: &EngineRecord, folder: &Path) -> Result<Held, Lost> {
    let Some((line, standing)) = connect(&record.name, folder).await else { return Err(Lost) };
    let same = standing.nonce == record.nonce && standing.holder == record.holder;
    // A record that its holder has not completed yet knows no engine.
    let known = record.engine == Born::NOBODY || standing.engine == record.engine;
    let is_there = standing.exit.is_some() || process::lives(standing.engine);
    if same && known && is_there { Ok(follow(line, standing)) } else { Err(Lost) }
}

/// Finds whoever answers at an engine's socket, whatever is known of it.
pub(crate) async fn find(engine: &str, folder: &Path) -> Option<Held> {
    connect(engine, folder).await.map(|(line, standing)| follow(line, standing))
}

async fn connect(engine: &str, folder: &Path) -> Option<(Line, Standing)> {
    let asked = async {
        let (_opened, path) = short_path(folder, &socket_name(engine)).ok()?;
        let mut line = Line::new(UnixStream::connect(&path).await.ok()?);
        // Who says nothing may have to make room for another. The answer is of a kind of its own, so that what comes after is
        // not taken for it.
        line.write(&Ask::Output { after: None, lines: 0 }).await.ok()?;
        let (mut known, mut answered) = (None, false);
        loop {
            match line.read::<Told>().await.ok()?? {
                Told::Standing(standing) => known = Some(standing),
                Told::Output(_) => answered = true,
                Told::Refused { .. } => return None,
            }
            match known {
                Some(standing) if answered => return Some((line, standing)),
                so_far => known = so_far,
            }
        }
    };
    timeout(ANSWER, asked).await.ok().flatten()
}

fn follow(line: Line, standing: Standing) -> Held {
    let (told, known) = watch::channel(Known { standing, lost: false });
    let (orders, asked) = mpsc::channel(ORDERS);
    tokio::spawn(talk(line, told, asked));
    Held { known, orders }
}

/// Ends with the connection, or when nobody holds the engine here any more.
async fn talk(mut line: Line, told: watch::Sender<Known>, mut orders: mpsc::Receiver<Order>) {
    let mut waiting: VecDeque<oneshot::Sender<Followed>> = VecDeque::new();
    loop {
        tokio::select! {
            order = orders.recv() => {
                let ask = match order {
                    None => return,
                    Some(Order::Ask(ask)) => ask,
                    Some(Order::Output { after, lines, answer }) => {
                        waiting.push_back(answer);
                        Ask::Output { after, lines }
                    }
                };
                if line.write(&ask).await.is_err() {
                    break;
                }
            }
            heard = line.read::<Told>() => match heard {
                Ok(Some(Told::Standing(standing))) => told.send_modify(|known| known.standing = standing),
                Ok(Some(Told::Output(followed))) => {
                    if let Some(answer) = waiting.pop_front() {
                        // Who asked may have left.
                        let _ = answer.send(followed);
                    }
                }
                Ok(Some(Told::Refused { .. })) => {}
                Ok(None) | Err(_) => break,
            },
        }
    }
    told.send_modify(|known| known.lost = known.standing.gone.is_none());
}

impl Held {
    /// Nobody is held by it.
    #[cfg(test)]
    pub(crate) fn nobody() -> Self {
        let standing = Standing {
            nonce: String::new(),
            holder: Born::NOBODY,
            engine: Born::NOBODY,
            exit: None,
            gone: None,
        };
        let (_, known) = watch::channel(Known { standing, lost: true });
        Self { known, orders: mpsc::channel(1).0 }
    }

    pub(crate) fn engine(&self) -> Born {
        self.known.borrow().standing.engine
    }

    pub(crate) fn holder(&self) -> Born {
        self.known.borrow().standing.holder
    }

    /// The run that it is.
    pub(crate) fn nonce(&self) -> String {
        self.known.borrow().standing.nonce.clone()
    }

    /// Something of it is left.
    pub(crate) fn is_there(&self) -> bool {
        self.known.borrow().standing.gone.is_none()
    }

    /// Has its record written again, where none stands; when this returns, that was tried. A holder that does not know how
    /// ends the connection.
    pub(crate) async fn record(&self) {
        let mut known = self.known.clone();
        known.mark_unchanged();
        if self.orders.send(Order::Ask(Ask::Record)).await.is_ok() {
            let _ = timeout(ANSWER, known.changed()).await;
        }
    }

    /// Everything that belongs to it, its holder included.
    pub(crate) fn family(&self) -> Family {
        Family::new(&[self.holder(), self.engine()])
    }

    /// Waits for the end of the engine's own process. Waiting may be given up and begun again.
    ///
    /// # Errors
    /// The holder is lost.
    pub(crate) async fn exited(&self) -> Result<Exit, Lost> {
        self.until(|standing| standing.exit).await
    }

    /// Waits until nothing of it is left; the last lines of its output.
    ///
    /// # Errors
    /// The holder is lost.
    pub(crate) async fn gone(&self) -> Result<String, Lost> {
        self.until(|standing| standing.gone.clone()).await
    }

    async fn until<T>(&self, of: impl Fn(&Standing) -> Option<T>) -> Result<T, Lost> {
        let mut known = self.known.clone();
        let known = known.wait_for(|known| known.lost || of(&known.standing).is_some()).await;
        // A connection's task that broke off is as good as a lost holder.
        known.ok().and_then(|known| of(&known.standing)).ok_or(Lost)
    }

    /// Asks for its end: SIGTERM now, SIGKILL after the grace.
    pub(crate) fn end(&self, grace: Duration) {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        // A full queue holds as much already; who must be sure asks again.
        let _ = self.orders.try_send(Order::Ask(Ask::End { grace_ms }));
    }

    /// The end was heard.
    pub(crate) async fn release(&self) {
        // The holder goes by itself otherwise.
        let _ = self.orders.send(Order::Ask(Ask::Release)).await;
    }

    /// Finished lines of output from number `after` on, or the last ones; nothing if the holder does not answer.
    pub(crate) async fn output(&self, after: Option<u64>, lines: usize) -> Option<Followed> {
        let (answer, answered) = oneshot::channel();
        self.orders.send(Order::Output { after, lines, answer }).await.ok()?;
        timeout(ANSWER, answered).await.ok()?.ok()
    }

    /// Whether the holder answers at all.
    pub(crate) async fn answers(&self) -> bool {
        self.output(None, 0).await.is_some()
    }

    /// Ends a holder that does not answer; its engine is then found by its nonce.
    pub(crate) fn end_holder(&self) {
        if let Some(facts) =
            process::facts(self.holder().pid).filter(|facts: &ProcessFacts| self.holder().is(facts))
        {
            process::signal(&[facts], rustix::process::Signal::KILL);
        }
    }
}
