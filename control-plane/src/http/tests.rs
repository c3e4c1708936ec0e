//! A store that cannot be written: what is refused, what takes force all the same, and that nothing is lost.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod gone;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use umbel_contracts::objects::{CommandRequestBody, EdgeEnrollmentRequest, OperatorRequest, Role};
use umbel_contracts::serve::{Caller, Fleet};
use umbel_store::{Commit, Health, Store, WriteSwitch};
use umbel_wire::ca::Authority;
use umbel_wire::clock::Wall;
use umbel_wire::error::Code;
use umbel_wire::ids::{Generation, KeyHash};
use umbel_wire::secret::Secret;

use super::api::Api;
use crate::Config;
use crate::core::edges::{EDGES, EdgeRow};
use crate::shell::authority::{Keys, ca_dir};
use crate::shell::plane::{Plane, Settings};

fn caller() -> Caller {
    Caller { actor: "ada".into(), role: Role::Admin, token_id: String::new(), correlation_id: "req_1".into() }
}

fn edge_row() -> EdgeRow {
    EdgeRow {
        edge_id: "ber1".into(),
        display_name: String::new(),
        key_sha256: KeyHash([1; 32]).to_string(),
        not_after_unix_ms: i64::MAX,
        enrolled_at_unix_ms: 0,
        token_id: "no-such-token".into(),
        issued_at_unix_ms: 0,
        pending: None,
        revoked: None,
    }
}

async fn load(store: &Store, dir: &Path) -> Api {
    let text = format!("[control_plane]\nstate_dir = \"{}\"\nadvertise = [\"cp:1\"]\n", dir.display());
    let config = Config::parse(&text, Path::new("cp.toml")).unwrap();
    if !ca_dir(&config).exists() {
        Authority::create(&ca_dir(&config), "cp", Wall::now()).unwrap();
    }
    let keys = Keys::open(&config, Wall::now()).unwrap();
    Api(Plane::load(Settings::of(&config), store.clone(), keys, Generation(0)).await.unwrap())
}

async fn plane() -> (tempfile::TempDir, Store, WriteSwitch, Api) {
    let dir = tempfile::tempdir().unwrap();
    let (store, switch) = Store::in_memory();
    store.commit(Commit::new().put_json(EDGES, "ber1", &edge_row())).await.unwrap();
    let api = load(&store, dir.path()).await;
    (dir, store, switch, api)
}

fn operator(operator_id: &str) -> OperatorRequest {
    OperatorRequest {
        operator_id: operator_id.into(),
        secret_sha256: Secret::generate().hash().to_hex(),
        name: "bob".into(),
        role: Role::Viewer,
    }
}

/// There is space again, and the store has found out.
async fn freed(store: &Store, switch: &WriteSwitch) {
    switch.full(false);
    let end = tokio::time::Instant::now() + Duration::from_secs(20);
    while store.check().await != Health::Ok {
        assert!(tokio::time::Instant::now() < end, "the store is usable within the limit");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_revocation_takes_force_on_a_full_disk_and_says_that_it_is_not_durable() {
    let (dir, store, switch, api) = plane().await;
    let id = "fedcba9876543210";
    api.operator_create(&caller(), operator(id)).await.unwrap();
    switch.full(true);
    let told = api.credential_revoke(&caller(), "ber1", "lost").await.unwrap_err();
    assert_eq!((told.code, &*told.reason), (Code::InsufficientStorage, "NOT_DURABLE"));
    let key = KeyHash([1; 32]);
    let revoked = |api: &Api| {
        let plane = Arc::clone(&api.0);
        let known = plane.fleet().edges.find("ber1").unwrap().1.clone();
        assert!(plane.fleet().edges.knows(&key));
        known.row.revoked.is_some()
    };
    assert!(revoked(&api));
    let told = api.credential_revoke(&caller(), "ber1", "lost").await.unwrap_err();
    assert_eq!(told.reason, "NOT_DURABLE", "asked again it is told again");
    let told = api.operator_revoke(&caller(), id, "lost").await.unwrap_err();
    assert_eq!(told.reason, "NOT_DURABLE");
    freed(&store, &switch).await;
    let again = load(&store, dir.path()).await;
    assert!(revoked(&again), "written with the first write that succeeds");
    assert!(again.operators().await.unwrap()[0].revoked_at.is_some());
    for api in [&api, &again] {
        api.credential_revoke(&caller(), "ber1", "lost").await.unwrap();
        api.operator_revoke(&caller(), id, "lost").await.unwrap();
    }
    let entries = store.audit_tail(9).await.unwrap();
    let of = |action| entries.iter().filter(|entry| entry.record.action == action).count();
    assert_eq!((of("credential.revoke"), of("operator.revoke")), (1, 1));
}

#[tokio::test]
async fn what_must_be_stored_is_refused_on_a_full_disk_and_leaves_nothing() {
    let (_dir, store, switch, api) = plane().await;
    switch.full(true);
    let enrollment = EdgeEnrollmentRequest {
        token_id: "0123456789abcdef".into(),
        secret_sha256: Secret::generate().hash().to_hex(),
        edge_id: "ham1".into(),
        expires_in_seconds: None,
    };
    let told = api.edge_enrollment_create(&caller(), enrollment.clone()).await.unwrap_err();
    assert_eq!((told.code, &*told.reason), (Code::InsufficientStorage, "AUDIT_UNAVAILABLE"));
    let operator = operator("fedcba9876543210");
    let told = api.operator_create(&caller(), operator.clone()).await.unwrap_err();
    assert_eq!(told.code, Code::InsufficientStorage);
    assert!(api.operators().await.unwrap().is_empty());
    freed(&store, &switch).await;
    api.edge_enrollment_create(&caller(), enrollment).await.unwrap();
    api.operator_create(&caller(), operator).await.unwrap();
    assert_eq!(api.operators().await.unwrap().len(), 1);
}

#[tokio::test]
async fn an_edge_that_is_not_connected_is_unavailable_at_once() {
    let (_dir, _store, _switch, api) = plane().await;
    let told = api.operation_class("ber1", "node.drain").await.unwrap_err();
    assert_eq!((told.code, &*told.reason), (Code::Unavailable, "EDGE_NOT_CONNECTED"));
    let body = CommandRequestBody {
        operation: "node.drain".into(),
        ..serde_json::from_str(r#"{"operation":"x"}"#).unwrap()
    };
    let call = umbel_contracts::serve::CommandCall { command_id: "c".into(), body, wait: Duration::ZERO };
    assert_eq!(api.command(&caller(), "ber1", call).await.unwrap_err().code, Code::Unavailable);
}

/// Who looks whether it is ready is told what is wrong, and it takes traffic all the same.
#[tokio::test]
async fn readiness_tells_what_is_wrong() {
    let (_dir, store, switch, api) = plane().await;
    let ready = async || {
        let answer = super::metrics::readyz(axum::extract::State(Arc::clone(&api.0))).await;
        let status = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), 64 * 1024).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    };
    assert_eq!(ready().await, (200, "ok\n".to_owned()));
    switch.full(true);
    assert!(matches!(store.check().await, Health::ReadOnly(_)));
    let (status, text) = ready().await;
    assert!(status == 200 && text.starts_with("ok\n[!]store read-only"), "{text}");
    freed(&store, &switch).await;
    switch.break_writer();
    assert!(matches!(store.check().await, Health::ReadOnly(_)));
    api.0.parts.ended(store.broke().await);
    let (status, text) = ready().await;
    assert!(
        status == 200 && text.contains("[!]PART_BROKE: the part `store` of this control plane"),
        "{text}"
    );
    assert_eq!(api.0.parts.over().await, "store");
}
