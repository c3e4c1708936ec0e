//! Large, slow and many.

use std::time::Duration;

use super::client::{Client, Ended, chat, get, post};
use super::rig::{Rig, Setup, nothing_is_held, soon, until};
use crate::http::FrontOptions;

fn body_of(bytes: usize) -> String {
    format!("{{\"model\":\"m\",\"messages\":\"{}\"}}", "x".repeat(bytes))
}

#[tokio::test]
async fn row_49_a_large_legal_body_passes_and_a_larger_one_is_413() {
    let (rig, mut node) = Rig::with_node(1).await;
    let body = body_of(30 << 20);
    let request = post("/v1/chat/completions", "", &body);
    let address = rig.http;
    let asking = tokio::spawn(async move { Client::ask(address, request).await });
    let call = node.call().await;
    assert!(call.body == body, "{} bytes came", call.body.len());
    call.json("{}").await;
    assert_eq!(soon("the answer", asking).await.unwrap().head.status, 200);

    // One that writes all of its body before it reads still gets to see the refusal.
    let refused = Client::ask(rig.http, post("/v1/chat/completions", "", &body_of(40 << 20))).await;
    assert_eq!((refused.head.status, refused.error_code().as_str()), (413, "request_too_large"));
    // Without a length it is noticed on the way.
    let mut client = Client::connect(rig.http).await;
    client.send("POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\ntransfer-encoding: chunked\r\n\r\n").await;
    let chunk = format!("{:x}\r\n{}\r\n", 1 << 20, "x".repeat(1 << 20));
    for _ in 0..40 {
        client.send(&chunk).await;
    }
    client.send("0\r\n\r\n").await;
    assert_eq!(client.reply().await.head.status, 413);
    assert!(nothing_is_held(&rig) && node.is_untouched());
}

#[tokio::test]
async fn row_49_a_body_that_trickles_is_408_and_takes_no_slot() {
    let options = FrontOptions { body_timeout: Duration::from_millis(100), ..FrontOptions::default() };
    let mut rig = Rig::with(Setup { options, ..Setup::default() }).await;
    let mut node = rig.node("m", &[], 1).await;
    let mut client = Client::connect(rig.http).await;
    client.send("POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\ncontent-length: 5000000\r\n\r\n{").await;
    until("a part is held", || !nothing_is_held(&rig)).await;
    let reply = client.reply().await;
    assert_eq!((reply.head.status, reply.error_code().as_str()), (408, "request_timeout"));
    assert!(nothing_is_held(&rig) && node.is_untouched());
    rig.idle().await;
}

#[tokio::test]
async fn a_body_that_breaks_off_starts_nothing() {
    let (rig, mut node) = Rig::with_node(1).await;
    let mut client = Client::connect(rig.http).await;
    client.send("POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"mod\r\nnonsense\r\n").await;
    let reply = client.reply().await;
    assert_eq!((reply.head.status, reply.error_code().as_str()), (400, "incomplete_body"));
    let mut client = Client::connect(rig.http).await;
    client.send("POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\ncontent-length: 50\r\n\r\n{").await;
    drop(client);
    until("nothing is held", || nothing_is_held(&rig)).await;
    assert!(node.is_untouched());
}

#[tokio::test]
async fn expect_100_continue_works_for_both_answers() {
    let (rig, mut node) = Rig::with_node(1).await;
    let head = |length: usize| {
        format!(
            "POST /v1/completions HTTP/1.1\r\nhost: e\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
        )
    };
    let mut client = Client::connect(rig.http).await;
    let body = r#"{"model":"m"}"#;
    client.send(head(body.len())).await;
    assert_eq!(client.head().await.status, 100);
    client.send(body).await;
    node.call().await.json("{}").await;
    assert_eq!(client.reply().await.head.status, 200);
    let mut client = Client::connect(rig.http).await;
    client.send(head(50 << 20)).await;
    assert_eq!(client.reply().await.head.status, 413, "at once, without a byte of the body");
}

#[tokio::test]
async fn bodies_are_held_within_bounds_and_let_go_with_the_head() {
    let options = FrontOptions { held_max: 400_000, ..FrontOptions::default() };
    let mut rig = Rig::with(Setup { options, ..Setup::default() }).await;
    let mut node = rig.node("m", &[], 4).await;
    let key = rig.key(None).await;
    let request = post("/v1/chat/completions", &key, &body_of(80_000));
    let mut first = Client::connect(rig.http).await;
    first.send(&request).await;
    let call = node.call().await;
    let refused = Client::ask(rig.http, &request).await;
    assert_eq!((refused.head.status, refused.error_code().as_str()), (429, "overloaded"));
    assert_eq!(refused.head.get("x-umbel-reason"), Some("key_held_bytes"));
    assert!(refused.text().contains("100000 bytes"), "a quarter: {}", refused.text());
    call.json("{}").await;
    assert_eq!(first.reply().await.head.status, 200);
    assert!(nothing_is_held(&rig));
    let mut again = Client::connect(rig.http).await;
    again.send(&request).await;
    node.call().await.json("{}").await;
    assert_eq!(again.reply().await.head.status, 200);
}

#[tokio::test]
async fn early_refusals_are_read_by_clients_that_write_their_body_first() {
    let (rig, _node) = Rig::with_node(1).await;
    let _key = rig.key(None).await;
    let reply = Client::ask(rig.http, post("/v1/chat/completions", "", &body_of(5 << 20))).await;
    assert_eq!(reply.head.status, 401);
    let reply = Client::ask(rig.http, post("/v1/nothing", "", &body_of(5 << 20))).await;
    assert_eq!(reply.head.status, 404);
}

#[tokio::test]
async fn a_head_that_never_ends_and_an_idle_connection_are_closed() {
    let options = FrontOptions { header_timeout: Duration::from_millis(100), ..FrontOptions::default() };
    let rig = Rig::with(Setup { options, ..Setup::default() }).await;
    let mut slow = Client::connect(rig.http).await;
    slow.send("GET /livez HTTP/1.1\r\nx: ").await;
    assert!(slow.part().await.is_err());

    let options = FrontOptions { idle_connection: Duration::from_secs(1), ..FrontOptions::default() };
    let rig = Rig::with(Setup { options, ..Setup::default() }).await;
    let mut idle = Client::connect(rig.http).await;
    idle.send(get("/livez", "")).await;
    let reply = idle.reply().await;
    assert_eq!((reply.head.status, reply.ended), (200, Ended::Clean));
    assert!(idle.part().await.is_err());
}

#[tokio::test]
async fn a_reader_that_stalls_is_given_up() {
    let options = FrontOptions { write_stall: Duration::from_millis(300), ..FrontOptions::default() };
    let mut rig = Rig::with(Setup { options, ..Setup::default() }).await;
    let mut node = rig.node("m", &[], 1).await;
    let tls = umbel_wire::tls::api_client(&[rig.ca()]).unwrap();
    for secure in [false, true] {
        let tcp = tokio::net::TcpStream::connect(if secure { rig.https } else { rig.http }).await.unwrap();
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let (mut plain, mut stalled) = (None, None);
        if secure {
            let socket = tokio_rustls::TlsConnector::from(tls.clone()).connect(name, tcp).await.unwrap();
            let mut client = Client::over(socket);
            client.send(chat(true)).await;
            stalled = Some(client);
        } else {
            let mut client = Client::over(tcp);
            client.send(chat(true)).await;
            plain = Some(client);
        }
        let call = node.call().await;
        call.events();
        let chunk = format!("data: {}\n\n", "x".repeat(8_000));
        let sent = soon("the reset", async {
            let mut sent = 0;
            while call.stream.send(chunk.as_bytes()).await.is_ok() {
                sent += chunk.len();
            }
            sent
        })
        .await;
        assert!(sent < 16 << 20, "{sent}");
        call.cancelled().await;
        rig.idle().await;
        drop((plain, stalled));
    }
}

#[tokio::test]
async fn one_connection_too_many_is_told_so() {
    let options = FrontOptions { connections: 1, ..FrontOptions::default() };
    let rig = Rig::with(Setup { options, ..Setup::default() }).await;
    let mut first = Client::connect(rig.http).await;
    first.send(get("/livez", "")).await;
    assert_eq!(first.reply().await.head.status, 200);
    let mut second = Client::connect(rig.http).await;
    let reply = second.reply().await;
    assert_eq!((reply.head.status, reply.error_code().as_str()), (503, "overloaded"));
    assert_eq!(reply.head.get("retry-after"), Some("1"));
}
