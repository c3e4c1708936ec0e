//! The records of engines' processes: for the agents that come after the one that started them.
//!
//! Owns their shape and where they lie; leaves what is done about an engine to `shell/engines` and `shell/holder`.
//! Invariant: a record stands on the disk before there is a process, and goes only when nothing of it is left.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use umbel_wire::files;

use super::State;
use crate::core::{process_tree::Born, supervisor::Exit};

/// What is known of an engine's process, for whoever comes after this agent. The agent writes it before the start; from
/// then on its holder does, until nothing of the engine is left.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EngineRecord {
    pub(crate) name: String,
    /// The engine's own process; 0: about to be started.
    #[serde(flatten)]
    pub(crate) engine: Born,
    pub(crate) boot_id: String,
    pub(crate) port: u16,
    /// Stands in the environment of the engine, its holder and all that they start.
    pub(crate) nonce: String,
    pub(crate) program: PathBuf,
    /// Nobody: it was started by an agent that knew no holders.
    #[serde(default)]
    pub(crate) holder: Born,
    /// The engine's own key, where it takes one.
    #[serde(default)]
    pub(crate) key: Option<String>,
    /// Of what it was started as.
    #[serde(default)]
    pub(crate) profile_digest: String,
    /// What it was started as, in the words of the agent that did.
    #[serde(default)]
    pub(crate) started: Value,
    /// When it was started, by this host's clock. 0: an agent that did not write it started it.
    #[serde(default)]
    pub(crate) started_at_unix_ms: i64,
    /// Starts after a crash before this one, in all.
    #[serde(default)]
    pub(crate) restarts: u32,
    /// By GPU: bytes that no process had before it was started, as far as the driver said.
    #[serde(default)]
    pub(crate) gpu_memory_before: BTreeMap<String, u64>,
    /// Beside this record, for this run only: they go with it.
    #[serde(default)]
    pub(crate) files: Vec<String>,
    /// How it ended. Written when nothing of it was left.
    #[serde(default)]
    pub(crate) end: Option<EngineEnd>,
}

/// Whose record it is that stands on the disk under an engine's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stands {
    /// This run's.
    Own,
    /// Another run's.
    Other,
    /// Nobody's: it cannot be read.
    Damaged,
    /// None is there.
    Missing,
}

/// How an engine ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EngineEnd {
    pub(crate) exit: Exit,
    pub(crate) at_unix_ms: i64,
    /// The last lines of its output, at most 4 KiB, without addresses.
    pub(crate) tail: String,
}

impl std::fmt::Debug for EngineRecord {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineRecord")
            .field("name", &self.name)
            .field("engine", &self.engine)
            .field("holder", &self.holder)
            .field("nonce", &self.nonce)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

impl EngineRecord {
    /// The file's name of a record.
    pub(crate) fn file_name(engine: &str) -> String {
        format!("{engine}.json")
    }

    /// Whose record stands in the folder under this engine's name. Blocks on the disk.
    pub(crate) fn stands(&self, folder: &Path) -> Stands {
        match read(&folder.join(Self::file_name(&self.name))) {
            Ok(record) if record.nonce == self.nonce => Stands::Own,
            Ok(_) => Stands::Other,
            Err(Unread::Missing) => Stands::Missing,
            Err(Unread::Damaged(_)) => Stands::Damaged,
        }
    }

    /// Writes it into the folder of engines. Blocks on the disk.
    ///
    /// # Errors
    /// Whatever the file system says; what stood there stands.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        let content = serde_json::to_vec_pretty(self).map_err(io::Error::other)?;
        files::write_private(&folder.join(Self::file_name(&self.name)), &content)
    }
}

/// Since when a run is ready, as the agent that saw it wrote it: its record is its holder's by then.
#[derive(Serialize, Deserialize)]
struct Ready {
    nonce: String,
    since_unix_ms: i64,
}

impl EngineRecord {
    /// The file that says since when it is ready. It is one of [`EngineRecord::files`].
    pub(crate) fn ready_file(engine: &str) -> String {
        format!("{engine}.ready")
    }

    /// Since when this run is ready, if it was when somebody looked last. Blocks on the disk.
    pub(crate) fn ready_since(&self, folder: &Path) -> Option<i64> {
        let content = files::read_private(&folder.join(Self::ready_file(&self.name))).ok()?;
        let ready: Ready = serde_json::from_slice(&content).ok()?;
        (ready.nonce == self.nonce).then_some(ready.since_unix_ms)
    }

    /// Notes since when this run is ready. Blocks on the disk.
    pub(crate) fn set_ready(&self, folder: &Path, since_unix_ms: i64) {
        let ready = Ready { nonce: self.nonce.clone(), since_unix_ms };
        let content = serde_json::to_vec(&ready).unwrap_or_default();
        // Without it the next agent counts from its own start.
        let _ = files::write_private(&folder.join(Self::ready_file(&self.name)), &content);
    }
}

/// Why a record was not read.
enum Unread {
    Missing,
    Damaged(String),
}

fn read(path: &Path) -> Result<EngineRecord, Unread> {
    let content = files::read_private(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Unread::Missing,
        _ => Unread::Damaged(error.to_string()),
    })?;
    let record: EngineRecord =
        serde_json::from_slice(&content).map_err(|error| Unread::Damaged(error.to_string()))?;
    // One that was copied or renamed speaks of another engine.
    let is_named = path.file_name().is_some_and(|name| *name == *EngineRecord::file_name(&record.name));
    is_named.then_some(record).ok_or_else(|| Unread::Damaged("it is another engine's".into()))
}

impl State {
    /// The folder of the engines' records and logs.
    pub(crate) fn engines(&self) -> PathBuf {
        self.path("engines")
    }

    /// Writes an engine's record.
    ///
    /// # Errors
    /// If it cannot be written: then the engine must not be started.
    pub(crate) fn set_engine(&self, record: &EngineRecord) -> io::Result<()> {
        record.write(&self.engines())
    }

    /// Forgets an engine's run, with the files that were there for it: nothing of it is left.
    pub(crate) fn forget_engine(&self, record: &EngineRecord) {
        let folder = self.engines();
        // Its own names only, wherever the record has them from.
        let own = record.files.iter().filter(|file| !file.contains('/') && file.starts_with(&record.name));
        for file in own {
            // What cannot be removed is written anew by the next start.
            let _ = fs::remove_file(folder.join(file));
        }
        if let Err(error) = files::remove(&folder.join(EngineRecord::file_name(&record.name))) {
            tracing::warn!(engine = %record.name, %error, "cannot remove the engine's record");
        }
    }

    /// The record of one engine, if it can be read.
    pub(crate) fn engine_record(&self, engine: &str) -> Option<EngineRecord> {
        read(&self.engines().join(EngineRecord::file_name(engine))).ok()
    }

    /// The records that are there. One that cannot be read is left alone.
    pub(crate) fn engine_records(&self) -> Vec<EngineRecord> {
        self.engine_files("json").iter().filter_map(|name| self.engine_record(name)).collect()
    }

    /// The names before this ending, of the files in the folder of engines.
    pub(crate) fn engine_files(&self, ending: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.engines()) else { return Vec::new() };
        let name = |path: PathBuf| {
            let is_such = path.extension().is_some_and(|extension| extension == ending);
            is_such.then(|| path.file_stem()?.to_str().map(ToOwned::to_owned))?
        };
        entries.flatten().filter_map(|entry| name(entry.path())).collect()
    }

    /// Moves records that cannot be read out of the way of those to come; the engines they were for. One that cannot be
    /// moved is replaced by the next.
    pub(crate) fn set_aside_engine_records(&self) -> Vec<String> {
        let mut damaged = Vec::new();
        for engine in self.engine_files("json") {
            let path = self.engines().join(EngineRecord::file_name(&engine));
            let Err(Unread::Damaged(error)) = read(&path) else { continue };
            let aside = path.with_extension("json.unreadable");
            let moved = fs::rename(&path, &aside);
            tracing::warn!(path = %path.display(), error, moved = moved.is_ok(), "an engine's record cannot be read: it is set aside");
            damaged.push(engine);
        }
        damaged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::process_tree::{ProcessId, StartTime};

    #[test]
    fn engine_records_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::open(folder.path()).unwrap();
        // As an agent wrote it that knew no holders.
        let old = r#"{"name":"chat","pid":7,"start_time":9,"boot_id":"b","port":1,"nonce":"n","program":"/bin/true"}"#;
        let mut record: EngineRecord = serde_json::from_str(old).unwrap();
        let born = |pid, start| Born { pid: ProcessId(pid), start_time: StartTime(start) };
        assert_eq!((record.engine, record.holder), (born(7, 9), Born::NOBODY));
        (record.holder, record.key, record.files) =
            (born(6, 8), Some("k".into()), vec!["chat.key".into(), "../x".into()]);
        record.end = Some(EngineEnd { exit: Exit::Signal(9), at_unix_ms: 5, tail: "last".into() });
        assert!(!format!("{record:?}").contains("\"k\""), "{record:?}");
        fs::write(state.engines().join("chat.key"), b"k").unwrap();
        fs::write(folder.path().join("x"), b"x").unwrap();
        state.set_engine(&record).unwrap();
        fs::write(state.engines().join("broken.json"), b"{").unwrap();
        fs::copy(state.engines().join("chat.json"), state.engines().join("copied.json")).unwrap();
        assert_eq!(state.engine_records(), [record.clone()]);
        let mut aside = state.set_aside_engine_records();
        aside.sort();
        assert_eq!(aside, ["broken", "copied"]);
        assert_eq!(fs::read(state.engines().join("broken.json.unreadable")).unwrap(), b"{");
        assert_eq!((state.set_aside_engine_records().len(), state.engine_records().len()), (0, 1));
        // Whose it is decides whether a holder may write there.
        let folder_of = state.engines();
        assert_eq!(record.stands(&folder_of), Stands::Own);
        let other = EngineRecord { nonce: "other".into(), ..record.clone() };
        assert_eq!(other.stands(&folder_of), Stands::Other);
        let missing = EngineRecord { name: "nobody".into(), ..record.clone() };
        assert_eq!(missing.stands(&folder_of), Stands::Missing);
        state.forget_engine(&record);
        assert!(state.engine_records().is_empty());
        assert!(!state.engines().join("chat.key").exists() && folder.path().join("x").exists());
    }
}
