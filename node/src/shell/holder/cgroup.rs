//! A control group for one engine, where this process may make one: everything in it ends at one stroke.
//!
//! Owns making, killing and removing it; leaves all else to the parent, which works without one. Invariant: only a group
//! that this holder made is ever killed or removed.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Where version 2 of control groups is mounted.
const ROOT: &str = "/sys/fs/cgroup";

/// A group of this holder's own.
#[derive(Debug)]
pub(super) struct Cgroup {
    folder: PathBuf,
    /// The group that this process came from.
    before: PathBuf,
}

impl Cgroup {
    /// Makes a group below this process's own and goes into it; nothing where that may not be done.
    pub(super) fn enter(nonce: &str) -> Option<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = unified(&groups)?;
        let before = Path::new(ROOT).join(own.trim_start_matches('/'));
        // Without this file it could not be ended at one stroke, and is of no use.
        if !before.join("cgroup.kill").exists() && own != "/" {
            return None;
        }
        let folder = before.join(format!("umbel-engine-{nonce}"));
        fs::create_dir(&folder).ok()?;
        let group = Self { folder, before };
        if group.folder.join("cgroup.kill").exists()
            && fs::write(group.folder.join("cgroup.procs"), "0").is_ok()
        {
            return Some(group);
        }
        group.remove();
        None
    }

    /// Goes back to where this process came from; what it started stays. Nothing if it cannot go back: killing the group
    /// would end this process.
    pub(super) fn leave(self) -> Option<Self> {
        fs::write(self.before.join("cgroup.procs"), "0").ok()?;
        Some(self)
    }

    /// Ends everything in it.
    pub(super) fn kill(&self) {
        // What is left is found by its descent.
        let _ = fs::write(self.folder.join("cgroup.kill"), "1");
    }

    /// Removes it; it must be empty.
    pub(super) fn remove(self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

/// The path of version 2's group in `/proc/self/cgroup`.
fn unified(groups: &str) -> Option<&str> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    // A path out of its own namespace could lead anywhere.
    (own.starts_with('/') && !own.split('/').any(|part| part == "..")).then_some(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_group_is_found() {
        assert_eq!(unified("9:name=systemd:/x\n0::/a.slice/b.service\n"), Some("/a.slice/b.service"));
        assert_eq!(unified("1:cpu:/\n"), None);
        assert_eq!(unified("0::/../../x\n"), None);
    }
}
