//! A holder's side of talking with agents: several may come, one after the other.
//!
//! Owns the socket and its lines; leaves what is done about an order to the parent. Invariants: a caller that says nothing,
//! or nothing but nonsense, costs a place, and that only until somebody else comes; one that has said something keeps his.

use std::{
    collections::VecDeque,
    io,
    os::fd::AsRawFd,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::{mpsc, watch},
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep_until, timeout},
};

use super::socket_name;
use crate::{
    core::holding::{Ask, LINE_MAX, LINES_MAX, Standing, Told},
    shell::output::Output,
};

/// One agent, the one before it that is ending, and somebody who looks; the others are places for those that say nothing.
const CALLERS: usize = 32;
/// An agent says something as soon as it comes. Who has not after this makes room for the next one, if there is none.
const SILENT: Duration = Duration::from_millis(100);
/// Orders that are not carried out yet.
const ORDERS: usize = 8;
/// A caller that does not take an answer is let go.
const PATIENCE: Duration = Duration::from_secs(10);

/// What an agent wants done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// End the engine; SIGKILL after this.
    End(Duration),
    /// Write the record again, where none stands.
    Record,
    /// Its end was heard.
    Release,
}

/// A path to `name` in `folder` that fits into a socket's address, however long the folder's own is. The folder stays
/// open as long as it is used.
pub(super) fn short_path(folder: &Path, name: &str) -> io::Result<(std::fs::File, PathBuf)> {
    let opened = std::fs::File::open(folder)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{name}", opened.as_raw_fd()));
    Ok((opened, path))
}

/// The socket of a holder in the folder of engines.
#[derive(Debug)]
pub(super) struct Door {
    path: PathBuf,
    file: (u64, u64),
}

impl Door {
    /// Removes it, if it is still this holder's.
    pub(super) fn remove(&self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.file) {
            // A later holder of the same engine begins by removing it, too.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens for the agents of this engine, and nobody else's user.
///
/// # Errors
/// `AddrInUse` if another holder lives there: its socket is never taken over.
pub(super) async fn listen(folder: &Path, engine: &str) -> io::Result<(UnixListener, Door)> {
    let name = socket_name(engine);
    let (_opened, path) = short_path(folder, &name)?;
    // One that is stopped is connected to as well.
    match timeout(PATIENCE, UnixStream::connect(&path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {}
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        _ => {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "another holder of this engine lives there",
            ));
        }
    }
    // The folder is 0700: nobody else comes between.
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    let file = std::fs::symlink_metadata(&path)?;
    Ok((listener, Door { path: folder.join(name), file: (file.dev(), file.ino()) }))
}

/// A connection on which each line is one JSON object.
#[derive(Debug)]
pub(super) struct Line {
    stream: UnixStream,
    buffer: Vec<u8>,
}

impl Line {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, buffer: Vec::new() }
    }

    /// The next object; nothing at the end. Waiting may be given up and begun again.
    ///
    /// # Errors
    /// Of the connection, or `InvalidData` where the line is no such object or longer than [`LINE_MAX`].
    pub(super) async fn read<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        loop {
            if let Some(at) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=at).collect();
                if self.buffer.is_empty() {
                    // An instruction is long, and nothing else is.
                    self.buffer = Vec::new();
                }
                // Without the text of the error: it may quote what is secret.
                return serde_json::from_slice(&line)
                    .map(Some)
                    .map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
            }
            if self.buffer.len() > LINE_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// # Errors
    /// Of the connection, or because the other side does not take it.
    pub(super) async fn write<T: Serialize>(&mut self, word: &T) -> io::Result<()> {
        let mut line = serde_json::to_vec(word).map_err(io::Error::other)?;
        line.push(b'\n');
        timeout(PATIENCE, self.stream.write_all(&line)).await.map_err(|_| io::ErrorKind::TimedOut)?
    }
}

/// One who has not said anything yet.
struct Silent {
    since: Instant,
    spoke: Arc<AtomicBool>,
    task: AbortHandle,
}

/// The agents that are connected.
pub(super) struct Callers {
    listener: UnixListener,
    told: watch::Receiver<Standing>,
    output: Output,
    orders: mpsc::Sender<Order>,
    running: JoinSet<()>,
    /// Those of them, in the order in which they came.
    silent: VecDeque<Silent>,
}

impl Callers {
    pub(super) fn new(
        listener: UnixListener,
        told: watch::Receiver<Standing>,
        output: Output,
    ) -> (Self, mpsc::Receiver<Order>) {
        let (orders, taken) = mpsc::channel(ORDERS);
        (Self { listener, told, output, orders, running: JoinSet::new(), silent: VecDeque::new() }, taken)
    }

    /// Waits for the next agent. Waiting may be given up and begun again.
    pub(super) async fn accept(&mut self) {
        self.room().await;
        match self.listener.accept().await {
            Ok((stream, _)) => self.take(Line::new(stream), false),
            // Without descriptors nobody can come for a while.
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }

    /// Waits until there is a place: whoever has been silent for longest gives his.
    async fn room(&mut self) {
        loop {
            while self.running.try_join_next().is_some() {}
            self.silent.retain(|one| !one.spoke.load(Ordering::Relaxed) && !one.task.is_finished());
            if self.running.len() < CALLERS {
                return;
            }
            let oldest = self.silent.front().map(|one| (one.since + SILENT, one.task.clone()));
            tokio::select! {
                _ = self.running.join_next() => {}
                () = sleep_until(oldest.as_ref().map_or_else(Instant::now, |(at, _)| *at)), if oldest.is_some() => {
                    if let Some((_, task)) = oldest {
                        task.abort();
                        self.silent.pop_front();
                    }
                }
            }
        }
    }

    /// Talks with this one, who has said something already or is yet to.
    pub(super) fn take(&mut self, line: Line, spoke: bool) {
        let spoke = Arc::new(AtomicBool::new(spoke));
        let (told, output, orders) = (self.told.clone(), self.output.clone(), self.orders.clone());
        let says = Arc::clone(&spoke);
        let task = self.running.spawn(async move {
            // Who breaks off comes anew.
            let _ = talk(line, told, output, orders, &says).await;
        });
        self.silent.push_back(Silent { since: Instant::now(), spoke, task });
    }

    /// Nobody is connected.
    pub(super) fn are_gone(&mut self) -> bool {
        while self.running.try_join_next().is_some() {}
        self.running.is_empty()
    }
}

async fn talk(
    mut line: Line,
    mut told: watch::Receiver<Standing>,
    output: Output,
    orders: mpsc::Sender<Order>,
    spoke: &AtomicBool,
) -> io::Result<()> {
    told.mark_changed();
    loop {
        tokio::select! {
            changed = told.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                let standing = told.borrow_and_update().clone();
                line.write(&Told::Standing(standing)).await?;
            }
            asked = line.read::<Ask>() => {
                let Some(asked) = asked? else { return Ok(()) };
                spoke.store(true, Ordering::Relaxed);
                let order = match asked {
                    Ask::Standing => {
                        told.mark_changed();
                        continue;
                    }
                    Ask::Output { after, lines } => {
                        line.write(&Told::Output(output.since(after, lines.min(LINES_MAX)))).await?;
                        continue;
                    }
                    Ask::End { grace_ms } => Order::End(Duration::from_millis(grace_ms)),
                    Ask::Record => Order::Record,
                    Ask::Release => Order::Release,
                };
                // Nobody takes it once the holder goes.
                let _ = orders.send(order).await;
            }
        }
    }
}
