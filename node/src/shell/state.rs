//! The state directory: identity, key, sequences, engine records; and the lock that says who owns it.
//!
//! Owns file names and their shapes, those of engines in `records`; leaves how a file is replaced without loss to `umbel_wire::files`.
//! Invariant: two agents never share a state directory, and every file is the old one or the new one, whole.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use prost::Message;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use umbel_contracts::proto::node::{Gpu, NodeInventory};
use umbel_wire::{files, tls::KeyPair};

use crate::{
    StartError,
    config::EngineConfig,
    core::{
        deployments::Kept,
        identity::{Identity, KEY_FILES, PendingCredential},
        settings,
    },
    shell::runtimes::Runtime,
};

mod records;

pub(crate) use records::{EngineEnd, EngineRecord, Stands};

const IDENTITY: &str = "identity.json";
const PENDING: &str = "pending.json";
const SEQUENCES: &str = "sequences.json";
const GPUS: &str = "gpus.pb";
const SETTINGS: &str = "settings.json";
const DEPLOYMENTS: &str = "deployments.json";
const SALVAGED: &str = "deployments.salvaged.json";
const PARKED: &str = "stopped.json";
const RUNTIMES: &str = "runtimes.json";
const LOCK: &str = "agent.lock";
/// A process that is being started has all open files of who starts it, until it is another program: that long the lock of one
/// that has just ended may still be held.
const LENT: Duration = Duration::from_millis(500);
/// The first key's file name; rotations use both of the names in turn.
pub(crate) const KEY: &str = KEY_FILES[0];

/// An opened state directory.
#[derive(Debug)]
pub(crate) struct State {
    folder: PathBuf,
    /// Held as long as the agent runs; the kernel lets go of it when the process ends.
    _lock: Option<File>,
    sequences: Mutex<Sequences>,
    /// The list of deployments that could not be written, and why.
    owed: Mutex<Option<(Vec<Kept>, io::ErrorKind)>>,
    /// Why the numbers that stood there could not be used, if so.
    lost_sequences: Option<String>,
}

/// The reserves of the report streams, as they stand on the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sequences {
    pub(crate) inventory: u64,
    #[serde(default)]
    pub(crate) telemetry: u64,
}

impl State {
    /// Opens the directory and takes its lock.
    ///
    /// # Errors
    /// If it cannot be used, or another agent runs on it.
    pub(crate) fn open(folder: &Path) -> Result<Self, StartError> {
        let failed = |what: &str, error: io::Error| {
            StartError::Failed(format!("state_dir {}: {what}: {error}", folder.display()))
        };
        files::private_dir(folder).map_err(|error| failed("cannot be used", error))?;
        files::private_dir(&folder.join("engines")).map_err(|error| failed("cannot be used", error))?;
        let mut lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(folder.join(LOCK))
            .map_err(|error| failed("is not writable", error))?;
        if !is_taken(&lock) {
            let mut owner = String::new();
            // Only for the sentence.
            let _ = (&mut lock).take(32).read_to_string(&mut owner);
            return Err(StartError::Failed(format!(
                "state_dir {} is in use by another agent (pid {}): stop that one, or give this node a state_dir of its own",
                folder.display(),
                owner.trim()
            )));
        }
        let owner = format!("{}\n", std::process::id());
        lock.set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| lock.write_all(owner.as_bytes()))
            .map_err(|error| failed("is not writable", error))?;
        for place in [folder, &folder.join("engines")] {
            files::sweep(place);
        }
        let (sequences, lost_sequences) = read_sequences(folder);
        if let Some(why) = &lost_sequences {
            tracing::warn!("{why}");
        }
        let sequences = Mutex::new(sequences);
        Ok(Self {
            folder: folder.to_owned(),
            _lock: Some(lock),
            sequences,
            owed: Mutex::default(),
            lost_sequences,
        })
    }

    /// Opens it for a look only: no lock, nothing is written.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn look(folder: &Path) -> Result<Self, StartError> {
        let (sequences, lost_sequences) = read_sequences(folder);
        let sequences = Mutex::new(sequences);
        Ok(Self { folder: folder.to_owned(), _lock: None, sequences, owed: Mutex::default(), lost_sequences })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The identity, if the node has one.
    ///
    /// # Errors
    /// If the file is there and cannot be used: then nothing may go on as if there were none.
    pub(crate) fn identity(&self) -> Result<Option<Identity>, StartError> {
        let path = self.path(IDENTITY);
        let unusable = |why: String| {
            StartError::Failed(format!(
                "{}: {why}. Restore it from a backup; if there is none, give this node an empty state_dir and enroll it as a new one",
                path.display()
            ))
        };
        let content = match files::read_private(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unusable(error.to_string())),
        };
        let identity: Identity =
            serde_json::from_slice(&content).map_err(|error| unusable(error.to_string()))?;
        identity.validated().map(Some).map_err(unusable)
    }

    /// Replaces the identity: from this moment on the node is that one.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn set_identity(&self, identity: &Identity) -> Result<(), StartError> {
        let content =
            serde_json::to_vec_pretty(identity).map_err(|error| StartError::Failed(error.to_string()))?;
        let path = self.path(IDENTITY);
        files::write_private(&path, &content)
            .map_err(|error| StartError::Failed(format!("cannot write {}: {error}", path.display())))
    }

    /// A certificate that was given and not yet accepted. One that cannot be read is as if it were not there: the edge
    /// gives another.
    pub(crate) fn pending(&self) -> Option<PendingCredential> {
        let path = self.path(PENDING);
        let read = files::read_private(&path).map_err(|error| (error.kind(), error.to_string()));
        let pending = read.and_then(|content| {
            serde_json::from_slice::<PendingCredential>(&content)
                .map_err(|error| (io::ErrorKind::InvalidData, error.to_string()))
        });
        match pending {
            // The name goes into a path.
            Ok(pending) if KEY_FILES.contains(&pending.key_file.as_str()) => Some(pending),
            Ok(_) => None,
            Err((io::ErrorKind::NotFound, _)) => None,
            Err((_, error)) => {
                tracing::warn!(path = %path.display(), error, "a pending certificate cannot be read");
                None
            }
        }
    }

    /// Keeps a certificate that was given, or forgets it.
    ///
    /// # Errors
    /// If it cannot be written; then what stood there stands.
    pub(crate) fn set_pending(&self, pending: Option<&PendingCredential>) -> io::Result<()> {
        let path = self.path(PENDING);
        match pending {
            Some(pending) => {
                let content = serde_json::to_vec_pretty(pending).map_err(io::Error::other)?;
                files::write_private(&path, &content)
            }
            None => files::remove(&path),
        }
    }

    /// Whether there is a key file of this name.
    pub(crate) fn has_key(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Removes a key that opens nothing any more.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub(crate) fn drop_key(&self, name: &str) -> io::Result<()> {
        files::remove(&self.path(name))
    }

    /// The node's key; made, and safely on the disk, if there is none.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub(crate) fn key(&self, name: &str, make: bool) -> Result<KeyPair, StartError> {
        let path = self.path(name);
        let failed = |why: String| StartError::Failed(format!("key {}: {why}", path.display()));
        match files::read_private(&path) {
            Ok(content) => KeyPair::from_pem(&content).map_err(|error| failed(error.to_string())),
            Err(error) if error.kind() == io::ErrorKind::NotFound && make => {
                let key = KeyPair::generate().map_err(|error| failed(error.to_string()))?;
                files::write_private(&path, key.to_pem().as_bytes())
                    .map_err(|error| failed(error.to_string()))?;
                Ok(key)
            }
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Reserves sequence numbers: they stand on the disk when this returns. Blocks on the disk.
    ///
    /// # Errors
    /// If the file cannot be written; then nothing is reserved.
    pub(crate) fn reserve(&self, change: impl FnOnce(&mut Sequences)) -> io::Result<()> {
        let mut sequences = self.sequences.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wanted = *sequences;
        change(&mut wanted);
        let content = serde_json::to_vec(&wanted).map_err(io::Error::other)?;
        files::write_private(&self.path(SEQUENCES), &content)?;
        *sequences = wanted;
        Ok(())
    }

    /// The reserves.
    pub(crate) fn sequences(&self) -> Sequences {
        *self.sequences.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the reserves that stood there could not be used. The edge's answer to hello brings the numbers back.
    pub(crate) fn lost_sequences(&self) -> Option<String> {
        self.lost_sequences.clone()
    }

    /// The GPUs that an earlier agent saw. Without them a lost one has no name, which is no reason not to start.
    pub(crate) fn gpus(&self) -> Vec<Gpu> {
        let content = files::read_private(&self.path(GPUS)).unwrap_or_default();
        NodeInventory::decode(content.as_slice()).unwrap_or_default().gpus
    }

    /// Keeps the GPUs that are known, in the boundary's own form. Blocks on the disk.
    pub(crate) fn set_gpus(&self, gpus: Vec<Gpu>) {
        let content = NodeInventory { gpus, ..NodeInventory::default() }.encode_to_vec();
        if let Err(error) = files::write_private(&self.path(GPUS), &content) {
            tracing::warn!(%error, "the list of GPUs cannot be written to the state directory");
        }
    }

    /// The engines of deployments that this node has, and what is wrong with their list. An entry that cannot be read costs
    /// only itself; the list as it stood is kept beside it.
    pub(crate) fn deployments(&self) -> (Vec<Kept>, Option<String>) {
        let entries: Vec<serde_json::Value> = match self.listed(DEPLOYMENTS) {
            Ok(Some(entries)) => entries,
            Ok(None) => return (Vec::new(), Some("the list of deployments is not there".to_owned())),
            Err(why) => return (Vec::new(), Some(why)),
        };
        let (mut kept, mut damaged) = (Vec::new(), Vec::new());
        for entry in entries {
            let name = entry
                .get("engine")
                .and_then(|name| name.as_str())
                .unwrap_or("of an unknown engine")
                .to_owned();
            match serde_json::from_value::<Kept>(entry) {
                Ok(entry) => kept.push(entry),
                Err(error) => damaged.push(format!("{name} ({error})")),
            }
        }
        if damaged.is_empty() {
            return (kept, None);
        }
        let path = self.path(DEPLOYMENTS);
        // For people; what could be read goes on without it.
        let _ = fs::copy(&path, path.with_extension("json.damaged"));
        (kept, Some(format!("{DEPLOYMENTS}: entries that cannot be read: {}", damaged.join(", "))))
    }

    /// The engines of deployments of which only what they were started as is known.
    pub(crate) fn salvaged(&self) -> Vec<EngineConfig> {
        self.listed(SALVAGED).ok().flatten().unwrap_or_default()
    }

    /// Keeps those. Blocks on the disk.
    pub(crate) fn set_salvaged(&self, engines: &[EngineConfig]) {
        let path = self.path(SALVAGED);
        let content = serde_json::to_vec_pretty(engines).unwrap_or_default();
        let written =
            if engines.is_empty() { files::remove(&path) } else { files::write_private(&path, &content) };
        if let Err(error) = written {
            tracing::warn!(%error, "the list of salvaged engines cannot be written to the state directory");
        }
    }

    /// What stands in a file. One that cannot be read is set aside.
    fn listed<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<Option<T>, String> {
        let path = self.path(name);
        let unusable = |why: String| {
            // If that fails, the next write replaces it.
            let _ = fs::rename(&path, path.with_extension("json.damaged"));
            format!("{name} cannot be read ({why})")
        };
        match files::read_private(&path) {
            Ok(content) => {
                serde_json::from_slice(&content).map(Some).map_err(|error| unusable(error.to_string()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unusable(error.kind().to_string())),
        }
    }

    /// The engines that an operator stopped.
    pub(crate) fn parked(&self) -> BTreeSet<String> {
        self.listed(PARKED).ok().flatten().unwrap_or_default()
    }

    /// Keeps those. Blocks on the disk.
    pub(crate) fn set_parked(&self, engines: &BTreeSet<String>) {
        let content = serde_json::to_vec_pretty(engines).unwrap_or_default();
        if let Err(error) = files::write_private(&self.path(PARKED), &content) {
            tracing::warn!(%error, "which engines are stopped cannot be written to the state directory");
        }
    }

    /// Keeps the engines of deployments. Blocks on the disk.
    ///
    /// # Errors
    /// If it cannot be written; the old list then still stands, and `otherwise` is owed to the disk.
    pub(crate) fn set_deployments(&self, deployments: &[Kept], otherwise: &[Kept]) -> io::Result<()> {
        // Held until it stands there, so that the newest is written last.
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        let written = self.write_deployments(deployments);
        *owed = written.as_ref().err().map(|error| (otherwise.to_vec(), error.kind()));
        written
    }

    fn write_deployments(&self, deployments: &[Kept]) -> io::Result<()> {
        let content = serde_json::to_vec_pretty(deployments).map_err(io::Error::other)?;
        files::write_private(&self.path(DEPLOYMENTS), &content)
    }

    /// Writes what could not be written before. Blocks on the disk.
    pub(crate) fn write_owed(&self) {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        *owed = owed.take().and_then(|(list, _)| {
            let error = self.write_deployments(&list).err()?;
            Some((list, error.kind()))
        });
    }

    /// Why something of this node is not on its disk.
    pub(crate) fn unwritable(&self) -> Option<String> {
        let owed = self.owed.try_lock().ok()?;
        let (_, kind) = owed.as_ref()?;
        Some(format!(
            "the state directory cannot be written ({kind}): engines are unloaded all the same, but none is loaded until it can; make room there"
        ))
    }

    /// What an earlier agent found out of the programs of this host. What cannot be read is found out anew.
    pub(crate) fn runtimes(&self) -> BTreeMap<String, Runtime> {
        let content = files::read_private(&self.path(RUNTIMES)).unwrap_or_default();
        serde_json::from_slice(&content).unwrap_or_default()
    }

    /// Keeps it. Blocks on the disk.
    pub(crate) fn set_runtimes(&self, runtimes: &BTreeMap<String, Runtime>) {
        let content = serde_json::to_vec_pretty(runtimes).unwrap_or_default();
        if let Err(error) = files::write_private(&self.path(RUNTIMES), &content) {
            tracing::warn!(%error, "the versions of engines cannot be written to the state directory");
        }
    }

    /// Which settings this node has. One that cannot be read is set aside: the edge sends its settings again.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(crate) fn settings(&self) -> Result<settings::Record, String> {
        let path = self.path(SETTINGS);
        let unusable = |why: String| {
            let aside = path.with_extension("json.damaged");
            // If that fails too, the next write replaces it.
            let _ = fs::rename(&path, aside);
            format!("the settings that were kept cannot be read ({why}); the edge sends them again")
        };
        match files::read_private(&path) {
            Ok(content) => serde_json::from_slice(&content).map_err(|error| unusable(error.to_string())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(settings::Record::default()),
            Err(error) => Err(unusable(error.kind().to_string())),
        }
    }

    /// Writes which settings this node has: they take effect after that. Blocks on the disk.
    ///
    /// # Errors
    /// If it cannot be written; the old ones then still stand.
    pub(crate) fn set_settings(&self, record: &settings::Record) -> io::Result<()> {
        let content = serde_json::to_vec_pretty(record).map_err(io::Error::other)?;
        files::write_private(&self.path(SETTINGS), &content)
    }
}

/// The reserves, and why they could not be used if so: that keeps no agent from its start.
fn read_sequences(folder: &Path) -> (Sequences, Option<String>) {
    let path = folder.join(SEQUENCES);
    let read = match files::read_private(&path) {
        Ok(content) => serde_json::from_slice(&content).map_err(|error| error.to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Sequences::default()),
        Err(error) => Err(error.to_string()),
    };
    match read {
        Ok(sequences) => (sequences, None),
        Err(why) => {
            let what = format!(
                "{SEQUENCES} cannot be used ({why}): the edge's answer to hello brings the numbers back"
            );
            (Sequences::default(), Some(what))
        }
    }
}

/// Takes the lock, if nobody has it for longer than [`LENT`].
fn is_taken(lock: &File) -> bool {
    let until = Instant::now() + LENT;
    loop {
        if rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(LENT / 50);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn one_owner_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = State::open(folder.path()).unwrap();
        let refused = State::open(folder.path()).unwrap_err().to_string();
        assert!(
            refused.contains("in use by another agent") && refused.contains(&std::process::id().to_string())
        );
        drop(first);
        State::open(folder.path()).unwrap();
    }

    /// Row 80: what is half written is never seen, and files stay private.
    #[test]
    fn row_80_files_are_whole_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::open(folder.path()).unwrap();
        assert_eq!(state.identity().unwrap(), None);
        let made = state.key(KEY, true).unwrap();
        assert_eq!(state.key(KEY, false).unwrap().key_hash(), made.key_hash());
        state.reserve(|sequences| sequences.inventory = 7).unwrap();
        drop(state);
        let state = State::open(folder.path()).unwrap();
        assert_eq!(state.sequences().inventory, 7);
        for name in [KEY, SEQUENCES, LOCK] {
            let mode = fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        // Numbers that are lost come back from the edge: an agent starts without them, and writes them anew.
        fs::write(folder.path().join(SEQUENCES), b"{\"inven").unwrap();
        drop(state);
        let state = State::open(folder.path()).unwrap();
        assert_eq!(state.sequences().inventory, 0);
        assert!(state.lost_sequences().is_some_and(|why| why.contains("sequences.json")));
        state.reserve(|sequences| sequences.inventory = 9).unwrap();
        drop(state);
        let state = State::open(folder.path()).unwrap();
        assert_eq!((state.sequences().inventory, state.lost_sequences()), (9, None));
        // What a crash in the middle of a write leaves is not read as anything.
        fs::write(folder.path().join("identity.json.tmp"), b"{").unwrap();
        assert_eq!(state.identity().unwrap(), None);
        fs::write(folder.path().join(IDENTITY), b"{").unwrap();
        fs::set_permissions(folder.path().join(IDENTITY), fs::Permissions::from_mode(0o600)).unwrap();
        assert!(state.identity().unwrap_err().to_string().contains("identity.json"));
    }
}
