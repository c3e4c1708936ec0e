//! Which versions of engines are installed on this host: each program is asked once, and again when its file changes.
//!
//! Owns asking and keeping the answers on the disk, so that the first word after a start has them; leaves what a program is
//! asked, and what its answer means, to the adapters. Invariant: a program that hangs or says nothing delays nobody, and a
//! version is told only of the very file that said it.

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::{io::AsyncReadExt, process::Command, sync::watch, task::spawn_blocking, time::timeout};
use umbel_contracts::deployment::EngineKind;

use super::{engines::Engines, leash::Leashed, state::State};
use crate::engines::adapter;

/// Kinds that have a program here.
const KINDS: [EngineKind; 3] = [EngineKind::Vllm, EngineKind::Sglang, EngineKind::LlamaServer];
/// Between two looks at the programs' files.
const LOOK: Duration = Duration::from_secs(60);
/// A program in Python reads gigabytes of libraries before it says its version; one that does not know the option may
/// serve for ever.
const LIMIT: Duration = Duration::from_secs(30);
/// Bytes of an answer.
const ANSWER_MAX: u64 = 64 * 1024;
/// Bytes of a program whose digest is taken.
const PROGRAM_MAX: u64 = 1 << 30;

/// Which file it was that was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    program: PathBuf,
    bytes: u64,
    inode: u64,
    changed: i64,
    changed_nanoseconds: i64,
}

/// What is known of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Runtime {
    seen: Seen,
    /// Empty: it did not say one.
    pub(crate) version: String,
    /// SHA-256 of the program's file, hexadecimal.
    pub(crate) digest: String,
}

/// The engines that are installed here, by kind.
#[derive(Debug)]
pub(crate) struct Runtimes {
    state: Arc<State>,
    known: Mutex<BTreeMap<String, Runtime>>,
    /// Changes with what is known.
    news: watch::Sender<()>,
}

impl Runtimes {
    /// With what an earlier agent found out. Blocks on the disk.
    pub(crate) fn open(state: &Arc<State>) -> Self {
        let known = Mutex::new(state.runtimes());
        Self { state: Arc::clone(state), known, news: watch::Sender::default() }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Runtime>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of the program of a kind, if it is still that program.
    pub(crate) fn of(&self, kind: EngineKind, program: Option<&Path>) -> Option<Runtime> {
        let known = self.known().get(kind.as_str()).cloned()?;
        (Some(known.seen.program.as_path()) == program).then_some(known)
    }

    /// When something else is known.
    pub(crate) fn news(&self) -> watch::Receiver<()> {
        self.news.subscribe()
    }

    /// Looks for ever.
    pub(crate) async fn watch(self: Arc<Self>, engines: Arc<Engines>) {
        loop {
            self.look(&engines).await;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Asks the programs whose files have changed.
    pub(crate) async fn look(&self, engines: &Engines) {
        let programs = engines.facts().programs;
        let mut news = false;
        for kind in KINDS {
            let Some(program) = programs.of(kind).map(Path::to_owned) else {
                if self.known().remove(kind.as_str()).is_some() {
                    self.news.send_replace(());
                    news = true;
                }
                continue;
            };
            let file = program.clone();
            let Ok(Some(seen)) = spawn_blocking(move || seen(&file)).await else { continue };
            if self.known().get(kind.as_str()).is_some_and(|known| known.seen == seen) {
                continue;
            }
            let said = ask(engines.holder(), &program, adapter::version_arguments(kind)).await;
            let version = said.as_deref().and_then(adapter::version).unwrap_or_default();
            let digest = spawn_blocking(move || digest(&program)).await.ok().flatten().unwrap_or_default();
            tracing::info!(%kind, version, "an engine is installed");
            self.known().insert(kind.as_str().to_owned(), Runtime { seen, version, digest });
            // Another one may take half a minute to say its version.
            self.news.send_replace(());
            news = true;
        }
        if news {
            let (state, known) = (Arc::clone(&self.state), self.known().clone());
            // Without it the programs are asked again after the next start.
            drop(spawn_blocking(move || state.set_runtimes(&known)));
        }
    }
}

fn seen(program: &Path) -> Option<Seen> {
    let facts = fs::metadata(program).ok().filter(fs::Metadata::is_file)?;
    Some(Seen {
        program: program.to_owned(),
        bytes: facts.len(),
        inode: facts.ino(),
        changed: facts.mtime(),
        changed_nanoseconds: facts.mtime_nsec(),
    })
}

fn digest(program: &Path) -> Option<String> {
    let mut file = fs::File::open(program).ok()?.take(PROGRAM_MAX);
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = file.read(&mut buffer).ok()?;
        if read == 0 {
            return Some(data_encoding::HEXLOWER.encode(&hasher.finalize()));
        }
        hasher.update(buffer.get(..read).unwrap_or_default());
    }
}

/// What a program says to these arguments, on both of its outputs. One that serves instead, or hangs, is ended.
async fn ask(holder: &[&str], program: &Path, arguments: &[&str]) -> Option<String> {
    let pipes = |command: &mut Command| {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    };
    let mut leashed = Leashed::start(holder, program, arguments, pipes).ok()?;
    let (out, err) = (leashed.child.stdout.take()?, leashed.child.stderr.take()?);
    let (mut out, mut err) = (out.take(ANSWER_MAX), err.take(ANSWER_MAX));
    let asking = async {
        let (mut said, mut complained) = (Vec::new(), Vec::new());
        // Both at once: one that is full must not hold the other up.
        let _ = tokio::join!(out.read_to_end(&mut said), err.read_to_end(&mut complained));
        let well = leashed.ended().await.is_ok_and(|status| status.success());
        said.push(b'\n');
        said.extend_from_slice(&complained);
        well.then(|| String::from_utf8_lossy(&said).into_owned())
    };
    timeout(LIMIT, asking).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::{
        Config,
        shell::{engines::Inheritance, gpu::Holders},
    };

    fn script(path: &Path, text: &str) {
        // In one step: a file that is being written cannot be started.
        let next = path.with_extension("next");
        fs::write(&next, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&next, fs::Permissions::from_mode(0o700)).unwrap();
        fs::rename(&next, path).unwrap();
    }

    #[tokio::test]
    async fn a_program_is_asked_once_and_again_when_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("vllm");
        let asked = dir.path().join("asked");
        let count = || fs::read_to_string(&asked).unwrap_or_default().lines().count();
        script(&program, &format!("echo x >> {}; echo INFO torch >&2; echo 0.33.0", asked.display()));
        let text = format!(
            "[node]\nstate_dir = \"/s\"\n[programs]\nvllm = {program:?}\nsglang = \"/nowhere/sglang\"\n"
        );
        let config = Config::parse(&text, Path::new("/etc/umbel/node.toml")).unwrap();
        let state = Arc::new(State::open(&dir.path().join("state")).unwrap());
        let engines =
            Engines::start(&config, &state, &Arc::new(Holders::new(false)), &[], Inheritance::default());
        let runtimes = Runtimes::open(&state);
        runtimes.look(&engines).await;
        runtimes.look(&engines).await;
        let known = runtimes.of(EngineKind::Vllm, Some(&program)).unwrap();
        assert_eq!((known.version.as_str(), known.digest.len(), count()), ("0.33.0", 64, 1));
        assert!(runtimes.of(EngineKind::Vllm, Some(Path::new("/other"))).is_none());
        assert!(runtimes.of(EngineKind::Sglang, Some(Path::new("/nowhere/sglang"))).is_none());
        script(&program, &format!("echo x >> {}; echo 0.34.1rc2; exit 0 # a newer one", asked.display()));
        runtimes.look(&engines).await;
        assert_eq!(
            (runtimes.of(EngineKind::Vllm, Some(&program)).unwrap().version.as_str(), count()),
            ("0.34.1rc2", 2)
        );
        script(&program, "echo 9.9.9; exit 1");
        runtimes.look(&engines).await;
        assert_eq!(runtimes.of(EngineKind::Vllm, Some(&program)).unwrap().version, "");
    }
}
