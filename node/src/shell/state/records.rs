//! The records of engines' processes: for the agents that come after the one that started them.
//!
//! Owns their shape and where they lie; leaves what is done about an engine to `shell/engines` and `shell/holder`.
//! Invariant: a record stands on the disk before there is a process, and goes only when nothing of it is left.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use umbel_wire::files;

use super::State;
use crate::core::{
    process_tree::{Born, Family},
    supervisor::Exit,
};

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
    /// Beside this record, for this run only: they go with it.
    #[serde(default)]
    pub(crate) files: Vec<String>,
    /// How it ended. Written when nothing of it was left.
    #[serde(default)]
    pub(crate) end: Option<EngineEnd>,
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
    /// What may belong to it, as far as the record knows.
    pub(crate) fn family(&self) -> Family {
        Family::new(&[self.holder, self.engine])
    }

    /// The file's name of a record.
    pub(crate) fn file_name(engine: &str) -> String {
        format!("{engine}.json")
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

    /// The records that are there. One that cannot be read is told and left alone.
    pub(crate) fn engine_records(&self) -> Vec<EngineRecord> {
        let Ok(entries) = fs::read_dir(self.engines()) else { return Vec::new() };
        let mut records = Vec::new();
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match files::read_private(&path).map_err(|error| error.to_string()).and_then(|content| {
                serde_json::from_slice::<EngineRecord>(&content).map_err(|error| error.to_string())
            }) {
                Ok(record) => records.push(record),
                Err(error) => {
                    tracing::warn!(path = %path.display(), error, "an engine's record cannot be read")
                }
            }
        }
        records
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
        assert_eq!(state.engine_records(), [record.clone()]);
        state.forget_engine(&record);
        assert!(state.engine_records().is_empty());
        assert!(!state.engines().join("chat.key").exists() && folder.path().join("x").exists());
    }
}
