//! What passes, in both directions: bytes, headers, ids, models.

use umbel_contracts::proto::node::InferenceOutcome;

use super::client::{Client, Ended, chat, get, post};
use super::rig::{Rig, nothing_is_held, soon};

const DONE: &str = "data: [DONE]\n\n";

#[tokio::test]
async fn a_stream_passes_byte_for_byte_as_it_comes() {
    let (rig, mut node) = Rig::with_node(2).await;
    let mut client = Client::connect(rig.http).await;
    client.send(chat(true)).await;
    let call = node.call().await;
    assert_eq!(call.open.path, "/v1/chat/completions");
    assert_eq!(call.body, r#"{"model":"m","stream":true,"messages":[]}"#);
    call.events();
    let head = client.head().await;
    assert_eq!(head.status, 200, "the head comes before any token");
    assert_eq!(head.get("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_eq!(head.get("cache-control"), Some("no-cache, no-transform"));
    assert_eq!(head.get("x-accel-buffering"), Some("no"));
    assert_eq!(head.get("x-umbel-attempts"), Some("1"));
    for absent in ["connection", "content-encoding", "content-length", "server"] {
        assert!(!head.has(absent), "{absent}");
    }
    assert!(nothing_is_held(&rig), "the body is let go with the head");
    for token in ["a", "é✓", "c"] {
        call.token(token).await;
        let text = client.until("\n\n").await;
        assert!(text.contains(token), "each token comes at once: {text}");
    }
    assert_eq!(rig.counts().streaming, 1);
    call.send(DONE).await;
    call.complete();
    assert_eq!(client.rest().await, (DONE.into(), Ended::Clean));
    rig.idle().await;

    // The connection is kept.
    client.send(chat(false)).await;
    node.call().await.json(r#"{"x":1}"#).await;
    let reply = client.reply().await;
    assert_eq!((reply.head.status, reply.text()), (200, r#"{"x":1}"#));
    let metrics = Client::ask(rig.metrics_http, get("/metrics", "")).await;
    let ok = r#"umbel_edge_requests_total{route="/v1/chat/completions",model="m",code="200"} 2"#;
    assert!(metrics.text().contains(ok), "{}", metrics.text());
    assert!(metrics.text().contains(r#"umbel_edge_tokens_total{model="m",direction="output"} 6"#));
    assert!(metrics.text().contains(r#"umbel_edge_queue_limit{model="m"} 1000"#), "{}", metrics.text());
}

#[tokio::test]
async fn row_50_multibyte_text_in_one_byte_pieces_stays_whole() {
    let (rig, mut node) = Rig::with_node(2).await;
    let text = "data: {\"choices\":[{\"delta\":{\"content\":\"日本語 😀 é\",\"tool_calls\":[{\"index\":0}]}}]}\n\ndata: [DONE]\n\n";
    for stream in [true, false] {
        let mut client = Client::connect(rig.http).await;
        client.send(chat(stream)).await;
        let call = node.call().await;
        let content_type = if stream { "text/event-stream" } else { "application/json" };
        call.head(200, &[("content-type", content_type)]);
        for byte in text.as_bytes() {
            call.send([*byte]).await;
        }
        call.complete();
        let reply = client.reply().await;
        assert_eq!((reply.text(), reply.ended), (text, Ended::Clean));
    }
}

#[tokio::test]
async fn row_35_no_credential_passes_and_no_cookie_comes_back() {
    let (rig, mut node) = Rig::with_node(1).await;
    let key = rig.key(None).await;
    let headers = format!(
        "{key}cookie: a=b\r\nx-api-key: k\r\nproxy-authorization: Basic x\r\nconnection: keep-alive, x-foo\r\nx-foo: 1\r\n\
         te: trailers\r\naccept-encoding: gzip\r\naccept: application/json\r\nx-request-id: my-id\r\n"
    );
    let mut client = Client::connect(rig.http).await;
    client.send(post("/v1/completions", &headers, r#"{"model":"m"}"#)).await;
    let call = node.call().await;
    let names: Vec<&str> = call.open.headers.iter().map(|header| header.name.as_str()).collect();
    assert_eq!(names, ["content-type", "accept"]);
    assert_eq!(call.header("accept").unwrap(), "application/json");
    assert_eq!((call.open.request_id.as_str(), call.open.path.as_str()), ("my-id", "/v1/completions"));
    call.head(
        200,
        &[
            ("content-type", "application/json"),
            ("set-cookie", "session=1"),
            ("server", "engine"),
            ("connection", "close"),
            ("transfer-encoding", "chunked"),
            ("x-request-id", "other"),
        ],
    );
    call.send("{}").await;
    call.complete();
    let reply = client.reply().await;
    for absent in ["set-cookie", "server", "connection", "transfer-encoding"] {
        assert!(!reply.head.has(absent), "{absent}");
    }
    assert_eq!(reply.head.get("x-request-id"), Some("my-id"));
    assert_eq!((reply.text(), reply.head.get("content-length")), ("{}", Some("2")));
}

#[tokio::test]
async fn an_alias_is_rewritten_in_place_and_everything_else_stays() {
    let mut rig = Rig::new().await;
    let mut node = rig.node("Qwen/Qwen3-8B", &["small"], 1).await;
    let body = r#"{"top_k":5,"seed":9007199254740993, "model" : "small","x":1e-05}"#;
    let mut client = Client::connect(rig.http).await;
    client.send(post("/v1/completions", "", body)).await;
    let call = node.call().await;
    assert_eq!(call.body, body.replace("\"small\"", "\"Qwen/Qwen3-8B\"").as_bytes());
    call.json("{}").await;
    assert_eq!(client.reply().await.head.status, 200);

    let list = Client::ask(rig.http, get("/v1/models", "")).await.json();
    let ids: Vec<&str> =
        list["data"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!((list["object"].as_str(), ids), (Some("list"), vec!["Qwen/Qwen3-8B", "small"]));
    assert!(list["data"][0]["created"].is_u64() && list["data"][0]["object"] == "model");
    for path in ["/v1/models/Qwen/Qwen3-8B", "/v1/models/Qwen%2FQwen3-8B"] {
        assert_eq!(Client::ask(rig.http, get(path, "")).await.json()["id"], "Qwen/Qwen3-8B");
    }
    let missing = Client::ask(rig.http, get("/v1/models/other", "")).await;
    assert_eq!((missing.head.status, missing.error_code().as_str()), (404, "model_not_found"));
}

#[tokio::test]
async fn keys_are_needed_once_there_is_one_and_see_only_their_models() {
    let mut rig = Rig::new().await;
    let _one = rig.node("m", &[], 1).await;
    let _two = rig.node("n", &[], 1).await;
    assert_eq!(Client::ask(rig.http, get("/v1/models", "")).await.head.status, 200, "loopback, no key yet");
    for others in
        ["x-forwarded-for: 192.0.2.1", "x-real-ip: 192.0.2.1", "via: 1.1 x", "origin: http://evil.example"]
    {
        let reply = Client::ask(rig.http, get("/v1/models", &format!("{others}\r\n"))).await;
        assert_eq!(reply.head.status, 401, "{others}: it speaks for others");
    }
    let page = "POST /v1/chat/completions HTTP/1.1\r\nhost: evil.example\r\ncontent-length: 2\r\n\r\n{}";
    assert_eq!(Client::ask(rig.http, page.to_owned()).await.head.status, 401, "a name that was led here");

    let (all, some) = (rig.key(None).await, rig.key(Some(&["n"])).await);
    for headers in ["", "authorization: Bearer sk-wrong\r\n", "authorization: Basic dTpw\r\n"] {
        let reply = Client::ask(rig.http, post("/v1/chat/completions", headers, r#"{"model":"m"}"#)).await;
        assert_eq!((reply.head.status, reply.error_code().as_str()), (401, "invalid_api_key"));
        assert_eq!(reply.head.get("www-authenticate"), Some("Bearer"));
    }
    let count = |reply: super::client::Reply| reply.json()["data"].as_array().unwrap().len();
    assert_eq!(count(Client::ask(rig.http, get("/v1/models", &all)).await), 2);
    assert_eq!(count(Client::ask(rig.http, get("/v1/models", &some)).await), 1);
    let reply = Client::ask(rig.http, post("/v1/chat/completions", &some, r#"{"model":"m"}"#)).await;
    assert_eq!((reply.head.status, reply.error_code().as_str()), (404, "model_not_found"));
}

#[tokio::test]
async fn row_53_an_engines_error_keeps_its_status_and_is_never_an_empty_stream() {
    let (rig, mut node) = Rig::with_node(1).await;
    let body = r#"{"error":{"message":"no","type":"x","param":null,"code":"y"}}"#;
    for (status, said, told) in [
        (400, None, None),
        (429, Some("7"), Some("7")),
        (500, None, None),
        (503, Some("300"), Some("60")),
        (429, None, Some("1")),
    ] {
        let mut client = Client::connect(rig.http).await;
        client.send(chat(true)).await;
        let call = node.call().await;
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(said.map(|said| ("retry-after", said)));
        call.head(status, &headers);
        call.send(body).await;
        call.complete();
        let reply = client.reply().await;
        assert_eq!((u32::from(reply.head.status), reply.text()), (status, body));
        assert_eq!(reply.head.get("content-type"), Some("application/json"));
        assert_eq!(reply.head.get("retry-after"), told, "{status}");
    }
    // HTML becomes a body that clients can read.
    let mut client = Client::connect(rig.http).await;
    client.send(chat(true)).await;
    let call = node.call().await;
    call.head(502, &[("content-type", "text/html")]);
    call.send("<html>").await;
    call.complete();
    let reply = client.reply().await;
    assert_eq!((reply.head.status, reply.error_code().as_str()), (502, "engine_error"));
    // A JSON answer to a stream request would read as an empty stream.
    let mut client = Client::connect(rig.http).await;
    client.send(chat(true)).await;
    let call = node.call().await;
    call.head(200, &[("content-type", "application/json")]);
    let reply = client.reply().await;
    assert_eq!((reply.head.status, reply.error_code().as_str()), (502, "engine_bad_answer"));
    call.cancelled().await;
    // The engine closed before any head.
    let mut client = Client::connect(rig.http).await;
    client.send(chat(true)).await;
    node.call().await.fail(InferenceOutcome::EngineBroke, false);
    let reply = client.reply().await;
    assert_eq!((reply.head.status, reply.error_code().as_str()), (502, "engine_lost"));
    rig.idle().await;
}

#[tokio::test]
async fn a_large_answer_flows_and_keeps_its_length() {
    let (rig, mut node) = Rig::with_node(1).await;
    let body = format!("{{\"x\":\"{}\"}}", "y".repeat(300_000));
    let mut client = Client::connect(rig.http).await;
    client.send(chat(false)).await;
    let call = node.call().await;
    let text = body.clone();
    let sending = tokio::spawn(async move { call.json(&text).await });
    let reply = client.reply().await;
    soon("the node's sending", sending).await.unwrap();
    assert_eq!(reply.head.get("content-length"), Some(body.len().to_string().as_str()));
    assert!(reply.text() == body && reply.ended == Ended::Clean);
    rig.idle().await;
}

#[tokio::test]
async fn https_serves_the_same() {
    let (rig, mut node) = Rig::with_node(1).await;
    let tls = umbel_wire::tls::api_client(&[rig.ca()]).unwrap();
    let tcp = tokio::net::TcpStream::connect(rig.https).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let socket = tokio_rustls::TlsConnector::from(tls).connect(name, tcp).await.unwrap();
    let mut client = Client::over(socket);
    client.send(chat(true)).await;
    let call = node.call().await;
    call.events();
    call.token("x").await;
    client.head().await;
    client.until("\n\n").await;
    call.send(DONE).await;
    call.complete();
    assert_eq!(client.rest().await, (DONE.into(), Ended::Clean));
}

#[tokio::test]
async fn every_error_has_openais_body() {
    let (rig, _node) = Rig::with_node(1).await;
    let json = |body: &str| post("/v1/chat/completions", "", body);
    for (request, status, code) in [
        (get("/v1/nothing", ""), 404, "unknown_url"),
        (get("/", ""), 404, "unknown_url"),
        (get("/v1/chat/completions", ""), 405, "method_not_allowed"),
        (post("/v1/models", "", ""), 405, "method_not_allowed"),
        (json("not json"), 400, "invalid_json"),
        (json(""), 400, "invalid_json"),
        (json("{}"), 400, "missing_required_parameter"),
        (json(r#"{"model":5}"#), 400, "invalid_type"),
        (json(r#"{"model":"other"}"#), 404, "model_not_found"),
    ] {
        let reply = Client::ask(rig.http, &request).await;
        assert_eq!((reply.head.status, reply.error_code().as_str()), (status, code), "{request}");
        assert_eq!(reply.head.has("allow"), status == 405);
    }
}

#[tokio::test]
async fn http_that_cannot_be_read_is_refused_with_openais_body_and_an_id() {
    let (rig, mut node) = Rig::with_node(1).await;
    let with =
        |header: &str| format!("POST /v1/chat/completions HTTP/1.1\r\nhost: edge\r\n{header}\r\n\r\n{{}}");
    let malformed = [
        with("content-length: 1\r\ncontent-length: 2"),
        with("content-length: 1, 2"),
        with("content-length: -1"),
        with("content-length: 2\r\n folded"),
        with("content-length : 2"),
        with("x: a\0b"),
        with("transfer-encoding: identity"),
        with("transfer-encoding: gzip, chunked"),
        with("host: other\r\ncontent-length: 2"),
        with("authorization: Bearer a\r\nauthorization: Bearer b\r\ncontent-length: 2"),
        "POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}".to_owned(),
        "nonsense\r\n\r\n".to_owned(),
        "GET /v1/models HTTP/9.9\r\n\r\n".to_owned(),
    ];
    let too_large = [
        with(&format!("x: {}", "y".repeat(20_000))),
        with(&"x: y\r\n".repeat(101)),
        format!("GET /{}", "y".repeat(20_000)),
    ];
    for (requests, status, code) in
        [(&malformed[..], 400, "malformed_request"), (&too_large[..], 431, "headers_too_large")]
    {
        for request in requests {
            // As a connection's first, after another request, and in one piece with another.
            let mut first = Client::connect(rig.http).await;
            first.send(request).await;
            let mut second = Client::connect(rig.http).await;
            second.send(get("/livez", "")).await;
            assert_eq!(second.reply().await.text(), "ok");
            second.send(request).await;
            let mut together = Client::connect(rig.http).await;
            together.send(format!("{}{request}", get("/livez", ""))).await;
            assert_eq!(together.reply().await.text(), "ok");
            for mut client in [first, second, together] {
                let reply = client.reply().await;
                assert_eq!((reply.head.status, reply.error_code().as_str()), (status, code), "{request:?}");
                assert_eq!(reply.head.get("x-umbel-reason"), Some(code));
                assert_eq!((reply.head.get("connection"), reply.ended), (Some("close"), Ended::Clean));
                assert!(client.part().await.is_err(), "the connection is over");
            }
        }
    }
    let metrics = Client::ask(rig.metrics_http, get("/metrics", "")).await;
    let counted = r#"reason="malformed_request"} 39"#;
    assert!(metrics.text().contains(counted), "{}", metrics.text());
    // HTTP/2 is no different; its clients say that the server does not speak it.
    let reply = Client::ask(rig.http, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert_eq!((reply.head.status, reply.head.get("connection")), (400, Some("close")));
    assert!(node.is_untouched());
}
