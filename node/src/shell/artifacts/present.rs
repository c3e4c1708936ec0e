//! Artifacts that are here: found, told, taken away, and what is outworn thrown out.
//!
//! Owns looking at the roots; leaves names and shapes of folders to `folders`, and what comes to `sharing`. Invariant: what an engine
//! runs from, and what is being brought here, is not taken away.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

use umbel_contracts::proto::node::Artifact;

use super::{Artifacts, Present, folders, job, sharing::lock};
use crate::core::artifacts::{Failure, Reason, outworn};

impl Artifacts {
    /// Where an artifact is, in the order of the roots; for an engine that is to run from one of these. May block.
    ///
    /// # Errors
    /// [`Reason::NotFound`] if it is not here, or not whole.
    pub(crate) fn folders(
        &self,
        repository: &str,
        revision: &str,
        digest: &str,
    ) -> Result<Vec<PathBuf>, Failure> {
        checked(repository, revision, digest)?;
        let folder = umbel_contracts::artifact::folder(repository, revision, digest);
        let there = self.settings.roots.iter().filter(|(name, root)| {
            folders::present(name, root, &folder).is_some_and(|present| present.digest == digest)
        });
        let found: Vec<_> = there.map(|(_, root)| root.join(&folder)).collect();
        if found.is_empty() { Err(not_found(repository, revision)) } else { Ok(found) }
    }

    /// Takes an artifact away if `file`, an absolute path in it, is not what was brought: its name and size are right, so nobody
    /// would fetch it again. An engine that has it open goes on with what it has. Reads all of the file. Whether it was so.
    pub(crate) fn take_away_damaged(&self, file: &Path) -> bool {
        let (Some(quarantine), roots) = (&self.settings.quarantine, &self.settings.roots) else {
            return false;
        };
        let found = roots.iter().find_map(|(name, root)| {
            let within = file.strip_prefix(root).ok()?.to_str()?;
            // REPOSITORY/REVISION/FILE.
            let (at, _) = within.match_indices('/').nth(1)?;
            let (folder, path) = (within.get(..at)?.to_owned(), within.get(at + 1..)?.to_owned());
            Some((folders::present(name, root, &folder)?, root, folder, path))
        });
        let Some((one, root, folder, path)) = found else { return false };
        if !folders::is_damaged(&one, &root.join(&folder), &path) {
            return false;
        }
        let name = &one.root;
        tracing::warn!(
            root = name,
            folder,
            path,
            "a file is not what was brought; its artifact is taken away"
        );
        if let Err(failure) = folders::remove(quarantine, root, &folder) {
            tracing::warn!(root = name, folder, %failure, "it cannot be taken away");
            return false;
        }
        self.look();
        true
    }

    /// All artifacts that are here, whole. May block.
    pub(super) fn list(&self) -> Vec<Present> {
        self.settings.roots.iter().flat_map(|(name, root)| folders::scan(name, root)).collect()
    }

    /// Looks at the roots anew. May block.
    pub(crate) fn look(&self) {
        let number = self.looks.fetch_add(1, Ordering::Relaxed) + 1;
        self.saw(number, job::listed(self.list()));
    }

    /// What a look has found. Several are under way at once: one that began before the newest that has ended is outworn.
    pub(super) fn saw(&self, number: u64, now: Vec<Artifact>) {
        let now = Arc::new(now);
        self.seen.send_if_modified(|seen| {
            // Under the lock of what is seen.
            if self.seen_by.fetch_max(number, Ordering::Relaxed) > number {
                return false;
            }
            let differs = *seen != now;
            *seen = now;
            differs
        });
    }

    pub(super) fn look_later(self: &Arc<Self>) {
        let artifacts = Arc::clone(self);
        drop(tokio::task::spawn_blocking(move || artifacts.look()));
    }

    /// Looks at the roots now and then, and throws away what is outworn, for ever.
    pub(crate) async fn keep(self: Arc<Self>) {
        loop {
            let artifacts = Arc::clone(&self);
            // A root on a disk that hangs holds up nothing but this.
            let _ = tokio::task::spawn_blocking(move || {
                artifacts.look();
                artifacts.tidy_up();
            })
            .await;
            tokio::time::sleep(job::LOOK_AGAIN).await;
        }
    }

    /// Takes an artifact away, from every root unless one is named. `used_by` names the engine that runs from a folder, if one
    /// does. May block.
    ///
    /// # Errors
    /// [`Reason::InUse`] and nothing is done; [`Reason::NotFound`].
    pub(crate) fn remove(
        &self,
        (repository, revision, digest): (&str, &str, &str),
        root: &str,
        used_by: impl Fn(&Path) -> Option<String>,
    ) -> Result<u64, Failure> {
        checked(repository, revision, digest)?;
        let folder = umbel_contracts::artifact::folder(repository, revision, digest);
        let Some(quarantine) = &self.settings.quarantine else { return Err(not_found(repository, revision)) };
        let roots: Vec<_> =
            self.settings.roots.iter().filter(|(name, _)| root.is_empty() || root == *name).collect();
        for (name, root) in &roots {
            if let Some(engine) = used_by(&root.join(&folder)) {
                return Err(Failure::new(
                    Reason::InUse,
                    format!("engine {engine} runs from it: unload that first"),
                ));
            }
            if lock(&self.running).contains_key(&format!("{name}/{folder}")) {
                return Err(Failure::new(Reason::InUse, "it is being brought here: cancel that first"));
            }
        }
        let mut freed = None;
        for (name, root) in roots {
            // What is no whole artifact any more may go, too.
            let present = folders::present(name, root, &folder);
            // Where a link leads to stays.
            let bytes = present.filter(|_| !folders::is_linked(root, &folder)).map_or(0, |one| one.bytes);
            match folders::remove(quarantine, root, &folder) {
                Ok(()) => freed = Some(freed.unwrap_or(0) + bytes),
                Err(failure) if failure.reason == Reason::NotFound => {}
                Err(failure) => return Err(failure),
            }
        }
        self.look();
        freed.ok_or_else(|| not_found(repository, revision))
    }

    /// Throws away what nobody has gone on with for long. May block.
    pub(super) fn tidy_up(&self) {
        let Some(quarantine) = &self.settings.quarantine else { return };
        let left = folders::left(quarantine, |name| lock(&self.running).values().any(|one| one.name == name));
        for name in outworn(left, 0) {
            tracing::info!(name, "an unfinished download is given up");
            folders::forget(quarantine, &name);
        }
    }
}

fn checked(repository: &str, revision: &str, digest: &str) -> Result<(), Failure> {
    use umbel_contracts::artifact;
    let refused = |says| Failure::new(Reason::NameRefused, says);
    artifact::check_repository(repository).map_err(refused)?;
    artifact::check_revision(revision).map_err(refused)?;
    if artifact::is_sha256(digest) { Ok(()) } else { Err(refused("the digest is no SHA-256".into())) }
}

fn not_found(repository: &str, revision: &str) -> Failure {
    Failure::new(Reason::NotFound, format!("{repository} at {revision} is not on this node, or not whole"))
}
