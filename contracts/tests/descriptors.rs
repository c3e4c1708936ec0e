//! The descriptor set of all three packages, compiled from `proto/`, and every message in it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use prost_reflect::{DescriptorPool, MessageDescriptor};

/// The three packages; each is one file.
pub(crate) const PACKAGES: [(&str, &str); 3] = [
    ("umbel.wire.v1", "umbel/wire/v1/wire.proto"),
    ("umbel.control.v1", "umbel/control/v1/control.proto"),
    ("umbel.node.v1", "umbel/node/v1/node.proto"),
];

/// This crate's folder, where documents, vectors and frozen sets stand.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The pool, compiled once.
pub(crate) fn pool() -> &'static DescriptorPool {
    static POOL: OnceLock<DescriptorPool> = OnceLock::new();
    POOL.get_or_init(|| {
        let files = PACKAGES.map(|(_, file)| file);
        let set = protox::compile(files, [root().join("../proto")]).unwrap();
        DescriptorPool::from_file_descriptor_set(set).unwrap()
    })
}

/// Every message of the three packages. Map entries are part of their field, not messages of their own.
pub(crate) fn messages() -> impl Iterator<Item = MessageDescriptor> {
    pool().all_messages().filter(|message| !message.is_map_entry())
}

/// Every file below a folder, sorted.
pub(crate) fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}
