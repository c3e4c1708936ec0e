//! The local socket, and what keeps an edge from starting.

use std::os::unix::fs::PermissionsExt;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::rig::{Edge, run};
use crate::Config;
use crate::app::Running;

async fn get(edge: &Edge, path: &str) -> (String, serde_json::Value) {
    let mut socket = UnixStream::connect(&edge.config.listen.socket).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: edge\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    let status = answer.split_whitespace().nth(1).unwrap().to_owned();
    let body = answer.split("\r\n\r\n").nth(1).unwrap();
    let from = body.find(['{', '[']).unwrap_or(0);
    let to = body.rfind(['}', ']']).map_or(0, |at| at + 1);
    (status, serde_json::from_str(&body[from..to]).unwrap())
}

#[test]
fn the_local_socket_answers_as_a_fleet_of_one() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let _connection = node.connect(&edge).await;
        let mode = std::fs::metadata(&edge.config.listen.socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let (status, body) = get(&edge, "/api/v1/status").await;
        assert_eq!(status, "200");
        assert_eq!(body["sites"][0]["summary"]["nodes_online"], 1);
        let (_, body) = get(&edge, "/api/v1/nodes/n").await;
        assert_eq!((&body["node_id"], &body["connected"]), (&node.id.to_string().into(), &true.into()));
        let (_, body) = get(&edge, "/api/v1/edges").await;
        assert!(body.to_string().contains("\"ber1\""));
        let (status, body) = get(&edge, "/api/v1/edges/muc1").await;
        assert_eq!((status.as_str(), body["reason"].as_str()), ("404", Some("EDGE_UNKNOWN")));
        // What is observed is written without anybody waiting for it.
        let mut actions = Vec::new();
        while actions.len() < 2 || actions[0] != "node_online" {
            let (_, body) = get(&edge, "/api/v1/audit?limit=2").await;
            let items = body["items"].as_array().unwrap();
            actions = items.iter().map(|item| item["action"].as_str().unwrap().to_owned()).collect();
        }
        assert_eq!(actions[1], "node.enrolled", "newest first");
        let (status, _) = get(&edge, "/api/v1/operators").await;
        assert_eq!(status, "404");
    });
}

/// A second process on the same state, a port in use, a state directory that nobody initialised, a second init: each
/// says what to do.
#[test]
fn what_keeps_an_edge_from_starting_is_said() {
    run(async {
        let edge = Edge::start().await;
        let failed = |config: Config| async move {
            match Running::build(&config).await {
                Ok(_) => panic!("it started"),
                Err(error) => error.to_string(),
            }
        };
        let mut second = edge.config.clone();
        second.listen.socket = edge.directory.path().join("other.sock");
        assert!(failed(second).await.starts_with("state directory in use by another edge"));
        assert!(failed(edge.config.clone()).await.contains("another process answers there"));
        let mut taken = edge.config.clone();
        taken.listen.nodes = edge.running.nodes_address;
        assert!(failed(taken).await.contains("listen.nodes"));
        let mut bare = edge.config.clone();
        bare.state_dir = edge.directory.path().join("bare");
        assert!(failed(bare).await.contains("umbel edge init"));
        assert!(crate::init(&edge.config).unwrap_err().to_string().contains("nothing was changed"));
        let checks = crate::doctor(&edge.config);
        assert!(checks.iter().any(|check| check.name == "authority" && check.passed));
        assert!(checks.iter().any(|check| check.name == "store" && check.passed), "{checks:?}");
        assert!(checks.iter().all(|check| check.passed || !check.next_step.is_empty()));
    });
}
