//! A file that is being filled: bytes go to the disk here and are hashed on a thread of their own.
//!
//! Owns one file of the quarantine, its position and its running digest; leaves whose bytes they are to `fetch`.
//! Invariant: the digest is over exactly what is in the file, from its first byte; memory is constant.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::mpsc::{SyncSender, sync_channel},
    thread::JoinHandle,
};

use bytes::{Bytes, BytesMut};
use data_encoding::HEXLOWER;
use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

use crate::core::artifacts::{Failure, Reason};

/// Pieces that wait to be hashed: with reads of at most a quarter of a mebibyte, 2 MiB a file.
const WAITING: usize = 8;
/// A piece of a file that is read here.
const BLOCK: usize = 256 * 1024;

/// Bytes after which the disk is asked to take what it has.
const SYNC: u64 = 64 * 1024 * 1024;

/// What hashes beside the socket and the disk.
struct Hasher {
    pieces: SyncSender<Bytes>,
    thread: JoinHandle<Sha256>,
}

impl Hasher {
    fn start() -> Result<Self, Failure> {
        let (pieces, waiting) = sync_channel::<Bytes>(WAITING);
        let thread = std::thread::Builder::new()
            .name("artifact-hash".into())
            .spawn(move || {
                let mut hash = Sha256::new();
                while let Ok(piece) = waiting.recv() {
                    hash.update(&piece);
                }
                hash
            })
            .map_err(|error| disk(&error))?;
        Ok(Self { pieces, thread })
    }

    fn take(&self, piece: Bytes) -> Result<(), Failure> {
        self.pieces.send(piece).map_err(|_| Failure::new(Reason::Internal, "hashing broke off"))
    }

    fn end(self) -> Result<String, Failure> {
        drop(self.pieces);
        let hash = self.thread.join().map_err(|_| Failure::new(Reason::Internal, "hashing broke off"))?;
        Ok(HEXLOWER.encode(&hash.finalize()))
    }
}

/// Brings what was written to the disk while more comes, so that the last sync has little to wait for.
struct Syncer {
    due: SyncSender<()>,
    thread: JoinHandle<()>,
}

impl Syncer {
    fn start(file: &File) -> Result<Self, Failure> {
        let file = file.try_clone().map_err(|error| disk(&error))?;
        let (due, waiting) = sync_channel::<()>(1);
        let thread = std::thread::Builder::new()
            .name("artifact-sync".into())
            .spawn(move || {
                while waiting.recv().is_ok() {
                    // The last sync is the one that counts, and says what is wrong.
                    let _ = file.sync_data();
                }
            })
            .map_err(|error| disk(&error))?;
        Ok(Self { due, thread })
    }
}

/// One file being filled.
pub(super) struct Sink {
    file: File,
    at: u64,
    hasher: Hasher,
    /// From the first [`SYNC`] bytes on.
    syncer: Option<Syncer>,
    /// Bytes since it was last told.
    unsynced: u64,
}

impl Sink {
    /// Opens a file, made if it is not there. With `keep`, as many bytes of it stay and are hashed; `go_on` is asked before
    /// each block and may end that.
    pub(super) fn open(
        path: &Path,
        keep: u64,
        mut go_on: impl FnMut(u64) -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            // Nothing but this agent writes here; a link would still lead somewhere else.
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)
            .map_err(|error| disk(&error))?;
        file.set_len(keep).map_err(|error| disk(&error))?;
        let mut sink = Self {
            at: 0,
            hasher: Hasher::start()?,
            syncer: None,
            unsynced: 0,
            file: file.try_clone().map_err(|error| disk(&error))?,
        };
        while sink.at < keep {
            go_on(sink.at)?;
            let piece = block(&mut file, keep - sink.at).map_err(|error| disk(&error))?;
            if piece.is_empty() {
                return Err(Failure::new(Reason::Disk, "a file in the quarantine became shorter"));
            }
            sink.at += piece.len() as u64;
            sink.hasher.take(piece)?;
        }
        sink.file.seek(SeekFrom::Start(sink.at)).map_err(|error| disk(&error))?;
        Ok(sink)
    }

    /// Bytes that are in it.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Throws away what is in it.
    pub(super) fn restart(&mut self) -> Result<(), Failure> {
        self.file.set_len(0).and_then(|()| self.file.rewind()).map_err(|error| disk(&error))?;
        self.hasher = Hasher::start()?;
        self.at = 0;
        Ok(())
    }

    /// Adds bytes. Waits for the disk, and for hashing when that is behind.
    pub(super) fn take(&mut self, piece: Bytes) -> Result<(), Failure> {
        self.file.write_all(&piece).map_err(|error| disk(&error))?;
        self.at += piece.len() as u64;
        self.unsynced += piece.len() as u64;
        if self.unsynced >= SYNC {
            self.unsynced = 0;
            let syncer = match self.syncer.take() {
                Some(syncer) => syncer,
                None => Syncer::start(&self.file)?,
            };
            // One that is still at it takes these bytes with the next ones.
            let _ = self.syncer.insert(syncer).due.try_send(());
        }
        self.hasher.take(piece)
    }

    /// Waits until all is on the disk and hashed; the digest.
    pub(super) fn end(self) -> Result<String, Failure> {
        if let Some(Syncer { due, thread }) = self.syncer {
            drop(due);
            let _ = thread.join();
        }
        self.file.sync_all().map_err(|error| disk(&error))?;
        self.hasher.end()
    }
}

/// Up to `most` bytes of a file, no more than a block.
pub(super) fn block(file: &mut impl Read, most: u64) -> io::Result<Bytes> {
    let size = usize::try_from(most).unwrap_or(BLOCK).min(BLOCK);
    let mut piece = BytesMut::zeroed(size);
    let read = loop {
        match file.read(&mut piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    piece.truncate(read);
    Ok(piece.freeze())
}

/// What the disk says, without a path.
pub(super) fn disk(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Failure::new(Reason::Space, "the disk became full; what came is kept and used by the next try")
        }
        kind => Failure::new(Reason::Disk, format!("the disk of quarantine and roots: {kind}")),
    }
}
