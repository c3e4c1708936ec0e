//! Long waits at their full length: the test's clock goes ahead while nobody has anything to do.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::client::{Client, Ended, chat, post};
use super::rig::{Rig, Setup};
use crate::http::FrontOptions;

const MINUTE: usize = 60;

#[tokio::test]
async fn behaviour_14_a_minute_of_silence_is_sixty_comments_of_one_newline() {
    let options = FrontOptions { keepalive: Duration::from_secs(1), ..FrontOptions::default() };
    let mut rig = Rig::with(Setup { options, ..Setup::default() }).await;
    let mut node = rig.node("m", &[], 1).await;
    let mut client = Client::connect(rig.http).await;
    client.send(chat(true)).await;
    let call = node.call().await;
    call.events();
    assert_eq!(client.head().await.status, 200);
    tokio::time::pause();
    let mut text = String::new();
    for _ in 0..MINUTE {
        text.push_str(&client.until(": keepalive\n").await);
    }
    assert_eq!(text, ": keepalive\n".repeat(MINUTE));
    call.send("data: {\"a\":1}\n\ndata: [DONE]\n\n").await;
    call.complete();
    let (rest, ended) = client.rest().await;
    let rest = String::from_utf8(rest).unwrap().replace(": keepalive\n", "");
    assert_eq!((rest.as_str(), ended), ("data: {\"a\":1}\n\ndata: [DONE]\n\n", Ended::Clean));
}

#[tokio::test]
async fn behaviour_25_a_prefill_of_400_seconds_ends_in_an_answer() {
    let mut rig = Rig::new().await;
    let mut node = rig.node("m", &[], 2).await;
    for stream in [true, false] {
        let mut client = Client::connect(rig.http).await;
        client
            .send(post("/v1/chat/completions", "", &format!("{{\"model\":\"m\",\"stream\":{stream}}}")))
            .await;
        let call = node.call().await;
        tokio::time::pause();
        tokio::time::sleep(Duration::from_secs(400)).await;
        if stream {
            call.events();
            call.send("data: [DONE]\n\n").await;
            call.complete();
        } else {
            call.json("{}").await;
        }
        tokio::time::resume();
        let reply = client.reply().await;
        let whole = if stream { "data: [DONE]\n\n" } else { "{}" };
        assert_eq!((reply.head.status, reply.text(), reply.ended), (200, whole, Ended::Clean));
    }
    rig.idle().await;
}

/// Row 44, at its full length: who reads nothing for a minute is given up and its engine told; who reads something now and
/// then is not, and nobody else notices.
#[tokio::test]
async fn row_44_a_client_that_reads_nothing_for_a_minute_is_given_up() {
    let (rig, mut node) = Rig::with_node(2).await;
    let mut stalled = Client::connect(rig.http).await;
    stalled.send(chat(true)).await;
    let call = node.call().await;
    call.events();
    let mut slow = Client::connect(rig.http).await;
    slow.send(chat(true)).await;
    let other = node.call().await;
    other.events();
    assert_eq!(slow.head().await.status, 200);
    let chunk = format!("data: {}\n\n", "x".repeat(8_000));
    // As much as fits on the way, by the machine's own clock: one that goes ahead whenever nobody is busy would run off while
    // bytes are still under way. Then it goes ahead.
    let began = Instant::now();
    let (mut sent, mut read) = (0, 0);
    while let Ok(taken) = timeout(Duration::from_millis(300), call.stream.send(chunk.as_bytes())).await {
        taken.unwrap();
        sent += chunk.len();
    }
    tokio::time::pause();
    let lasted = async {
        while call.stream.send(chunk.as_bytes()).await.is_ok() {
            sent += chunk.len();
        }
        began.elapsed()
    };
    let reads = async {
        loop {
            tokio::time::sleep(Duration::from_secs(50)).await;
            other.send("data: {}\n\n").await;
            slow.until("data: {}\n\n").await;
            read += 1;
        }
    };
    let lasted = tokio::select! {
        lasted = lasted => lasted,
        () = reads => unreachable!(),
    };
    let limit = FrontOptions::default().write_stall;
    assert!(lasted >= limit && lasted <= limit + limit / 4, "{lasted:?}");
    assert!(sent < 16 << 20 && read == 1, "{sent} sent, {read} read");
    call.cancelled().await;
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(50)).await;
        other.send("data: {}\n\n").await;
        slow.until("data: {}\n\n").await;
    }
    other.send("data: [DONE]\n\n").await;
    other.complete();
    assert_eq!(slow.rest().await.1, Ended::Clean);
    rig.idle().await;
    drop(stalled);
}
