//! Callers who go away while what they asked for is written: it is made and in force all the same, and can be asked for
//! again.

use std::sync::Mutex;

use futures_util::FutureExt;
use prost::Message;
use tokio::net::TcpListener;
use umbel_contracts::objects::CommandPhase;
use umbel_contracts::operations::Class;
use umbel_contracts::proto::control::{EdgeCommandRequest, EdgeCommandResponse, EdgeHelloRequest, Phase};
use umbel_contracts::serve::CommandCall;
use umbel_wire::ca::CLIENT_VALIDITY;
use umbel_wire::ids::{EdgeId, InstanceId};
use umbel_wire::tls::{ClientIdentity, KeyPair, Trust, wire_client};
use umbel_wire::{
    CloseReason, Connection, DialTarget, Handler, HelloOut, IncomingStream, Purpose, VersionRange, dial_once,
};

use super::*;
use crate::shell::authority::SERVER_NAME;
use crate::shell::edges::EdgeDoor;
use crate::shell::relay;

/// Waits until a condition holds, asked anew every few milliseconds.
async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let end = tokio::time::Instant::now() + Duration::from_secs(20);
    while !condition().await {
        assert!(tokio::time::Instant::now() < end, "{what} within the limit");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Asks, and goes away before the answer, which the frozen disk holds back.
fn asked_and_gone<T>(asked: impl Future<Output = T>) {
    let mut asked = Box::pin(asked);
    assert!(asked.as_mut().now_or_never().is_none(), "the disk is frozen");
}

#[tokio::test]
async fn a_revocation_whose_caller_goes_away_during_the_write_is_in_force() {
    let (_dir, store, switch, api) = plane().await;
    let id = "fedcba9876543210";
    api.operator_create(&caller(), operator(id)).await.unwrap();
    switch.freeze(true);
    asked_and_gone(api.operator_revoke(&caller(), id, "lost"));
    asked_and_gone(api.credential_revoke(&caller(), "ber1", "lost"));
    asked_and_gone(api.operator_create(&caller(), operator("0123456789abcdef")));
    switch.freeze(false);
    until("the token opens nothing", async || !api.0.operators().is_active(id)).await;
    until("the edge is out", async || {
        let fleet = api.0.fleet();
        fleet.edges.find("ber1").unwrap().1.row.revoked.is_some()
    })
    .await;
    until("the new token opens", async || api.0.operators().is_active("0123456789abcdef")).await;
    // Asked again, both are as they are: nothing was changed "by someone else".
    api.operator_revoke(&caller(), id, "lost").await.unwrap();
    api.credential_revoke(&caller(), "ber1", "lost").await.unwrap();
    let entries = store.audit_tail(9).await.unwrap();
    let of = |action| entries.iter().filter(|entry| entry.record.action == action).count();
    assert_eq!((of("credential.revoke"), of("operator.revoke"), of("operator.create")), (1, 1, 2));
}

/// An edge that runs every command at once.
#[derive(Default)]
struct Runs(Mutex<Vec<String>>);

impl Handler for Runs {
    fn on_stream(&self, _connection: &Connection, stream: IncomingStream) {
        let command_id = EdgeCommandRequest::decode(stream.message()).unwrap().command_id;
        self.0.lock().unwrap().push(command_id.clone());
        let phase = Phase::Succeeded as i32;
        let answer = EdgeCommandResponse { command_id, phase, ..EdgeCommandResponse::default() };
        tokio::spawn(async move {
            if stream.send(&answer.encode_length_delimited_to_vec()).await.is_ok() {
                stream.finish(&[]);
            }
        });
    }

    fn on_closed(&self, _connection: &Connection, _reason: &CloseReason) {}
}

/// An enrolled edge's connection.
async fn connected(api: &Api, runs: &Arc<Runs>) -> Connection {
    let plane = &api.0;
    let key = KeyPair::generate().unwrap();
    let edge_id = EdgeId::parse("ham1").unwrap();
    let request = key.signing_request().unwrap();
    let issued =
        plane.keys.authority.sign_edge(&request, &edge_id, plane.clock.now(), CLIENT_VALIDITY).unwrap();
    let row = EdgeRow { edge_id: "ham1".into(), key_sha256: issued.key_hash.to_string(), ..edge_row() };
    let commit = Commit::new().put_json(EDGES, "ham1", &row);
    let position = plane.commit(commit).await.unwrap();
    plane.fleet().edges.apply(row, position);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = DialTarget {
        addresses: vec![listener.local_addr().unwrap().to_string()],
        server_name: SERVER_NAME.into(),
        tls: wire_client(
            Trust::Ca(vec![plane.keys.authority.certificate_der().clone()]),
            Some(ClientIdentity::new(
                issued.chain.iter().map(|der| der.clone().into()).collect(),
                key.private_key(),
            )),
        )
        .unwrap(),
    };
    let door = Arc::new(EdgeDoor(Arc::clone(plane)));
    tokio::spawn(umbel_wire::serve(listener, Arc::clone(&plane.keys.edges), door, plane.drain.clone()));
    let payload = EdgeHelloRequest { edge_id: "ham1".into(), ..EdgeHelloRequest::default() }.encode_to_vec();
    let hello = HelloOut {
        purpose: Purpose::Hello,
        versions: VersionRange::ONE,
        instance: InstanceId::random(),
        payload,
    };
    let handler = Arc::clone(runs);
    dial_once(target, hello, |_, _| Ok(handler)).await.expect("it is let in").0
}

#[tokio::test]
async fn a_command_whose_caller_goes_away_before_it_is_sent_is_sent_and_audited() {
    let (_dir, store, switch, api) = plane().await;
    let runs = Arc::<Runs>::default();
    let _connection = connected(&api, &runs).await;
    let id = "6f1c1c1e-5a62-4d3c-8a6e-3d3f0a6d7c11";
    let who = caller();
    let call = || CommandCall {
        command_id: id.into(),
        body: serde_json::from_str(r#"{"operation":"node.drain","target_selector":"node:a"}"#).unwrap(),
        wait: Duration::ZERO,
    };
    let ask = || relay::command(&api.0, &who, "ham1", Class::Operate, call());
    switch.freeze(true);
    asked_and_gone(ask());
    switch.freeze(false);
    let again = tokio::time::timeout(Duration::from_secs(20), ask()).await.expect("within the limit");
    assert_eq!(again.unwrap().phase, CommandPhase::Succeeded);
    until("its end is audited", async || {
        let entries = store.audit_tail(9).await.unwrap();
        entries.iter().any(|entry| entry.record.action == "command.finished")
    })
    .await;
    assert!(runs.0.lock().unwrap().iter().all(|sent| sent == id));
}

#[tokio::test]
async fn a_command_that_cannot_be_audited_is_not_sent_and_leaves_its_id_free() {
    let (_dir, store, switch, api) = plane().await;
    let runs = Arc::<Runs>::default();
    let _connection = connected(&api, &runs).await;
    let who = caller();
    let call = || CommandCall {
        command_id: "6f1c1c1e-5a62-4d3c-8a6e-3d3f0a6d7c11".into(),
        body: serde_json::from_str(r#"{"operation":"node.drain","target_selector":"node:a"}"#).unwrap(),
        wait: Duration::ZERO,
    };
    let ask = || relay::command(&api.0, &who, "ham1", Class::Operate, call());
    switch.full(true);
    assert_eq!(ask().await.unwrap_err().reason, "AUDIT_UNAVAILABLE");
    assert!(runs.0.lock().unwrap().is_empty());
    freed(&store, &switch).await;
    assert_eq!(ask().await.unwrap().phase, CommandPhase::Succeeded);
}
