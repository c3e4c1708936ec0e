//! What operators find of requests: those that run, those that ended, and slots whose end no node confirmed.

use std::sync::Arc;

use prost::Message;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use umbel_contracts::objects::CommandPhase;
use umbel_contracts::proto::node::InferenceHead;
use umbel_wire::Code;

use super::rig::{Edge, Relay, run, until};

async fn asked(edge: &Edge, operation: &str, args: Value) -> Value {
    edge.ask(operation, "", args).await.unwrap().result.unwrap()
}

async fn send(edge: &Edge, id: &str, body: &str) -> TcpStream {
    let mut socket = TcpStream::connect(edge.running.api_address.unwrap()).await.unwrap();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-request-id: {id}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    socket
}

const CHAT: &str = r#"{"model":"llama","messages":[{"role":"user","content":"a secret"}]}"#;

/// A node that never confirms the end of a request whose client left: its slot stays taken, is shown, and an operator
/// gives it free, once, with a reason, audited.
#[test]
fn requests_are_found_by_their_id_and_a_slot_that_nobody_gives_back_is_released() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let relay = Arc::new(Relay::default());
        let _connection = node.connect_with(&edge, Arc::clone(&relay)).await;
        let first = send(&edge, "same", CHAT).await;
        until("the node has it", || relay.open() == 1).await;

        let running = asked(&edge, "request.list", json!({ "running": true, "model": "llama" })).await;
        let shown = &running["requests"][0];
        assert_eq!((&shown["request_id"], &shown["phase"]), (&json!("same"), &json!("prefill")));
        assert_eq!((&shown["lease"]["phase"], &shown["tries"][0]["node"]), (&json!("prefill"), &json!("n")));
        assert!(shown.get("status").is_none() && !running.to_string().contains("secret"));
        let lease = shown["lease"]["lease_id"].clone();
        let release = || edge.ask("request.release", "", json!({ "lease_id": lease }));
        assert_eq!(release().await.unwrap_err().code, Code::Conflict, "it is in use");

        drop(first);
        let unconfirmed = || edge.running.site.dispatch.totals().unconfirmed == 1;
        until("its end is not confirmed in time", unconfirmed).await;
        let queue = asked(&edge, "queue.show", json!({ "model": "llama" })).await["queues"][0].clone();
        assert_eq!((&queue["in_flight"], &queue["leases"]["unconfirmed"]), (&json!(1), &json!(1)));
        assert_eq!(
            (&queue["providers"][0]["unconfirmed"], &queue["providers"][0]["node"]),
            (&json!(1), &json!("n"))
        );
        let shown =
            asked(&edge, "request.show", json!({ "request_id": "same" })).await["requests"][0].clone();
        assert_eq!((&shown["status"], &shown["lease"]["phase"]), (&json!(499), &json!("unconfirmed")));
        let listed = asked(&edge, "request.list", json!({})).await;
        assert_eq!(listed["unconfirmed"][0]["lease_id"], lease);

        let released = release().await.unwrap();
        assert_eq!(released.phase, CommandPhase::Succeeded);
        assert_eq!(released.result.unwrap()["request_id"], "same");
        edge.running.site.dispatch.idle().await;
        assert_eq!(release().await.unwrap_err().code, Code::NotFound);
        let audit = edge.audit("request.release").await;
        assert!(audit.iter().any(|entry| entry.record.outcome == "succeeded"));

        // The same id again, answered this time: the newest stands first, and both are there.
        let mut second = send(&edge, "same", CHAT).await;
        until("the node has it too", || relay.open() == 2).await;
        let stream = relay.streams.lock().unwrap().pop().unwrap();
        let head = InferenceHead { status: 200, ..InferenceHead::default() };
        stream.send_head(head.encode_to_vec(), &[]).unwrap();
        stream.send(b"{}").await.unwrap();
        stream.finish(
            &umbel_contracts::proto::node::InferenceEnd {
                outcome: umbel_contracts::proto::node::InferenceOutcome::Complete.into(),
                prompt_tokens: Some(7),
                completion_tokens: Some(2),
                ..Default::default()
            }
            .encode_to_vec(),
        );
        let mut answer = String::new();
        second.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let both = asked(&edge, "request.show", json!({ "request_id": "same" })).await["requests"].clone();
        let statuses: Vec<&Value> = both.as_array().unwrap().iter().map(|one| &one["status"]).collect();
        assert_eq!(statuses, [&json!(200), &json!(499)]);
        assert_eq!(both[0]["usage"]["prompt_tokens"], 7);
        assert_eq!(both[0]["answer_bytes"], 2, "what the engine sent went to the client");
        assert_eq!(
            edge.ask("request.show", "", json!({ "request_id": "none" })).await.unwrap_err().code,
            Code::NotFound
        );

        // Pages and conditions.
        let page = asked(&edge, "request.list", json!({ "limit": 1 })).await;
        assert_eq!(page["requests"].as_array().unwrap().len(), 1);
        let next = asked(&edge, "request.list", json!({ "limit": 1, "cursor": page["next_cursor"] })).await;
        assert_eq!((&next["requests"][0]["status"], next.get("next_cursor")), (&json!(499), None));
        let slow = asked(&edge, "request.list", json!({ "status": "2xx", "slow_ms": 3_600_000 })).await;
        assert_eq!(slow["requests"], json!([]));
        for bad in
            [json!({ "status": "bad" }), json!({ "limit": 0 }), json!({ "cursor": "x" }), json!({ "x": 1 })]
        {
            assert_eq!(edge.ask("request.list", "", bad).await.unwrap_err().code, Code::InvalidArgument);
        }
        edge.running.drain(super::rig::TIME).await;
    });
}
