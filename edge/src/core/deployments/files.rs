//! Which files replicas need where they are.
//!
//! Invariant: what may be somebody's is somebody's: of a replica that runs an older document only the digest of its files is
//! known, and every artifact of that digest is kept for it.

use std::collections::BTreeMap;

use umbel_wire::NodeId;

use super::Deployments;

/// Files that replicas need, by node and digest.
#[derive(Debug, Default)]
pub(crate) struct NeededFiles(BTreeMap<(NodeId, String), Vec<Need>>);

#[derive(Debug)]
struct Need {
    engine: String,
    /// Repository and revision, where they are known.
    name: Option<(String, String)>,
}

impl NeededFiles {
    /// The engines that need an artifact on a node.
    pub(crate) fn by(&self, node: NodeId, repository: &str, revision: &str, digest: &str) -> Vec<String> {
        let needs = self.0.get(&(node, digest.to_owned()));
        let means = |need: &&Need| {
            need.name.as_ref().is_none_or(|(own, exact)| own == repository && exact == revision)
        };
        needs.into_iter().flatten().filter(means).map(|need| need.engine.clone()).collect()
    }
}

impl Deployments {
    /// Which files replicas need now.
    pub(crate) fn needed_files(&self) -> NeededFiles {
        let mut digests: BTreeMap<&str, String> = BTreeMap::new();
        let mut needed = NeededFiles::default();
        for row in self.replicas.values().filter(|row| !row.artifact.is_empty()) {
            let spec = self.rows.get(&row.deployment).and_then(|row| row.spec.artifact.as_ref());
            let name = spec.and_then(|spec| {
                let digest = digests.entry(&row.deployment).or_insert_with(|| spec.digest());
                (*digest == row.artifact).then(|| (spec.repository.clone(), spec.revision.clone()))
            });
            let need = Need { engine: row.engine(), name };
            needed.0.entry((row.node, row.artifact.clone())).or_default().push(need);
        }
        needed
    }
}
