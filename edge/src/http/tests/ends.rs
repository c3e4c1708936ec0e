//! How answers end, well and badly.

use std::time::Duration;

use umbel_contracts::proto::node::InferenceOutcome;
use umbel_wire::CloseReason;

use super::client::{Client, Ended, chat, get};
use super::rig::{Call, Node, Rig, Setup, soon, until};
use super::second_tries::next_call;
use crate::http::FrontOptions;

/// Starts a stream and gives the client after its head, with the call.
async fn streaming(rig: &Rig, node: &mut Node) -> (Client, Call) {
    let mut client = Client::connect(rig.http).await;
    client.send(chat(true)).await;
    let call = node.call().await;
    call.events();
    assert_eq!(client.head().await.status, 200);
    (client, call)
}

fn error_event(text: &str) -> serde_json::Value {
    assert!(text.ends_with("\n\n"), "{text:?}");
    let last = text.trim_end().lines().next_back().unwrap();
    let last = last.strip_prefix("data: ").unwrap_or_else(|| panic!("{text}"));
    assert!(!text.contains("[DONE]"), "{text}");
    assert_eq!(text.matches("\"error\"").count(), 1, "{text}");
    serde_json::from_str::<serde_json::Value>(last).unwrap()["error"].clone()
}

#[tokio::test]
async fn row_51_a_last_event_without_its_blank_line_is_terminated() {
    let (rig, mut node) = Rig::with_node(1).await;
    let event = "data: {\"choices\":[],\"usage\":{}}";
    for (sent, received) in [
        (format!("{event}\n\ndata: [DONE]"), format!("{event}\n\ndata: [DONE]\n\n")),
        (format!("{event}\n\ndata: [DONE]\n"), format!("{event}\n\ndata: [DONE]\n\n")),
        (format!("{event}\r\n\r\ndata: [DONE]\r\n"), format!("{event}\r\n\r\ndata: [DONE]\r\n\r\n")),
        (format!("{event}\n\ndata: [DONE]\n\n"), format!("{event}\n\ndata: [DONE]\n\n")),
    ] {
        let (mut client, call) = streaming(&rig, &mut node).await;
        call.send(&sent).await;
        call.complete();
        let (body, ended) = client.rest().await;
        assert_eq!((String::from_utf8(body).unwrap(), ended), (received, Ended::Clean), "{sent:?}");
    }
}

#[tokio::test]
async fn row_52_a_clean_end_without_done_is_a_failure() {
    let (rig, mut node) = Rig::with_node(1).await;
    for sent in ["data: {\"a\":1}\n\n", "data: {\"a\":1}\n", "", "data: {\"a\":1}\n\n: comment\n"] {
        let (mut client, call) = streaming(&rig, &mut node).await;
        call.send(sent).await;
        call.complete();
        let (body, ended) = client.rest().await;
        let text = String::from_utf8(body).unwrap();
        assert!(text.starts_with(sent) && ended == Ended::Clean, "{text:?}");
        assert_eq!(error_event(&text)["code"], "engine_lost", "{text:?}");
    }
    // Inside an event nothing can be said: the connection breaks.
    let (mut client, call) = streaming(&rig, &mut node).await;
    call.send("data: {\"a\":1}\n\ndata: {\"b\"").await;
    call.complete();
    let (body, ended) = client.rest().await;
    assert_eq!((body.as_slice(), ended), (&b"data: {\"a\":1}\n\ndata: {\"b\""[..], Ended::Broken));
    rig.idle().await;
}

#[tokio::test]
async fn row_52_an_engine_that_dies_midway_is_one_error_event_and_no_done() {
    let (rig, mut node) = Rig::with_node(1).await;
    for (outcome, code) in [
        (InferenceOutcome::EngineBroke, "engine_lost"),
        (InferenceOutcome::EngineGone, "engine_lost"),
        (InferenceOutcome::TimedOut, "engine_timeout"),
    ] {
        let (mut client, call) = streaming(&rig, &mut node).await;
        for token in ["a", "b", "c"] {
            call.token(token).await;
        }
        call.fail(outcome, false);
        let (body, ended) = client.rest().await;
        let text = String::from_utf8(body).unwrap();
        assert_eq!(error_event(&text)["code"], code);
        assert_eq!((text.matches("content").count(), ended), (3, Ended::Clean));
    }
    rig.idle().await;
}

#[tokio::test]
async fn row_52_a_cut_link_ends_the_stream_with_an_error_and_frees_the_slot() {
    let (rig, mut node) = Rig::with_node(1).await;
    let (mut client, call) = streaming(&rig, &mut node).await;
    call.token("a").await;
    client.until("\n\n").await;
    node.connection.close(CloseReason::Shutdown);
    let (body, ended) = client.rest().await;
    assert_eq!(error_event(&String::from_utf8(body).unwrap())["code"], "engine_lost");
    assert_eq!(ended, Ended::Clean);
    rig.idle().await;
    drop(call);
}

#[tokio::test]
async fn row_52_without_a_stream_a_cut_answer_is_502_and_never_a_short_200() {
    let (rig, mut node) = Rig::with_node(1).await;
    // Small: nothing was sent yet.
    for length in [Some("100"), None] {
        let mut client = Client::connect(rig.http).await;
        client.send(chat(false)).await;
        let call = node.call().await;
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(length.map(|length| ("content-length", length)));
        call.head(200, &headers);
        call.send("{\"choices\":").await;
        if length.is_some() {
            call.complete()
        } else {
            call.fail(InferenceOutcome::EngineBroke, false)
        }
        let reply = client.reply().await;
        assert_eq!((reply.head.status, reply.error_code().as_str()), (502, "engine_lost"));
    }
    // Large: the status is out, so the connection breaks.
    let large = "x".repeat(200_000);
    for length in [Some("999999"), None] {
        let mut client = Client::connect(rig.http).await;
        client.send(chat(false)).await;
        let call = node.call().await;
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(length.map(|length| ("content-length", length)));
        call.head(200, &headers);
        let text = large.clone();
        tokio::spawn(async move {
            call.send(text).await;
            call.fail(InferenceOutcome::EngineBroke, false);
        });
        let reply = client.reply().await;
        assert_eq!((reply.head.status, reply.ended), (200, Ended::Broken));
    }
    // Where only the end of the connection tells the end, it must not look like one.
    let mut client = Client::connect(rig.http).await;
    client.send(chat(true).replace("HTTP/1.1", "HTTP/1.0")).await;
    let call = node.call().await;
    call.events();
    assert_eq!(client.head().await.status, 200);
    call.send("data: {\"a\"").await;
    client.until("{\"a\"").await;
    call.fail(InferenceOutcome::EngineBroke, false);
    assert_eq!(client.rest().await.1, Ended::Broken);
    rig.idle().await;
}

#[tokio::test]
async fn a_provider_whose_answers_break_after_their_head_is_passed_over() {
    let breaks = |call: Call, how: &'static str| async move {
        let json = [("content-type", "application/json"), ("content-length", "100")];
        match how {
            "cut" => {
                call.head(200, &json);
                call.send("{").await;
                call.complete();
            }
            "broken" => {
                call.head(200, &json[..1]);
                call.send("{").await;
                call.fail(InferenceOutcome::EngineBroke, false);
            }
            "no status" => {
                call.head(9_999, &json);
                call.cancelled().await;
            }
            _ => {
                call.head(200, &json[..1]);
                call.cancelled().await;
            }
        }
    };
    for (how, stream) in [("cut", false), ("broken", false), ("no status", false), ("no events", true)] {
        let mut rig = Rig::new().await;
        let mut bad = rig.node("m", &[], 4).await;
        let mut good = rig.node("m", &[], 4).await;
        let ejected = |rig: &Rig, node: &Node| rig.dispatch.figures(&node.provider).unwrap().ejected;
        let mut asked = 0;
        while !ejected(&rig, &bad) {
            asked += 1;
            assert!(asked <= 30, "{how}: still given requests");
            let mut client = Client::connect(rig.http).await;
            client.send(chat(stream)).await;
            tokio::select! {
                call = bad.call() => breaks(call, how).await,
                call = good.call() => {
                    if stream {
                        call.events();
                        call.send("data: [DONE]\n\n").await;
                        call.complete();
                    } else {
                        call.json("{}").await;
                    }
                }
            }
            let status = client.reply().await.head.status;
            assert!(status == 200 || status == 502, "{how}: {status}");
            rig.idle().await;
        }
        assert!(!ejected(&rig, &good));
    }
}

#[tokio::test]
async fn a_large_answer_with_a_length_is_answered_and_has_its_engines_counts() {
    let (rig, mut node) = Rig::with_node(1).await;
    let large = "x".repeat(200_000);
    for length in [Some("200000"), None] {
        let mut client = Client::connect(rig.http).await;
        client.send(chat(false)).await;
        let call = node.call().await;
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(length.map(|length| ("content-length", length)));
        call.head(200, &headers);
        let text = large.clone();
        let sending = tokio::spawn(async move {
            call.send(text).await;
            call.complete();
        });
        let reply = client.reply().await;
        assert_eq!((reply.head.status, reply.body.len(), reply.ended), (200, 200_000, Ended::Clean));
        sending.await.unwrap();
        rig.idle().await;
    }
    let metrics = Client::ask(rig.metrics_http, get("/metrics", "")).await;
    for line in [
        r#"umbel_edge_requests_total{route="/v1/chat/completions",model="m",code="200"} 2"#,
        r#"umbel_edge_tokens_total{model="m",direction="output"} 6"#,
    ] {
        assert!(metrics.text().contains(line), "{}", metrics.text());
    }
    assert!(!metrics.text().contains("umbel_edge_client_disconnects_total{"), "{}", metrics.text());
}

#[tokio::test]
async fn what_came_after_done_does_not_undo_it() {
    let (rig, mut node) = Rig::with_node(1).await;
    let (mut client, call) = streaming(&rig, &mut node).await;
    call.send("data: [DONE]\n\n").await;
    call.fail(InferenceOutcome::EngineBroke, false);
    assert_eq!(client.rest().await, (b"data: [DONE]\n\n".to_vec(), Ended::Clean));
}

#[tokio::test]
async fn the_first_done_is_the_streams_last_word_whatever_the_engine_says_after_it() {
    let (rig, mut node) = Rig::with_node(1).await;
    let whole = "data: {\"a\":1}\n\ndata: [DONE]\n\n";
    for rest in ["data: {\"b\":2}\n\n", "data: [DONE]\n\n", "data: {\"b\""] {
        for together in [true, false] {
            let (mut client, call) = streaming(&rig, &mut node).await;
            if together {
                call.send(format!("{whole}{rest}")).await;
            } else {
                call.send(whole).await;
                assert_eq!(client.until("[DONE]\n\n").await, whole);
                call.send(rest).await;
            }
            call.complete();
            let expected = if together { whole } else { "" };
            assert_eq!(client.rest().await, (expected.into(), Ended::Clean), "{rest:?}");
            rig.idle().await;
        }
    }
    let metrics = Client::ask(rig.metrics_http, get("/metrics", "")).await;
    let ok = r#"umbel_edge_requests_total{route="/v1/chat/completions",model="m",code="200"} 6"#;
    assert!(metrics.text().contains(ok), "{}", metrics.text());
    assert!(metrics.text().contains(r#"umbel_edge_tokens_total{model="m",direction="output"} 18"#));
    assert!(!metrics.text().contains("umbel_edge_streams_broken_total{"), "{}", metrics.text());
}

#[tokio::test]
async fn an_engine_that_never_ends_after_done_holds_neither_its_client_nor_its_slot() {
    let (rig, mut node) = Rig::with_node(1).await;
    for ended in ["data: [DONE]\n\n", "data: [DONE]\r\n\r\n"] {
        let (mut client, call) = streaming(&rig, &mut node).await;
        call.send(ended).await;
        assert_eq!(client.rest().await, (ended.into(), Ended::Clean));
        assert_eq!(rig.in_flight(&node), 1, "the lease ends with the node's terminal");
        call.cancelled().await;
        rig.idle().await;
    }
    // A client that closes at `[DONE]` has not left its answer.
    let (mut client, call) = streaming(&rig, &mut node).await;
    call.send("data: [DONE]\n\n").await;
    client.until("[DONE]\n\n").await;
    drop(client);
    call.cancelled().await;
    let metrics = Client::ask(rig.metrics_http, get("/metrics", "")).await;
    assert!(!metrics.text().contains("umbel_edge_client_disconnects_total{"), "{}", metrics.text());
}

#[tokio::test]
async fn the_engines_own_error_event_is_not_doubled() {
    let (rig, mut node) = Rig::with_node(1).await;
    let (mut client, call) = streaming(&rig, &mut node).await;
    let own = "data: {\"error\":{\"message\":\"no\",\"type\":\"x\",\"param\":null,\"code\":null}}\n\n";
    call.send(own).await;
    call.complete();
    assert_eq!(client.rest().await, (own.as_bytes().to_vec(), Ended::Clean));
}

#[tokio::test]
async fn row_55_a_silent_stream_gets_comments_at_boundaries_only() {
    let keepalive = Duration::from_millis(20);
    let setup = Setup { options: FrontOptions { keepalive, ..FrontOptions::default() }, ..Setup::default() };
    let mut rig = Rig::with(setup).await;
    let mut node = rig.node("m", &[], 2).await;
    // What time is to an edge is seen on a stream beside it.
    let (mut witness, _beside) = streaming(&rig, &mut node).await;
    let five = ": keepalive\n".repeat(5);
    let mut client = Client::connect(rig.http).await;
    client.send(chat(true)).await;
    let call = node.call().await;
    witness.until(&five).await;
    call.events();
    assert_eq!(client.head().await.status, 200);
    let mut text = client.until(": keepalive\n: keepalive\n").await;
    assert!(text.starts_with(": keepalive\n"));
    call.send("data: {\"a\":").await;
    text.push_str(&client.until("{\"a\":").await);
    // Inside an event nothing may be put in, however long it takes.
    witness.until(&five).await;
    call.send("1}\n\n").await;
    text.push_str(&client.until(": keepalive\n").await);
    call.send("data: [DONE]\n\n").await;
    call.complete();
    text.push_str(std::str::from_utf8(&client.rest().await.0).unwrap());
    assert!(text.replace(": keepalive\n", "") == "data: {\"a\":1}\n\ndata: [DONE]\n\n", "{text:?}");
}

#[tokio::test]
async fn an_engine_that_falls_silent_is_ended_by_the_edge_when_its_node_does_not() {
    let options = FrontOptions {
        keepalive: Duration::from_millis(10),
        first_byte_timeout: Duration::ZERO,
        idle_timeout: Duration::ZERO,
        grace: Duration::from_millis(1_500),
        ..FrontOptions::default()
    };
    let mut rig = Rig::with(Setup { options, ..Setup::default() }).await;
    let mut node = rig.node("m", &[], 1).await;
    let mut client = Client::connect(rig.http).await;
    client.send(chat(true)).await;
    let call = node.call().await;
    let reply = client.reply().await;
    assert_eq!((reply.head.status, reply.error_code().as_str()), (504, "engine_timeout"));
    assert_eq!(reply.head.get("x-should-retry"), Some("false"));
    call.cancelled().await;
    // And after the head.
    let (mut client, call) = streaming(&rig, &mut node).await;
    call.token("a").await;
    let (body, ended) = client.rest().await;
    let text = String::from_utf8(body).unwrap();
    assert_eq!(error_event(&text)["code"], "engine_timeout");
    assert_eq!(ended, Ended::Clean);
    call.cancelled().await;
    rig.idle().await;
}

/// An answer that stands still, for much longer than it did before, counts at once; its next byte takes its provider back.
#[tokio::test]
async fn streams_that_stand_still_while_others_flow_count_at_once() {
    let options = FrontOptions { stall: Duration::from_millis(200), ..FrontOptions::default() };
    let mut rig = Rig::with(Setup { options, ..Setup::default() }).await;
    let mut nodes = vec![rig.node("m", &[], 4).await, rig.node("m", &[], 4).await];
    let mut streams = [Vec::new(), Vec::new()];
    for _ in 0..4 {
        let mut client = Client::connect(rig.http).await;
        client.send(chat(true)).await;
        let (at, call) = next_call(&mut nodes).await;
        call.events();
        client.head().await;
        // Its pace is known.
        for n in 0..12 {
            call.token(&format!("t{n};")).await;
            client.until(&format!("t{n};")).await;
        }
        streams[at].push((client, call));
    }
    let [mut stuck, mut flowing] = streams;
    assert_eq!((stuck.len(), flowing.len()), (2, 2));
    let ejected = |rig: &Rig, node: &Node| rig.dispatch.figures(&node.provider).unwrap().ejected;
    soon("it is passed over", async {
        while !ejected(&rig, &nodes[0]) {
            for (client, call) in &mut flowing {
                call.token("on;").await;
                client.until("on;").await;
            }
        }
    })
    .await;
    for (client, call) in &mut stuck {
        call.token("on;").await;
        client.until("on;").await;
    }
    until("it is taken back", || !ejected(&rig, &nodes[0])).await;
    for (mut client, call) in stuck.into_iter().chain(flowing) {
        call.send("data: [DONE]\n\n").await;
        call.complete();
        assert_eq!(client.rest().await.1, Ended::Clean);
    }
    rig.idle().await;
}
