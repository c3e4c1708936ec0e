//! API keys against the store, in memory and full.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::time::Instant;

use umbel_contracts::operations::KeyLimits;
use umbel_wire::clock::Wall;
use umbel_wire::token::{BearerKind, mint_bearer};

use super::usage::{Asked, DAYS_KEPT, Used};
use super::*;
use crate::core::keys::Limit;
use crate::core::keys::ledger::{Counts, Day, DayCounts, DayRow};
use crate::core::usage::Usage;

fn row() -> (KeyRow, String) {
    let (key_id, text, hash) = mint_bearer(BearerKind::ApiKey);
    let row = KeyRow {
        key_id,
        name: "app".to_owned(),
        secret_sha256: hash.to_hex(),
        models: None,
        priority: 50,
        limits: KeyLimits::default(),
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
    assert!(matches!(keys.check(None, || true), Ok(Caller::Loopback(_))));
    let (row, header) = row();
    keys.create(row.clone(), &actor(), Commit::new()).await.unwrap();
    let keys = Keys::load(store.clone()).await.unwrap();
    assert!(matches!(keys.check(Some(&header), || false), Ok(Caller::Key(_))));
    let revoked = keys.revoke(&row.key_id, 7, &actor(), Commit::new(), drop).await.unwrap();
    assert_eq!(revoked, Revoked::Durable);
    let keys = Keys::load(store.clone()).await.unwrap();
    assert_eq!(keys.check(Some(&header), || true).unwrap_err(), KeyRefusal::Invalid);
    assert_eq!(keys.list().first().unwrap().revoked_at_unix_ms, Some(7));
    let actions: Vec<String> =
        store.audit_tail(9).await.unwrap().into_iter().map(|entry| entry.record.action).collect();
    assert_eq!(actions, ["apikey.create", "apikey.revoke"]);
}

#[tokio::test]
async fn at_the_bound_a_new_key_takes_the_place_of_the_one_revoked_first() {
    let (store, _) = Store::in_memory();
    let mut keys = Keys::load(store.clone()).await.unwrap();
    Arc::get_mut(&mut keys).unwrap().most = 3;
    let rows: Vec<KeyRow> = (0..3).map(|_| row().0).collect();
    for row in &rows {
        keys.create(row.clone(), &actor(), Commit::new()).await.unwrap();
    }
    let full = keys.create(row().0, &actor(), Commit::new()).await.unwrap_err();
    assert_eq!((full.code, full.reason.as_ref()), (Code::ResourceExhausted, "TOO_MANY_KEYS"));
    let [kept, last, first] = rows.as_slice() else { unreachable!() };
    for (row, at) in [(last, 9), (first, 8)] {
        keys.revoke(&row.key_id, at, &actor(), Commit::new(), drop).await.unwrap();
    }
    for forgotten in [first, last] {
        keys.create(row().0, &actor(), Commit::new()).await.unwrap();
        assert_eq!(keys.row(&forgotten.key_id).unwrap_err().code, Code::NotFound);
    }
    assert!(keys.row(&kept.key_id).is_ok());
    assert_eq!(
        keys.create(row().0, &actor(), Commit::new()).await.unwrap_err().code,
        Code::ResourceExhausted
    );
    let ids = |keys: &Keys| -> HashSet<String> { keys.list().into_iter().map(|row| row.key_id).collect() };
    assert_eq!(ids(&Keys::load(store).await.unwrap()), ids(&keys), "on disk as in memory");
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
    assert_eq!(keys.revoke(&row.key_id, 7, &actor(), taken(), drop).await.unwrap_err().code, Code::Conflict);
    let again = Keys::load(store).await.unwrap();
    assert_eq!(again.check(Some(&header), || true).unwrap_err(), KeyRefusal::Invalid);
    assert_eq!(
        keys.revoke("nobody", 7, &actor(), Commit::new(), drop).await.unwrap_err().code,
        Code::NotFound
    );
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
    let revoked = keys.revoke(&first.key_id, 7, &actor(), Commit::new(), drop).await.unwrap();
    assert_eq!(revoked, Revoked::NotDurable);
    assert_eq!(keys.check(Some(&header), || true).unwrap_err(), KeyRefusal::Invalid);
}

#[tokio::test]
async fn a_change_is_in_force_for_the_next_request_and_a_revocation_for_those_that_wait() {
    let (store, switch) = Store::in_memory();
    let keys = Keys::load(store.clone()).await.unwrap();
    let (row, header) = row();
    keys.create(row.clone(), &actor(), Commit::new()).await.unwrap();
    let now = umbel_wire::clock::now();
    let enter = || keys.check(Some(&header), || false).unwrap().enter(now, 10);
    let first = enter().unwrap();
    let limits = KeyLimits { requests_at_once: Some(1), ..KeyLimits::default() };
    let limited = KeyRow { limits, ..row.clone() };
    keys.change(&row, limited.clone(), Commit::new()).await.unwrap();
    let at = enter().unwrap_err();
    assert_eq!((at.limit, at.value), (Limit::RequestsAtOnce, 1), "what ran before the change counts");
    drop(first);
    assert_eq!(limited, Keys::load(store.clone()).await.unwrap().row(&row.key_id).unwrap());
    let stale = keys.change(&row, row.clone(), Commit::new()).await.unwrap_err();
    assert_eq!((stale.code, &*stale.reason), (Code::Conflict, "CHANGED_MEANWHILE"));
    let nothing = KeyLimits { requests_per_minute: Some(0), ..KeyLimits::default() };
    let bad = KeyRow { limits: nothing, ..row.clone() };
    assert_eq!(keys.change(&limited, bad, Commit::new()).await.unwrap_err().code, Code::InvalidArgument);

    switch.full(true);
    let refused = keys.change(&limited, row.clone(), Commit::new()).await.unwrap_err();
    assert_eq!(refused.code, Code::InsufficientStorage);
    let waiting = enter().unwrap();
    assert!(!waiting.is_revoked() && enter().is_err());
    keys.revoke(&row.key_id, 7, &actor(), Commit::new(), drop).await.unwrap();
    assert!(waiting.is_revoked());
}

fn tokens(prompt_tokens: u64, completion_tokens: u64) -> Usage {
    Usage { prompt_tokens, completion_tokens, ..Usage::default() }
}

async fn totals(keys: &Keys) -> Vec<(String, u64, u64, u64)> {
    let (used, more) = keys.usage(&Asked::default(), None, 100).await.unwrap();
    assert!(!more);
    let row = |used: &Used| {
        let of = used.counts;
        (used.model.to_string(), of.requests, of.refused, of.prompt_tokens + of.completion_tokens)
    };
    used.iter().map(row).collect()
}

#[tokio::test]
async fn usage_survives_what_a_disk_does_and_never_goes_back() {
    let (store, switch) = Store::in_memory();
    let keys = Keys::load(store.clone()).await.unwrap();
    let (model, none) = (Arc::from("m"), Arc::from(""));
    let caller = keys.check(None, || true).unwrap();
    let request = |keys: &Keys| {
        let permit = caller.enter(umbel_wire::clock::now(), 10).unwrap();
        keys.used((Instant::now(), Wall::now()), permit, &model, &tokens(3, 4));
    };
    request(&keys);
    keys.refused(&caller, &none);
    keys.flush().await;
    let before = store.transactions();
    keys.flush().await;
    assert_eq!(store.transactions(), before, "nothing new is not written");
    let first = vec![(String::new(), 1, 1, 0), ("m".to_owned(), 1, 0, 7)];
    assert_eq!(totals(&keys).await, first);
    request(&keys);
    // Killed here: the last seconds are lost, nothing else.
    assert_eq!(totals(&Keys::load(store.clone()).await.unwrap()).await, first);
    switch.full(true);
    keys.flush().await;
    request(&keys);
    keys.flush().await;
    let all = vec![(String::new(), 1, 1, 0), ("m".to_owned(), 3, 0, 21)];
    assert_eq!(totals(&keys).await, all, "it goes on in memory");
    switch.full(false);
    let deadline = umbel_wire::clock::now() + std::time::Duration::from_secs(30);
    while store.check().await != umbel_store::Health::Ok {
        assert!(umbel_wire::clock::now() < deadline, "the store is never writable again");
        tokio::task::yield_now().await;
    }
    keys.flush().await;
    assert_eq!(totals(&Keys::load(store).await.unwrap()).await, all);
    assert!(keys.last_used("_loopback").is_some() && keys.last_used("nobody").is_none());
}

#[tokio::test]
async fn totals_since_a_day_are_paged_and_none_is_cut_in_two() {
    let (store, _) = Store::in_memory();
    // More keys than one read takes, on two days of three, in two parts a day.
    for key in 0..700 {
        let mut commit = Commit::new();
        for (day, part) in [(3 + key % 2, 0), (5, 0), (5, 1)] {
            let counts = Counts { requests: 1 + key, ..Counts::default() };
            let models = ["a", "b"].map(|model| DayCounts { model: format!("{model}{part}").into(), counts });
            let row = DayRow { models: models.into() };
            commit = commit.put_json("key_usage_days", format!("{day:010}/key{key:04}/{part}"), &row);
        }
        store.commit(commit).await.unwrap();
    }
    let keys = Keys::load(store).await.unwrap();
    let asked = Asked { since: Some(Day(4)), ..Asked::default() };
    let (all, more) = keys.usage(&asked, None, 10_000).await.unwrap();
    assert!(!more);
    assert_eq!(all.len(), 700 * 4);
    let sum = |rows: &[Used]| rows.iter().map(|row| row.counts.requests).sum::<u64>();
    let wanted: u64 = (0..700).map(|key| (1 + key) * 2 * (2 + key % 2)).sum();
    assert_eq!(sum(&all), wanted);
    let (mut paged, mut after) = (Vec::new(), None);
    loop {
        let (page, more) = keys.usage(&asked, after.as_ref(), 333).await.unwrap();
        let last = page.last().unwrap();
        after = Some((last.day, last.key_id.to_string(), last.model.to_string()));
        paged.extend(page);
        if !more {
            break;
        }
    }
    assert_eq!(paged, all);
    let of_one = Asked { key_id: Some("key0001".to_owned()), ..asked };
    assert_eq!(keys.usage(&of_one, None, 10).await.unwrap().0.len(), 4);
}

#[tokio::test]
async fn days_are_paged_newest_first_and_the_oldest_are_forgotten() {
    let (store, _) = Store::in_memory();
    let keys = Keys::load(store.clone()).await.unwrap();
    let state = Arc::clone(keys.check(None, || true).unwrap().state());
    let at = |day: i64| Counts { requests: 1, last_used_unix_ms: day * 86_400_000, ..Counts::default() };
    let days = i64::try_from(DAYS_KEPT).unwrap() + 10;
    for day in 0..days {
        for model in ["a", "b"] {
            keys.count(&state, &Arc::from(model), &at(day));
        }
        keys.flush().await;
    }
    // The day that goes on is beside them.
    let keys = Keys::load(store).await.unwrap();
    let asked = Asked { by_day: true, ..Asked::default() };
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let (used, more) = keys.usage(&asked, after.as_ref(), 7).await.unwrap();
        let last = used.last().unwrap();
        after = Some((last.day, last.key_id.to_string(), last.model.to_string()));
        found.extend(used.into_iter().map(|used| (used.day.unwrap().0, used.model.to_string())));
        if !more {
            break;
        }
    }
    let oldest = i32::try_from(days).unwrap() - 1 - i32::try_from(DAYS_KEPT).unwrap();
    let wanted: Vec<_> = (oldest..i32::try_from(days).unwrap())
        .rev()
        .flat_map(|day| [(day, "a".to_owned()), (day, "b".to_owned())])
        .collect();
    assert_eq!(found, wanted);
    let asked = Asked {
        since: Some(Day(i32::try_from(days).unwrap() - 3)),
        model: Some("b".to_owned()),
        ..Asked::default()
    };
    let (used, _) = keys.usage(&asked, None, 7).await.unwrap();
    assert_eq!(used.iter().map(|used| used.counts.requests).collect::<Vec<_>>(), [3]);
    let asked = Asked { key_id: Some("nobody".to_owned()), by_day: true, ..Asked::default() };
    assert_eq!(keys.usage(&asked, None, 7).await.unwrap().0, []);
}
