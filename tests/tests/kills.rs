//! kill -9 of the edge under enrollments, tokens, keys and settings: everything that was answered is there, and nothing that
//! only grows goes back (row 104).

use std::collections::BTreeSet;
use std::sync::Mutex;

use serde_json::Value;
use umbel_tests::fleet::{Edge, EdgeOptions, Fleet, NodeOptions, SOON, Signal};
use umbel_tests::wait;

use crate::records::lines;

/// What a storm of writes was answered.
#[derive(Default)]
struct Answered {
    tokens: BTreeSet<String>,
    nodes: BTreeSet<String>,
    keys: BTreeSet<String>,
    /// Highest version of the settings, and the value that it set.
    settings: Option<(u64, String)>,
}

/// Row 104: kill -9 of the edge under enrollments, tokens, keys and settings: everything that was answered is there, and
/// sequences, versions and revisions never go back. `KILLS` says how often; `scripts/kill-loop` does it five hundred times.
#[test]
fn everything_answered_survives_many_kills() {
    let kills: usize = std::env::var("KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(15);
    let fleet = Fleet::new();
    let mut edge = fleet.edge("berlin", None, &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    let answered: Mutex<Answered> = Mutex::default();
    let (mut audited, mut version) = (0, 0);
    for round in 0..kills {
        storm(&fleet, &edge, round, &answered);
        edge.daemon.kill();
        edge.start();
        let (now_audited, now_version) = all_there(&edge, round, &answered.lock().unwrap());
        assert!(now_audited >= audited, "round {round}: the audit went back from {audited} to {now_audited}");
        assert!(
            now_version >= version,
            "round {round}: the settings went back from {version} to {now_version}"
        );
        (audited, version) = (now_audited, now_version);
    }
    let whole = edge.ctl(&["audit", "verify", "-o", "json"]).ok().json();
    assert_eq!(whole["whole"], true, "{whole}");
}

/// Writes of each kind until some of each were answered, then the kill, in the midst of others.
fn storm(fleet: &Fleet, edge: &Edge, round: usize, answered: &Mutex<Answered>) {
    let count = || {
        let answered = answered.lock().unwrap();
        (answered.tokens.len() + answered.keys.len(), answered.nodes.len())
    };
    let (writes, nodes) = count();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                let ran = edge.ctl(&["token", "create", &format!("t-{round}-{n}"), "-o", "json"]);
                if ran.code != 0 {
                    break;
                }
                answered.lock().unwrap().tokens.insert(ran.json()["token_id"].as_str().unwrap().to_owned());
            }
        });
        scope.spawn(|| {
            for n in 0.. {
                let name = format!("k-{round}-{n}");
                if edge.ctl(&["key", "create", &name]).code != 0 {
                    break;
                }
                answered.lock().unwrap().keys.insert(name);
            }
        });
        scope.spawn(|| {
            for n in 0.. {
                let value = format!("v-{round}-{n}");
                let ran = edge.ctl(&[
                    "settings",
                    "set",
                    &format!("agents.default.labels.storm={value}"),
                    "-o",
                    "json",
                ]);
                if ran.code != 0 {
                    break;
                }
                let version = ran.json()["version"].as_u64().unwrap();
                answered.lock().unwrap().settings = Some((version, value));
            }
        });
        scope.spawn(|| {
            for n in 0.. {
                let name = format!("n-{round}-{n}");
                let token = fleet.dir().join(format!("{name}.token"));
                let minted = edge.ctl(&["token", "create", &name, "--out", &token.to_string_lossy()]);
                if minted.code != 0
                    || fleet.node_files(&name, &NodeOptions::default()).enroll(&token).code != 0
                {
                    break;
                }
                answered.lock().unwrap().nodes.insert(name);
            }
        });
        wait::until("some writes of each kind were answered", SOON, || {
            let (now_writes, now_nodes) = count();
            now_writes >= writes + 4 && now_nodes > nodes
        });
        edge.daemon.signal(Signal::Kill);
    });
}

/// Everything that was answered is there; the audit's last number and the settings' version.
fn all_there(edge: &Edge, round: usize, answered: &Answered) -> (u64, u64) {
    let listed = |words: &[&str]| edge.ctl(&[words, &["-o", "jsonl"]].concat()).ok().out;
    let has = |what: &str, list: &str, name: &String| {
        assert!(
            list.contains(&format!("\"{name}\"")),
            "{what} {name} was answered and is lost after kill -9 number {round}"
        );
    };
    let tokens = listed(&["token"]);
    answered.tokens.iter().for_each(|id| has("token", &tokens, id));
    let keys = listed(&["key"]);
    answered.keys.iter().for_each(|name| has("key", &keys, name));
    let nodes = listed(&["node"]);
    answered.nodes.iter().for_each(|name| has("node", &nodes, name));
    let ids: Vec<Value> = lines(&nodes).iter().map(|node| node["node_id"].clone()).collect();
    let unique: BTreeSet<String> = ids.iter().map(Value::to_string).collect();
    assert_eq!(unique.len(), ids.len(), "an identity is doubled");
    let settings = edge.ctl(&["settings", "-o", "json"]).ok().json();
    let version = settings["version"].as_u64().unwrap();
    if let Some((said, value)) = &answered.settings {
        assert!(version >= *said, "settings version {said} was answered and is lost: {settings}");
        let stands = &settings["document"]["agents"]["default"]["labels"]["storm"];
        assert!(version > *said || stands == value.as_str(), "version {said} said {value}: {settings}");
    }
    let last = lines(&edge.ctl(&["audit", "-n", "1", "-o", "jsonl"]).ok().out);
    (last[0]["sequence"].as_u64().unwrap(), version)
}
