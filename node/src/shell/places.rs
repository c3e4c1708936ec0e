//! Whether the directories of the node's file may be used for what they are meant for.
//!
//! Owns the checks and their remedies; leaves the lock of the state directory to `state`. Invariant: nothing is made or
//! changed here, and a directory that the next boot or container empties is used only where the file says so.

use std::{os::unix::fs::MetadataExt, path::Path};

use rustix::fs::Access;

use crate::{Config, StartError};

/// What is wrong with a directory, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) says: String,
    pub(crate) remedy: &'static str,
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.says, self.remedy)
    }
}

/// Checks all of them; the problem that the file allows to be there, if it is.
///
/// # Errors
/// [`StartError::State`] with what is wrong and what to do.
pub(crate) fn check(config: &Config) -> Result<Option<String>, StartError> {
    let refused = |wrong: Wrong| StartError::State(wrong.to_string());
    let allowed = state(config).map_err(refused)?;
    artifacts(config).map_err(refused)?;
    Ok(allowed)
}

/// The state directory: it may not be there yet, since enrolling makes it.
pub(crate) fn state(config: &Config) -> Result<Option<String>, Wrong> {
    let folder = &config.state_dir;
    let there = folder.ancestors().find(|folder| folder.exists());
    match there.and_then(volatile) {
        None => Ok(None),
        Some(why) if config.allow_volatile_state => Ok(Some(format!(
            "the state directory {why}, and the node's identity with it; set node.state_dir to a directory on a disk"
        ))),
        Some(why) => Err(Wrong {
            says: format!("node.state_dir {} {why}, and the node's identity with it", folder.display()),
            remedy: "set it to a directory on a disk or a mounted volume, or node.allow_volatile_state = true for a node that may be forgotten",
        }),
    }
}

/// Quarantine and artifact roots: there, writable, on a disk, and all on one file system.
pub(crate) fn artifacts(config: &Config) -> Result<(), Wrong> {
    let Some(quarantine) = &config.artifacts.quarantine else { return Ok(()) };
    let device = folder("artifacts.quarantine", quarantine, config.allow_volatile_state)?;
    for (name, root) in &config.artifacts.roots {
        let key = format!("artifacts.roots.{name}");
        if folder(&key, root, config.allow_volatile_state)? != device {
            return Err(Wrong {
                says: format!(
                    "{key} {} and artifacts.quarantine {} are on different file systems",
                    root.display(),
                    quarantine.display()
                ),
                remedy: "put both on one: what was checked goes from the one to the other in one rename",
            });
        }
    }
    Ok(())
}

/// A directory that must be there and usable; its file system.
fn folder(key: &str, path: &Path, volatile_too: bool) -> Result<u64, Wrong> {
    let shown = path.display();
    let facts = std::fs::metadata(path).map_err(|error| Wrong {
        says: format!("{key} {shown}: {error}"),
        remedy: "make the directory for this user, or correct the file",
    })?;
    if !facts.is_dir() {
        return Err(Wrong { says: format!("{key} {shown} is no directory"), remedy: "correct the file" });
    }
    match rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => {}
        Err(rustix::io::Errno::ROFS) => {
            return Err(Wrong {
                says: format!("{key} {shown} is on a file system that is read-only for this process"),
                remedy: "mount it for writing, or name it in ReadWritePaths= of the systemd unit",
            });
        }
        Err(_) => {
            return Err(Wrong {
                says: format!("{key} {shown} is not writable for this user"),
                remedy: "run as its owner, or chown it",
            });
        }
    }
    match volatile(path) {
        Some(why) if !volatile_too => Err(Wrong {
            says: format!("{key} {shown} {why}"),
            remedy: "set it to a directory on a disk or a mounted volume",
        }),
        _ => Ok(facts.dev()),
    }
}

/// Why what is there is lost with the next boot or container.
fn volatile(path: &Path) -> Option<&'static str> {
    // Numbers of linux/magic.h.
    const TMPFS: i64 = 0x0102_1994;
    const OVERLAY: i64 = 0x794c_7630;
    match rustix::fs::statfs(path).ok()?.f_type {
        TMPFS => Some("is in memory (tmpfs): what is there is lost with the next boot"),
        OVERLAY => Some("is in a container's own layer: what is there is lost with the container"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text, Path::new("/nowhere/node.toml")).unwrap()
    }

    /// `/dev/shm` is a tmpfs on every Linux.
    #[test]
    fn memory_is_no_place_for_an_identity() {
        let text = "[node]\nstate_dir = \"/dev/shm/umbel-not-there/state\"\n";
        let refused = check(&config(text)).unwrap_err();
        assert_eq!(refused.exit_code(), 1);
        assert!(refused.to_string().contains("tmpfs") && refused.to_string().contains("node.state_dir"));
        let allowed = check(&config(&format!("{text}allow_volatile_state = true\n"))).unwrap();
        assert!(allowed.unwrap().contains("tmpfs"));
    }

    #[test]
    fn models_wait_where_they_will_be() {
        let folder = tempfile::tempdir().unwrap();
        let [quarantine, models] = ["quarantine", "models"].map(|name| folder.path().join(name));
        let checked = |models: &Path, more: &str| {
            artifacts(&config(&format!(
                "[node]\n{more}\n[artifacts]\nquarantine = {quarantine:?}\n[artifacts.roots]\nmodels = {models:?}\n"
            )))
        };
        let volatile = "allow_volatile_state = true";
        assert!(checked(&models, volatile).unwrap_err().says.starts_with("artifacts.quarantine"));
        std::fs::create_dir(&quarantine).unwrap();
        assert!(checked(&models, volatile).unwrap_err().says.starts_with("artifacts.roots.models"));
        std::fs::create_dir(&models).unwrap();
        checked(&models, volatile).unwrap();
        // Another file system, and one in memory.
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let elsewhere = std::fs::metadata(folder.path()).unwrap().dev()
            != std::fs::metadata(memory.path()).unwrap().dev();
        if elsewhere {
            assert!(checked(memory.path(), volatile).unwrap_err().says.contains("different file systems"));
            assert!(checked(memory.path(), "").unwrap_err().says.contains("tmpfs"));
        }
    }
}
