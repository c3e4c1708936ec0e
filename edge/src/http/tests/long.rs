//! Long waits at their full length: the test's clock goes ahead while nobody has anything to do.

use std::time::Duration;

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
