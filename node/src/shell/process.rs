//! Processes of this host: starting an engine, finding everything that belongs to it, ending it.
//!
//! Owns `/proc`, signals and reaping; leaves who belongs to whom to `core/process_tree`, and the life of an engine's
//! parent to `holder`. Invariant: a signal goes only to a process whose id and start time were just seen to belong to an
//! engine, and a process that cannot be watched does not live on.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs, io,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::MetadataExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions};
use tokio::{io::unix::AsyncFd, sync::oneshot};

use crate::{
    core::{
        process_tree::{self, Born, Family, Leader, ProcessFacts, ProcessId, StartTime, parse_stat},
        supervisor::Exit,
    },
    shell::output::Output,
};

pub(crate) mod memory;
pub(crate) mod sockets;

/// The variable that marks an engine and all it starts.
pub(crate) const NONCE: &str = "UMBEL_ENGINE_NONCE";
/// Stands beside it in the environment of a holder: the name of its engine.
pub(crate) const ENGINE: &str = "UMBEL_HOLDER_OF";
/// And the folder of the node's engines, as its node sees it: whatever becomes of a process's own folder, this finds it.
pub(crate) const HOME: &str = "UMBEL_ENGINE_HOME";
/// The nonce of what is no engine's: see `leash`.
pub(crate) const NO_ENGINE: &str = "leash";
/// The name that a holder gives itself.
pub(crate) const HOLDER: &str = "umbel-holder";
/// Between two looks while waiting for the end of an engine.
pub(crate) const LOOK: Duration = Duration::from_millis(50);
/// Bytes of an environment that are looked at.
const ENVIRONMENT_MAX: usize = 256 * 1024;

/// Processes that somebody waits for: their exit status is not the reaper's.
static WAITED_FOR: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// What to start. It may hold the engine's key: it is never logged.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Launch {
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
    /// The whole environment; nothing is inherited.
    pub(crate) environment: Vec<(OsString, OsString)>,
    pub(crate) folder: OsString,
    pub(crate) log: OsString,
    pub(crate) nonce: String,
}

/// A child of this process: an engine, seen by its holder.
#[derive(Debug)]
pub(crate) struct Process {
    born: Born,
    handle: AsyncFd<OwnedFd>,
    pub(crate) output: Output,
    /// Resolves when nobody can write output any more.
    pub(crate) all_read: Option<oneshot::Receiver<()>>,
}

impl Process {
    /// Starts a process with its own process group; its output is read from now on.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn start(launch: &Launch) -> io::Result<Self> {
        Self::start_watched(launch, |pid| Ok(rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK)?))
    }

    fn start_watched(launch: &Launch, watch: impl FnOnce(Pid) -> io::Result<OwnedFd>) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let mut command = Command::new(&launch.program);
        command
            .args(&launch.arguments)
            .env_clear()
            .envs(launch.environment.iter().map(|(name, value)| (name, value)))
            .env(NONCE, &launch.nonce)
            .env(HOME, home(Path::new(&launch.folder)))
            .current_dir(&launch.folder)
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .process_group(0);
        let (output, all_read) = Output::read(reader, Path::new(&launch.log))?;
        // Held from the birth to the entry, so that the reaper cannot come between.
        let mut waited_for = WAITED_FOR.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn()?;
        // The command holds the writing ends: with them open the output would never end.
        drop(command);
        let pid = Pid::from_child(&child);
        let id = pid.as_raw_nonzero().get();
        waited_for.push(id);
        drop(waited_for);
        // The descriptor may be one too many for this process.
        let mut unwatched = Unwatched(Some(pid));
        let handle = watch(pid)?;
        // A child that ended already still stands in `/proc` until it is waited for.
        let start_time = facts(ProcessId(id)).map_or(StartTime(0), |facts| facts.start);
        #[expect(
            deprecated,
            reason = "the others are unsafe, and an OwnedFd is open for as long as it is registered"
        )]
        let handle = AsyncFd::new(handle)?;
        unwatched.0 = None;
        Ok(Self { born: Born { pid: ProcessId(id), start_time }, handle, output, all_read: Some(all_read) })
    }

    pub(crate) fn born(&self) -> Born {
        self.born
    }

    /// Waits for its end and takes its exit status.
    pub(crate) async fn exited(&self) -> Exit {
        loop {
            let Ok(mut ready) = self.handle.readable().await else { return Exit::Unknown };
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            match rustix::process::waitid(
                WaitId::PidFd(std::os::fd::AsFd::as_fd(self.handle.get_ref())),
                options,
            ) {
                Ok(Some(status)) => {
                    self.forget();
                    return match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => Exit::Code(code),
                        (_, Some(signal)) => Exit::Signal(signal),
                        _ => Exit::Unknown,
                    };
                }
                Ok(None) => ready.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => {
                    self.forget();
                    return Exit::Unknown;
                }
            }
        }
    }

    fn forget(&self) {
        forget(self.born.pid.0);
    }
}

fn forget(waited_for: i32) {
    WAITED_FOR.lock().unwrap_or_else(PoisonError::into_inner).retain(|id| *id != waited_for);
}

/// A child that its own task waits for: until this is dropped the reaper leaves it alone.
#[derive(Debug)]
pub(crate) struct Waited(i32);

impl Waited {
    /// Starts it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn spawn(command: &mut tokio::process::Command) -> io::Result<(tokio::process::Child, Self)> {
        // Held from the birth to the entry, so that the reaper cannot come between.
        let mut waited_for = WAITED_FOR.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn()?;
        // One that has not been waited for has an id.
        let id = child.id().and_then(|id| i32::try_from(id).ok()).unwrap_or_default();
        waited_for.push(id);
        Ok((child, Self(id)))
    }
}

impl Drop for Waited {
    fn drop(&mut self) {
        forget(self.0);
    }
}

/// A child whose end nobody would see: dropped, it ends with its group, and the reaper takes it.
struct Unwatched(Option<Pid>);

impl Drop for Unwatched {
    fn drop(&mut self) {
        let Some(pid) = self.0 else { return };
        // Its id is its own until it is reaped, and only this process reaps it. It may have ended already.
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        forget(pid.as_raw_nonzero().get());
    }
}

/// All processes of this host.
pub(crate) fn all() -> Vec<ProcessFacts> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|id| facts(ProcessId(id)))
        .collect()
}

/// What `/proc` says of one process now.
pub(crate) fn facts(id: ProcessId) -> Option<ProcessFacts> {
    parse_stat(&fs::read_to_string(format!("/proc/{}/stat", id.0)).ok()?)
}

/// Identifies this start of the kernel: process ids and start times mean nothing in another one.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Whether a process carries a nonce in the environment it was started with.
pub(crate) fn is_marked(id: ProcessId, nonce: &str) -> bool {
    let wanted = format!("{NONCE}={nonce}");
    environment(id).is_some_and(|all| all.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes()))
}

/// What a process was started with, if this user may know.
fn environment(id: ProcessId) -> Option<Vec<u8>> {
    use io::Read;
    let mut environment = Vec::new();
    let file = fs::File::open(format!("/proc/{}/environ", id.0)).ok()?;
    file.take(ENVIRONMENT_MAX as u64).read_to_end(&mut environment).ok()?;
    Some(environment)
}

/// A process that carries the mark of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marked {
    pub(crate) born: Born,
    pub(crate) nonce: String,
    /// Its engine's name; holders have it.
    pub(crate) engine: Option<String>,
    pub(crate) is_holder: bool,
}

/// The living processes that carry an engine's mark and this node's: they work in its folder of engines, which holders do all
/// their life, or were started for it. As far as this user may look.
pub(crate) fn marked_in(folder: &Path) -> Vec<Marked> {
    let own = own_id();
    let Ok(place) = Place::of(folder) else { return Vec::new() };
    let strangers = all().into_iter().filter(|facts| !facts.zombie && facts.id != own);
    strangers.filter_map(|facts| marked(&facts, &place)).collect()
}

/// What [`HOME`] says of a folder.
pub(crate) fn home(folder: &Path) -> PathBuf {
    folder.canonicalize().unwrap_or_else(|_| folder.to_owned())
}

fn marked(facts: &ProcessFacts, place: &Place) -> Option<Marked> {
    let environment = environment(facts.id)?;
    let value = |name: &str| {
        let mut entries = environment.split(|byte| *byte == 0);
        entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    };
    let variable = |name: &str| Some(String::from_utf8_lossy(value(name)?).into_owned());
    let nonce = variable(NONCE).filter(|nonce| !nonce.is_empty() && nonce != NO_ENGINE)?;
    let home = value(HOME).map(OsStr::from_bytes);
    if !place.is_of(facts.id) && !home.is_some_and(|home| place.is_home_of(facts.id, home)) {
        return None;
    }
    let engine = variable(ENGINE);
    let name = fs::read_to_string(format!("/proc/{}/comm", facts.id.0)).unwrap_or_default();
    let is_holder = engine.is_some() || name.trim_end() == HOLDER;
    let born = Born { pid: facts.id, start_time: facts.start };
    Some(Marked { born, nonce, engine, is_holder })
}

/// A folder, whatever it is called.
struct Place {
    path: PathBuf,
    file: (u64, u64),
    /// What the kernel calls one that stood here and was removed.
    removed: OsString,
}

impl Place {
    fn of(folder: &Path) -> io::Result<Self> {
        let folder = folder.canonicalize()?;
        let file = fs::metadata(&folder)?;
        let mut removed = folder.clone().into_os_string();
        removed.push(" (deleted)");
        Ok(Self { path: folder, file: (file.dev(), file.ino()), removed })
    }

    /// Whether a process works in it. A path says so only to those who see the same mounts.
    fn is_of(&self, id: ProcessId) -> bool {
        let path = format!("/proc/{}/cwd", id.0);
        let is_it = fs::metadata(&path).is_ok_and(|file| (file.dev(), file.ino()) == self.file);
        let was_here = || fs::read_link(&path).is_ok_and(|path| path.as_os_str() == self.removed);
        is_it || (was_here() && sees_the_same(id))
    }

    /// Whether a process was started for it, by the path in its environment.
    fn is_home_of(&self, id: ProcessId, home: &OsStr) -> bool {
        self.path.as_os_str() == home && sees_the_same(id)
    }
}

/// Whether a process sees the same mounts: the same path elsewhere is another node's.
fn sees_the_same(id: ProcessId) -> bool {
    let mounts = |id: &str| fs::read_link(format!("/proc/{id}/ns/mnt")).ok();
    mounts("self").is_some_and(|own| mounts(&id.0.to_string()) == Some(own))
}

/// This process.
pub(crate) fn own() -> Born {
    let pid = own_id();
    Born { pid, start_time: facts(pid).map_or(StartTime(0), |facts| facts.start) }
}

/// A child of this process that nobody has waited for.
pub(crate) fn born(id: i32) -> Born {
    let pid = ProcessId(id);
    Born { pid, start_time: facts(pid).map_or(StartTime(0), |facts| facts.start) }
}

fn own_id() -> ProcessId {
    ProcessId(rustix::process::getpid().as_raw_nonzero().get())
}

/// Whether that very process lives.
pub(crate) fn lives(born: Born) -> bool {
    facts(born.pid).is_some_and(|facts| born.is(&facts) && !facts.zombie)
}

/// The living members of a family. `everywhere`: look for the nonce in every process, not only in this process's own
/// children (for what was left without a holder).
pub(crate) fn members(family: &mut Family, nonce: &str, everywhere: bool) -> Vec<ProcessFacts> {
    let own = own_id();
    let processes = all();
    let candidates: BTreeSet<ProcessId> =
        processes.iter().filter(|facts| everywhere || facts.parent == own).map(|facts| facts.id).collect();
    family.members(&processes, own, |id| candidates.contains(&id) && is_marked(id, nonce))
}

/// The living descendants of this process, a holder: whatever lost its parent became its child.
pub(crate) fn descendants(family: &mut Family) -> Vec<ProcessFacts> {
    let own = own_id();
    let processes = all();
    let children: BTreeSet<ProcessId> =
        processes.iter().filter(|facts| facts.parent == own).map(|facts| facts.id).collect();
    family.members(&processes, own, |id| children.contains(&id))
}

/// The engine that each of these processes belongs to, where one does.
pub(crate) fn owners(ids: &BTreeSet<i32>, leaders: &[Leader]) -> BTreeMap<i32, String> {
    let owned = ids.iter().filter_map(|id| {
        let engine = process_tree::owner(ProcessId(*id), leaders, facts, is_marked)?;
        Some((*id, engine.to_owned()))
    });
    owned.collect()
}

/// Sends a signal to each of them that is still the same process.
pub(crate) fn signal(members: &[ProcessFacts], signal: Signal) {
    for member in members {
        let Some(pid) = Pid::from_raw(member.id.0) else { continue };
        // The handle is opened first: what it names cannot change any more when the start time is compared.
        let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { continue };
        if facts(member.id).is_some_and(|now| now.start == member.start) {
            // It may have ended just now.
            let _ = rustix::process::pidfd_send_signal(&handle, signal);
        }
    }
}

/// Makes orphans of engines children of this process, so that they can be found, ended and reaped.
pub(crate) fn become_subreaper() {
    if let Err(error) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
        tracing::warn!(%error, "orphans of engines go to another process and are found by their mark only");
    }
}

/// Reaps children that nobody waits for: orphans that became this process's own, and holders.
pub(crate) fn reap_orphans() {
    for id in children() {
        let waited_for = WAITED_FOR.lock().unwrap_or_else(PoisonError::into_inner);
        if waited_for.contains(&id) || !facts(ProcessId(id)).is_some_and(|facts| facts.zombie) {
            continue;
        }
        // Gone already is as good.
        let _ = rustix::process::waitpid(Pid::from_raw(id), WaitOptions::NOHANG);
    }
}

/// Ids of this process's children.
fn children() -> Vec<i32> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let mut ids = Vec::new();
    for task in tasks.flatten() {
        match fs::read_to_string(task.path().join("children")) {
            Ok(list) => ids.extend(list.split_ascii_whitespace().filter_map(|id| id.parse::<i32>().ok())),
            // A kernel without that file.
            Err(_) => {
                let own = own_id();
                return all().iter().filter(|facts| facts.parent == own).map(|facts| facts.id.0).collect();
            }
        }
    }
    ids
}

#[cfg(test)]
mod tests;
