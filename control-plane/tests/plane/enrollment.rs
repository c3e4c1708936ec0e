//! Edges joining: one token, one key, one edge; whatever else is tried is refused and leaves nothing behind.

use serde_json::json;
use umbel_wire::Code;
use umbel_wire::secret::Secret;
use umbel_wire::tls::KeyPair;
use umbel_wire::token::new_id;

use crate::client::Ask;
use crate::rig::{plane, within};
use crate::site::{connected, enroll, enroll_request};

/// Fault row 22: sixty with one token at once, each with a key of its own.
#[tokio::test]
async fn of_sixty_that_race_for_one_token_exactly_one_gets_in() {
    let plane = plane().await;
    for round in 0..3 {
        let edge_id = format!("ber{round}");
        let (token_id, secret) = plane.mint(&edge_id).await;
        // The port lets sixteen newcomers of one address in at a time, so they come in such groups.
        let mut won = 0;
        let mut refused = Vec::new();
        let tries = (0..60).map(|_| {
            let key = KeyPair::generate().unwrap();
            enroll(&plane, enroll_request(&token_id, &secret, &edge_id, &key))
        });
        for answer in within(futures_util::future::join_all(tries)).await {
            match answer {
                Ok(_) => won += 1,
                Err(error) => refused.push((error.code, error.reason)),
            }
        }
        assert_eq!(won, 1, "{refused:?}");
        assert!(refused.iter().all(|(code, _)| *code == Code::Conflict), "{refused:?}");
        assert_eq!(refused.len(), 59);
    }
    assert_eq!(plane.get("/api/v1/edges").await["items"].as_array().unwrap().len(), 3);
    let joined = plane.audit().await.iter().filter(|entry| *entry == "edge.enroll succeeded").count();
    assert_eq!(joined, 3);
}

/// Fault row 24: the answer was lost; the same key gets the same bytes, another key nothing.
#[tokio::test]
async fn the_same_key_gets_the_same_answer_again() {
    let plane = plane().await;
    let (token_id, secret) = plane.mint("ber1").await;
    let key = KeyPair::generate().unwrap();
    let request = enroll_request(&token_id, &secret, "ber1", &key);
    let first = enroll(&plane, request.clone()).await.unwrap();
    let second = enroll(&plane, request).await.unwrap();
    assert_eq!(first, second);
    let other = enroll_request(&token_id, &secret, "ber1", &KeyPair::generate().unwrap());
    let refused = enroll(&plane, other).await.unwrap_err();
    assert_eq!((refused.code, &*refused.reason), (Code::Conflict, "TOKEN_USED"));
    assert_eq!(plane.get("/api/v1/edges").await["items"].as_array().unwrap().len(), 1);
    let token = plane.get(&format!("/api/v1/edge-enrollments/{token_id}")).await;
    assert_eq!(token["state"], "used");
    // Once the credential is revoked it is given out no more.
    plane.ask(Ask::post("/api/v1/edges/ber1/credential:revoke", json!({"reason": "lost"}))).await.ok();
    let again = enroll(&plane, enroll_request(&token_id, &secret, "ber1", &key)).await.unwrap_err();
    assert_eq!(again.code, Code::Unauthenticated);
}

#[tokio::test]
async fn tokens_that_open_nothing_are_refused_alike() {
    let plane = plane().await;
    let key = KeyPair::generate().unwrap();
    let (token_id, secret) = plane.mint("ber1").await;
    let refuse = |token_id: String, secret: Secret, edge_id: &'static str| {
        let request = enroll_request(&token_id, &secret, edge_id, &key);
        let plane = &plane;
        async move { enroll(plane, request).await.unwrap_err() }
    };
    let wrong = refuse(token_id.clone(), Secret::generate(), "ber1").await;
    let unknown = refuse(new_id(), secret.clone(), "ber1").await;
    assert_eq!(
        (wrong.code, &wrong.reason, &wrong.message),
        (unknown.code, &unknown.reason, &unknown.message)
    );
    assert_eq!(wrong.code, Code::Unauthenticated);
    let another = refuse(token_id.clone(), secret.clone(), "ham1").await;
    assert_eq!((another.code, &*another.reason), (Code::PermissionDenied, "TOKEN_FOR_ANOTHER_EDGE"));
    let empty = refuse(token_id.clone(), secret.clone(), "").await;
    assert_eq!((empty.code, &*empty.reason), (Code::InvalidArgument, "EDGE_ID_EMPTY"));

    let gone = plane.ask(Ask::delete(&format!("/api/v1/edge-enrollments/{token_id}"))).await.ok();
    assert_eq!(gone["state"], "revoked");
    let revoked = refuse(token_id.clone(), secret, "ber1").await;
    assert_eq!((revoked.code, &revoked.message), (unknown.code, &unknown.message));
    let audit = plane.audit().await;
    for truth in ["wrong_secret", "another_edge", "revoked"] {
        let told = audit.iter().filter(|entry| **entry == format!("edge.enroll refused: {truth}")).count();
        assert_eq!(told, 1, "{truth}: {audit:?}");
    }
    assert!(plane.get("/api/v1/edges").await["items"].as_array().unwrap().is_empty());
}

/// Fault row 37: guessing from one address is slowed, and what is connected does not feel it.
#[tokio::test]
async fn wrong_tokens_from_one_address_are_slowed() {
    let plane = plane().await;
    let (_site, connection) = connected(&plane, "ber1").await;
    let key = KeyPair::generate().unwrap();
    let mut codes = Vec::new();
    for _ in 0..12 {
        let request = enroll_request(&new_id(), &Secret::generate(), "ham1", &key);
        codes.push(enroll(&plane, request).await.unwrap_err().code);
    }
    assert_eq!(codes.iter().filter(|code| **code == Code::Unauthenticated).count(), 10);
    assert_eq!(codes.iter().filter(|code| **code == Code::ResourceExhausted).count(), 2);
    assert!(!connection.is_closed());
    assert_eq!(plane.freshness("ber1").await, "fresh");
}

#[tokio::test]
async fn an_enrolled_name_is_taken() {
    let plane = plane().await;
    let (token_id, secret) = plane.mint("ber1").await;
    let (_site, _connection) = connected(&plane, "ber1").await;
    let late = enroll(&plane, enroll_request(&token_id, &secret, "ber1", &KeyPair::generate().unwrap()))
        .await
        .unwrap_err();
    assert_eq!((late.code, &*late.reason), (Code::Conflict, "EDGE_ALREADY_ENROLLED"));
    let body =
        json!({"token_id": new_id(), "secret_sha256": Secret::generate().hash().to_hex(), "edge_id": "ber1"});
    let minted = plane.ask(Ask::post("/api/v1/edge-enrollments", body)).await;
    assert_eq!(minted.refusal(), (409, "EDGE_ALREADY_ENROLLED"));
}

#[tokio::test]
async fn tokens_are_listed_without_their_secrets() {
    let plane = plane().await;
    let (token_id, secret) = plane.mint("ber1").await;
    let list = plane.get("/api/v1/edge-enrollments").await;
    assert_eq!(list["items"][0]["token_id"], token_id.as_str());
    let text = list.to_string();
    assert!(!text.contains(&secret.hash().to_hex()) && !text.contains("secret"), "{text}");
    let body = json!({"token_id": token_id, "secret_sha256": secret.hash().to_hex(), "edge_id": "ham1"});
    assert_eq!(
        plane.ask(Ask::post("/api/v1/edge-enrollments", body)).await.refusal(),
        (409, "TOKEN_ID_TAKEN")
    );
    assert_eq!(
        plane.ask(Ask::get("/api/v1/edge-enrollments/nope-nope")).await.refusal(),
        (404, "TOKEN_UNKNOWN")
    );
}
