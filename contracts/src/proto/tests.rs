//! Compares the committed generated code with a fresh generation from the .proto files.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::path::Path;

#[test]
fn generated_code_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = ["umbel/control/v1/control.proto", "umbel/node/v1/node.proto"];
    let files = protox::compile(sources, [root.join("../proto")]).unwrap();
    let requests = files
        .file
        .into_iter()
        .map(|file| (prost_build::Module::from_protobuf_package_name(file.package()), file))
        .collect();
    let mut config = prost_build::Config::new();
    let silent = ["control.v1.EdgeEnrollRequest", "node.v1.NodeEnrollRequest", "node.v1.Header"];
    config.btree_map(["."]).skip_debug(silent.map(|name| format!(".umbel.{name}")));
    for (module, fresh) in config.generate(requests).unwrap() {
        let path = root.join("src/proto").join(module.to_file_name_or(""));
        if std::env::var_os("UMBEL_REGENERATE").is_some() {
            std::fs::write(&path, &fresh).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == fresh,
            "{} is not what proto/ gives; run UMBEL_REGENERATE=1 cargo test -p umbel-contracts --lib proto",
            path.display()
        );
    }
}
