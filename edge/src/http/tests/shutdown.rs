//! Draining.

use umbel_wire::CloseReason;

use super::client::{Client, Ended, chat, get, post};
use super::rig::{Rig, soon, until};

#[tokio::test]
async fn row_93_running_streams_finish_and_new_work_is_refused() {
    let (mut rig, mut node) = Rig::with_node(4).await;
    let mut idle = Client::connect(rig.http).await;
    idle.send(get("/readyz", "")).await;
    assert_eq!(idle.reply().await.head.status, 200);
    let mut before_head = Client::connect(rig.http).await;
    before_head.send(chat(true)).await;
    let late = node.call().await;
    let mut streaming = Client::connect(rig.http).await;
    streaming.send(chat(true)).await;
    let call = node.call().await;
    call.events();
    streaming.head().await;

    rig.front.drain();
    let ready = Client::ask(rig.http, get("/readyz", "")).await;
    assert_eq!((ready.head.status, Client::ask(rig.http, get("/livez", "")).await.head.status), (503, 200));
    let refused = Client::ask(rig.http, chat(true)).await;
    assert_eq!((refused.head.status, refused.error_code().as_str()), (503, "draining"));
    assert_eq!((refused.head.get("retry-after"), refused.head.get("connection")), (Some("1"), Some("close")));

    rig.shutdown.cancel();
    assert!(idle.part().await.is_err(), "idle connections are closed");
    late.events();
    let head = before_head.head().await;
    assert!(head.status == 200 && !head.has("connection"), "no stream says close: {head:?}");
    for (client, call) in [(&mut before_head, late), (&mut streaming, call)] {
        call.token("a").await;
        call.send("data: [DONE]\n\n").await;
        call.complete();
        let (body, ended) = client.rest().await;
        assert!(body.ends_with(b"data: [DONE]\n\n") && ended == Ended::Clean);
    }
    soon("the listener's end", &mut rig.served).await.unwrap();
    rig.idle().await;
}

#[tokio::test]
async fn row_93_what_has_no_head_when_the_drain_is_over_is_told_why() {
    let (mut rig, mut node) = Rig::with_node(1).await;
    let mut clients = Vec::new();
    for path in ["/v1/chat/completions", "/v1/responses"] {
        let mut client = Client::connect(rig.http).await;
        client.send(post(path, "", r#"{"model":"m","input":"a"}"#)).await;
        clients.push(client);
        until("one more is there", || {
            let counts = rig.counts();
            (counts.waiting + counts.in_flight()) as usize == clients.len()
        })
        .await;
    }
    let call = node.call().await;
    rig.front.drain();
    assert_eq!(rig.counts().waiting, 1, "what came before goes on");
    rig.front.end();
    rig.edge_side().close(CloseReason::Shutdown);
    rig.shutdown.cancel();
    for client in &mut clients {
        let reply = client.reply().await;
        assert_eq!((reply.head.status, reply.error_code().as_str()), (503, "draining"), "{}", reply.text());
    }
    soon("the listener's end", &mut rig.served).await.unwrap();
    rig.idle().await;
    drop(call);
}

#[tokio::test]
async fn row_93_a_straggler_is_told_in_band() {
    let (mut rig, mut node) = Rig::with_node(1).await;
    let mut client = Client::connect(rig.http).await;
    client.send(chat(true)).await;
    let call = node.call().await;
    call.events();
    call.token("a").await;
    client.head().await;
    client.until("\n\n").await;
    rig.front.drain();
    rig.edge_side().close(CloseReason::Shutdown);
    rig.shutdown.cancel();
    let (body, ended) = client.rest().await;
    let text = String::from_utf8(body).unwrap();
    assert!(text.contains("\"code\":\"draining\"") && !text.contains("[DONE]"), "{text}");
    assert_eq!(ended, Ended::Clean);
    soon("the listener's end", &mut rig.served).await.unwrap();
    drop(call);
}
