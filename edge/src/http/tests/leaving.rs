//! Clients that leave, in every phase, and clients that do not read.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use umbel_contracts::proto::node::InferenceOutcome;

use super::client::{Client, chat, get, post};
use super::rig::{Rig, until};
use crate::core::registry::Call as Told;

#[tokio::test]
async fn row_57_a_client_that_leaves_midway_resets_the_engine_and_nobody_else() {
    let (rig, mut node) = Rig::with_node(2).await;
    let mut stays = Client::connect(rig.http).await;
    stays.send(chat(true)).await;
    let other = node.call().await;
    other.events();
    stays.head().await;

    let mut client = Client::connect(rig.http).await;
    client.send(chat(true)).await;
    let call = node.call().await;
    call.events();
    client.head().await;
    for token in ["a", "b", "c"] {
        call.token(token).await;
        client.until(token).await;
    }
    drop(client);
    call.cancelled().await;
    until("one slot is free", || rig.in_flight(&node) == 1).await;
    other.token("z").await;
    stays.until("z").await;
    let metrics = Client::ask(rig.metrics_http, get("/metrics", "")).await;
    let left = r#"umbel_edge_client_disconnects_total{model="m",phase="streaming"} 1"#;
    assert!(metrics.text().contains(left), "{}", metrics.text());
}

#[tokio::test]
async fn row_58_a_client_that_leaves_before_the_first_token_is_noticed() {
    let (rig, mut node) = Rig::with_node(1).await;
    for stream in [true, false] {
        let mut client = Client::connect(rig.http).await;
        client.send(chat(stream)).await;
        let call = node.call().await;
        drop(client);
        call.cancelled().await;
        rig.idle().await;
    }
    // Also after the head, while the engine is silent.
    let mut client = Client::connect(rig.http).await;
    client.send(chat(true)).await;
    let call = node.call().await;
    call.events();
    client.head().await;
    drop(client);
    call.cancelled().await;
    rig.idle().await;
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_is_forgotten() {
    let (rig, mut node) = Rig::with_node(1).await;
    let mut first = Client::connect(rig.http).await;
    first.send(chat(false)).await;
    let call = node.call().await;
    let mut second = Client::connect(rig.http).await;
    second.send(chat(false)).await;
    until("one waits", || rig.counts().waiting == 1).await;
    drop(second);
    until("nobody waits", || rig.counts().waiting == 0).await;
    call.json("{}").await;
    assert_eq!(first.reply().await.head.status, 200);
    rig.idle().await;
    assert!(node.is_untouched());
}

#[tokio::test]
async fn row_58_a_client_that_leaves_is_noticed_behind_bytes_that_nobody_reads_yet() {
    let (rig, mut node) = Rig::with_node(1).await;
    for more in ["\r\n".to_owned(), "x".to_owned(), chat(true), "y".repeat(50_000)] {
        for answering in [false, true] {
            let mut client = Client::connect(rig.http).await;
            client.send(format!("{}{more}", chat(true))).await;
            let call = node.call().await;
            let mut second = Client::connect(rig.http).await;
            second.send(format!("{}{more}", chat(false))).await;
            until("one waits", || rig.counts().waiting == 1).await;
            if answering {
                call.events();
                client.head().await;
            }
            drop(second);
            until("nobody waits", || rig.counts().waiting == 0).await;
            drop(client);
            call.cancelled().await;
            rig.idle().await;
        }
    }
    // Its end could not be seen behind more than is read, so that is the end.
    let mut client = Client::connect(rig.http).await;
    client.send(chat(true)).await;
    let call = node.call().await;
    let flooding = tokio::spawn(async move { client.socket.write_all(&vec![b'y'; 8 << 20]).await });
    call.cancelled().await;
    assert!(super::rig::soon("the flood's end", flooding).await.unwrap().is_err());
    // Over TLS it is the same.
    let tls = umbel_wire::tls::api_client(&[rig.ca()]).unwrap();
    let tcp = tokio::net::TcpStream::connect(rig.https).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let socket = tokio_rustls::TlsConnector::from(tls).connect(name, tcp).await.unwrap();
    let mut client = Client::over(socket);
    client.send(format!("{}x", chat(true))).await;
    let call = node.call().await;
    drop(client);
    call.cancelled().await;
    // Who stays gets all answers.
    let mut client = Client::connect(rig.http).await;
    client.send(format!("{}{}{}", chat(false), chat(false), chat(false))).await;
    let call = node.call().await;
    client
        .send(post(
            "/v1/chat/completions",
            "",
            &format!("{{\"model\":\"m\",\"x\":\"{}\"}}", "z".repeat(40_000)),
        ))
        .await;
    call.json("{}").await;
    assert_eq!(client.reply().await.text(), "{}");
    for _ in 0..3 {
        node.call().await.json("{}").await;
        assert_eq!(client.reply().await.text(), "{}");
    }
    rig.idle().await;
}

#[tokio::test]
async fn row_61_slots_come_back_whatever_goes_wrong() {
    let (rig, mut node) = Rig::with_node(4).await;
    for round in 0..40u32 {
        let mut client = Client::connect(rig.http).await;
        client.send(chat(round % 2 == 0)).await;
        let call = node.call().await;
        match round % 8 {
            0 => {
                drop(client);
                call.cancelled().await;
            }
            1 => call.fail(InferenceOutcome::EngineBroke, false),
            // The node's task panics or is dropped: END INTERNAL.
            2 => drop(call),
            3 => {
                call.head(200, &[("content-type", "application/json")]);
                drop(client);
                call.cancelled().await;
            }
            4 => {
                call.head(9_999, &[]);
                call.cancelled().await;
            }
            5 => call.json("{}").await,
            6 => {
                call.events();
                call.send("data: {").await;
                drop(call);
            }
            _ => {
                call.events();
                client.head().await;
                drop(client);
                call.cancelled().await;
            }
        }
    }
    rig.idle().await;
    assert_eq!(rig.in_flight(&node), 0);
}

#[tokio::test]
async fn row_63_a_reset_that_is_not_confirmed_keeps_its_slot_until_the_node_is_gone() {
    let mut rig = Rig::with(super::rig::Setup {
        limits: crate::shell::dispatch::Limits {
            confirm: Duration::from_millis(50),
            ..crate::shell::dispatch::Limits::default()
        },
        ..super::rig::Setup::default()
    })
    .await;
    let mut node = rig.node("m", &[], 1).await;
    let mut client = Client::connect(rig.http).await;
    client.send(chat(true)).await;
    let call = node.call().await;
    drop(client);
    until("it is marked", || rig.counts().unconfirmed == 1).await;
    assert_eq!(rig.dispatch.unconfirmed()[0].1.to_string(), node.provider);
    assert_eq!(rig.in_flight(&node), 1);
    rig.tell(&Told::Lost { node: node.id, generation: node.generation });
    rig.idle().await;
    drop(call);
}

#[tokio::test]
async fn row_44_a_client_that_does_not_read_delays_nobody() {
    let (rig, mut node) = Rig::with_node(2).await;
    let mut stalled = Client::connect(rig.http).await;
    stalled.send(chat(true)).await;
    let flood = node.call().await;
    flood.events();
    let flooding = tokio::spawn(async move {
        let chunk = format!("data: {}\n\n", "x".repeat(8_000));
        let mut sent = 0usize;
        while flood.stream.send(chunk.as_bytes()).await.is_ok() {
            sent += chunk.len();
            if sent > 64 << 20 {
                break;
            }
        }
        sent
    });
    let mut reader = Client::connect(rig.http).await;
    reader.send(chat(true)).await;
    let call = node.call().await;
    call.events();
    reader.head().await;
    for _ in 0..200 {
        call.token("y").await;
        reader.until("y").await;
    }
    assert!(!flooding.is_finished(), "the flood waits for its own client");
    drop(stalled);
    let sent = super::rig::soon("the flood's reset", flooding).await.unwrap();
    assert!(sent < 16 << 20, "{sent} bytes were taken for a client that reads nothing");
}
