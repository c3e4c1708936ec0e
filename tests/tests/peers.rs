//! Peers that obey no rule, on both wire ports (rows 22, 36 to 39, 43), wrong tokens and credentials, every door tried
//! with every credential (rule R12).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use prost::Message;
use serde_json::json;
use umbel_contracts::proto::control::EdgeHelloRequest;
use umbel_contracts::proto::node::NodeHelloRequest;
use umbel_tests::fleet::{
    ControlPlane, Edge, EdgeOptions, EngineDeclaration, Fleet, Node, NodeOptions, reserved_kb, run,
};
use umbel_tests::http::{Ask, Target};
use umbel_tests::peer::{ALPN, Identity, Manner, Peer, encoded, hello};
use umbel_tests::wait;
use umbel_wire::proto::{self, Frame};

use crate::sites::SHORT;

/// Everything that can be knocked at. Fields end in this order.
struct Doors {
    node: Node,
    edge: Edge,
    plane: ControlPlane,
    fleet: Fleet,
}

fn sim() -> NodeOptions {
    NodeOptions {
        engines: vec![EngineDeclaration::sim("s", "sim-model", "tokens = 3")],
        ..NodeOptions::default()
    }
}

fn doors() -> Doors {
    let fleet = Fleet::new();
    let plane = fleet.control_plane();
    let edge = fleet.edge("berlin", Some(&plane), &EdgeOptions::default());
    plane.wait_fresh("berlin");
    let node = fleet.node(&edge, "gpu-1", &sim());
    Doors { node, edge, plane, fleet }
}

impl Doors {
    /// The two wire ports with the name that their certificates carry.
    fn ports(&self) -> [(SocketAddr, &'static str); 2] {
        [(self.edge.nodes, "berlin.umbel"), (self.plane.edges, "control-plane.umbel")]
    }

    #[track_caller]
    fn still_serve(&self) {
        assert!(Path::new(&format!("/proc/{}", self.edge.daemon.pid())).exists());
        let body =
            json!({"model": "sim-model", "stream": true, "messages": [{"role": "user", "content": "hi"}]});
        let got = Ask::post("/v1/chat/completions", body.to_string())
            .bearer(&self.edge.key)
            .whole(&self.edge.target())
            .unwrap();
        assert!(got.text().ends_with("[DONE]\n\n"), "{}", got.text());
        self.plane.wait_fresh("berlin");
    }
}

fn plain(name: &str) -> Manner<'_> {
    Manner { name, identity: None, alpn: ALPN }
}

/// Row 36: connections that say nothing hold up nobody and are closed.
#[test]
fn silent_peers_hold_up_nobody() {
    let d = doors();
    let (files, _, _) = d.edge.daemon.figures();
    let silent: Vec<TcpStream> = (0..300)
        .filter_map(|_| TcpStream::connect_timeout(&d.edge.nodes, Duration::from_secs(2)).ok())
        .collect();
    assert!(silent.len() > 100);
    let second = d.fleet.node(&d.edge, "joins-meanwhile", &sim());
    d.still_serve();
    wait::until_some(
        "the silent ones are closed and their files given back",
        Duration::from_secs(40),
        || {
            let (now, _, _) = d.edge.daemon.figures();
            if now <= files + 20 { Ok(()) } else { Err(format!("{now} open files, {files} before")) }
        },
    );
    drop((silent, second));
}

/// Rows 37 and 38: TLS and then silence, impossible lengths, lengths beyond the bound: closed, with nothing allocated.
#[test]
fn frames_are_refused_before_anything_is_allocated() {
    let d = doors();
    for (address, name) in d.ports() {
        for length in [0_u32, 16 * 1024 + 1, 64 * 1024 + 1, 16 << 20, u32::MAX] {
            let mut peer = Peer::connect(address, &plain(name)).unwrap();
            let _ = peer.raw(&length.to_be_bytes());
            let _ = peer.raw(&[0; 600]);
            assert!(peer.is_closed_by_peer(), "{name}: length {length}");
        }
    }
    let before = reserved_kb(d.edge.daemon.pid());
    let many: Vec<_> = (0..12)
        .map(|_| {
            let mut peer = Peer::connect(d.edge.nodes, &plain("berlin.umbel")).unwrap();
            let _ = peer.raw(&u32::MAX.to_be_bytes());
            peer
        })
        .collect();
    for mut peer in many {
        assert!(peer.is_closed_by_peer());
    }
    // Of address space: what was asked for and not touched is not resident.
    let after = reserved_kb(d.edge.daemon.pid());
    assert!(after < before + (2 << 20), "{before} KiB before, {after} KiB after twelve lengths of 4 GiB");
    for (address, name) in d.ports() {
        let mut peer = Peer::connect(address, &plain(name)).unwrap();
        assert!(peer.is_closed_by_peer(), "{name}: silent after TLS");
    }
    d.still_serve();
}

/// Bytes that are not TLS, TLS that is not ours, frames that are not protobuf or not a hello.
#[test]
fn garbage_is_refused() {
    let d = doors();
    let not_hello =
        Frame { kind: proto::Kind::Data as u32, id: 1, payload: vec![1; 100], ..Frame::default() };
    let unknown_critical = Frame { kind: 999, flags: 2, ..Frame::default() };
    for (address, name) in d.ports() {
        for bytes in [
            &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
            &[0x16, 3, 1, 0xff, 0xff],
            &[0; 2000],
            b"\x16\x03\x01\x00\x05hello",
        ] {
            let mut socket = TcpStream::connect_timeout(&address, Duration::from_secs(2)).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            socket.write_all(bytes).unwrap();
            let mut rest = Vec::new();
            let ended = socket.read_to_end(&mut rest);
            assert!(
                ended.is_ok() || ended.unwrap_err().kind() == std::io::ErrorKind::ConnectionReset,
                "{name}: {bytes:?}"
            );
        }
        let no_alpn = Peer::connect(address, &Manner { alpn: b"", ..plain(name) });
        assert!(no_alpn.is_err() || no_alpn.unwrap().is_closed_by_peer(), "{name}: no ALPN");
        assert!(
            Peer::connect(address, &Manner { alpn: b"h2", ..plain(name) }).is_err(),
            "{name}: another ALPN"
        );
        let nested = nested_groups(10_000);
        for bytes in [
            encoded(&not_hello),
            encoded(&unknown_critical),
            framed(&[0xff; 300]),
            framed(&nested),
            framed(&[0x82, 1, 0].repeat(4000)),
        ] {
            let mut peer = Peer::connect(address, &plain(name)).unwrap();
            let _ = peer.raw(&bytes);
            assert!(peer.is_closed_by_peer(), "{name}: {} bytes of garbage", bytes.len());
        }
    }
    d.still_serve();
}

fn framed(body: &[u8]) -> Vec<u8> {
    let mut all = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
    all.extend_from_slice(body);
    all
}

/// Row 43: groups inside groups.
fn nested_groups(depth: usize) -> Vec<u8> {
    let mut bytes = vec![0x0b; depth / 2];
    bytes.extend(vec![0x0c; depth / 2]);
    bytes
}

/// Row 39: a connection cut at every byte of its first frame, with FIN and with RST, is never more than a lost newcomer.
#[test]
fn a_hello_cut_at_any_byte_is_no_hello() {
    let d = doors();
    let bytes = encoded(&hello((1, 1), NodeHelloRequest::default().encode_to_vec()));
    for cut in 0..bytes.len() {
        let mut peer = Peer::connect(d.edge.nodes, &plain("berlin.umbel")).unwrap();
        peer.raw(&bytes[..cut]).unwrap();
        peer.leave(cut % 2 == 0);
    }
    d.still_serve();
    let log = d.edge.daemon.log();
    assert!(!log.contains("panicked"), "{log}");
}

/// Who is refused is told why, in the rejection.
#[test]
fn refusals_say_why() {
    let d = doors();
    let foreign_fleet = Fleet::new();
    let foreign_edge =
        foreign_fleet.edge("paris", None, &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    let foreign = foreign_fleet.node(&foreign_edge, "stranger", &sim());
    let say = NodeHelloRequest { node_id: uuid::Uuid::new_v4().to_string(), ..NodeHelloRequest::default() }
        .encode_to_vec();

    let mut nobody = Peer::connect(d.edge.nodes, &plain("berlin.umbel")).unwrap();
    nobody.frame(&hello((1, 1), say.clone())).unwrap();
    let error = nobody.rejection().unwrap().error.unwrap();
    assert_eq!(error.code, proto::Code::Unauthenticated as u32, "{error:?}");
    assert!(!error.message.is_empty());

    let identity = Identity::of_node(&foreign.state).unwrap();
    let stranger = Manner { identity: Some(&identity), ..plain("berlin.umbel") };
    let mut peer = Peer::connect(d.edge.nodes, &stranger).unwrap();
    peer.frame(&hello((1, 1), say)).unwrap();
    let error = peer.rejection().unwrap().error.unwrap();
    assert_eq!(error.code, proto::Code::Unauthenticated as u32, "{error:?}");

    // The node's own certificate, with versions that do not meet.
    let id = d.edge.node("gpu-1")["node_id"].as_str().unwrap().to_owned();
    let identity = Identity::of_node(&d.node.state).unwrap();
    let known = Manner { identity: Some(&identity), ..plain("berlin.umbel") };
    for (versions, verdict) in [
        ((7, 9), proto::Verdict::TooNew),
        ((0, 0), proto::Verdict::Unknown),
        ((3, 2), proto::Verdict::Unknown),
    ] {
        let mut peer = Peer::connect(d.edge.nodes, &known).unwrap();
        let payload = NodeHelloRequest { node_id: id.clone(), ..NodeHelloRequest::default() }.encode_to_vec();
        peer.frame(&hello(versions, payload)).unwrap();
        let reject = peer.rejection().unwrap();
        assert_eq!(reject.verdict, verdict as i32, "{versions:?}: {reject:?}");
        assert!(reject.mine.is_some() && !reject.error.unwrap().message.is_empty());
    }
    let mut peer = Peer::connect(d.edge.nodes, &known).unwrap();
    let other = NodeHelloRequest { node_id: uuid::Uuid::new_v4().to_string(), ..NodeHelloRequest::default() }
        .encode_to_vec();
    peer.frame(&hello((1, 1), other)).unwrap();
    let error = peer.rejection().unwrap().error.unwrap();
    assert_eq!(error.code, proto::Code::PermissionDenied as u32, "another node's id: {error:?}");
    d.still_serve();
}

/// Rule R12: each credential at each door; it opens exactly one.
#[test]
fn a_credential_opens_one_door() {
    let d = doors();
    let node = Identity::of_node(&d.node.state).unwrap();
    let edge = Identity::of_edge(&d.edge.state).unwrap();
    let as_edge =
        EdgeHelloRequest { edge_id: "berlin".to_owned(), ..EdgeHelloRequest::default() }.encode_to_vec();
    let id = d.edge.node("gpu-1")["node_id"].as_str().unwrap().to_owned();
    let as_node = NodeHelloRequest { node_id: id, ..NodeHelloRequest::default() }.encode_to_vec();
    for (who, identity, payload, (address, name)) in [
        ("an edge's certificate at the node port", &edge, as_node, d.ports()[0]),
        ("a node's certificate at the control plane", &node, as_edge, d.ports()[1]),
    ] {
        let mut peer = Peer::connect(address, &Manner { identity: Some(identity), ..plain(name) }).unwrap();
        peer.frame(&hello((1, 1), payload)).unwrap();
        let error = peer.rejection().unwrap_or_else(|e| panic!("{who}: {e}")).error.unwrap();
        assert_eq!(error.code, proto::Code::Unauthenticated as u32, "{who}: {error:?}");
    }
    let operator = std::fs::read_to_string(d.plane.state.join("admin.token")).unwrap().trim().to_owned();
    let models = Ask::get("/v1/models");
    for (what, secret) in [
        ("an operator token", operator.as_str()),
        ("nothing", ""),
        ("a made-up key", "umk_0123456789abcdef_AAAA"),
    ] {
        let got = models.clone().bearer(secret).whole(&d.edge.target()).unwrap();
        assert_eq!(got.status, 401, "{what} at /v1: {}", got.text());
    }
    assert_eq!(models.bearer(&d.edge.key).whole(&d.edge.target()).unwrap().status, 200);
    let status = Ask::get("/api/v1/status");
    let operator_api = Target::Tls(d.plane.api, "localhost".to_owned());
    for (what, secret) in
        [("an API key", d.edge.key.as_str()), ("a made-up token", "umo_0123456789abcdef_AAAA")]
    {
        let got = status.clone().bearer(secret).whole(&operator_api).unwrap();
        assert_eq!(got.status, 401, "{what} at the operator API: {}", got.text());
    }
    assert_eq!(status.whole(&operator_api).unwrap().status, 401, "nothing works by default");
    assert_eq!(status.bearer(&operator).whole(&operator_api).unwrap().status, 200);
    let address = format!("https://{}", d.plane.api);
    let ca = d.plane.state.join("ca/ca.pem");
    let ctl = |token: &Path| {
        run(&[
            "ctl",
            "--addr",
            &address,
            "--ca-file",
            &ca.to_string_lossy(),
            "--token-file",
            &token.to_string_lossy(),
            "status",
        ])
    };
    let _ = ctl(&d.plane.state.join("admin.token")).ok();
    // The operator API has no /v1 and the application API no operator API.
    assert_eq!(Ask::get("/api/v1/status").bearer(&d.edge.key).whole(&d.edge.target()).unwrap().status, 404);
    let at_socket =
        Ask::get("/v1/models").bearer(&d.edge.key).whole(&Target::Unix(d.edge.socket.clone())).unwrap();
    assert_eq!(at_socket.status, 404, "{}", at_socket.text());
    // A viewer reads and does nothing.
    let viewer = d.fleet.dir().join("viewer.token");
    let _ = d
        .plane
        .ctl(&["operator", "create", "v", "--role", "viewer", "--out", &viewer.to_string_lossy()])
        .ok();
    let _ = ctl(&viewer).ok();
    let drain = run(&[
        "ctl",
        "--addr",
        &address,
        "--ca-file",
        &ca.to_string_lossy(),
        "--token-file",
        &viewer.to_string_lossy(),
        "--site",
        "berlin",
        "node",
        "drain",
        "gpu-1",
        "-m",
        "not allowed",
    ]);
    assert_eq!(drain.code, 5, "{drain:?}");
    assert_eq!(d.edge.node("gpu-1")["draining"], false);
}

/// Tokens that are wrong, used, revoked or another site's. To the node all but the last look alike.
#[test]
fn wrong_tokens_are_refused() {
    let fleet = Fleet::new();
    let edge = fleet.edge("berlin", None, &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    let other = fleet.edge("paris", None, &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    let used = edge.token("first");
    let first = fleet.node_files("first", &sim());
    let _ = first.enroll(&used).ok();
    let replay = first.enroll(&used);
    assert_eq!(replay.code, 0, "row 24: the same key again gets the same answer: {replay:?}");
    let second = fleet.node_files("second", &sim());
    let ran = second.enroll(&used);
    assert_ne!(ran.code, 0);
    assert!(!ran.err.contains("panicked"), "{}", ran.err);

    let revoked = edge.token("third");
    let tokens = edge.ctl(&["token", "-o", "json"]).ok().json();
    let all = tokens.as_array().cloned().or_else(|| tokens["items"].as_array().cloned()).unwrap();
    let open = all.iter().find(|t| t["state"] == "open").unwrap_or_else(|| panic!("{tokens}"));
    let _ = edge.ctl(&["token", "revoke", open["token_id"].as_str().unwrap(), "-m", "a test"]).ok();
    let ran = second.enroll(&revoked);
    assert_ne!(ran.code, 0);

    let foreign = other.token("second");
    let _ = second.enroll(&foreign).ok();
    let there = second.enroll(&edge.token("second"));
    assert_ne!(there.code, 0, "an identity of another edge is never overwritten");

    let broken = fleet.dir().join("broken.token");
    let text = std::fs::read_to_string(edge.token("fourth")).unwrap();
    let mut cut = text.trim().to_owned();
    cut.pop();
    for wrong in ["", "umbel1_", "not a token", cut.as_str()] {
        std::fs::write(&broken, wrong).unwrap();
        let ran = fleet.node_files("fourth", &sim()).enroll(&broken);
        assert_ne!(ran.code, 0, "{wrong:?}");
        assert!(!ran.err.contains("panicked"), "{}", ran.err);
    }
    let names: Vec<_> = edge.nodes().iter().map(|n| n["name"].clone()).collect();
    assert_eq!(names, [json!("first")], "no ghost record");
}

/// Row 22: one token, many at once: exactly one node.
#[test]
fn one_token_makes_one_node() {
    let fleet = Fleet::new();
    let edge = fleet.edge("berlin", None, &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    let token = edge.token("one");
    let nodes: Vec<_> = (0..12).map(|n| fleet.node_files(&format!("n{n}"), &sim())).collect();
    let codes: Vec<i32> = std::thread::scope(|scope| {
        let runs: Vec<_> = nodes.iter().map(|node| scope.spawn(|| node.enroll(&token).code)).collect();
        runs.into_iter().map(|r| r.join().unwrap()).collect()
    });
    assert_eq!(codes.iter().filter(|c| **c == 0).count(), 1, "{codes:?}");
    wait::until("exactly one node", SHORT, || edge.nodes().len() == 1);
}
