//! Downloads of artifacts, as far as they can be decided: what is asked, what is still missing, whether there is room,
//! when to try again, and what is left behind and for how long.
//!
//! Leaves sockets, files and threads to `shell/artifacts`, and names and digests to `umbel_contracts::artifact`.
//! Invariant: a failure names a source by its name in the node's file, never by an address, since it leaves the host.

use std::time::{Duration, Instant};

use umbel_contracts::artifact::{self, ArtifactFile};
use umbel_contracts::config::ByteSize;

mod failure;
mod headway;
mod keeping;
mod rate;
#[cfg(test)]
mod tests;

pub(crate) use failure::{Failure, Reason};
pub(crate) use headway::{Headway, STANDSTILL};
pub(crate) use keeping::{Left, outworn};
pub(crate) use rate::Rate;

/// An artifact to bring here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// `ORG/NAME`.
    pub(crate) repository: String,
    /// A commit or tag.
    pub(crate) revision: String,
    /// SHA-256 of the list of files, hexadecimal.
    pub(crate) digest: String,
    /// Name of one of the node's sources.
    pub(crate) source: String,
    /// Name of one of the node's roots; empty: the first of them.
    pub(crate) root: String,
    /// Bytes to leave free, if that is more than the node's file says.
    pub(crate) reserve: u64,
    /// What it consists of.
    pub(crate) files: Vec<ArtifactFile>,
}

impl Wanted {
    /// Judges names and digests; nothing was asked or made before.
    ///
    /// # Errors
    /// [`Reason::NameRefused`], or [`Reason::DigestMismatch`] where the list is not the one that the digest names.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let refused = |says: String| Failure::new(Reason::NameRefused, says);
        artifact::check_repository(&self.repository).map_err(refused)?;
        artifact::check_revision(&self.revision).map_err(refused)?;
        artifact::check_files(&self.files)
            .map_err(|fault| refused(format!("files{}: {}", fault.place(), fault.says)))?;
        if artifact::digest(&self.files) != self.digest {
            let says = "the list of files is not the one that the artifact's digest names";
            return Err(Failure::new(Reason::DigestMismatch, says));
        }
        Ok(())
    }

    /// Where it will lie below its root.
    pub(crate) fn folder(&self) -> String {
        artifact::folder(&self.repository, &self.revision, &self.digest)
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// What an earlier try left of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// It is whole, and was hashed when it was.
    Verified,
    /// So many bytes from its beginning.
    Part(u64),
}

/// What to do for one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing.
    Skip,
    /// Take what is there, hash it from its start, and ask for the rest, if there is any.
    Resume(u64),
    /// Ask for all of it.
    Fetch,
}

impl Step {
    /// What an earlier try is worth.
    pub(crate) fn of(file: &ArtifactFile, kept: Option<Kept>) -> Self {
        match kept {
            Some(Kept::Verified) => Self::Skip,
            Some(Kept::Part(bytes)) if bytes > 0 && bytes <= file.bytes => Self::Resume(bytes),
            // More than there can be is of something else.
            _ => Self::Fetch,
        }
    }

    /// Bytes that have to come yet.
    pub(crate) fn missing(self, file: &ArtifactFile) -> u64 {
        match self {
            Self::Skip => 0,
            Self::Resume(bytes) => file.bytes.saturating_sub(bytes),
            Self::Fetch => file.bytes,
        }
    }
}

/// Whether `missing` bytes fit where `free` are free, `promised` of them to other downloads, and `reserve` stay free.
///
/// # Errors
/// [`Reason::Space`] with the figures.
pub(crate) fn room(free: u64, promised: u64, reserve: u64, missing: u64) -> Result<(), Failure> {
    let usable = free.saturating_sub(promised).saturating_sub(reserve);
    if missing <= usable {
        return Ok(());
    }
    let says = |bytes: u64| ByteSize(bytes).rounded();
    let mut sentence = format!("{} are to come, {} are free", says(missing), says(free));
    if promised > 0 {
        sentence.push_str(&format!(", {} of them for other downloads", says(promised)));
    }
    if reserve > 0 {
        sentence.push_str(&format!(", and {} must stay free", says(reserve)));
    }
    Err(Failure::new(Reason::Space, sentence))
}

/// Times and tries of a download. Fixed but in tests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// From a name to a connection that is ready, and from a request to the answer's head.
    pub(crate) step: Duration,
    /// Without any byte.
    pub(crate) idle: Duration,
    /// In each such span at least [`Self::trickle`] bytes come, or the connection is given up.
    pub(crate) span: Duration,
    /// A server that gives a byte now and then is as good as none.
    pub(crate) trickle: u64,
    /// Tries in a row that bring nothing to speak of.
    pub(crate) tries: u32,
    /// Before the second try; doubled for each one after.
    pub(crate) first_pause: Duration,
    /// The longest pause, whoever asks for it.
    pub(crate) longest_pause: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            step: Duration::from_secs(20),
            idle: Duration::from_secs(30),
            span: Duration::from_secs(60),
            trickle: 64 * 1024,
            tries: 8,
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(60),
        }
    }
}

/// A try that brought so much was worth it, and the count of tries begins again.
const WORTHWHILE: u64 = 1024 * 1024;

/// Tries of one file.
#[derive(Debug)]
pub(crate) struct Tries {
    patience: Patience,
    failed: u32,
}

impl Tries {
    pub(crate) fn new(patience: Patience) -> Self {
        Self { patience, failed: 0 }
    }

    /// A try failed that brought `bytes`; the server asked to be left alone for `asked`. How long to wait before the next
    /// one, or nothing if that was the last. `luck` (0 to 255) spreads those who wait for the same server.
    pub(crate) fn failed(&mut self, bytes: u64, asked: Option<Duration>, luck: u8) -> Option<Duration> {
        self.failed = if bytes >= WORTHWHILE { 1 } else { self.failed + 1 };
        if self.failed >= self.patience.tries {
            return None;
        }
        let doubled = self.patience.first_pause.saturating_mul(1 << (self.failed - 1).min(16));
        let pause = doubled.max(asked.unwrap_or_default()).min(self.patience.longest_pause);
        Some(pause + pause / 4 * u32::from(luck) / 255)
    }
}

/// Whether a span of a body brought enough: a server that drips is given up.
#[derive(Debug)]
pub(crate) struct Drip {
    since: Instant,
    bytes: u64,
}

impl Drip {
    pub(crate) fn new(now: Instant) -> Self {
        Self { since: now, bytes: 0 }
    }

    /// So many bytes came; false if there were too few for too long.
    pub(crate) fn flows(&mut self, bytes: u64, now: Instant, patience: &Patience) -> bool {
        self.bytes += bytes;
        if now.saturating_duration_since(self.since) < patience.span {
            return true;
        }
        let enough = self.bytes >= patience.trickle;
        *self = Self::new(now);
        enough
    }
}

/// What a download is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Stage {
    /// Not begun, or between two tries.
    #[default]
    Waiting,
    /// Bytes come.
    Fetching,
    /// What an earlier try left is hashed.
    Verifying,
    /// All is here and checked, and goes to its place.
    Promoting,
}

impl Stage {
    /// The word that is told.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Fetching => "fetching",
            Self::Verifying => "verifying",
            Self::Promoting => "promoting",
        }
    }
}

/// How far a download is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Progress {
    pub(crate) stage: Stage,
    /// Of all files, with what was there before.
    pub(crate) bytes_done: u64,
    pub(crate) bytes_total: u64,
    /// From the source, over the last seconds.
    pub(crate) bytes_per_second: u64,
    pub(crate) files_done: u32,
    pub(crate) files_total: u32,
    /// What it waits for, or from where it comes if that is not what was asked for.
    pub(crate) says: Option<String>,
}
