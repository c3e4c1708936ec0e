//! Waiting, refusing, and trying elsewhere.

use std::time::Duration;

use umbel_contracts::proto::node::InferenceOutcome;
use umbel_wire::CloseReason;

use super::client::{Client, chat, get};
use super::rig::{Rig, Setup, declared, until};
use crate::core::registry::Call as Told;
use crate::core::registry::node::ProviderState;
use crate::shell::dispatch::Limits;

fn short_waits() -> Setup {
    let limits = Limits {
        waiting: 1,
        max_wait: Duration::from_millis(100),
        max_wait_loading: Duration::from_millis(200),
        ..Limits::default()
    };
    Setup { limits, ..Setup::default() }
}

#[tokio::test]
async fn row_69_what_was_not_taken_is_tried_elsewhere_at_most_twice() {
    let mut rig = Rig::new().await;
    let mut nodes = Vec::new();
    for _ in 0..4 {
        nodes.push(rig.node("m", &[], 1).await);
    }
    let mut client = Client::connect(rig.http).await;
    client.send(chat(false)).await;
    for refusal in [(InferenceOutcome::EngineRefused, false), (InferenceOutcome::Unspecified, true)] {
        let (_, call) = next_call(&mut nodes).await;
        call.fail(refusal.0, refusal.1);
    }
    let (_, call) = next_call(&mut nodes).await;
    call.json("{}").await;
    let reply = client.reply().await;
    assert_eq!((reply.head.status, reply.head.get("x-umbel-attempts")), (200, Some("3")));

    client.send(chat(false)).await;
    for _ in 0..3 {
        let (_, call) = next_call(&mut nodes).await;
        call.fail(InferenceOutcome::EngineRefused, false);
    }
    let reply = client.reply().await;
    assert_eq!((reply.head.status, reply.head.get("x-umbel-attempts")), (503, Some("3")));
    assert!(reply.head.has("retry-after"));
    rig.idle().await;
}

pub(super) async fn next_call(nodes: &mut [super::rig::Node]) -> (usize, super::rig::Call) {
    let calls = nodes.iter_mut().map(|node| Box::pin(node.call()));
    let (call, at, _) = futures_util::future::select_all(calls).await;
    (at, call)
}

#[tokio::test]
async fn row_69_work_that_may_have_begun_is_not_begun_again() {
    let mut rig = Rig::new().await;
    let mut nodes = vec![rig.node("m", &[], 1).await, rig.node("m", &[], 1).await];
    for (outcome, status) in [
        (InferenceOutcome::EngineBroke, 502),
        (InferenceOutcome::TimedOut, 504),
        (InferenceOutcome::BadAnswer, 502),
    ] {
        let mut client = Client::connect(rig.http).await;
        client.send(chat(false)).await;
        let (_, call) = next_call(&mut nodes).await;
        call.fail(outcome, false);
        let reply = client.reply().await;
        assert_eq!(
            (reply.head.status, reply.head.get("x-umbel-attempts")),
            (status, Some("1")),
            "{outcome:?}"
        );
    }
    rig.idle().await;
    for node in &mut nodes {
        assert!(node.is_untouched());
    }
}

#[tokio::test]
async fn row_69_a_dead_process_or_node_before_the_head_is_tried_elsewhere_once() {
    let mut rig = Rig::new().await;
    let mut nodes = vec![rig.node("m", &[], 1).await, rig.node("m", &[], 1).await];
    let mut client = Client::connect(rig.http).await;
    client.send(chat(false)).await;
    let (_, call) = next_call(&mut nodes).await;
    call.fail(InferenceOutcome::EngineGone, false);
    let (_, call) = next_call(&mut nodes).await;
    call.json("{}").await;
    assert_eq!(client.reply().await.head.get("x-umbel-attempts"), Some("2"));

    client.send(chat(false)).await;
    let (at, call) = next_call(&mut nodes).await;
    let lost = nodes.remove(at);
    lost.connection.close(CloseReason::Shutdown);
    drop(call);
    let (_, call) = next_call(&mut nodes).await;
    call.fail(InferenceOutcome::EngineGone, false);
    let reply = client.reply().await;
    assert_eq!((reply.head.status, reply.head.get("x-umbel-attempts")), (502, Some("2")));
    assert_eq!(reply.error_code(), "engine_lost");
    rig.idle().await;
}

#[tokio::test]
async fn a_request_of_a_lost_node_waits_at_the_head_for_its_return() {
    let (mut rig, mut node) = Rig::with_node(1).await;
    let mut first = Client::connect(rig.http).await;
    first.send(chat(false)).await;
    let call = node.call().await;
    let mut second = Client::connect(rig.http).await;
    second.send(chat(true)).await;
    until("the second waits", || rig.counts().waiting == 1).await;
    node.connection.close(CloseReason::Shutdown);
    drop(call);
    until("both wait", || rig.counts().waiting == 2).await;
    let mut node = rig.dial(node.id, "m", &[], 1).await;
    let call = node.call().await;
    assert!(call.body.starts_with(br#"{"model":"m","stream":false"#), "the one that had begun goes first");
    call.json("{}").await;
    assert_eq!(first.reply().await.head.get("x-umbel-attempts"), Some("2"));
    let call = node.call().await;
    call.fail(InferenceOutcome::EngineBroke, false);
    assert_eq!(second.reply().await.head.status, 502);
    rig.idle().await;
}

#[tokio::test]
async fn a_full_queue_is_429_a_long_wait_too_and_absence_is_503() {
    let mut rig = Rig::with(short_waits()).await;
    let mut node = rig.node("m", &[], 1).await;
    let mut holds = Client::connect(rig.http).await;
    holds.send(chat(true)).await;
    let call = node.call().await;
    call.events();
    holds.head().await;
    let mut waits = Client::connect(rig.http).await;
    waits.send(chat(true)).await;
    until("one waits", || rig.counts().waiting == 1).await;
    let full = Client::ask(rig.http, chat(true)).await;
    assert_eq!((full.head.status, full.error_code().as_str()), (429, "overloaded"));
    assert_eq!(full.head.get("x-umbel-reason"), Some("queue_full"));
    assert!(full.text().contains("1 of 1 requests wait"), "{}", full.text());
    let waited = waits.reply().await;
    assert_eq!((waited.head.status, waited.head.get("x-umbel-reason")), (429, Some("queue_timeout")));
    for reply in [&full, &waited] {
        let seconds: u64 = reply.head.get("retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&seconds));
        assert!(!reply.head.has("x-should-retry"));
    }

    rig.tell(&node.says(ProviderState::Loading));
    let loading = Client::ask(rig.http, chat(true)).await;
    assert_eq!((loading.head.status, loading.error_code().as_str()), (503, "model_loading"));
    rig.tell(&node.says(ProviderState::Unavailable));
    let absent = Client::ask(rig.http, chat(true)).await;
    assert_eq!((absent.head.status, absent.error_code().as_str()), (503, "model_unavailable"));
    assert_eq!(absent.head.get("retry-after"), Some("60"));

    rig.tell(&Told::Draining { node: node.id, draining: true });
    let unwanted = Client::ask(rig.http, chat(true)).await;
    assert_eq!((unwanted.head.status, unwanted.head.get("x-should-retry")), (503, Some("false")));
    assert_eq!(rig.in_flight(&node), 1, "the running stream goes on");
    call.send("data: [DONE]\n\n").await;
    call.complete();
    holds.until("[DONE]").await;
    super::rig::soon("the node is drained", rig.dispatch.drained(node.id)).await;

    let metrics = Client::ask(rig.metrics_http, get("/metrics", "")).await;
    for reason in ["queue_full", "queue_timeout", "loading"] {
        let line = format!("umbel_edge_rejections_total{{model=\"m\",reason=\"{reason}\"}} 1");
        assert!(metrics.text().contains(&line), "{reason}: {}", metrics.text());
    }
    assert!(metrics.text().contains(r#"umbel_edge_rejections_total{model="m",reason="unavailable"} 2"#));
}

#[tokio::test]
async fn row_67_a_lowered_capacity_holds_back_and_a_raised_one_acts_at_once() {
    let (rig, mut node) = Rig::with_node(2).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = Client::connect(rig.http).await;
        client.send(chat(true)).await;
        clients.push(client);
    }
    let (one, two) = (node.call().await, node.call().await);
    rig.tell(&Told::Declare { node: node.id, engine: declared("m", &[], 1) });
    one.fail(InferenceOutcome::EngineBroke, false);
    until("one is left", || rig.in_flight(&node) == 1).await;
    assert_eq!(rig.counts().waiting, 1);
    rig.tell(&Told::Declare { node: node.id, engine: declared("m", &[], 2) });
    let three = node.call().await;
    drop((two, three));
    rig.idle().await;
}

#[tokio::test]
async fn row_68_a_provider_on_its_way_back_is_waited_for() {
    let (mut rig, node) = Rig::with_node(1).await;
    node.connection.close(CloseReason::Shutdown);
    until("the edge knows", || !rig.dispatch.figures(&node.provider).unwrap().open).await;
    let mut client = Client::connect(rig.http).await;
    client.send(chat(false)).await;
    until("it waits", || rig.counts().waiting == 1).await;
    let mut node = rig.dial(node.id, "m", &[], 1).await;
    node.call().await.json("{}").await;
    assert_eq!(client.reply().await.head.status, 200);
}

#[tokio::test]
async fn the_site_is_idle_once_the_last_one_that_waits_is_refused() {
    let mut rig = Rig::with(short_waits()).await;
    let node = rig.node("m", &[], 1).await;
    rig.tell(&Told::Lost { node: node.id, generation: node.generation });
    let mut client = Client::connect(rig.http).await;
    client.send(chat(true)).await;
    until("it waits", || rig.counts().waiting == 1).await;
    rig.idle().await;
    assert_eq!(client.reply().await.head.status, 503);
}
