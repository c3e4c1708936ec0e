//! redb's transactions behind the store's traits, and the file below them.
//!
//! Owns the mapping of spaces to tables, and the backend that a test can make fail. Leaves opening and closing to
//! the engine above.

use std::collections::BTreeMap;

use redb::backends::FileBackend;
use redb::{ReadTransaction, ReadableTable, TableDefinition, WriteTransaction};

use crate::backend::{Failure, Pair, Space, Transaction, View};
use crate::locks::locked_as_the_file;
use crate::switch::WriteSwitch;

type Bytes = TableDefinition<'static, &'static [u8], &'static [u8]>;
const META: Bytes = TableDefinition::new("meta");
const ROWS: Bytes = TableDefinition::new("rows");
const CHANGES: Bytes = TableDefinition::new("changes");
const AUDIT: Bytes = TableDefinition::new("audit");

pub(super) fn failure(error: impl Into<redb::Error>) -> Failure {
    Failure(error.into().to_string())
}

type WriteTable<'a> = redb::Table<'a, &'static [u8], &'static [u8]>;
type ReadTable = redb::ReadOnlyTable<&'static [u8], &'static [u8]>;

pub(super) struct WriteSession<'a> {
    meta: WriteTable<'a>,
    // Heads and marks, which every commit of a batch moves: the last value is written, once, by `finish`.
    moved: BTreeMap<Vec<u8>, Vec<u8>>,
    rows: WriteTable<'a>,
    changes: WriteTable<'a>,
    audit: WriteTable<'a>,
}

impl<'a> WriteSession<'a> {
    /// Opens all tables, making those that are not there yet.
    pub(super) fn open(tx: &'a WriteTransaction) -> Result<Self, Failure> {
        Ok(Self {
            meta: tx.open_table(META).map_err(failure)?,
            moved: BTreeMap::new(),
            rows: tx.open_table(ROWS).map_err(failure)?,
            changes: tx.open_table(CHANGES).map_err(failure)?,
            audit: tx.open_table(AUDIT).map_err(failure)?,
        })
    }

    /// Writes what was kept back, and lets go of the tables: the transaction can commit.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        for (key, value) in &self.moved {
            self.meta.insert(key.as_slice(), value.as_slice()).map_err(failure)?;
        }
        Ok(())
    }

    fn table(&self, space: Space) -> &WriteTable<'a> {
        match space {
            Space::Meta => &self.meta,
            Space::Rows => &self.rows,
            Space::Changes => &self.changes,
            Space::Audit => &self.audit,
        }
    }

    fn table_mut(&mut self, space: Space) -> &mut WriteTable<'a> {
        match space {
            Space::Meta => &mut self.meta,
            Space::Rows => &mut self.rows,
            Space::Changes => &mut self.changes,
            Space::Audit => &mut self.audit,
        }
    }
}

pub(super) struct ReadSession {
    meta: ReadTable,
    rows: ReadTable,
    changes: ReadTable,
    audit: ReadTable,
}

impl ReadSession {
    pub(super) fn open(tx: &ReadTransaction) -> Result<Self, Failure> {
        Ok(Self {
            meta: tx.open_table(META).map_err(failure)?,
            rows: tx.open_table(ROWS).map_err(failure)?,
            changes: tx.open_table(CHANGES).map_err(failure)?,
            audit: tx.open_table(AUDIT).map_err(failure)?,
        })
    }

    fn table(&self, space: Space) -> &ReadTable {
        match space {
            Space::Meta => &self.meta,
            Space::Rows => &self.rows,
            Space::Changes => &self.changes,
            Space::Audit => &self.audit,
        }
    }
}

fn get(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &[u8],
) -> Result<Option<Vec<u8>>, Failure> {
    Ok(table.get(key).map_err(failure)?.map(|value| value.value().to_vec()))
}

fn scan(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    from: &[u8],
    to: &[u8],
    limit: usize,
    newest_first: bool,
) -> Result<Vec<Pair>, Failure> {
    let mut range = table.range(from..to).map_err(failure)?;
    let mut pairs = Vec::new();
    while pairs.len() < limit {
        let Some(pair) = (if newest_first { range.next_back() } else { range.next() }) else { break };
        let (key, value) = pair.map_err(failure)?;
        pairs.push((key.value().to_vec(), value.value().to_vec()));
    }
    Ok(pairs)
}

impl View for ReadSession {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        get(self.table(space), key)
    }

    fn scan(
        &self,
        space: Space,
        from: &[u8],
        to: &[u8],
        limit: usize,
        newest_first: bool,
    ) -> Result<Vec<Pair>, Failure> {
        scan(self.table(space), from, to, limit, newest_first)
    }
}

impl View for WriteSession<'_> {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        match self.moved.get(key).filter(|_| space == Space::Meta) {
            Some(value) => Ok(Some(value.clone())),
            None => get(self.table(space), key),
        }
    }

    fn scan(
        &self,
        space: Space,
        from: &[u8],
        to: &[u8],
        limit: usize,
        newest_first: bool,
    ) -> Result<Vec<Pair>, Failure> {
        // What was put there stands beside the table until the end; nobody scans it in between.
        if space == Space::Meta && !self.moved.is_empty() {
            return Err(Failure(
                "what was put into the store's own table is scanned after its session".to_owned(),
            ));
        }
        scan(self.table(space), from, to, limit, newest_first)
    }
}

impl Transaction for WriteSession<'_> {
    fn put(&mut self, space: Space, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        if space == Space::Meta {
            self.moved.insert(key.to_vec(), value.to_vec());
            return Ok(());
        }
        self.table_mut(space).insert(key, value).map_err(failure)?;
        Ok(())
    }

    fn remove(&mut self, space: Space, key: &[u8]) -> Result<(), Failure> {
        if space == Space::Meta {
            self.moved.remove(key);
        }
        self.table_mut(space).remove(key).map_err(failure)?;
        Ok(())
    }
}

/// A file whose writes a test can make fail as a full disk does. In service the switch is never set.
#[derive(Debug)]
pub(super) struct Switched {
    pub(super) file: FileBackend,
    pub(super) switch: WriteSwitch,
}

impl redb::StorageBackend for Switched {
    fn len(&self) -> std::io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.switch.room()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> std::io::Result<()> {
        self.switch.sync()?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.switch.room()?;
        self.file.write(offset, data)
    }

    locked_as_the_file!();
}
