//! Limits of keys as clients see them, and a brown-out that is not multiplied.

use umbel_contracts::operations::KeyLimits;
use umbel_contracts::proto::node::InferenceOutcome;
use umbel_store::Commit;
use umbel_wire::token::{BearerKind, parse_bearer};

use super::client::{Client, Reply, chat, get, post};
use super::rig::{Rig, Setup, until};
use crate::http::{FrontOptions, StreamUsage};
use crate::shell::keys::usage::Asked;
use crate::shell::keys::{Actor, KeyRow};

const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"a prompt of some tokens"}]}"#;

fn refused(reply: &Reply, kind: &str, reason: &str, says: &str) {
    assert_eq!(
        (reply.head.status, reply.error_code().as_str()),
        (429, "rate_limit_exceeded"),
        "{}",
        reply.text()
    );
    let error = reply.json()["error"].clone();
    assert_eq!(error["type"], kind);
    assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    assert_eq!(reply.head.get("x-umbel-reason"), Some(reason));
    let seconds: u64 = reply.head.get("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn a_keys_limits_are_told_with_each_answer_and_refused_in_openais_words() {
    let (rig, mut node) = Rig::with_node(8).await;
    let limits = |limits: KeyLimits| rig.key_with(None, limits);
    let by_requests = limits(KeyLimits { requests_per_minute: Some(2), ..KeyLimits::default() }).await;
    for left in ["1", "0"] {
        let mut client = Client::connect(rig.http).await;
        client.send(post("/v1/chat/completions", &by_requests, CHAT)).await;
        node.call().await.json("{}").await;
        let reply = client.reply().await;
        assert_eq!(reply.head.get("x-ratelimit-limit-requests"), Some("2"));
        assert_eq!(reply.head.get("x-ratelimit-remaining-requests"), Some(left));
        assert!(reply.head.get("x-ratelimit-reset-requests").unwrap().ends_with('s'));
        assert!(!reply.head.has("x-ratelimit-limit-tokens"), "only limits that are set");
    }
    let reply = Client::ask(rig.http, post("/v1/chat/completions", &by_requests, CHAT)).await;
    refused(&reply, "requests", "key_requests", "2 requests a minute (requests_per_minute)");
    assert_eq!(reply.head.get("x-ratelimit-remaining-requests"), Some("0"));

    // It is told on answers that no limit has a part in, too.
    for (request, status) in [
        (get("/v1/models", &by_requests), 200),
        (post("/v1/chat/completions", &by_requests, "{"), 400),
        (post("/v1/chat/completions", &by_requests, r#"{"model":"other"}"#), 404),
        (post("/v1/nothing", &by_requests, "{}"), 404),
        (get("/v1/models/other", &by_requests), 404),
        (get("/v1/chat/completions", &by_requests), 405),
        (post("/v1/models", &by_requests, "{}"), 405),
    ] {
        let reply = Client::ask(rig.http, request).await;
        assert_eq!(reply.head.status, status);
        assert_eq!(reply.head.get("x-ratelimit-remaining-requests"), Some("0"), "{status}");
    }

    let by_tokens = limits(KeyLimits { tokens_per_minute: Some(9), ..KeyLimits::default() }).await;
    let mut client = Client::connect(rig.http).await;
    client.send(post("/v1/chat/completions", &by_tokens, CHAT)).await;
    node.call().await.json("{}").await;
    assert_eq!(client.reply().await.head.get("x-ratelimit-limit-tokens"), Some("9"));
    let reply = Client::ask(rig.http, post("/v1/chat/completions", &by_tokens, CHAT)).await;
    refused(&reply, "tokens", "key_tokens", "9 tokens a minute");

    let at_once = limits(KeyLimits { requests_at_once: Some(1), ..KeyLimits::default() }).await;
    let mut first = Client::connect(rig.http).await;
    first.send(post("/v1/chat/completions", &at_once, CHAT)).await;
    let call = node.call().await;
    let reply = Client::ask(rig.http, post("/v1/chat/completions", &at_once, CHAT)).await;
    refused(&reply, "requests", "key_at_once", "1 requests at once");
    call.json("{}").await;
    assert_eq!(first.reply().await.head.status, 200);
    let mut again = Client::connect(rig.http).await;
    again.send(post("/v1/chat/completions", &at_once, CHAT)).await;
    node.call().await.json("{}").await;
    assert_eq!(again.reply().await.head.status, 200, "its permit came back");
    assert!(node.is_untouched(), "no engine was asked for what was refused");
    let metrics = Client::ask(rig.metrics_http, get("/metrics", "")).await;
    for reason in ["key_requests", "key_tokens", "key_at_once"] {
        let line = format!("umbel_edge_rejections_total{{model=\"m\",reason=\"{reason}\"}} 1");
        assert!(metrics.text().contains(&line), "{reason}: {}", metrics.text());
    }
}

#[tokio::test]
async fn a_client_that_leaves_an_engine_at_work_has_used_its_prompt() {
    let (rig, mut node) = Rig::with_node(1).await;
    let limits = KeyLimits { tokens_per_minute: Some(9), ..KeyLimits::default() };
    let key = rig.key_with(None, limits).await;
    let used = async || -> u64 {
        rig.idle().await;
        let (rows, _) = rig.keys.usage(&Asked::default(), None, 9).await.unwrap();
        rows.iter().map(|row| row.counts.prompt_tokens).sum()
    };
    let mut client = Client::connect(rig.http).await;
    client.send(post("/v1/chat/completions", &key, CHAT)).await;
    let call = node.call().await;
    drop(client);
    call.cancelled().await;
    assert!(used().await > 0, "what the prompt was taken for");
    // One that leaves the queue was worked on by nobody.
    let (busy, free) = (rig.key(None).await, rig.key(None).await);
    let mut first = Client::connect(rig.http).await;
    first.send(post("/v1/chat/completions", &busy, CHAT)).await;
    let call = node.call().await;
    let mut client = Client::connect(rig.http).await;
    client.send(post("/v1/chat/completions", &free, CHAT)).await;
    until("it waits", || rig.counts().waiting == 1).await;
    drop(client);
    until("it left", || rig.counts().waiting == 0).await;
    let (rows, _) = rig.keys.usage(&Asked::default(), None, 9).await.unwrap();
    assert!(rows.iter().any(|row| row.counts.requests == 1 && row.counts.refused == 1), "{rows:?}");
    drop((first, call));
    let reply = Client::ask(rig.http, post("/v1/chat/completions", &key, CHAT)).await;
    refused(&reply, "tokens", "key_tokens", "9 tokens a minute");
}

#[tokio::test]
async fn only_routes_that_know_the_usages_field_are_given_it() {
    let options = FrontOptions { stream_usage: StreamUsage::Always, ..FrontOptions::default() };
    let mut rig = Rig::with(Setup { options, ..Setup::default() }).await;
    let mut node = rig.node("m", &[], 1).await;
    for (path, body, put) in [
        ("/v1/responses", r#"{"model":"m","input":"a","stream":true}"#, false),
        ("/v1/embeddings", r#"{"model":"m","input":"a","stream":true}"#, false),
        ("/v1/rerank", r#"{"model":"m","query":"a","documents":[],"stream":true}"#, false),
        ("/v1/completions", r#"{"model":"m","prompt":"a","stream":true}"#, true),
        ("/v1/chat/completions", r#"{"model":"m","messages":[],"stream":true}"#, true),
    ] {
        let mut client = Client::connect(rig.http).await;
        client.send(post(path, "", body)).await;
        let call = node.call().await;
        let got = String::from_utf8(call.body.to_vec()).unwrap();
        assert_eq!((got.contains("include_usage"), got == body), (put, !put), "{path}: {got}");
        drop(client);
        call.cancelled().await;
        rig.idle().await;
    }
}

#[tokio::test]
async fn row_70_a_brown_out_is_not_multiplied() {
    let mut rig = Rig::new().await;
    let mut nodes = vec![rig.node("m", &[], 4).await, rig.node("m", &[], 4).await];
    let (mut calls, clients) = (0, 300);
    for _ in 0..clients {
        let mut client = Client::connect(rig.http).await;
        client.send(chat(true)).await;
        let reply = client.reply();
        tokio::pin!(reply);
        let reply = loop {
            let [one, two] = nodes.as_mut_slice() else { unreachable!() };
            tokio::select! {
                reply = &mut reply => break reply,
                call = one.call() => call.fail(InferenceOutcome::EngineRefused, false),
                call = two.call() => call.fail(InferenceOutcome::EngineRefused, false),
            }
            calls += 1;
        };
        assert_eq!(reply.head.status, 503, "{}", reply.text());
        assert!(reply.head.has("retry-after"));
    }
    // Beside a stock of at most 64, which is for the requests of one lost node.
    assert!(calls <= clients * 12 / 10 + 64, "{calls} tries for {clients} requests");
    // And it is over as soon as the engines are back.
    let mut client = Client::connect(rig.http).await;
    client.send(chat(false)).await;
    let [one, two] = nodes.as_mut_slice() else { unreachable!() };
    let call = tokio::select! {
        call = one.call() => call,
        call = two.call() => call,
    };
    call.json("{}").await;
    assert_eq!(client.reply().await.head.status, 200);
    until("nothing is left", || rig.counts().waiting == 0).await;
}

#[tokio::test]
async fn an_upgrade_is_ignored_and_spoils_no_connection() {
    let (rig, mut node) = Rig::with_node(1).await;
    let mut client = Client::connect(rig.http).await;
    let websocket = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for (path, status) in [("/v1/realtime", 404), ("/v1/responses", 405)] {
        client.send(get(path, websocket)).await;
        let reply = client.reply().await;
        assert_eq!(reply.head.status, status);
        assert!(!reply.head.has("upgrade") && !reply.error_code().is_empty());
    }
    // As Java's client asks for HTTP/2.
    let h2c = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n";
    client.send(post("/v1/chat/completions", h2c, CHAT)).await;
    node.call().await.json("{}").await;
    assert_eq!(client.reply().await.head.status, 200);
}

/// The connection of a proxy, which many callers share: each request is its own caller's, whatever was shown before it, and
/// what happened to a key meanwhile counts for the next one.
#[tokio::test]
async fn each_request_of_a_connection_is_judged_by_what_it_shows_itself() {
    let (rig, mut node) = Rig::with_node(8).await;
    let [one, two, third] = [rig.key(None).await, rig.key(None).await, rig.key(Some(&["other"])).await];
    let wrong = format!("{}x\r\n", one.trim_end());
    let mut proxy = Client::connect(rig.http).await;
    let mut asked = async |header: &str| {
        proxy.send(post("/v1/chat/completions", header, CHAT)).await;
        let head = loop {
            tokio::select! {
                call = node.call() => call.json("{}").await,
                head = proxy.head() => break head,
            }
        };
        proxy.rest().await;
        head.status
    };
    for round in 0..3 {
        for (header, status) in [
            (&one, 200),
            (&one, 200),
            (&two, 200),
            (&wrong, 401),
            (&one, 200),
            (&third, 404),
            (&String::new(), 401),
        ] {
            assert_eq!(asked(header).await, status, "round {round}");
        }
    }
    let id = |header: &str| {
        let text = header.trim().rsplit(' ').next().unwrap();
        parse_bearer(text, BearerKind::ApiKey).unwrap().id
    };
    let used = rig.keys.usage(&Asked::default(), None, 99).await.unwrap().0;
    for (header, requests) in [(&one, 9), (&two, 3), (&third, 3)] {
        let of: u64 =
            used.iter().filter(|used| *used.key_id == *id(header)).map(|used| used.counts.requests).sum();
        assert_eq!(of, requests);
    }
    let row = rig.keys.row(&id(&one)).unwrap();
    let limits = KeyLimits { requests_per_minute: Some(1), ..KeyLimits::default() };
    rig.keys.change(&row, KeyRow { limits, ..row.clone() }, Commit::new()).await.unwrap();
    assert_eq!((asked(&one).await, asked(&one).await), (200, 429), "a limit that came meanwhile");
    rig.keys.revoke(&id(&two), 1, &Actor::default(), Commit::new(), drop).await.unwrap();
    assert_eq!((asked(&two).await, asked(&two).await), (401, 401), "revoked: the very next request");
    assert_eq!(asked(&one).await, 429, "the others are as they were");
}
