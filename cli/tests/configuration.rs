//! `umbel config` and the example files: every key is accepted, unknown ones are refused with file and line.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::run::run;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples")
}

#[test]
fn the_examples_are_valid() {
    for name in ["control-plane.toml", "edge.toml", "node.toml"] {
        let path = examples().join(name);
        let ran = run(&["config", "check", path.to_str().unwrap()]);
        assert_eq!(ran.code, 0, "{name}: {}", ran.err);
    }
}

#[test]
fn an_unknown_key_is_named_with_file_line_and_a_suggestion() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.toml");
    let text = "[edge]\nsite = \"berlin\"\nadvertise = [\"e.example:7451\"]\n\n[queue]\nmax_request = 5\n";
    fs::write(&path, text).unwrap();
    let ran = run(&["config", "check", path.to_str().unwrap()]);
    assert_eq!(ran.code, 78, "{}", ran.err);
    assert!(ran.err.contains(&format!("{}:6:1", path.display())), "{}", ran.err);
    assert!(ran.err.contains("max_requests"), "{}", ran.err);
}

#[test]
fn daemons_refuse_a_broken_file_with_78() {
    let dir = tempfile::tempdir().unwrap();
    for tier in ["control-plane", "edge", "node"] {
        let path = dir.path().join(format!("{tier}.toml"));
        fs::write(&path, "this is = not toml = at all\n").unwrap();
        let ran = run(&[tier, "--config", path.to_str().unwrap()]);
        assert_eq!(ran.code, 78, "{tier}: {}", ran.err);
        assert!(ran.err.contains(&format!("{}:1", path.display())), "{}", ran.err);
        let ran = run(&[tier, "--config", "/nonexistent/umbel.toml"]);
        assert_eq!(ran.code, 78, "{tier}: {}", ran.err);
    }
}

#[test]
fn all_wrong_files_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let (edge, node) = (dir.path().join("edge.toml"), dir.path().join("node.toml"));
    fs::write(&edge, "[edge]\nsitee = \"x\"\n").unwrap();
    fs::write(&node, "[node]\nnaem = \"x\"\n").unwrap();
    let ran = run(&["config", "check", edge.to_str().unwrap(), node.to_str().unwrap()]);
    assert_eq!(ran.code, 78);
    assert!(ran.err.contains("sitee") && ran.err.contains("naem"), "{}", ran.err);
}

#[test]
fn show_prints_the_file_after_checking_it() {
    let path = examples().join("edge.toml");
    let ran = run(&["config", "show", path.to_str().unwrap()]);
    assert_eq!(ran.out, fs::read_to_string(path).unwrap());
}

#[test]
fn the_units_start_what_there_is_and_wait_long_enough() {
    for (tier, drain) in [("control-plane", 30), ("edge", 600), ("node", 30)] {
        let path = examples().join(format!("../systemd/umbel-{tier}.service"));
        let text = fs::read_to_string(path).unwrap();
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).unwrap().to_owned();
        let start = value("ExecStart=/usr/bin/umbel ");
        assert_eq!(start, format!("{tier} --config /etc/umbel/{tier}.toml"));
        let words: Vec<&str> = start.split(' ').chain(["--help"]).collect();
        assert_eq!(run(&words).code, 0, "{start}");
        assert!(value("TimeoutStopSec=").parse::<u32>().unwrap() > drain, "{tier}");
        let example = fs::read_to_string(examples().join(format!("{tier}.toml"))).unwrap();
        assert!(example.contains(&format!("drain = \"{drain}s\"")), "{tier}");
    }
}
