//! Compares the committed generated code with a fresh generation from the .proto file.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::path::Path;

#[test]
fn generated_code_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = protox::compile(["umbel/wire/v1/wire.proto"], [root.join("../proto")]).unwrap();
    let requests = files
        .file
        .into_iter()
        .map(|file| (prost_build::Module::from_protobuf_package_name(file.package()), file))
        .collect();
    let mut config = prost_build::Config::new();
    config
        .btree_map(["."])
        .skip_debug(["Frame", "Open", "Head"].map(|name| format!(".umbel.wire.v1.{name}")));
    let fresh = config.generate(requests).unwrap().into_values().next().unwrap();
    let path = root.join("src/proto/umbel.wire.v1.rs");
    if std::env::var_os("UMBEL_REGENERATE").is_some() {
        std::fs::write(&path, &fresh).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == fresh,
        "{} is not what proto/umbel/wire/v1/wire.proto gives; run UMBEL_REGENERATE=1 cargo test -p umbel-wire --lib proto",
        path.display()
    );
}
