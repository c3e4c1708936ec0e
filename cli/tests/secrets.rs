//! Secrets: never from the command line, never echoed, printed once, files of mode 0600.

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::{run::umbel, server::Server};

const CANARY: &str = "umbel1_CANARYcanaryCANARYcanary";

fn node_file(dir: &std::path::Path) -> String {
    let path = dir.join("node.toml");
    let state = dir.join("state");
    fs::write(
        &path,
        format!("[node]\nname = \"t\"\nstate_dir = \"{}\"\naccelerator = \"cpu\"\n", state.display()),
    )
    .unwrap();
    path.display().to_string()
}

#[test]
fn a_token_in_argv_is_refused_and_not_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let file = node_file(dir.path());
    for words in [&[CANARY][..], &["--token", CANARY], &["--token"]] {
        let output = umbel().args(["node", "enroll", "--config", &file]).args(words).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {err}");
        assert!(err.contains("command line") && err.contains("revoke"), "{err}");
        assert!(!err.contains("CANARY"), "{err}");
    }
    let output = umbel().args(["ctl", "status", "--token", "umo_CANARY"]).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("command line") && !err.contains("CANARY"), "{err}");
}

#[test]
fn a_wrong_token_is_named_without_being_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let file = node_file(dir.path());
    let mut child = umbel()
        .args(["node", "enroll", "--config", &file, "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(CANARY.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_ne!(output.status.code(), Some(0));
    assert!(said.contains("token") && !said.contains("CANARY"), "{said}");
}

#[test]
fn without_a_terminal_it_says_where_the_token_may_come_from() {
    let dir = tempfile::tempdir().unwrap();
    let file = node_file(dir.path());
    // A session of its own has no controlling terminal.
    let output = Command::new("setsid")
        .args(["-w", env!("CARGO_BIN_EXE_umbel"), "node", "enroll", "--config", &file])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("--token-file"), "{err}");
}

/// A pseudo-terminal as the controlling one of `umbel node enroll`; gives back what the terminal showed.
fn on_a_terminal(typed: &str) -> (String, Option<i32>) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let dir = tempfile::tempdir().unwrap();
    let file = node_file(dir.path());
    let pty = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&pty).unwrap();
    unlockpt(&pty).unwrap();
    let name = ptsname(&pty, Vec::new()).unwrap().into_string().unwrap();
    // The leader of a session gets the first terminal that it opens as its own.
    let script = "exec 0<>\"$1\"; shift; exec \"$@\"";
    let mut child = Command::new("setsid")
        .args([
            "-w",
            "sh",
            "-c",
            script,
            "sh",
            &name,
            env!("CARGO_BIN_EXE_umbel"),
            "node",
            "enroll",
            "--config",
            &file,
        ])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut screen = File::from(pty);
    let mut shown = String::new();
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut buffer = [0; 1024];
    while !shown.contains("(not shown)") {
        assert!(Instant::now() < deadline, "no prompt: {shown:?}");
        match screen.read(&mut buffer) {
            Ok(count) => shown.push_str(&String::from_utf8_lossy(&buffer[..count])),
            // No process has opened the terminal yet.
            Err(_) => std::thread::yield_now(),
        }
    }
    screen.write_all(typed.as_bytes()).unwrap();
    while let Ok(count @ 1..) = screen.read(&mut buffer) {
        shown.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    let code = child.wait().unwrap().code();
    (format!("{shown}{err}"), code)
}

#[test]
fn the_prompt_does_not_echo() {
    let (said, code) = on_a_terminal(&format!("{CANARY}\r"));
    assert!(said.contains("Enrollment token (not shown)"), "{said:?}");
    assert!(!said.contains("CANARY") && !said.contains("canary"), "{said:?}");
    assert_ne!(code, Some(0));
}

#[test]
fn ctrl_c_at_the_prompt_is_130() {
    let (said, code) = on_a_terminal("abc\u{3}");
    assert_eq!(code, Some(130), "{said:?}");
    assert!(!said.contains("abc"), "{said:?}");
}

#[test]
fn a_new_token_file_is_private_and_never_replaces_one() {
    let server = Server::start();
    server.on("GET /api/v1/edges", 200, crate::run::canned("edges.json"));
    let result = crate::run::canned("enrollment-created.json");
    server.on("POST /api/v1/edges/berlin/commands", 200, result);
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("gpu-9.token");
    let words = ["token", "create", "gpu-9", "--site", "berlin", "--out", out.to_str().unwrap()];
    let ran = server.ctl(&words);
    assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{}", ran.err);
    assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&out).unwrap();
    assert!(text.starts_with("umbel1_"), "{text}");
    assert!(!ran.err.contains(text.trim()));
    // What travelled is the hash, never the secret: no part of the token's text is in the request.
    let asked = server.asked();
    let command = asked.iter().find(|asked| asked.line.starts_with("POST")).unwrap();
    assert!(command.body.contains("secret_sha256") && !command.body.contains("umbel1_"), "{}", command.body);
    let again = server.ctl(&words);
    assert_eq!(again.code, 2, "{}", again.err);
    assert_eq!(fs::read_to_string(&out).unwrap(), text);
}

#[test]
fn a_key_is_printed_alone_on_stdout() {
    let server = Server::start();
    server.on("GET /api/v1/edges", 200, crate::run::canned("edges.json"));
    server.on("POST /api/v1/edges/berlin/commands", 200, crate::run::canned("key-created.json"));
    let ran = server.ctl(&["key", "create", "webshop", "--site", "berlin"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.starts_with("umk_") && ran.out.lines().count() == 1, "{}", ran.out);
    // The secret may itself hold the sign between the parts.
    let secret = ran.out.trim().splitn(3, '_').nth(2).unwrap();
    assert!(server.asked().iter().all(|asked| !asked.body.contains(secret) && !asked.line.contains(secret)));
}

#[test]
fn json_holds_the_servers_object_and_the_secret() {
    let server = Server::start();
    server.on("GET /api/v1/edges", 200, crate::run::canned("edges.json"));
    server.on("POST /api/v1/edges/berlin/commands", 200, crate::run::canned("enrollment-created.json"));
    let ran = server.ctl(&["token", "create", "gpu-9", "--site", "berlin", "-o", "json"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let object: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert!(object["token"].as_str().unwrap().starts_with("umbel1_"), "{object}");
    assert_eq!(object["edge_id"], "berlin");
}

#[test]
fn a_list_of_names_gives_each_its_token() {
    let server = Server::start();
    server.on("GET /api/v1/edges", 200, crate::run::canned("edges.json"));
    server.on("POST /api/v1/edges/berlin/commands", 200, crate::run::canned("enrollment-created.json"));
    let dir = tempfile::tempdir().unwrap();
    let (list, out) = (dir.path().join("hosts"), dir.path().join("tokens"));
    fs::write(&list, "gpu-7\n\n gpu-8\ngpu-9\n").unwrap();
    let list = list.to_str().unwrap();
    let words = ["token", "create", "--names-file", list, "--site", "berlin", "--eligible"];
    let ran = server.ctl(&[&words[..], &["--out", out.to_str().unwrap()]].concat());
    assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{}", ran.err);
    assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&out).unwrap();
    let lines: Vec<(&str, &str)> = text.lines().map(|line| line.split_once(' ').unwrap()).collect();
    assert_eq!(lines.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["gpu-7", "gpu-8", "gpu-9"]);
    assert!(lines.iter().all(|(_, token)| token.starts_with("umbel1_") && !ran.err.contains(token)));
    // One command, whose tokens are the asker's, by their hashes.
    let asked = server.asked();
    let made: Vec<_> = asked.iter().filter(|asked| asked.body.contains("secret_sha256")).collect();
    assert_eq!(made.len(), 1);
    let body: serde_json::Value = serde_json::from_str(&made[0].body).unwrap();
    assert_eq!(body["args"]["name"], "gpu-7");
    assert_eq!(body["args"]["more"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&body["args"]["more"][1]["name"], &body["args"]["eligible"]),
        (&"gpu-9".into(), &true.into())
    );
    let ran = server.ctl(&[&words[..], &["-o", "json"]].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    let objects: Vec<serde_json::Value> = serde_json::from_str(&ran.out).unwrap();
    let ids: std::collections::BTreeSet<_> =
        objects.iter().map(|one| one["token_id"].as_str().unwrap()).collect();
    assert_eq!((objects.len(), ids.len(), &objects[2]["name"]), (3, 3, &"gpu-9".into()));
    assert!(objects.iter().all(|one| one["token"].as_str().unwrap().starts_with("umbel1_")));
}

#[test]
fn a_list_that_cannot_be_meant_makes_nothing() {
    let server = Server::start();
    server.on("GET /api/v1/edges", 200, crate::run::canned("edges.json"));
    let dir = tempfile::tempdir().unwrap();
    let (list, out) = (dir.path().join("hosts"), dir.path().join("tokens"));
    for (text, word) in [("", "one a line"), ("gpu-7\ngpu-8\ngpu-7\n", "gpu-7")] {
        fs::write(&list, text).unwrap();
        let words = ["token", "create", "--site", "berlin", "--names-file", list.to_str().unwrap()];
        let ran = server.ctl(&[&words[..], &["--out", out.to_str().unwrap()]].concat());
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(ran.err.contains(word), "{}", ran.err);
        assert!(!out.exists());
    }
    assert!(server.asked().iter().all(|asked| !asked.line.starts_with("POST")));
}

/// More than one command holds: every name is checked before a first token is made.
#[test]
fn a_long_list_is_asked_dry_first() {
    let server = Server::start();
    server.on("GET /api/v1/edges", 200, crate::run::canned("edges.json"));
    server.on("POST /api/v1/edges/berlin/commands", 200, crate::run::canned("enrollment-created.json"));
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("hosts");
    let names: String = (0..300).map(|n| format!("gpu-{n}\n")).collect();
    fs::write(&list, names).unwrap();
    let words = ["token", "create", "--names-file", list.to_str().unwrap(), "--site", "berlin"];
    let ran = server.ctl(&words);
    assert_eq!((ran.code, ran.out.lines().count()), (0, 300), "{}", ran.err);
    let bodies = server.asked().into_iter().filter(|asked| asked.body.contains("secret_sha256"));
    let dry: Vec<bool> = bodies
        .map(|asked| serde_json::from_str::<serde_json::Value>(&asked.body).unwrap()["dry_run"] == true)
        .collect();
    assert_eq!(dry, [true, true, true, false, false, false]);
    let id = "00000000-0000-4000-8000-000000000009";
    let ran = server.ctl(&[&words[..], &["--command-id", id]].concat());
    assert_eq!(ran.code, 2, "{}", ran.err);
}
