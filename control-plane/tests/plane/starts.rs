//! Starts that must fail with a sentence that names the remedy, and doctor's view of the same.

use std::path::Path;

use umbel_control_plane::{Config, Running, StartError, doctor, init};

use crate::rig::{file, plane};

async fn start(config: &Config) -> StartError {
    match Running::build(config).await {
        Ok(_) => panic!("it starts"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn without_init_it_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config::parse(&file(dir.path(), ""), Path::new("cp.toml")).unwrap();
    let error = start(&config).await;
    assert!(error.to_string().contains("umbel control-plane init"), "{error}");
    assert_eq!(error.exit_code(), 1);
    let checks = tokio::task::spawn_blocking(move || doctor(&config)).await.unwrap();
    let authority = checks.iter().find(|check| check.name == "authority").unwrap();
    assert!(!authority.passed && authority.next_step.contains("init"));
}

#[tokio::test]
async fn init_replaces_nothing() {
    let plane = plane().await;
    let config = plane.config.clone();
    let before = std::fs::read(config.state_dir.join("ca/ca.pem")).unwrap();
    let error = tokio::task::spawn_blocking(move || init(&config).unwrap_err()).await.unwrap();
    assert!(error.to_string().contains("nothing was changed"), "{error}");
    assert_eq!(std::fs::read(plane.config.state_dir.join("ca/ca.pem")).unwrap(), before);
}

#[tokio::test]
async fn a_port_in_use_is_named_with_its_key() {
    let plane = plane().await;
    let dir = tempfile::tempdir().unwrap();
    let config = Config::parse(&file(dir.path(), ""), Path::new("cp.toml")).unwrap();
    let initialised = config.clone();
    tokio::task::spawn_blocking(move || init(&initialised).unwrap()).await.unwrap();
    let taken = Config { edges: plane.running().edges_address(), ..config.clone() };
    let error = start(&taken).await.to_string();
    assert!(error.contains(&taken.edges.to_string()) && error.contains("listen.edges"), "{error}");
    let taken = Config { socket: plane.config.socket.clone(), ..config.clone() };
    let error = start(&taken).await.to_string();
    assert!(error.contains("listen.socket"), "{error}");
    // Each start that failed left the ports and the store free for the next.
    Running::build(&config).await.unwrap();
}

#[tokio::test]
async fn a_state_directory_in_use_is_refused() {
    let plane = plane().await;
    let socket = plane.config.state_dir.join("second.sock");
    let second = Config { socket, ..plane.config.clone() };
    let error = start(&second).await.to_string();
    assert!(error.contains("in use by another control-plane"), "{error}");
}

#[tokio::test]
async fn doctor_finds_a_healthy_control_plane_healthy_running_or_not() {
    let mut plane = plane().await;
    let config = plane.config.clone();
    let checks = tokio::task::spawn_blocking(move || doctor(&config)).await.unwrap();
    assert!(checks.iter().all(|check| check.passed), "{checks:?}");
    plane.running.take().unwrap().drain(std::time::Duration::from_secs(5)).await;
    let config = plane.config.clone();
    let checks = tokio::task::spawn_blocking(move || doctor(&config)).await.unwrap();
    assert!(checks.iter().all(|check| check.passed), "{checks:?}");
    assert!(checks.iter().any(|check| check.name == "operators"));
}
