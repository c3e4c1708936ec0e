//! API keys against the store, in memory and full.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use umbel_wire::token::{BearerKind, mint_bearer};

use super::*;

fn row() -> (KeyRow, String) {
    let (key_id, text, hash) = mint_bearer(BearerKind::ApiKey);
    let row = KeyRow {
        key_id,
        name: "app".to_owned(),
        secret_sha256: hash.to_hex(),
        models: None,
        priority: 50,
        limits: umbel_contracts::operations::KeyLimits::default(),
        created_at_unix_ms: 1,
        created_by: "ada".to_owned(),
        revoked_at_unix_ms: None,
    };
    (row, format!("Bearer {}", text.expose()))
}

fn actor() -> Actor {
    Actor { name: "ada".to_owned(), ..Actor::default() }
}

#[tokio::test]
async fn a_key_survives_a_restart_and_so_does_its_revocation() {
    let (store, _) = Store::in_memory();
    let keys = Keys::load(store.clone()).await.unwrap();
    assert!(matches!(keys.check(None, true), Ok(Caller::Loopback(_))));
    let (row, header) = row();
    keys.create(row.clone(), &actor(), Commit::new()).await.unwrap();
    let keys = Keys::load(store.clone()).await.unwrap();
    assert!(matches!(keys.check(Some(&header), false), Ok(Caller::Key(_))));
    let revoked = keys.revoke(&row.key_id, 7, &actor(), Commit::new()).await.unwrap();
    assert_eq!(revoked, Revoked::Durable);
    let keys = Keys::load(store.clone()).await.unwrap();
    assert_eq!(keys.check(Some(&header), true).unwrap_err(), KeyRefusal::Invalid);
    assert_eq!(keys.list().first().unwrap().revoked_at_unix_ms, Some(7));
    let actions: Vec<String> =
        store.audit_tail(9).await.unwrap().into_iter().map(|entry| entry.record.action).collect();
    assert_eq!(actions, ["apikey.create", "apikey.revoke"]);
}

#[tokio::test]
async fn the_same_key_again_is_accepted_and_another_content_is_not() {
    let (store, _) = Store::in_memory();
    let keys = Keys::load(store).await.unwrap();
    let (row, _) = row();
    let also = || Commit::new().put_json("commands", "c1", &1);
    keys.create(row.clone(), &actor(), also()).await.unwrap();
    let later = KeyRow { created_at_unix_ms: 9, created_by: "eve".to_owned(), ..row.clone() };
    assert_eq!(keys.create(later, &actor(), also()).await.unwrap(), row);
    let other = KeyRow { name: "other".to_owned(), ..row.clone() };
    let refused = keys.create(other, &actor(), also()).await.unwrap_err();
    assert_eq!((refused.code, &*refused.reason), (Code::Conflict, "KEY_EXISTS"));
    for bad in [
        KeyRow { secret_sha256: "x".to_owned(), ..row.clone() },
        KeyRow { priority: 101, ..row.clone() },
        KeyRow { name: String::new(), ..row.clone() },
        KeyRow { key_id: "a b".to_owned(), ..row.clone() },
        KeyRow { models: Some(vec![String::new()]), ..row },
    ] {
        let refused = keys.create(bad, &actor(), Commit::new()).await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
    }
}

#[tokio::test]
async fn what_must_be_stored_with_a_key_can_refuse_it() {
    let (store, _) = Store::in_memory();
    let keys = Keys::load(store.clone()).await.unwrap();
    store.commit(Commit::new().put_json("commands", "c1", &1)).await.unwrap();
    let (row, header) = row();
    let taken = || Commit::new().require_absent("commands", "c1");
    let refused = keys.create(row.clone(), &actor(), taken()).await.unwrap_err();
    assert_eq!((refused.code, &*refused.reason), (Code::Conflict, "COMMAND_ID"));
    assert!(keys.list().is_empty());
    keys.create(row.clone(), &actor(), Commit::new()).await.unwrap();
    // A revocation stands all the same.
    assert_eq!(keys.revoke(&row.key_id, 7, &actor(), taken()).await.unwrap_err().code, Code::Conflict);
    let again = Keys::load(store).await.unwrap();
    assert_eq!(again.check(Some(&header), true).unwrap_err(), KeyRefusal::Invalid);
    assert_eq!(keys.revoke("nobody", 7, &actor(), Commit::new()).await.unwrap_err().code, Code::NotFound);
}

#[tokio::test]
async fn a_revocation_holds_on_a_full_disk_and_says_that_it_is_not_durable() {
    let (store, switch) = Store::in_memory();
    let keys = Keys::load(store).await.unwrap();
    let (first, header) = row();
    keys.create(first.clone(), &actor(), Commit::new()).await.unwrap();
    switch.full(true);
    let (second, _) = row();
    let refused = keys.create(second, &actor(), Commit::new()).await.unwrap_err();
    assert_eq!((refused.code, &*refused.reason), (Code::InsufficientStorage, "AUDIT_UNAVAILABLE"));
    let revoked = keys.revoke(&first.key_id, 7, &actor(), Commit::new()).await.unwrap();
    assert_eq!(revoked, Revoked::NotDurable);
    assert_eq!(keys.check(Some(&header), true).unwrap_err(), KeyRefusal::Invalid);
}
