//! A node's identity over its life, on real processes: named, kept out, rotated, revoked, replaced, retired. Never lost,
//! never doubled (rows 22, 25, 27, 29).

use std::time::{Duration, Instant};

use prost::Message;
use serde_json::{Value, json};
use umbel_contracts::proto::node::{NodeEnrollRequest, NodeHelloRequest};
use umbel_tests::fleet::{Edge, EdgeOptions, Fleet, SOON};
use umbel_tests::peer::{ALPN, Identity, Manner, Peer, hello};
use umbel_tests::wait;
use umbel_wire::proto::{self, Frame, frame::Meta};
use umbel_wire::tls::KeyPair;
use umbel_wire::token::EnrollmentToken;

use crate::sites::{SHORT, external, site};

/// A revocation closes the live connection within a second; the rest is for a machine that compiles beside the tests.
const AT_ONCE: Duration = Duration::from_secs(3);

fn stranger<'a>() -> Manner<'a> {
    Manner { name: "berlin.umbel", identity: None, alpn: ALPN }
}

/// Enrolls with a key of its own; the answer's code, or none when it was accepted.
fn enroll(edge: &Edge, token: &EnrollmentToken, secret: &[u8], number: u8) -> Result<String, u32> {
    let key = KeyPair::generate().unwrap();
    let request = NodeEnrollRequest {
        token_id: token.token_id.clone(),
        token_secret: secret.to_vec(),
        signing_request: key.signing_request().unwrap(),
        name: format!("rival-{number}"),
        software_version: "0.0.0".to_owned(),
    };
    let mut frame = hello((1, 1), request.encode_to_vec());
    if let Some(Meta::Hello(hello)) = &mut frame.meta {
        hello.purpose = proto::Purpose::Enroll as i32;
        hello.instance_id = vec![number; 16];
    }
    let mut peer = Peer::connect(edge.nodes, &stranger()).unwrap();
    peer.frame(&frame).unwrap();
    match peer.read().unwrap() {
        Some(Frame { meta: Some(Meta::Reject(reject)), .. }) => Err(reject.error.unwrap().code),
        Some(frame) => {
            let answer = umbel_contracts::proto::node::NodeEnrollResponse::decode(frame.payload.as_slice());
            Ok(answer.unwrap().node_id)
        }
        None => panic!("the edge said nothing"),
    }
}

/// Row 22, twenty rounds: sixty at once with one token, each with its own key: one identity, one active credential,
/// fifty-nine refusals.
#[test]
fn sixty_rivals_for_one_token_twenty_times() {
    let fleet = Fleet::new();
    let edge = fleet.edge("berlin", None, &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    for round in 1..=20_usize {
        let text = std::fs::read_to_string(edge.token(&format!("n-{round}"))).unwrap();
        let token = EnrollmentToken::parse(text.trim()).unwrap();
        let secret = token.secret.expose().to_vec();
        let outcomes: Vec<Result<String, u32>> = std::thread::scope(|scope| {
            let (edge, token, secret) = (&edge, &token, &secret);
            let rivals: Vec<_> =
                (0..60_u8).map(|number| scope.spawn(move || enroll(edge, token, secret, number))).collect();
            rivals.into_iter().map(|rival| rival.join().unwrap()).collect()
        });
        let winners: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok()).collect();
        assert_eq!(winners.len(), 1, "round {round}: {outcomes:?}");
        let refused =
            outcomes.iter().filter(|outcome| **outcome == Err(proto::Code::Conflict as u32)).count();
        assert_eq!(refused, 59, "round {round}: {outcomes:?}");
        let nodes = edge.nodes();
        assert_eq!(nodes.len(), round, "round {round}");
        let node = edge.node(&format!("n-{round}"));
        assert_eq!(&node["node_id"], winners[0].as_str());
        assert!(node["credential"]["revoked_at"].is_null(), "{node}");
    }
    let audit =
        edge.ctl(&["audit", "--site", "berlin", "--action", "node.enroll*", "-n", "1000", "-o", "jsonl"]);
    let enrolled = audit.ok().out.lines().filter(|line| line.contains("\"node.enrolled\"")).count();
    assert_eq!(enrolled, 20, "one entry a node");
}

/// Display name and labels; a name is one node's, and nothing of them is identity.
#[test]
fn a_name_is_one_nodes_and_no_identity() {
    let s = site(1);
    let _other = s.fleet.node(&s.edge, "gpu-2", &external(&s.engine, 1));
    let before = s.edge.node("gpu-1");
    let _ = s.edge.ctl(&["node", "rename", "gpu-1", "front"]).ok();
    let _ = s.edge.ctl(&["node", "label", "front", "rack=r7", "zone=a"]).ok();
    let _ = s.edge.ctl(&["node", "label", "front", "zone-"]).ok();
    let renamed = s.edge.node("front");
    assert_eq!(renamed["node_id"], before["node_id"]);
    assert_eq!(renamed["labels"]["rack"], "r7");
    assert!(renamed["labels"]["zone"].is_null(), "{renamed}");
    assert_eq!(renamed["generation"], before["generation"], "its connection went on");
    let taken = s.edge.ctl(&["node", "rename", "gpu-2", "front"]);
    assert_eq!(taken.code, 7, "{taken:?}");
    let token = s.edge.ctl(&["token", "create", "front", "--eligible"]);
    assert!(token.code == 0 || token.code == 7, "{token:?}");
    assert_eq!(s.edge.nodes().len(), 2);
}

/// Disabled: its connection closes within a second, it keeps its identity and is told why; enabled, it serves again.
#[test]
fn a_disabled_node_keeps_its_identity() {
    let mut s = site(4);
    let id = s.edge.node("gpu-1")["node_id"].clone();
    let script = json!({"events": 9, "gate": "never", "gate_at": 3});
    let open = s.edge.chat("m", "cut", true, &script).send(&s.edge.target()).unwrap();
    s.engine.wait_record("cut", "streaming", SHORT, |record| record.events_sent == 3);
    let refused = s.edge.ctl(&["node", "disable", "gpu-1", "-m", "bad memory"]);
    assert_eq!(refused.code, 2, "it runs a request: {refused:?}");
    let _ = s.edge.ctl(&["node", "disable", "gpu-1", "-m", "bad memory", "--yes"]).ok();
    let start = Instant::now();
    crate::sites::error_event(&open.head().unwrap().rest());
    s.edge
        .wait_node("gpu-1", "out", AT_ONCE, |node| node["state"] == "disabled" && node["connected"] == false);
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    // It is refused by name, and lives.
    let identity = Identity::of_node(&s.node.state).unwrap();
    let error = said_hello(&s.edge, &identity, id.as_str().unwrap()).unwrap_err();
    assert_eq!((error.code, error.reason.as_str()), (proto::Code::PermissionDenied as u32, "NODE_DISABLED"));
    assert!(s.node.daemon.is_running());
    s.edge.daemon.kill();
    s.edge.start();
    assert_eq!(s.edge.node("gpu-1")["state"], "disabled", "after the edge's restart");
    let _ = s.edge.ctl(&["node", "enable", "gpu-1"]).ok();
    let back = s.edge.wait_node("gpu-1", "back", Duration::from_secs(90), |node| {
        node["connected"] == true && node["providers"][0]["status"] == "available"
    });
    assert_eq!(back["node_id"], id);
}

/// Says hello with this certificate: the answer's error, or nothing when it was accepted.
fn said_hello(edge: &Edge, identity: &Identity, node_id: &str) -> Result<(), proto::Error> {
    let request = NodeHelloRequest { node_id: node_id.to_owned(), ..NodeHelloRequest::default() };
    let mut peer = Peer::connect(edge.nodes, &Manner { identity: Some(identity), ..stranger() }).unwrap();
    peer.frame(&hello((1, 1), request.encode_to_vec())).unwrap();
    match peer.read().unwrap() {
        Some(Frame { meta: Some(Meta::Reject(reject)), .. }) => Err(reject.error.unwrap()),
        Some(_) => Ok(()),
        None => panic!("the edge said nothing"),
    }
}

/// Revoked: closed within a second, refused also after a restart; a token that replaces the node gives a new host the same
/// identity, and only its claim ends the old credential.
#[test]
fn a_revoked_node_comes_back_only_by_replacement() {
    let mut s = site(4);
    let id = s.edge.node("gpu-1")["node_id"].as_str().unwrap().to_owned();
    let old = Identity::of_node(&s.node.state).unwrap();
    let replacement = |s: &crate::sites::Site, name: &str| {
        let token = s.fleet.dir().join(format!("{name}.token"));
        let words = ["token", "create", "--replace", "gpu-1", "--out", &token.to_string_lossy()];
        let _ = s.edge.ctl(&words).ok();
        token
    };
    // Minted, not used: nothing has changed.
    let first = replacement(&s, "first");
    s.edge.wait_serving("gpu-1");
    let _ = s.edge.ctl(&["node", "revoke", "gpu-1", "--confirm", "gpu-1", "-m", "stolen"]).ok();
    let start = Instant::now();
    s.edge.wait_node("gpu-1", "cut off", AT_ONCE, |node| node["connected"] == false);
    assert!(start.elapsed() < AT_ONCE);
    let why = s.edge.ctl(&["node", "why", "gpu-1"]);
    assert!(why.code == 3 && why.out.contains("token create --replace gpu-1"), "{why:?}");
    s.edge.daemon.kill();
    s.edge.start();
    let error = said_hello(&s.edge, &old, &id).unwrap_err();
    assert_eq!(error.code, proto::Code::Unauthenticated as u32, "after the edge's restart: {error:?}");
    s.node.daemon.kill();
    let mut host = s.fleet.node_files("new-host", &external(&s.engine, 4));
    let _ = host.enroll(&first).ok();
    host.daemon.start();
    let back = s.edge.wait_serving("gpu-1");
    assert_eq!(back["node_id"], id, "the same node");
    assert_eq!(s.edge.nodes().len(), 1);
    // A working node replaced: the old host is out when the token is used, not before.
    let second = replacement(&s, "second");
    let working = Identity::of_node(&host.state).unwrap();
    let third_host = s.fleet.node_files("third-host", &external(&s.engine, 4));
    assert_eq!(s.edge.node("gpu-1")["connected"], true);
    let _ = third_host.enroll(&second).ok();
    s.edge.wait_node("gpu-1", "cut off", AT_ONCE, |node| node["connected"] == false);
    for (what, identity) in [("revoked", &old), ("replaced", &working)] {
        let error = said_hello(&s.edge, identity, &id).unwrap_err();
        assert_eq!(error.code, proto::Code::Unauthenticated as u32, "{what}: {error:?}");
    }
    assert_eq!(said_hello(&s.edge, &Identity::of_node(&third_host.state).unwrap(), &id), Ok(()));
}

/// The host of a revoked node gets a new key where it stands: the same node, and the token of a node whose credential is
/// good is not used.
#[test]
fn a_revoked_node_is_enrolled_again_in_place() {
    let mut s = site(4);
    let id = s.edge.node("gpu-1")["node_id"].as_str().unwrap().to_owned();
    let token = s.fleet.dir().join("again.token");
    let words = ["token", "create", "--replace", "gpu-1", "--out", &token.to_string_lossy()];
    let _ = s.edge.ctl(&words).ok();
    s.node.daemon.kill();
    let early = s.node.enroll(&token).ok();
    assert!(early.err.contains("already") || early.out.contains("already"), "{early:?}");
    let _ = s.edge.ctl(&["node", "revoke", "gpu-1", "--confirm", "gpu-1", "-m", "leaked"]).ok();
    let old = Identity::of_node(&s.node.state).unwrap();
    let _ = s.node.enroll(&token).ok();
    s.node.daemon.start();
    assert_eq!(s.edge.wait_serving("gpu-1")["node_id"], id, "the same node");
    let error = said_hello(&s.edge, &old, &id).unwrap_err();
    assert_eq!(error.code, proto::Code::Unauthenticated as u32, "{error:?}");
    assert!(!s.node.state.join("node.key").exists(), "the lost key is gone from the disk");
}

/// Decommissioned: what is lost is shown, the name is typed, and the identity is a tombstone for ever; its name is free.
#[test]
fn a_retired_node_never_comes_back() {
    let mut s = site(4);
    let id = s.edge.node("gpu-1")["node_id"].as_str().unwrap().to_owned();
    let old = Identity::of_node(&s.node.state).unwrap();
    let preview = s.edge.ctl(&["node", "decommission", "gpu-1", "--preview", "-o", "json"]).ok().json();
    assert_eq!(preview["models"][0]["available_elsewhere"], 0, "{preview}");
    assert_eq!(preview["decommissioned"], false);
    let untyped = s.edge.ctl(&["node", "decommission", "gpu-1", "-m", "sold"]);
    assert_eq!(untyped.code, 2, "{untyped:?}");
    s.edge.wait_serving("gpu-1");
    let words = ["node", "decommission", "gpu-1", "-m", "sold", "--confirm", "gpu-1", "--deadline", "5s"];
    let _ = s.edge.ctl(&words).ok();
    wait::until("it is in no list", SHORT, || s.edge.nodes().is_empty());
    let all = s.edge.ctl(&["node", "list", "--decommissioned", "-o", "json"]).ok().json();
    assert_eq!((&all[0]["node_id"], &all[0]["state"]), (&json!(id), &json!("decommissioned")));
    for name in ["gpu-1", id.as_str()] {
        let why = s.edge.ctl(&["node", "why", name]);
        assert_eq!(why.code, 3, "{why:?}");
        assert!(why.out.contains("it was decommissioned") && why.out.contains("token create"), "{}", why.out);
    }
    s.edge.daemon.kill();
    s.edge.start();
    let error = said_hello(&s.edge, &old, &id).unwrap_err();
    assert_eq!(error.code, proto::Code::Gone as u32, "{error:?}");
    for words in [
        &["node", "enable", &id][..],
        &["node", "rename", &id, "x"],
        &["node", "rotate", &id],
        &["token", "create", "--replace", &id],
    ] {
        let ran = s.edge.ctl(words);
        assert_ne!(ran.code, 0, "{words:?}: {ran:?}");
    }
    // The identity says so itself, and the token stays good; its key never enrolls again; its host with another key is a new node, which may have the name.
    s.node.daemon.kill();
    let tombstone = s.node.enroll(&s.edge.token("gpu-1"));
    assert!(tombstone.code != 0 && tombstone.err.contains("decommissioned"), "{tombstone:?}");
    std::fs::remove_file(s.node.state.join("identity.json")).unwrap();
    let same_key = s.node.enroll(&s.edge.token("gpu-1"));
    assert_ne!(same_key.code, 0, "{same_key:?}");
    let mut host = s.fleet.node_files("new-life", &external(&s.engine, 4));
    let _ = host.enroll(&s.edge.token("gpu-1")).ok();
    host.daemon.start();
    assert_ne!(s.edge.wait_serving("gpu-1")["node_id"], id);
}

/// Rotation by an operator: a new certificate, the same node, an unbroken stream, and the old certificate opens nothing.
#[test]
fn a_credential_rotates_under_a_stream() {
    let s = site(4);
    let id = s.edge.node("gpu-1")["node_id"].as_str().unwrap().to_owned();
    let old = Identity::of_node(&s.node.state).unwrap();
    let script = json!({"events": 9, "gate": "rotated", "gate_at": 3});
    let open = s.edge.chat("m", "streams", true, &script).send(&s.edge.target()).unwrap();
    s.engine.wait_record("streams", "streaming", SHORT, |record| record.events_sent == 3);
    let generation = s.edge.node("gpu-1")["generation"].as_u64().unwrap();
    let _ = s.edge.ctl(&["node", "rotate", "gpu-1", "-m", "a test"]).ok();
    s.edge.wait_node("gpu-1", "connected with the new one", SOON, |node| {
        node["generation"].as_u64() > Some(generation)
            && node["connected"] == true
            && node["credential"]["rotating"] == false
    });
    s.engine.open_gate("rotated");
    assert!(
        open.head().unwrap().rest().text().ends_with("[DONE]\n\n"),
        "the stream went on over the old connection"
    );
    let error = said_hello(&s.edge, &old, &id).unwrap_err();
    assert_eq!(error.code, proto::Code::Unauthenticated as u32, "{error:?}");
    let audit: Vec<Value> = s
        .edge
        .ctl(&["audit", "--site", "berlin", "--about", &id, "-n", "100", "-o", "jsonl"])
        .ok()
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(audit.iter().any(|entry| entry["action"].as_str().unwrap().contains("rotat")), "{audit:?}");
}

/// The note of a refusal, which the doctor reads, cannot be written: that is said.
#[test]
fn a_note_of_a_refusal_that_cannot_be_kept_is_told() {
    let fleet = Fleet::new();
    let plane = fleet.control_plane();
    let edge = fleet.edge("berlin", Some(&plane), &EdgeOptions::default());
    plane.wait_fresh("berlin");
    let joined =
        std::fs::read_dir(edge.state.join("control-planes")).unwrap().next().unwrap().unwrap().path();
    // A directory in its place, and something in it.
    std::fs::create_dir_all(joined.join("last-rejection.txt/x")).unwrap();
    let told = || edge.daemon.log().matches("the note of its refusal cannot be kept").count();
    let _ = plane.ctl(&["edge", "revoke", "berlin", "-m", "a test", "-y", "--confirm", "berlin"]).ok();
    wait::until("it is told", SOON, || told() == 1);
}
