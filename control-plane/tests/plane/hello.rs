//! The hello's refusals over the wire, in the order of the contract, and who of two wins.

use prost::Message;
use umbel_contracts::proto::control::EdgeHelloRequest;
use umbel_wire::ids::InstanceId;
use umbel_wire::tls::KeyPair;
use umbel_wire::{CloseReason, Code, HelloOut, Purpose, Rejection, Verdict, VersionRange};

use crate::client::Ask;
use crate::rig::{Plane, plane, until, within};
use crate::site::{Site, connected, enrolled, identity, out};

fn hello(edge_id: &str) -> Vec<u8> {
    EdgeHelloRequest { edge_id: edge_id.into(), ..EdgeHelloRequest::default() }.encode_to_vec()
}

async fn refused(plane: &Plane, site: &Site, with_certificate: bool, hello: HelloOut) -> Rejection {
    let identity = with_certificate.then(|| identity(&site.key, &site.chain));
    let error = site.connect_as(plane, identity, hello).await.expect_err("it is refused");
    error.rejection.clone().unwrap_or_else(|| panic!("no reason given: {error}"))
}

#[tokio::test]
async fn every_refusal_is_told_with_its_code_and_in_the_contracts_order() {
    let plane = plane().await;
    let site = enrolled(&plane, "ber1").await;
    let other = enrolled(&plane, "ham1").await;
    let stranger =
        Site { key: KeyPair::generate().unwrap(), chain: Vec::new(), ..enrolled(&plane, "mun1").await };
    // A certificate of somebody else's authority for a key that nobody enrolled here.
    let foreign = crate::rig::plane().await;
    let from_elsewhere = enrolled(&foreign, "ber1").await;
    let bad = VersionRange { min: 7, max: 9 };
    let with = |edge_id: &str, versions| HelloOut { versions, ..out(Purpose::Hello, hello(edge_id)) };
    let one = VersionRange::ONE;
    let rows = [
        (&site, false, with("", bad), Code::InvalidArgument, "EDGE_ID_EMPTY"),
        (&site, false, with("No Such", bad), Code::InvalidArgument, "EDGE_ID_MALFORMED"),
        (&site, false, with("ber1", bad), Code::Unauthenticated, "CERTIFICATE_MISSING"),
        (&stranger, false, with("mun1", one), Code::Unauthenticated, "CERTIFICATE_MISSING"),
        (&from_elsewhere, true, with("ber1", bad), Code::Unauthenticated, "CERTIFICATE_UNKNOWN"),
        (&other, true, with("ber1", bad), Code::PermissionDenied, "EDGE_ID_NOT_YOURS"),
        (&site, true, with("ber1", bad), Code::Conflict, "VERSION_INCOMPATIBLE"),
    ];
    for (site, with_certificate, hello, code, reason) in rows {
        let rejection = refused(&plane, site, with_certificate, hello).await;
        assert_eq!((rejection.error.code, &*rejection.error.reason), (code, reason));
    }
    for (versions, verdict) in [(bad, Verdict::TooNew), (VersionRange { min: 0, max: 0 }, Verdict::Unknown)] {
        let rejection = refused(&plane, &site, true, with("ber1", versions)).await;
        assert_eq!((rejection.verdict, rejection.mine), (Some(verdict), one));
    }
    let rubbish = out(Purpose::Hello, vec![0xff; 64]);
    assert_eq!(refused(&plane, &site, true, rubbish).await.error.code, Code::InvalidArgument);
    assert_eq!(plane.freshness("ber1").await, "disconnected", "no refusal left anything behind");
    site.connect(&plane).await.unwrap();
}

#[tokio::test]
async fn a_second_process_with_the_same_credential_is_refused_while_the_first_is_alive() {
    let plane = plane().await;
    let (site, first) = connected(&plane, "ber1").await;
    let generation = plane.get("/api/v1/edges/ber1").await["generation"].as_u64().unwrap();
    let rejection = refused(&plane, &site, true, out(Purpose::Hello, site.hello().encode_to_vec())).await;
    assert_eq!((rejection.error.code, &*rejection.error.reason), (Code::Conflict, "DUPLICATE_IDENTITY"));
    assert!(rejection.error.retry_after.is_some());
    assert!(!first.is_closed());
    let edge = plane.get("/api/v1/edges/ber1").await;
    assert_eq!(edge["problems"][0]["code"], "DUPLICATE_IDENTITY");
    assert_eq!(edge["generation"], generation);
    // Once the first is gone the second may come.
    first.close(CloseReason::Shutdown);
    until("the first is seen to be gone", || async {
        plane.get("/api/v1/edges/ber1").await["connection"] == "disconnected"
    })
    .await;
    let second = site.connect(&plane).await.unwrap();
    assert!(second.generation().0 > generation);
}

#[tokio::test]
async fn revoking_closes_the_live_connection_and_shuts_the_door() {
    let plane = plane().await;
    let (site, connection) = connected(&plane, "ber1").await;
    let path = "/api/v1/edges/ber1/credential:revoke";
    let unsaid = plane.ask(Ask::post(path, serde_json::json!({}))).await;
    assert_eq!(unsaid.refusal(), (400, "REASON_MISSING"));
    let edge = plane.ask(Ask::post(path, serde_json::json!({"reason": "stolen"}))).await.ok();
    assert_eq!(edge["credential"]["state"], "revoked");
    match within(connection.closed()).await {
        CloseReason::ByPeer(goaway) => assert_eq!(goaway.reason, "revoked"),
        other => panic!("{other}"),
    }
    let rejection = refused(&plane, &site, true, out(Purpose::Hello, site.hello().encode_to_vec())).await;
    assert_eq!(
        (rejection.error.code, &*rejection.error.reason),
        (Code::Unauthenticated, "CREDENTIAL_REVOKED")
    );
    assert_eq!(plane.freshness("ber1").await, "disconnected");
    assert!(plane.audit().await.contains(&"credential.revoke succeeded".to_owned()));
    // Revoked, the name may be enrolled anew.
    let (again, _connection) = connected(&plane, "ber1").await;
    assert_ne!(again.key.key_hash(), site.key.key_hash());
    assert_eq!(plane.freshness("ber1").await, "fresh");
}

#[tokio::test]
async fn the_drain_tells_edges_and_ends_in_order() {
    let mut plane = plane().await;
    let (site, connection) = connected(&plane, "ber1").await;
    plane.running.take().unwrap().drain(std::time::Duration::from_secs(5)).await;
    match within(connection.closed()).await {
        CloseReason::ByPeer(goaway) => assert_eq!(goaway.reason, "shutdown"),
        other => panic!("{other}"),
    }
    assert!(!plane.config.socket.exists(), "the socket's file is gone");
    assert_eq!(site.acts.closed.lock().unwrap().len(), 1);
    let same_process =
        HelloOut { instance: InstanceId::random(), ..out(Purpose::Hello, site.hello().encode_to_vec()) };
    plane.running = Some(umbel_control_plane::Running::build(&plane.config).await.unwrap());
    let identity = identity(&site.key, &site.chain);
    site.connect_as(&plane, Some(identity), same_process).await.unwrap();
}
