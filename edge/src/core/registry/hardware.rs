//! Which nodes report which GPU.
//!
//! Owns the index by UUID. A site has a hundred thousand GPUs, each at one node but for a copied state directory, so an
//! entry is two numbers. Invariant: a GPU that nobody reports has no entry.

use std::collections::{BTreeSet, HashMap};

use umbel_wire::NodeId;

/// All GPUs of a site.
#[derive(Debug, Default)]
pub(super) struct Hardware {
    first: HashMap<u128, NodeId>,
    /// Further nodes that report one too.
    more: HashMap<u128, BTreeSet<NodeId>>,
}

impl Hardware {
    /// A node reports this GPU. All that do, if there are more than one.
    pub(super) fn claim(&mut self, uuid: &str, node: NodeId) -> Vec<NodeId> {
        let key = key(uuid);
        let first = *self.first.entry(key).or_insert(node);
        if first != node {
            self.more.entry(key).or_default().insert(node);
        }
        let Some(more) = self.more.get(&key) else { return Vec::new() };
        std::iter::once(first).chain(more.iter().copied()).collect()
    }

    /// A node reports it no longer. Who does is returned.
    pub(super) fn release(&mut self, uuid: &str, node: NodeId) -> Vec<NodeId> {
        let key = key(uuid);
        let mut holders: BTreeSet<NodeId> = self.more.remove(&key).unwrap_or_default();
        holders.extend(self.first.remove(&key));
        holders.remove(&node);
        let mut rest = holders.iter().copied();
        if let Some(first) = rest.next() {
            self.first.insert(key, first);
        }
        let more: BTreeSet<NodeId> = rest.collect();
        if !more.is_empty() {
            self.more.insert(key, more);
        }
        holders.into_iter().collect()
    }
}

/// The UUID in 128 bits: FNV-1a. Two that collide by design would only make their own nodes look alike, which naming the
/// same UUID does too.
fn key(uuid: &str) -> u128 {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    uuid.bytes().fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_held_by_whoever_reports_it() {
        let mut hardware = Hardware::default();
        let (a, b) = (NodeId::random(), NodeId::random());
        assert!(hardware.claim("GPU-1", a).is_empty() && hardware.claim("GPU-1", a).is_empty());
        assert!(hardware.claim("GPU-2", b).is_empty());
        assert_eq!(BTreeSet::from_iter(hardware.claim("GPU-1", b)), BTreeSet::from([a, b]));
        assert_eq!(hardware.release("GPU-1", a), [b]);
        assert!(hardware.claim("GPU-1", b).is_empty());
        assert!(hardware.release("GPU-1", b).is_empty() && hardware.release("GPU-1", b).is_empty());
        hardware.release("GPU-2", b);
        assert!(hardware.first.is_empty() && hardware.more.is_empty());
    }
}
