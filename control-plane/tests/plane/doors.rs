//! Rule R12: each kind of credential at each door that the control plane has, and what silent peers cost.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use umbel_wire::ca::{Authority, CLIENT_VALIDITY};
use umbel_wire::clock::Wall;
use umbel_wire::ids::NodeId;
use umbel_wire::secret::Secret;
use umbel_wire::tls::{KeyPair, Trust, wire_client};
use umbel_wire::token::{BearerKind, EnrollmentToken, TokenKind, mint_bearer, new_id, parse_bearer};
use umbel_wire::{Code, Purpose};

use crate::client::{Ask, tls};
use crate::rig::{Plane, plane, within};
use crate::site::{connected, edge_id, enroll, enroll_request, enrolled, identity, out};

fn node_token(plane: &Plane, kind: TokenKind) -> String {
    let token = EnrollmentToken {
        kind,
        edge_id: edge_id("ber1"),
        token_id: new_id(),
        ca_digest: plane.ca_digest,
        addresses: vec!["127.0.0.1:7441".into()],
        secret: Secret::generate(),
    };
    token.to_text().unwrap().expose().to_owned()
}

#[tokio::test]
async fn the_api_opens_to_operator_tokens_only() {
    let plane = plane().await;
    let (_, api_key, _) = mint_bearer(BearerKind::ApiKey);
    let (_, stranger, _) = mint_bearer(BearerKind::OperatorToken);
    // The right id with another secret.
    let known = parse_bearer(&plane.admin, BearerKind::OperatorToken).unwrap();
    let forged = umbel_wire::token::Bearer { secret: Secret::generate(), ..known };
    let closed = [
        ("an API key", api_key.expose().to_owned()),
        ("an unknown operator token", stranger.expose().to_owned()),
        ("a forged operator token", forged.to_text().expose().to_owned()),
        ("an edge's enrollment token", node_token(&plane, TokenKind::Edge)),
        ("a node's enrollment token", node_token(&plane, TokenKind::Node)),
        ("rubbish", "x".repeat(5000)),
    ];
    for (what, token) in &closed {
        let answer = plane.ask_tls(Ask::get("/api/v1/status").token(token)).await;
        assert_eq!(answer.refusal(), (401, "TOKEN_UNKNOWN"), "{what}");
        assert!(!answer.body.to_string().contains(token.as_str()), "{what} is repeated");
    }
    assert_eq!(plane.ask_tls(Ask::get("/api/v1/status")).await.refusal(), (401, "TOKEN_MISSING"));
    assert!(plane.ask_tls(Ask::get("/api/v1/status").token(&plane.admin)).await.status.is_success());
}

/// A client certificate opens nothing at the API, not even the edge's own.
#[tokio::test]
async fn a_certificate_is_no_operator() {
    let plane = plane().await;
    let site = enrolled(&plane, "ber1").await;
    let trust = Trust::Ca(vec![plane.ca.clone()]);
    let mut config = (*wire_client(trust, Some(identity(&site.key, &site.chain))).unwrap()).clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let answer = tls(plane.running().api_address().unwrap(), config.into(), Ask::get("/api/v1/status")).await;
    assert_eq!(answer.refusal(), (401, "TOKEN_MISSING"));
}

#[tokio::test]
async fn the_edges_port_opens_to_its_edges_certificates_only() {
    let plane = plane().await;
    let site = enrolled(&plane, "ber1").await;
    let hello = || out(Purpose::Hello, prost::Message::encode_to_vec(&site.hello()));
    // A node's certificate, signed by an edge's own authority, and an edge's of another control plane.
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::create(&dir.path().join("ca"), "ber1", Wall::now()).unwrap();
    let key = KeyPair::generate().unwrap();
    let request = key.signing_request().unwrap();
    let node = authority
        .sign_node(&request, &edge_id("ber1"), NodeId::random(), Wall::now(), CLIENT_VALIDITY)
        .unwrap();
    let edge = authority.sign_edge(&request, &edge_id("ber1"), Wall::now(), CLIENT_VALIDITY).unwrap();
    for chain in [node.chain, edge.chain] {
        let refused =
            site.connect_as(&plane, Some(identity(&key, &chain)), hello()).await.expect_err("refused");
        let error = refused.rejection.expect("with a reason").error;
        assert_eq!((error.code, &*error.reason), (Code::Unauthenticated, "CERTIFICATE_UNKNOWN"));
    }
    // An operator's secret, or an API key's, is no enrollment token.
    let operator = parse_bearer(&plane.admin, BearerKind::OperatorToken).unwrap();
    let request = enroll_request(&operator.id, &operator.secret, "ham1", &key);
    assert_eq!(enroll(&plane, request).await.unwrap_err().code, Code::Unauthenticated);
    site.connect(&plane).await.unwrap();
}

#[tokio::test]
async fn a_revoked_operator_is_out_at_once_and_with_nobody_left_all_is_refused() {
    let plane = plane().await;
    let token = plane.operator("operator").await;
    let get = || async { plane.ask_tls(Ask::get("/api/v1/edges").token(&token)).await };
    assert!(get().await.status.is_success());
    let list = plane.get("/api/v1/operators").await;
    assert!(!list.to_string().contains("sha256"));
    for operator in list["items"].as_array().unwrap() {
        let path = format!("/api/v1/operators/{}", operator["operator_id"].as_str().unwrap());
        plane.ask(Ask { body: json!({"reason": "left"}), ..Ask::delete(&path) }).await.ok();
    }
    assert_eq!(get().await.refusal(), (401, "TOKEN_UNKNOWN"));
    assert_eq!(
        plane.ask_tls(Ask::get("/api/v1/edges").token(&plane.admin)).await.refusal(),
        (401, "TOKEN_UNKNOWN")
    );
    // The local socket still lets its owner in.
    let again = plane.operator("admin").await;
    assert!(plane.ask_tls(Ask::get("/api/v1/operators").token(&again)).await.status.is_success());
}

#[tokio::test]
async fn what_a_revoked_operator_has_open_ends_and_nobody_elses() {
    let plane = plane().await;
    let (site, connection) = connected(&plane, "ber1").await;
    site.acts.hold.store(true, std::sync::atomic::Ordering::SeqCst);
    let id = uuid::Uuid::new_v4().to_string();
    let commands = "/api/v1/edges/ber1/commands";
    let drain = json!({"operation": "node.drain", "target_selector": "node:gpu-1"});
    plane.ask(Ask::post(commands, drain).header("idempotency-key", &*id)).await.ok();
    let (leaked, kept) = (plane.operator("viewer").await, plane.operator("operator").await);
    let of_command = format!("{commands}/{id}/events");
    let mut events = plane.stream_tls(Ask::get("/api/v1/events").token(&leaked)).await;
    let mut steps = plane.stream_tls(Ask::get(&of_command).token(&leaked)).await;
    let mut others = plane.stream_tls(Ask::get("/api/v1/events").token(&kept)).await;
    assert_eq!(steps.next().await.unwrap().0, "accepted");
    let list = plane.get("/api/v1/operators").await;
    let operator = list["items"].as_array().unwrap().iter().find(|one| one["name"] == "viewer").unwrap();
    let path = format!("/api/v1/operators/{}", operator["operator_id"].as_str().unwrap());
    plane.ask(Ask { body: json!({"reason": "leaked"}), ..Ask::delete(&path) }).await.ok();
    assert!(events.next().await.is_none());
    assert!(steps.next().await.is_none());
    crate::site::tell(&connection, "ber1", 1, "node_online");
    assert_eq!(others.next().await.unwrap().0, "event");
}

#[tokio::test]
async fn a_local_socket_is_its_owners() {
    use std::os::unix::fs::PermissionsExt;
    let plane = plane().await;
    let mode = std::fs::metadata(&plane.config.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// Fault rows 36 and 37: peers that connect and say nothing, or say rubbish, keep nobody out.
#[tokio::test]
async fn silent_peers_keep_nobody_out() {
    let plane = plane().await;
    let addresses = [plane.running().edges_address(), plane.running().api_address().unwrap()];
    let mut silent = Vec::new();
    for _ in 0..30 {
        for address in addresses {
            silent.push(within(TcpStream::connect(address)).await.unwrap());
        }
    }
    let (_site, _connection) = connected(&plane, "ber1").await;
    assert!(plane.ask_tls(Ask::get("/api/v1/status").token(&plane.admin)).await.status.is_success());
    // Plain HTTP at a TLS port ends without an answer to it.
    let mut plain = TcpStream::connect(addresses[0]).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    let _ = within(plain.read_to_end(&mut rest)).await;
    assert!(!rest.starts_with(b"HTTP"));
}

#[tokio::test]
async fn metrics_and_health_are_there_without_a_token_and_tell_no_secret() {
    let plane = plane().await;
    let (_site, _connection) = connected(&plane, "ber1").await;
    let get = |path: &'static str| {
        let address = plane.running().metrics_address().unwrap();
        within(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream
                .write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes())
                .await
                .unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            text
        })
    };
    for path in ["/livez", "/readyz"] {
        assert!(get(path).await.starts_with("HTTP/1.1 200"), "{path}");
    }
    let text = get("/metrics").await;
    assert!(text.contains("umbel_cp_sites{state=\"connected\"} 1"), "{text}");
    assert!(text.contains("umbel_cp_enrolled_total 1"), "{text}");
    // Sites are told by their names; who asks and where anybody is are not (R4).
    assert!(text.contains("name=\"ber1\""), "{text}");
    for secret in [plane.admin.as_str(), "127.0.0.1", "[::1]"] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
}
