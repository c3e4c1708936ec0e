//! Leashes as real processes of this very test binary, with shells in the place of programs.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{fs, os::unix::fs::PermissionsExt, process::Stdio};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// How this binary becomes a leash.
const HOLDER: &[&str] = &["--exact", "shell::leash::tests::leash_process", "--ignored", "--nocapture"];

/// Becomes a leash when started by one of the tests below.
#[test]
#[ignore = "a process that other tests start"]
fn leash_process() {
    if std::env::var_os(ORDER).is_some() {
        std::process::exit(i32::from(crate::hold()));
    }
}

fn script(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("program");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    path
}

fn start(program: &Path, arguments: &[&str]) -> Leashed {
    let pipes = |command: &mut Command| {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    };
    Leashed::start(HOLDER, program, arguments, pipes).unwrap()
}

async fn soon(what: &str, mut is: impl FnMut() -> bool) {
    let waiting = async {
        while !is() {
            sleep(LOOK).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting)
        .await
        .unwrap_or_else(|_| panic!("waited in vain for {what}"));
}

/// The pids that a script has written, and whether any of them lives.
fn pids(file: &Path) -> Vec<i32> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn lives(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[tokio::test]
async fn input_output_and_code_are_the_programs() {
    let dir = tempfile::tempdir().unwrap();
    let program = script(dir.path(), "cat; printf \"$1-%s\" \"${UMBEL_LEASH-unset}\"; exit 7");
    let mut leashed = start(&program, &["a b"]);
    let (mut input, mut output) = (leashed.child.stdin.take().unwrap(), leashed.child.stdout.take().unwrap());
    input.write_all(b"said ").await.unwrap();
    drop(input);
    let mut text = String::new();
    output.read_to_string(&mut text).await.unwrap();
    // The test harness has written before.
    assert!(text.ends_with("said a b-unset"), "{text}");
    assert_eq!(leashed.ended().await.unwrap().code(), Some(7));
    let mut none = start(Path::new("/nowhere/program"), &[]);
    assert_eq!(none.ended().await.unwrap().code(), Some(i32::from(NOT_STARTED)));
}

/// Dropped: the program, its children and those that left its group have ended.
#[tokio::test]
async fn what_is_dropped_ends_with_all_that_it_started() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pids");
    let text = "trap '' TERM; (trap '' TERM; exec sleep 1000) & a=$!; setsid sleep 1000 & b=$!; echo $$ $a $b > FILE.next; mv FILE.next FILE; wait";
    let program = script(dir.path(), &text.replace("FILE", &file.display().to_string()));
    let leashed = start(&program, &[]);
    soon("the program's pids", || !pids(&file).is_empty()).await;
    let all = pids(&file);
    assert!(all.iter().any(|pid| lives(*pid)), "{all:?}");
    drop(leashed);
    soon("the end of all", || !all.iter().any(|pid| lives(*pid))).await;
}

/// A program that goes and leaves children: they go as well, and its code comes through.
#[tokio::test]
async fn what_a_program_leaves_ends_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pids");
    let program = script(dir.path(), &format!("sleep 1000 & echo $! > {}; exit 0", file.display()));
    let mut leashed = start(&program, &[]);
    assert_eq!(leashed.ended().await.unwrap().code(), Some(0));
    let all = pids(&file);
    assert!(!all.is_empty() && !all.iter().any(|pid| lives(*pid)), "{all:?}");
}
