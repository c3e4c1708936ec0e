//! A full disk (row 102): management is refused with a clear error, inference goes on, nothing answered is lost, and it
//! recovers by itself when there is room again.
//!
//! The small volume is a file with ext4 in it; where it cannot be mounted the test says that it was skipped.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;
use umbel_tests::engine::Engine;
use umbel_tests::fleet::{EdgeOptions, Fleet, SOON};
use umbel_tests::http::Ask;
use umbel_tests::wait;

use crate::sites::{SHORT, external, skipped};

/// A mounted volume of 24 MiB; unmounted when dropped.
pub(crate) struct Volume {
    pub(crate) at: PathBuf,
}

impl Volume {
    pub(crate) fn mount(dir: &Path) -> Result<Self, String> {
        let (image, at) = (dir.join("volume.img"), dir.join("volume"));
        fs::create_dir_all(&at).map_err(|e| e.to_string())?;
        fs::File::create(&image).and_then(|f| f.set_len(24 << 20)).map_err(|e| e.to_string())?;
        for words in [vec!["mkfs.ext4", "-q", "-m", "0"], vec!["mount", "-o", "loop"]] {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).arg(&image).stdin(Stdio::null());
            if words[0] == "mount" {
                command.arg(&at);
            }
            let output = command.output().map_err(|e| format!("{}: {e}", words[0]))?;
            if !output.status.success() {
                return Err(format!("{}: {}", words[0], String::from_utf8_lossy(&output.stderr).trim()));
            }
        }
        Ok(Self { at })
    }

    /// Takes all the room that is left.
    pub(crate) fn fill(&self) -> PathBuf {
        self.fill_as("filler")
    }

    pub(crate) fn fill_as(&self, name: &str) -> PathBuf {
        let path = self.at.join(name);
        let mut file = fs::File::create(&path).unwrap();
        for size in [1 << 20, 64 << 10, 4 << 10, 1 << 10] {
            let block = vec![0_u8; size];
            while file.write_all(&block).and_then(|()| file.sync_data()).is_ok() {}
        }
        path
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

#[test]
fn a_full_disk_stops_management_and_not_inference() {
    // The volume goes last: the edge's files are on it.
    let fleet = Fleet::new();
    let volume = match Volume::mount(fleet.dir()) {
        Ok(volume) => volume,
        Err(why) => {
            skipped(
                "a_full_disk_stops_management_and_not_inference",
                &format!("no small volume here: {why}"),
            );
            return;
        }
    };
    let engine = Engine::start(&["m"]).unwrap();
    let options = EdgeOptions { state: Some(volume.at.join("state")), ..EdgeOptions::default() };
    let mut edge = fleet.edge("berlin", None, &options);
    let _node = fleet.node(&edge, "gpu-1", &external(&engine, 2));
    let leaked =
        edge.ctl(&["key", "create", "leaked", "-o", "json"]).ok().json()["key"].as_str().unwrap().to_owned();
    let filler = volume.fill();
    let mut answered = Vec::new();
    let mut refusal = None;
    for n in 0..2_000 {
        let name = format!("key-{n}");
        let ran = edge.ctl(&["key", "create", &name]);
        if ran.code != 0 {
            refusal = Some(ran);
            break;
        }
        answered.push(name);
    }
    let refusal = refusal.expect("a write is refused when nothing is left");
    assert!(!refusal.err.contains("panicked") && !refusal.err.is_empty(), "{refusal:?}");
    // What ends harm takes force, and says how long it holds.
    for words in [
        ["key", "revoke", "leaked", "-m", "it leaked", "-y"],
        ["node", "drain", "gpu-1", "-m", "a test", "-y"],
        ["node", "undrain", "gpu-1", "-m", "a test", "-y"],
    ] {
        let ran = edge.ctl(&words).ok();
        assert!(ran.err.contains("warning: the edge's disk takes no writes"), "{words:?}: {ran:?}");
    }
    let got = edge.chat("m", "full", true, &json!({})).whole(&edge.target()).unwrap();
    assert!(got.text().ends_with("[DONE]\n\n"), "inference goes on: {}", got.text());
    let site = edge.get("/api/v1/status")["sites"][0].clone();
    assert_eq!(site["summary"]["store"], "read_only", "{site}");

    fs::remove_file(filler).unwrap();
    wait::until_some("writes are taken again", SOON, || {
        let ran = edge.ctl(&["key", "create", "again"]);
        if ran.code == 0 || ran.err.contains("CONFLICT") { Ok(()) } else { Err(ran.err) }
    });
    edge.daemon.kill();
    edge.start();
    let listed = edge.ctl(&["key", "-o", "json"]).ok().out;
    for name in &answered {
        assert!(listed.contains(&format!("\"{name}\"")), "{name} was answered and is lost");
    }
    let ask = Ask::get("/v1/models").bearer(&leaked);
    assert_eq!(ask.whole(&edge.target()).unwrap().status, 401, "a revoked key stays revoked");
    let audit = edge.ctl(&["audit", "-o", "json", "--limit", "1000"]).ok().out;
    for action in ["apikey.revoke", "node.drain", "node.undrain"] {
        assert!(audit.contains(&format!("\"{action}\"")), "no entry of {action}");
    }
    edge.wait_node("gpu-1", "back", SHORT, |n| n["connected"] == true);
}

/// Rows 102 and 107: edge and control plane that start on a full disk serve what they can, say from the start that they
/// take no changes, and take them again by themselves.
#[test]
fn row_102_edge_and_control_plane_start_on_a_full_disk() {
    let test = "row_102_edge_and_control_plane_start_on_a_full_disk";
    let fleet = Fleet::new();
    let volume = match Volume::mount(fleet.dir()) {
        Ok(volume) => volume,
        Err(why) => return skipped(test, &format!("no small volume here: {why}")),
    };
    let engine = Engine::start(&["m"]).unwrap();
    let mut plane = fleet.control_plane();
    let moved = volume.at.join("plane");
    plane.daemon.stop(SOON);
    let copied = Command::new("cp").arg("-a").arg(&plane.state).arg(&moved).status().unwrap();
    assert!(copied.success());
    fs::remove_dir_all(&plane.state).unwrap();
    std::os::unix::fs::symlink(&moved, &plane.state).unwrap();
    plane.start();
    let options = EdgeOptions { state: Some(volume.at.join("state")), ..EdgeOptions::default() };
    let mut edge = fleet.edge("berlin", Some(&plane), &options);
    let _node = fleet.node(&edge, "gpu-1", &external(&engine, 2));
    edge.wait_serving("gpu-1");
    let filler = volume.fill();
    edge.daemon.kill();
    plane.daemon.kill();
    // What the end of both gave back.
    let rest = volume.fill_as("rest");

    plane.start();
    edge.start();
    let problems = || {
        let site = edge.get("/api/v1/status")["sites"][0].clone();
        let problems = site["summary"]["problems"].as_array().cloned().unwrap_or_default();
        problems
            .iter()
            .map(|problem| problem["code"].as_str().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    assert!(problems().contains(&"STORE_READ_ONLY".to_owned()), "from the start: {:?}", problems());
    edge.wait_serving("gpu-1");
    let got = edge.chat("m", "full", true, &json!({})).whole(&edge.target()).unwrap();
    assert!(got.text().ends_with("[DONE]\n\n"), "{}", got.text());
    plane.wait_fresh("berlin");
    let refused = edge.ctl(&["key", "create", "late"]);
    assert!(refused.code == 1 && refused.err.contains("AUDIT_UNAVAILABLE"), "{refused:?}");
    let refused = plane.ctl(&["operator", "create", "late", "--role", "viewer"]);
    assert!(refused.code == 1 && refused.err.contains("AUDIT_UNAVAILABLE"), "{refused:?}");
    // Told once, however often it is tried.
    let is_told =
        |line: &&str| line.contains("could not be written") && !line.contains("\"level\":\"DEBUG\"");
    let told = |log: String| log.lines().filter(is_told).count();
    assert_eq!((told(edge.daemon.log()), told(plane.daemon.log())), (0, 0));

    fs::remove_file(filler).unwrap();
    fs::remove_file(rest).unwrap();
    wait::until("the edge's store is written again", SOON, || {
        !problems().contains(&"STORE_READ_ONLY".to_owned())
    });
    let _ = edge.ctl(&["key", "create", "late"]).ok();
    wait::until("and the control plane's", SOON, || {
        plane.ctl(&["operator", "create", "late", "--role", "viewer"]).code == 0
    });
    let audit = edge.ctl(&["audit", "--action", "audit.gap", "-o", "jsonl"]).ok().out;
    assert!(audit.lines().count() >= 1, "the gap is in the audit");
}
