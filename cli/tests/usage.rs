//! Help, usage errors, streams and exit codes that need no server.

use crate::run::{Ran, run, umbel};

#[test]
fn help_goes_to_stdout_and_is_no_failure() {
    for words in
        [&["--help"][..], &["ctl", "--help"], &["ctl", "node", "drain", "--help"], &["dev", "--help"]]
    {
        let ran = run(words);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{words:?}");
        assert!(ran.out.contains("Usage:"), "{words:?}");
    }
}

#[test]
fn examples_stand_in_the_help() {
    assert!(run(&["ctl", "node", "--help"]).out.contains("umbel ctl node drain gpu-3 -m"));
    assert!(run(&["--help"]).out.contains("Exit codes: 0 done, 1 failed, 2 usage"));
}

#[test]
fn usage_errors_are_2_and_on_stderr() {
    for words in [
        &["nonsense"][..],
        &["ctl", "status", "--nonsense"],
        &["ctl", "node", "--watch=soon"],
        &["dev", "--sites", "x"],
    ] {
        let ran = run(words);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{words:?}: {}", ran.err);
        assert!(!ran.err.is_empty());
    }
}

#[test]
fn a_similar_word_is_suggested() {
    assert!(run(&["ctl", "stauts"]).err.contains("status"));
}

#[test]
fn no_server_is_4_with_what_to_do() {
    let ran = run(&["ctl", "--socket", "/nonexistent/x.sock", "status"]);
    assert_eq!(ran.code, 4, "{}", ran.err);
    assert!(ran.err.contains("/nonexistent/x.sock") && ran.err.contains("try:"), "{}", ran.err);
}

#[test]
fn an_address_needs_a_token_and_a_ca() {
    let ran = run(&["ctl", "--addr", "https://localhost:1", "status"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("--token-file"), "{}", ran.err);
    let ran = run(&["ctl", "--addr", "https://localhost:1", "--token-file", "/dev/null", "status"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("--ca-file"), "{}", ran.err);
    let ran = run(&["ctl", "--addr", "http://localhost:1", "--token-file", "x", "--ca-file", "y", "status"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("only https"), "{}", ran.err);
}

#[test]
fn writes_cannot_be_watched() {
    let ran = run(&["ctl", "--socket", "/nonexistent", "node", "undrain", "x", "-w"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
}

#[test]
fn version_names_the_protocols() {
    let ran = run(&["version"]);
    assert!(ran.out.starts_with("umbel 0."), "{}", ran.out);
    assert!(ran.out.contains("protocols: control 1 to 1, node 1 to 1"), "{}", ran.out);
    let ran = run(&["version", "-o", "json"]);
    let object: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(object["protocols"]["node"]["max"], 1);
}

#[test]
fn a_result_that_cannot_be_written_is_a_failure() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ran: Ran = umbel().arg("version").stdout(full).output().unwrap().into();
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("could not be written"), "{}", ran.err);
}

#[test]
fn completions_are_scripts() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = run(&["completions", shell]);
        assert_eq!(ran.code, 0);
        assert!(ran.out.contains("umbel"), "{shell}");
    }
}

#[test]
fn a_link_named_umbelctl_is_ctl() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("umbelctl");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_umbel"), &link).unwrap();
    let output = std::process::Command::new(link).arg("--help").output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains("umbel ctl node why"));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child =
        umbel().args(["completions", "bash"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_flag_wins_over_a_variable() {
    let output = umbel()
        .args(["ctl", "--addr", "https://localhost:1", "status"])
        .env("UMBEL_SOCKET", "/nonexistent/other.sock")
        .output()
        .unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(err.contains("--token-file"), "{err}");
    let output =
        umbel().args(["ctl", "status"]).env("UMBEL_SOCKET", "/nonexistent/other.sock").output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("/nonexistent/other.sock"));
    let output = umbel().args(["ctl", "status"]).env("UMBEL_ADDR", "https://localhost:1").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn what_cannot_be_meant_is_refused_before_a_server_is_asked() {
    for words in [
        &["node", "why", "a", "-o", "name"][..],
        &["audit", "verify", "-o", "name"],
        &["settings", "status", "-o", "name"],
        &["events", "--after", "nonsense"],
        &["audit", "--action", "**"],
        &["status", "--timeout", "0s"],
        &["node", "approve", "x"],
    ] {
        let ran = run(&[&["ctl", "--socket", "/nonexistent/x.sock"], words].concat());
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{words:?}: {}", ran.err);
    }
    let ran = run(&["ctl", "--socket", "/nonexistent/x.sock", "settings", "keys", "zz"]);
    assert_eq!((ran.code, ran.out.as_str()), (6, ""), "{}", ran.err);
}
