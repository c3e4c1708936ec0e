//! What a site keeps, on real processes: the audit that is whole and exported, a backup that is restored, an authority that
//! changes (rows 32, 100).

use std::time::Duration;

use serde_json::{Value, json};
use umbel_tests::fleet::{EdgeOptions, EngineDeclaration, Fleet, NodeOptions, SOON, run};
use umbel_tests::wait;

use crate::sites::{external, site};

pub(crate) fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The audit of a site: asked by its conditions, checked, exported, and the exported file checked without its server.
#[test]
fn an_audit_is_asked_checked_and_exported() {
    let s = site(1);
    let _ = s.edge.ctl(&["node", "drain", "gpu-1", "-m", "a loose fan"]).ok();
    let _ = s.edge.ctl(&["node", "undrain", "gpu-1"]).ok();
    let refused = s.edge.ctl(&["token", "revoke", "nonsense", "-m", "x"]);
    assert_eq!(refused.code, 6);
    let found = s.edge.ctl(&["audit", "--site", "berlin", "--action", "node.drain", "-o", "jsonl"]).ok();
    let found = lines(&found.out);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0]["reason"], &found[0]["outcome"]), (&json!("a loose fan"), &json!("succeeded")));
    // Its own socket is a fleet of one: without --site it is the same record.
    let own = lines(&s.edge.ctl(&["audit", "--action", "node.drain", "-o", "jsonl"]).ok().out);
    assert_eq!(own, found);
    let verified = s.edge.ctl(&["audit", "verify", "--site", "berlin", "-o", "json"]).ok().json();
    assert_eq!(verified["whole"], true, "{verified}");
    let file = s.fleet.dir().join("berlin.audit");
    let file = file.to_string_lossy().into_owned();
    let _ = s.edge.ctl(&["audit", "export", "--site", "berlin", "--out", &file]).ok();
    let alone = run(&["ctl", "--socket", "/nonexistent", "audit", "verify", "--file", &file]).ok();
    assert!(alone.out.contains("the chain is whole"), "{alone:?}");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen("a loose fan", "an empty fan", 1)).unwrap();
    let changed = run(&["ctl", "--socket", "/nonexistent", "audit", "verify", "--file", &file]);
    assert_eq!(changed.code, 3, "{changed:?}");
}

/// Somebody puts an older store in an edge's place, and it has grown beyond what its control plane knew before the two
/// meet again: the number goes on, and what stands there does not.
#[test]
fn an_audit_that_was_cut_and_outgrown_is_seen_by_the_control_plane() {
    let fleet = Fleet::new();
    let mut plane = fleet.control_plane();
    let mut edge = fleet.edge("berlin", Some(&plane), &EdgeOptions::default());
    plane.wait_fresh("berlin");
    edge.daemon.stop(SOON);
    let (store, older) = (edge.state.join("store.redb"), fleet.dir().join("older.redb"));
    std::fs::copy(&store, &older).unwrap();
    edge.start();
    for n in 0..4 {
        let _ = edge.token(&format!("before-{n}"));
    }
    wait::until("the control plane was told of them", SOON, || {
        plane.get("/api/v1/edges/berlin")["last_summary"]["audit_sequence"].as_u64() >= Some(4)
    });
    edge.daemon.stop(SOON);
    plane.daemon.stop(SOON);
    std::fs::copy(&older, &store).unwrap();
    edge.start();
    for n in 0..12 {
        let _ = edge.token(&format!("after-{n}"));
    }
    plane.start();
    let cut = wait::until_some("the control plane tells of it", SOON, || {
        let edge = plane.get("/api/v1/edges/berlin");
        let problems = edge["problems"].as_array().cloned().unwrap_or_default();
        problems.into_iter().find(|problem| problem["code"] == "AUDIT_CUT").ok_or_else(|| edge.to_string())
    });
    assert!(cut["message"].as_str().unwrap().contains("has another hash"), "{cut}");
    wait::until("it is audited", SOON, || {
        plane.ctl(&["audit", "--action", "edge.audit_cut", "-o", "jsonl"]).ok().out.contains("berlin")
    });
}

/// A backup of a running edge, restored: what was there is there, what came later is gone, open tokens are void, and a
/// node that enrolled in between waits for an operator.
#[test]
fn a_backup_is_restored() {
    let fleet = Fleet::new();
    let backups = fleet.dir().join("backups");
    let options = EdgeOptions { more: format!("[backup]\ndir = {backups:?}\n"), ..EdgeOptions::default() };
    let mut edge = fleet.edge("berlin", None, &options);
    let sim = NodeOptions { engines: vec![EngineDeclaration::sim("s", "m", "")], ..NodeOptions::default() };
    let _first = fleet.node(&edge, "first", &sim);
    let open = edge.token("late");
    let config = edge.config.to_string_lossy().into_owned();
    let made = run(&["edge", "backup", "--config", &config, "-o", "json"]).ok().json();
    let copy = backups.join(made["file"].as_str().unwrap());
    assert_eq!(std::fs::metadata(&copy).unwrap().len(), made["bytes"].as_u64().unwrap());
    let _ = edge.ctl(&["settings", "set", "agents.default.labels.after=backup"]).ok();
    let _second = fleet.node(&edge, "second", &sim);
    let copy = copy.to_string_lossy().into_owned();
    let running = run(&["edge", "restore", &copy, "--yes", "--config", &config]);
    assert_ne!(running.code, 0, "the edge runs: {running:?}");
    edge.daemon.kill();
    let asked = run(&["edge", "restore", &copy, "--config", &config]);
    assert_eq!(asked.code, 2, "nobody said that it is meant: {asked:?}");
    let restored = run(&["edge", "restore", &copy, "--yes", "--config", &config, "-o", "json"]).ok().json();
    assert!(restored["voided"].as_u64() >= Some(1), "{restored}");
    assert!(std::path::Path::new(restored["kept"].as_str().unwrap()).exists(), "{restored}");
    edge.start();
    edge.wait_serving("first");
    assert_eq!(edge.ctl(&["settings", "-o", "json"]).ok().json()["version"], 0);
    let late = fleet.node_files("late", &sim);
    assert_ne!(late.enroll(&open).code, 0, "an open token of the backup is void");
    assert!(edge.node("second").is_null());
    // Its certificate is the site's and newer than the backup: it is held, and let in by its key.
    let held = wait::until_some("the held node is a problem of the site", Duration::from_secs(90), || {
        let status = edge.get("/api/v1/status");
        let problems = status["sites"][0]["summary"]["problems"].as_array().cloned().unwrap_or_default();
        let text =
            problems.iter().map(|problem| problem["message"].to_string()).collect::<Vec<_>>().join(" ");
        let key =
            text.split(|c: char| !c.is_ascii_hexdigit()).find(|word| word.len() == 64).map(str::to_owned);
        key.ok_or_else(|| status.to_string())
    });
    let _ = edge.ctl(&["node", "approve", &held]).ok();
    wait::until("both are there", Duration::from_secs(400), || {
        edge.nodes().iter().filter(|node| node["connected"] == true).count() == 2
    });
    let whole = edge.ctl(&["audit", "verify", "-o", "json"]).ok().json();
    assert_eq!(whole["whole"], true, "{whole}");
}

/// Row 32: the authority changes step by step with nodes connected; at the end only the new one is trusted.
#[test]
fn an_authority_changes_under_its_nodes() {
    let s = site(2);
    let show = |s: &crate::sites::Site| s.edge.ctl(&["ca", "-o", "json"]).ok().json();
    let old = show(&s)["authorities"][0]["sha256"].clone();
    let early = s.edge.ctl(&["ca", "rotate", "finish", "--yes"]);
    assert_ne!(early.code, 0, "{early:?}");
    let _ = s.edge.ctl(&["ca", "rotate", "begin", "-m", "a test"]).ok();
    wait::until_some("no node lacks the new authority", SOON, || {
        let ca = show(&s);
        if ca["phase"] == "begun" && ca["lacking"].as_array().is_some_and(Vec::is_empty) {
            Ok(())
        } else {
            Err(ca.to_string())
        }
    });
    // A token minted now, used after the switch.
    let before = s.edge.token("gpu-2");
    let _ = s.edge.ctl(&["ca", "rotate", "switch", "-m", "a test"]).ok();
    wait::until_some("no certificate is of the old one", Duration::from_secs(60), || {
        let ca = show(&s);
        if ca["phase"] == "switched" && ca["old_certificates"] == 0 { Ok(()) } else { Err(ca.to_string()) }
    });
    let mut second = s.fleet.node_files("gpu-2", &external(&s.engine, 2));
    let _ = second.enroll(&before).ok();
    second.daemon.start();
    s.edge.wait_serving("gpu-2");
    wait::until_some("nobody lacks it", SOON, || {
        let ca = show(&s);
        let nobody = ca["lacking"].as_array().is_some_and(Vec::is_empty) && ca["old_certificates"] == 0;
        if nobody { Ok(()) } else { Err(ca.to_string()) }
    });
    let _ = s.edge.ctl(&["ca", "rotate", "finish", "--yes", "-m", "a test"]).ok();
    let ca = show(&s);
    assert_eq!((&ca["phase"], ca["authorities"].as_array().unwrap().len()), (&json!("settled"), 1));
    assert_ne!(ca["authorities"][0]["sha256"], old);
    let mut edge = s.edge;
    edge.daemon.kill();
    edge.start();
    edge.wait_serving("gpu-1");
    edge.wait_serving("gpu-2");
    let _third = s.fleet.node(&edge, "gpu-3", &external(&s.engine, 2));
}
