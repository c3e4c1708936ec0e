//! One download, on a thread of its own: file by file from its source into the quarantine, checked, then into its root.
//!
//! Owns the order, and tries; leaves what an answer is worth to `answer`, connections to `http`, hashing to `sink`, places to `folders`,
//! and what is decided to `core/artifacts`. Invariant: a byte is counted once it is written, and nothing reaches a root whose
//! digest was not found here. It may block: nothing else runs on its thread.

use std::{
    io::{Seek, SeekFrom},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::{
    Response,
    body::{Frame, Incoming},
};
use tokio::{
    sync::watch,
    time::{error::Elapsed, timeout},
};
use tokio_util::sync::CancellationToken;
use umbel_contracts::artifact::ArtifactFile;

use super::{
    Done, Told, directory, folders,
    http::{Client, Start, Trouble},
    sink::{Sink, block, disk},
};
use crate::{
    config::Source,
    core::artifacts::{Drip, Failure, Patience, Progress, Rate, Reason, Stage, Step, Tries, Wanted, room},
};

mod answer;

/// Progress is told no oftener than this.
const TELL: Duration = Duration::from_millis(200);
/// The room on the disk is looked at again after so many bytes: others write there, too.
const LOOK: u64 = 64 * 1024 * 1024;

/// What one download needs.
pub(super) struct Fetch {
    pub(super) wanted: Wanted,
    pub(super) source: Source,
    pub(super) quarantine: PathBuf,
    /// Its folder there.
    pub(super) name: String,
    pub(super) root: PathBuf,
    pub(super) reserve: u64,
    pub(super) patience: Patience,
    pub(super) told: Arc<watch::Sender<Told>>,
    pub(super) cancel: CancellationToken,
    /// Bytes that are still to come, for others to leave free.
    pub(super) missing: Arc<AtomicU64>,
    /// Bytes that came, of all downloads.
    pub(super) came: Arc<AtomicU64>,
    /// What others still want, this one left out.
    pub(super) promised: Box<dyn Fn() -> u64 + Send>,
    /// Whether a download writes to a folder of the quarantine.
    pub(super) running: Box<dyn Fn(&str) -> bool + Send>,
}

/// Where the bytes come from.
enum Origin {
    Server(Box<Client>, &'static str),
    Folder(PathBuf),
}

struct Run {
    fetch: Fetch,
    parts: folders::Parts,
    progress: Progress,
    rate: Rate,
    last: Instant,
    /// Bytes of files that are done.
    before: u64,
    /// Bytes that came now.
    fetched: u64,
    /// Bytes until the room is looked at again.
    look: u64,
}

/// Runs it to its end.
pub(super) async fn run(fetch: Fetch) -> Result<Done, Failure> {
    let began = Instant::now();
    let parts = folders::Parts::open(&fetch.quarantine, &fetch.name, &fetch.wanted.source)?;
    let progress = Progress {
        bytes_total: fetch.wanted.bytes(),
        files_total: u32::try_from(fetch.wanted.files.len()).unwrap_or(u32::MAX),
        ..Progress::default()
    };
    let mut run = Run {
        parts,
        progress,
        rate: Rate::new(began),
        last: began,
        before: 0,
        fetched: 0,
        look: LOOK,
        fetch,
    };
    run.make_room()?;
    run.tell(Stage::Waiting, 0);
    let mut origin = run.origin()?;
    let files = run.fetch.wanted.files.clone();
    for file in &files {
        run.file(&mut origin, file).await?;
        run.before += file.bytes;
        run.progress.files_done += 1;
        run.tell(run.progress.stage, 0);
    }
    run.alive()?;
    run.tell(Stage::Promoting, 0);
    let Run { fetch, parts, fetched, .. } = run;
    parts.promote(&fetch.root, &fetch.wanted)?;
    Ok(Done {
        files: u32::try_from(files.len()).unwrap_or(u32::MAX),
        bytes: fetch.wanted.bytes(),
        took: began.elapsed(),
        digest: fetch.wanted.digest.clone(),
        root: fetch.wanted.root.clone(),
        folder: fetch.wanted.folder(),
        fetched,
    })
}

impl Run {
    fn alive(&self) -> Result<(), Failure> {
        if self.fetch.cancel.is_cancelled() { Err(Failure::cancelled()) } else { Ok(()) }
    }

    fn name(&self) -> &str {
        &self.fetch.wanted.source
    }

    fn origin(&self) -> Result<Origin, Failure> {
        let client = |remote| Client::new(self.name(), remote, &self.fetch.patience).map(Box::new);
        Ok(match &self.fetch.source {
            Source::Hub(remote) => Origin::Server(client(remote)?, "/resolve"),
            Source::Mirror(remote) => Origin::Server(client(remote)?, ""),
            Source::Directory(path) => Origin::Folder(path.clone()),
        })
    }

    /// Sees that all that is missing fits, and throws away what others have left if that makes the room.
    fn make_room(&self) -> Result<(), Failure> {
        let fetch = &self.fetch;
        let step = |file| Step::of(file, self.parts.kept(file)).missing(file);
        let missing: u64 = fetch.wanted.files.iter().map(step).sum();
        fetch.missing.store(missing, Ordering::Relaxed);
        let fits = || room(folders::free(&fetch.quarantine)?, (fetch.promised)(), fetch.reserve, missing);
        let Err(short) = fits() else { return Ok(()) };
        if short.reason != Reason::Space {
            return Err(short);
        }
        let free = folders::free(&fetch.quarantine)?;
        let wanted =
            missing.saturating_add(fetch.reserve).saturating_add((fetch.promised)()).saturating_sub(free);
        let left = folders::left(&fetch.quarantine, &fetch.running);
        // Throwing others' parts away for a download that cannot begin anyhow would help nobody.
        let most: u64 = left.iter().filter(|one| !one.running).map(|one| one.bytes).sum();
        if most < wanted {
            return Err(short);
        }
        for name in crate::core::artifacts::outworn(left, wanted) {
            tracing::info!(name, "what an unfinished download has left makes room");
            folders::forget(&fetch.quarantine, &name);
        }
        fits()
    }

    /// Brings one file here, whole and checked.
    async fn file(&mut self, origin: &mut Origin, file: &ArtifactFile) -> Result<(), Failure> {
        let mut kept = match Step::of(file, self.parts.kept(file)) {
            Step::Skip => return Ok(()),
            Step::Resume(bytes) => bytes,
            Step::Fetch => 0,
        };
        loop {
            // Bytes of two versions may be in it if it was filled in more than one go.
            let mut pieced = kept > 0;
            let mut sink = self.open(file, kept)?;
            let mut tries = Tries::new(self.fetch.patience);
            while sink.at() < file.bytes {
                self.alive()?;
                let from = sink.at();
                match self.rest(origin, file, &mut sink).await {
                    Ok(()) => {}
                    Err(Trouble::Never(failure)) => return Err(failure),
                    Err(Trouble::Later { says, after }) => {
                        pieced |= sink.at() > 0;
                        let luck = uuid::Uuid::new_v4().into_bytes().first().copied().unwrap_or_default();
                        let Some(pause) = tries.failed(sink.at().saturating_sub(from), after, luck) else {
                            return Err(Failure::new(Reason::SourceUnreachable, says));
                        };
                        tracing::info!(file = file.path, at = sink.at(), ?pause, "{says}; tried again");
                        self.waits(sink.at(), format!("{says}; tried again in {} s", whole_seconds(pause)));
                        self.pause(pause).await?;
                    }
                }
            }
            if sink.end()? == file.sha256 {
                return self.parts.verified(file);
            }
            self.parts.forget(&file.path)?;
            if !pieced {
                let says = format!("{:?} of source {} is not what its SHA-256 says", file.path, self.name());
                return Err(Failure::new(Reason::DigestMismatch, says));
            }
            tracing::warn!(
                file = file.path,
                "what was put together from several tries is wrong, and is fetched anew"
            );
            kept = 0;
        }
    }

    /// The file with as many bytes as are kept of it, hashed.
    fn open(&mut self, file: &ArtifactFile, kept: u64) -> Result<Sink, Failure> {
        let path = self.parts.file(&file.path)?;
        Sink::open(&path, kept, |at| {
            self.alive()?;
            self.tell_now_and_then(Stage::Verifying, at);
            Ok(())
        })
    }

    async fn pause(&self, pause: Duration) -> Result<(), Failure> {
        tokio::select! {
            () = self.fetch.cancel.cancelled() => Err(Failure::cancelled()),
            () = tokio::time::sleep(pause) => Ok(()),
        }
    }

    /// Fetches from where the file ends until it is whole.
    async fn rest(
        &mut self,
        origin: &mut Origin,
        file: &ArtifactFile,
        sink: &mut Sink,
    ) -> Result<(), Trouble> {
        match origin {
            Origin::Folder(folder) => self.copy(folder, file, sink),
            Origin::Server(client, between) => {
                let Wanted { repository, revision, .. } = &self.fetch.wanted;
                let path = format!("{repository}{between}/{revision}/{}", file.path);
                let etag = self.parts.etag(&file.path).cloned();
                let from = (sink.at() > 0).then(|| Start { byte: sink.at(), etag });
                let response = self.answered(client.get(&path, from.as_ref()), sink.at()).await?;
                self.judge(&response, file, sink)?;
                self.body(response.into_body(), file, sink).await
            }
        }
    }

    /// The head of an answer; that it does not come is told.
    async fn answered(
        &mut self,
        asking: impl Future<Output = Result<Response<Incoming>, Trouble>>,
        at: u64,
    ) -> Result<Response<Incoming>, Trouble> {
        let cancel = self.fetch.cancel.clone();
        let (mut asking, mut said) = (std::pin::pin!(asking), false);
        loop {
            tokio::select! {
                () = cancel.cancelled() => return Err(Failure::cancelled().into()),
                response = &mut asking => return response,
                () = tokio::time::sleep(TELL), if !said => {
                    said = true;
                    self.waits(at, format!("source {} has not answered yet", self.name()));
                }
            }
        }
    }

    fn copy(
        &mut self,
        folder: &std::path::Path,
        file: &ArtifactFile,
        sink: &mut Sink,
    ) -> Result<(), Trouble> {
        let mut from = directory::open(self.name(), folder, &self.fetch.wanted, &file.path)?;
        let size = from.metadata().map_err(|error| disk(&error))?.len();
        if size != file.bytes {
            return Err(self.size(file, size));
        }
        let unreadable =
            |error: std::io::Error| Trouble::later(format!("reading from the source: {}", error.kind()));
        from.seek(SeekFrom::Start(sink.at())).map_err(unreadable)?;
        while sink.at() < file.bytes {
            self.alive()?;
            let piece = block(&mut from, file.bytes - sink.at()).map_err(unreadable)?;
            if piece.is_empty() {
                return Err(self.size(file, sink.at()));
            }
            self.take(piece, sink)?;
        }
        Ok(())
    }

    /// Takes a body up to the file's last byte; what comes beyond is a lie.
    async fn body(
        &mut self,
        mut body: Incoming,
        file: &ArtifactFile,
        sink: &mut Sink,
    ) -> Result<(), Trouble> {
        let patience = self.fetch.patience;
        let cancel = self.fetch.cancel.clone();
        let mut drip = Drip::new(Instant::now());
        loop {
            let frame = tokio::select! {
                biased;
                () = cancel.cancelled() => return Err(Failure::cancelled().into()),
                frame = self.next(&mut body, sink.at()) => frame,
            };
            let frame = match frame {
                Err(_) => {
                    return Err(Trouble::later(format!("source {}: nothing came for too long", self.name())));
                }
                Ok(None) if sink.at() == file.bytes => return Ok(()),
                Ok(None | Some(Err(_))) => {
                    return Err(Trouble::later(format!(
                        "source {}: the connection broke in the middle",
                        self.name()
                    )));
                }
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(piece) = frame.into_data() else { continue };
            if piece.len() as u64 > file.bytes - sink.at() {
                let says =
                    format!("{:?} has more bytes at source {} than {}", file.path, self.name(), file.bytes);
                return Err(Trouble::never(Reason::SizeMismatch, says));
            }
            let flows = drip.flows(piece.len() as u64, Instant::now(), &patience);
            self.take(piece, sink)?;
            if !flows {
                return Err(Trouble::later(format!("source {}: too few bytes came", self.name())));
            }
        }
    }

    /// The next of a body, unless nothing comes for too long. While it is waited for, what has come is told, and how fast.
    async fn next(
        &mut self,
        body: &mut Incoming,
        at: u64,
    ) -> Result<Option<Result<Frame<Bytes>, hyper::Error>>, Elapsed> {
        let end = Instant::now() + self.fetch.patience.idle;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match timeout(left.min(TELL), body.frame()).await {
                Err(silence) if left <= TELL => return Err(silence),
                Err(_) => self.tell(Stage::Fetching, at),
                Ok(frame) => return Ok(frame),
            }
        }
    }

    /// Writes a piece, and counts it.
    fn take(&mut self, piece: Bytes, sink: &mut Sink) -> Result<(), Failure> {
        let size = piece.len() as u64;
        sink.take(piece)?;
        self.fetched += size;
        self.fetch.came.fetch_add(size, Ordering::Relaxed);
        self.rate.count(size, Instant::now());
        let missing = self.fetch.missing.load(Ordering::Relaxed).saturating_sub(size);
        self.fetch.missing.store(missing, Ordering::Relaxed);
        self.look = self.look.saturating_sub(size);
        if self.look == 0 {
            self.look = LOOK;
            room(folders::free(&self.fetch.quarantine)?, 0, self.fetch.reserve, 0)?;
            if folders::free(&self.fetch.quarantine)? < self.fetch.reserve {
                let says =
                    "less is free now than is to stay free; what came is kept and used by the next try";
                return Err(Failure::new(Reason::Space, says));
            }
        }
        self.tell_now_and_then(Stage::Fetching, sink.at());
        Ok(())
    }

    fn tell_now_and_then(&mut self, stage: Stage, at: u64) {
        if stage != self.progress.stage || self.last.elapsed() >= TELL {
            self.tell(stage, at);
        }
    }

    /// Tells how far it is, with `at` bytes of the file in hand.
    fn tell(&mut self, stage: Stage, at: u64) {
        self.progress.says = None;
        self.tell_as_it_is(stage, at);
    }

    /// Tells that nothing comes now, and why.
    fn waits(&mut self, at: u64, why: String) {
        self.progress.says = Some(why);
        self.tell_as_it_is(Stage::Waiting, at);
    }

    fn tell_as_it_is(&mut self, stage: Stage, at: u64) {
        self.last = Instant::now();
        self.progress.stage = stage;
        self.progress.bytes_done = self.before + at;
        self.progress.bytes_per_second = self.rate.per_second(self.last);
        let progress = self.progress.clone();
        self.fetch.told.send_modify(|told| told.progress = progress);
    }
}

/// A pause as it is told: nobody is told 0 s.
fn whole_seconds(pause: Duration) -> u64 {
    pause.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX)
}
