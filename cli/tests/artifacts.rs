//! `umbel ctl artifact resolve`: the `[artifact]` of a deployment, from a hub on loopback or a folder, without any server.

use umbel_contracts::{artifact::check_files, deployment::ArtifactSpec};

use crate::run::run;

// One hub for the tests of all crates; it needs nothing but the standard library.
#[path = "../../tests/src/hub.rs"]
#[allow(dead_code, unreachable_pub, reason = "tests elsewhere use the rest of it")]
mod hub;

#[derive(serde::Deserialize)]
struct Document {
    artifact: ArtifactSpec,
}

#[test]
fn what_is_printed_is_what_a_deployment_takes() {
    let hub = hub::Hub::start().unwrap();
    hub.add("org/name", "r1", "config.json", *b"{}");
    hub.add("org/name", "r1", "m \"1\".gguf", vec![7_u8; 5000]);
    hub.add("org/name", "r1", "README.md", *b"text");
    let words = ["ctl", "artifact", "resolve", "org/name", "r1", "--exclude", "*.MD", "--hub"];
    let resolved = |more: &[&str]| run(&[&words[..], &[&hub.url()], more].concat());
    let ran = resolved(&[]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let Document { artifact } = toml::from_str(&ran.out).unwrap();
    check_files(&artifact.files).unwrap();
    let names: Vec<_> = artifact.files.iter().map(|file| (file.path.as_str(), file.bytes)).collect();
    assert_eq!(names, [("config.json", 2), ("m \"1\".gguf", 5000)]);
    assert_eq!(artifact.main_file.as_deref(), Some("m \"1\".gguf"));
    assert_eq!((artifact.revision.as_str(), artifact.source.as_str()), ("r1", "hub"));
    let json: ArtifactSpec = serde_json::from_str(&resolved(&["-o", "json"]).out).unwrap();
    assert_eq!(json, artifact);

    // The same files in a folder are the same artifact.
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), b"{}").unwrap();
    std::fs::write(folder.path().join("m \"1\".gguf"), vec![7_u8; 5000]).unwrap();
    let place = folder.path().to_str().unwrap();
    let words = ["ctl", "artifact", "resolve", "org/name", "r1", "--source", "disk", "--directory", place];
    let Document { artifact: local } = toml::from_str(&run(&words).out).unwrap();
    assert_eq!((local.digest(), local.source.as_str()), (artifact.digest(), "disk"));
}

#[test]
fn what_cannot_be_resolved_says_why() {
    let hub = hub::Hub::start().unwrap();
    for (words, code, said) in [
        (vec!["../name", "r1", "--hub", &hub.url()], 2, "is no repository"),
        (vec!["org/name", "r1", "--hub", "ftp://hub"], 2, "must begin with https://"),
        (vec!["org/name", "r1", "--hub", &hub.url()], 1, "org/name@r1 has no file that is wanted"),
        (vec!["org/name", "r1", "--directory", "/nowhere/at/all"], 1, "/nowhere/at/all"),
    ] {
        let ran = run(&[&["ctl", "artifact", "resolve"][..], &words].concat());
        assert!(ran.code == code && ran.err.contains(said), "{words:?}: {} {}", ran.code, ran.err);
    }
}
