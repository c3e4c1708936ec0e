//! What a connection lives through: clients that send, read and leave in odd ways.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use super::client::{Client, Ended, chat, get, post};
use super::rig::{Rig, Setup, soon};
use crate::http::FrontOptions;
use crate::http::body::discard;
use crate::http::connection::Shared;
use crate::http::incoming::Incoming;
use crate::http::socket::Io;

#[tokio::test]
async fn row_52_an_answer_that_ends_with_its_connection_breaks_wherever_it_is_cut() {
    let (rig, mut node) = Rig::with_node(1).await;
    let mut client = Client::connect(rig.http).await;
    client.send(chat(true).replace("HTTP/1.1", "HTTP/1.0")).await;
    let call = node.call().await;
    call.events();
    client.head().await;
    call.token("a").await;
    client.until("\n\n").await;
    // To end its side is to leave.
    client.socket.shutdown().await.unwrap();
    call.cancelled().await;
    assert_eq!(client.rest().await.1, Ended::Broken);
    // The whole one ends as it should.
    let mut client = Client::connect(rig.http).await;
    client.send(chat(true).replace("HTTP/1.1", "HTTP/1.0")).await;
    let call = node.call().await;
    call.events();
    call.send("data: [DONE]\n\n").await;
    call.complete();
    let reply = client.reply().await;
    assert_eq!((reply.text(), reply.ended), ("data: [DONE]\n\n", Ended::Clean));
    assert_eq!((reply.head.get("connection"), reply.head.has("transfer-encoding")), (Some("close"), false));
    rig.idle().await;
}

#[tokio::test]
async fn row_58_a_client_that_leaves_is_noticed_while_a_write_waits_for_it() {
    let (rig, mut node) = Rig::with_node(1).await;
    let mut client = Client::connect(rig.http).await;
    client.send(chat(true)).await;
    let call = node.call().await;
    call.events();
    let chunk = format!("data: {}\n\n", "x".repeat(8_000));
    let full = async {
        // Until the client's side, the edge and the stream's credit are full.
        while let Ok(sent) =
            tokio::time::timeout(Duration::from_millis(300), call.stream.send(chunk.as_bytes())).await
        {
            sent.unwrap();
        }
    };
    soon("a stream that is full", full).await;
    client.socket.shutdown().await.unwrap();
    call.cancelled().await;
    rig.idle().await;
    drop(client);
}

#[tokio::test]
async fn line_ends_behind_a_request_begin_no_other() {
    let hours = Duration::from_secs(3_600);
    let options = FrontOptions { header_timeout: hours, idle_connection: hours, ..FrontOptions::default() };
    let mut rig = Rig::with(Setup { options, ..Setup::default() }).await;
    let mut client = Client::connect(rig.http).await;
    for behind in ["", "\r\n", "\r\n\r\n\n"] {
        client.send(get("/livez", "") + behind).await;
        assert_eq!(client.reply().await.text(), "ok");
        client.send(behind).await;
    }
    rig.shutdown.cancel();
    soon("the listener's end", &mut rig.served).await.unwrap();
}

#[tokio::test]
async fn behaviour_24_a_head_that_began_behind_a_request_has_the_time_of_any_other() {
    let hours = Duration::from_secs(3_600);
    let options = FrontOptions {
        header_timeout: Duration::from_millis(100),
        idle_connection: hours,
        ..FrontOptions::default()
    };
    let rig = Rig::with(Setup { options, ..Setup::default() }).await;
    let mut client = Client::connect(rig.http).await;
    client.send(get("/livez", "") + "GET /live").await;
    assert_eq!(client.reply().await.text(), "ok");
    assert!(client.part().await.is_err(), "it never came");
}

#[tokio::test]
async fn the_next_request_may_come_before_the_engine_has_ended_the_last() {
    let (rig, mut node) = Rig::with_node(1).await;
    let mut client = Client::connect(rig.http).await;
    client.send(chat(false)).await;
    let call = node.call().await;
    call.head(200, &[("content-type", "application/json"), ("content-length", "100000")]);
    call.send("x".repeat(100_000)).await;
    let reply = client.reply().await;
    assert_eq!((reply.body.len(), reply.ended), (100_000, Ended::Clean));
    // More than is read ahead of a running request.
    let body = format!("{{\"model\":\"m\",\"x\":\"{}\"}}", "y".repeat(300_000));
    client.send(post("/v1/chat/completions", "", &body)).await;
    call.complete();
    node.call().await.json("{}").await;
    assert_eq!(client.reply().await.text(), "{}");
    rig.idle().await;
}

/// A connection of which this is read and this is still to come.
async fn connection<'a>(shared: &'a Shared, first: &str) -> (Io<'a, TcpStream>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    client.write_all(first.as_bytes()).await.unwrap();
    let (socket, _) = listener.accept().await.unwrap();
    (Io::new(socket, shared), client)
}

#[tokio::test]
async fn a_body_that_nobody_wants_is_read_in_large_pieces_however_it_begins() {
    let shared = Shared::default();
    let head = "POST / HTTP/1.1\r\nhost: e\r\ncontent-length: 1000000\r\n\r\n";
    let (mut io, mut client) = connection(&shared, &format!("{head}x")).await;
    let head = std::future::poll_fn(|cx| io.poll_head(cx)).await.unwrap().unwrap();
    let sending = tokio::spawn(async move {
        client.write_all(&vec![b'x'; 999_999]).await.unwrap();
        client
    });
    let mut incoming = Incoming::new(&mut io, &head);
    soon("the body's end", discard(&mut incoming)).await;
    assert!(incoming.is_over());
    let reads = shared.reads.load(Ordering::Relaxed);
    assert!(reads < 2_000, "{reads} reads");
    drop(sending.await);
}
