//! A file that is only read: whatever an engine writes to it stays in memory.
//!
//! Owns the changed pages. It is how a store is opened on a disk that takes no writes (opening one after a crash
//! writes its repairs) and how a damaged file is read without touching it. Invariant: the file is never changed, and
//! the pages kept are bounded.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;
use redb::backends::FileBackend;

use crate::limits;
use crate::locks::locked_as_the_file;

/// Bytes of a page here; any power of two would do.
const PAGE: usize = 4096;

#[derive(Debug)]
pub(crate) struct Overlay {
    file: FileBackend,
    changed: Mutex<Changed>,
}

#[derive(Debug)]
struct Changed {
    pages: HashMap<u64, Box<[u8; PAGE]>>,
    length: u64,
    // Below this the file's own bytes count where no page was changed; a cut takes them away for good.
    underlying: u64,
}

impl Overlay {
    pub(crate) fn new(file: FileBackend) -> std::io::Result<Self> {
        let length = file.len()?;
        let changed = Changed { pages: HashMap::new(), length, underlying: length };
        Ok(Self { file, changed: Mutex::new(changed) })
    }

    fn changed(&self) -> MutexGuard<'_, Changed> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn below(&self, underlying: u64, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        out.fill(0);
        let there = usize::try_from(underlying.saturating_sub(offset)).unwrap_or(usize::MAX).min(out.len());
        match out.get_mut(..there) {
            Some(part) if !part.is_empty() => self.file.read(offset, part),
            _ => Ok(()),
        }
    }
}

// The pages that a range touches, with the part of the page and of the range.
fn pages(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let page = PAGE as u64;
    let mut done = 0;
    std::iter::from_fn(move || {
        if done >= length {
            return None;
        }
        let at = offset + done as u64;
        let within = usize::try_from(at % page).unwrap_or(0);
        let count = (PAGE - within).min(length - done);
        let item = (at / page, within, done, count);
        done += count;
        Some(item)
    })
}

impl StorageBackend for Overlay {
    fn len(&self) -> std::io::Result<u64> {
        Ok(self.changed().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        let changed = self.changed();
        if offset.saturating_add(out.len() as u64) > changed.length {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.below(changed.underlying, offset, out)?;
        for (page, within, start, count) in pages(offset, out.len()) {
            let Some(kept) = changed.pages.get(&page) else { continue };
            if let (Some(to), Some(from)) =
                (out.get_mut(start..start + count), kept.get(within..within + count))
            {
                to.copy_from_slice(from);
            }
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> std::io::Result<()> {
        let mut changed = self.changed();
        if length < changed.length {
            // What is cut reads as zeros if the file grows again.
            let page = PAGE as u64;
            changed.pages.retain(|number, _| *number <= length / page);
            if let Some(last) = changed.pages.get_mut(&(length / page)) {
                let within = usize::try_from(length % page).unwrap_or(0);
                last.iter_mut().skip(within).for_each(|byte| *byte = 0);
            }
            changed.underlying = changed.underlying.min(length);
        }
        changed.length = length;
        Ok(())
    }

    fn sync_data(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        let mut changed = self.changed();
        for (page, within, start, count) in pages(offset, data.len()) {
            if !changed.pages.contains_key(&page) {
                if changed.pages.len() >= limits::OVERLAY_PAGES {
                    return Err(std::io::ErrorKind::StorageFull.into());
                }
                let mut fresh = Box::new([0; PAGE]);
                self.below(changed.underlying, page * PAGE as u64, &mut fresh[..])?;
                changed.pages.insert(page, fresh);
            }
            let kept = changed.pages.get_mut(&page);
            if let (Some(kept), Some(from)) = (kept, data.get(start..start + count))
                && let Some(to) = kept.get_mut(within..within + count)
            {
                to.copy_from_slice(from);
            }
        }
        changed.length = changed.length.max(offset.saturating_add(data.len() as u64));
        Ok(())
    }

    locked_as_the_file!();
}
