//! Bytes through the node: unchanged, whole or visibly broken, with the right end.

use umbel_contracts::proto::node::{EngineState, Header, InferenceHead, InferenceOutcome as Outcome};
use umbel_wire::Code;

use crate::{
    agent::{Agent, Folder},
    edge::{Ask, Edge, Stream},
    engine::Engine,
    until,
};

/// A node with one engine that the test plays.
/// Fields end in this order.
pub(crate) struct Bench {
    pub(crate) agent: Agent,
    pub(crate) edge: Edge,
    pub(crate) engine: Engine,
    pub(crate) folder: Folder,
}

impl Bench {
    pub(crate) async fn start() -> Self {
        let edge = Edge::start().await;
        let engine = Engine::start().await;
        let folder = Folder::new(&engine.lines());
        folder.enroll(edge.token()).await.unwrap();
        let agent = folder.start();
        edge.engine("ext", EngineState::Ready).await;
        edge.connection().await;
        Self { edge, engine, folder, agent }
    }

    pub(crate) async fn ask(&self, body: &'static str) -> Stream {
        self.edge.open(Ask::new("ext", body)).await
    }
}

/// A connection that was used is open for a while: then it is used again.
async fn rest() {
    tokio::time::sleep(std::time::Duration::from_millis(150)).await;
}

fn header<'a>(head: &'a InferenceHead, name: &str) -> Option<&'a [u8]> {
    head.headers.iter().find(|header| header.name == name).map(|header| header.value.as_slice())
}

const TEXT: &str = "data: {\"text\":\"\u{4e2d}\u{6587} \u{1f600}\u{1f468}\u{200d}\u{1f469} \u{e9}\"}\n\n";

/// Row 50: many-byte characters cut anywhere, streamed and not: the bytes are the engine's.
#[tokio::test]
async fn row_50_bytes_are_the_engines() {
    let mut bench = Bench::start().await;
    let stream = bench.ask("{}").await;
    let mut exchange = bench.engine.request().await;
    exchange.stream.set_nodelay(true).unwrap();
    exchange.start_events().await;
    for byte in TEXT.as_bytes() {
        exchange.chunk(&[*byte]).await;
    }
    exchange.end_chunks().await;
    let (head, bytes, end) = stream.whole().await;
    assert_eq!(head.status, 200);
    assert_eq!(String::from_utf8(bytes).unwrap(), TEXT);
    assert_eq!((end.outcome, end.error), (Outcome::Complete, None));
    bench.engine.keep(exchange).await;

    let stream = bench.ask("{}").await;
    let mut exchange = bench.engine.request().await;
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{TEXT}",
        TEXT.len()
    );
    for byte in answer.as_bytes() {
        exchange.write(&[*byte]).await;
    }
    let (head, bytes, end) = stream.whole().await;
    assert_eq!(header(&head, "content-type"), Some(b"application/json".as_slice()));
    assert_eq!(String::from_utf8(bytes).unwrap(), TEXT);
    assert_eq!(end.outcome, Outcome::Complete);
}

/// Row 51, the node's side: whatever the last event ends with passes as it is, and usage is found.
#[tokio::test]
async fn row_51_the_last_bytes_pass_and_are_counted() {
    let mut bench = Bench::start().await;
    let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}";
    for tail in ["", "\n", "\r\n\r\n", "\n\ndata: [DONE]\n\n"] {
        let stream = bench.ask("{}").await;
        let mut exchange = bench.engine.request().await;
        exchange.start_events().await;
        exchange.chunk(TEXT.as_bytes()).await;
        exchange.chunk(format!("{usage}{tail}").as_bytes()).await;
        exchange.end_chunks().await;
        let (_, bytes, end) = stream.whole().await;
        assert_eq!(String::from_utf8(bytes).unwrap(), format!("{TEXT}{usage}{tail}"));
        assert_eq!((end.told.prompt_tokens, end.told.completion_tokens), (Some(7), Some(3)));
        bench.engine.keep(exchange).await;
    }
}

/// Row 52: an answer that breaks off is never complete, streamed or not.
#[tokio::test]
async fn row_52_a_broken_answer_is_never_complete() {
    let mut bench = Bench::start().await;
    for how in ["reset", "close", "cut chunk", "short body", "bad chunk"] {
        let stream = bench.ask("{}").await;
        let mut exchange = bench.engine.request().await;
        if how == "short body" {
            exchange.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"half\":").await;
        } else {
            exchange.start_events().await;
            for _ in 0..3 {
                exchange.chunk(TEXT.as_bytes()).await;
            }
        }
        match how {
            "cut chunk" => exchange.write(b"20\r\ndata: ").await,
            "bad chunk" => exchange.write(b"xyz\r\n").await,
            _ => {}
        }
        let mut stream = stream;
        stream.head().await;
        // What came before the break has arrived when the break comes.
        stream.take(if how == "short body" { 8 } else { 3 * TEXT.len() }).await;
        let keep = if how == "reset" {
            exchange.reset();
            None
        } else {
            Some(exchange)
        };
        if how != "bad chunk" {
            drop(keep);
        }
        let (_, end) = stream.rest().await;
        let wanted = if how == "bad chunk" { Outcome::BadAnswer } else { Outcome::EngineBroke };
        assert_eq!(end.outcome, wanted, "{how}");
        assert_eq!(end.error.as_ref().map(|error| error.code), Some(Code::BadGateway), "{how}");
        assert!(!end.not_processed);
    }
}

/// Row 52: the link is cut: the engine's request is gone, and the next connection carries streams.
#[tokio::test]
async fn row_52_a_lost_link_cancels_at_the_engine() {
    let mut bench = Bench::start().await;
    let mut stream = bench.ask("{}").await;
    let mut exchange = bench.engine.request().await;
    exchange.start_events().await;
    exchange.chunk(TEXT.as_bytes()).await;
    stream.head().await;
    let before = bench.edge.connection().await;
    before.close(umbel_wire::CloseReason::Transport("cut".into()));
    exchange.left().await;
    until("a new connection", async || {
        bench.edge.live().filter(|connection| connection.generation() > before.generation())
    })
    .await;
    let stream = bench.ask("{}").await;
    bench.engine.request().await.whole("200 OK", "", b"{}").await;
    assert_eq!(stream.whole().await.2.outcome, Outcome::Complete);
}

/// Row 53: an engine's own errors pass with status and body; no answer at all is an end without a head.
#[tokio::test]
async fn row_53_errors_before_the_first_byte() {
    let mut bench = Bench::start().await;
    for (status, code) in [("400 Bad Request", 400), ("429 Too Many Requests", 429), ("500 Oops", 500)] {
        let stream = bench.ask("{\"stream\":true}").await;
        let mut exchange = bench.engine.request().await;
        let headers = "Content-Type: application/json\r\nRetry-After: 7\r\nServer: x\r\nSet-Cookie: a=b\r\n";
        exchange.whole(status, headers, br#"{"error":{"message":"no"}}"#).await;
        let (head, bytes, end) = stream.whole().await;
        assert_eq!((head.status, end.outcome), (code, Outcome::Complete));
        assert_eq!(header(&head, "retry-after"), Some(b"7".as_slice()));
        assert_eq!(bytes, br#"{"error":{"message":"no"}}"#);
        // Row 35: the engine's cookies and name stay here.
        assert_eq!((header(&head, "set-cookie"), header(&head, "server")), (None, None));
        bench.engine.keep(exchange).await;
    }
    let mut stream = bench.ask("{}").await;
    drop(bench.engine.request().await);
    let end = stream.ended().await;
    assert_eq!(end.outcome, Outcome::EngineBroke);
    assert!(!end.not_processed, "it may have worked on it");
    let mut stream = bench.ask("{}").await;
    bench.engine.request().await.write(b"220 smtp ready\r\n").await;
    assert_eq!(stream.ended().await.outcome, Outcome::BadAnswer);
    let mut stream = bench.ask("{}").await;
    let mut exchange = bench.engine.request().await;
    exchange.write(format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(20_000)).as_bytes()).await;
    assert_eq!(stream.ended().await.outcome, Outcome::BadAnswer);
}

/// Row 54: each token arrives before the engine makes the next.
#[tokio::test]
async fn row_54_nothing_waits_for_more() {
    let mut bench = Bench::start().await;
    let mut stream = bench.ask("{}").await;
    let mut exchange = bench.engine.request().await;
    exchange.start_events().await;
    stream.head().await;
    for token in 0..20 {
        let event = format!("data: {token}\n\n");
        exchange.chunk(event.as_bytes()).await;
        assert_eq!(stream.take(event.len()).await, event.as_bytes());
    }
}

/// Row 55 from the other side: limits of the opening end a silent engine's stream as timed out.
#[tokio::test]
async fn row_55_limits_are_those_of_the_opening() {
    let mut bench = Bench::start().await;
    let ask = Ask { first_byte_timeout_ms: 50, ..Ask::new("ext", "{}") };
    let mut stream = bench.edge.open(ask).await;
    let mut silent = bench.engine.request().await;
    assert_eq!(stream.ended().await.outcome, Outcome::TimedOut);
    silent.left().await;
    // It does not even take the request.
    let ask = Ask { first_byte_timeout_ms: 50, ..Ask::new("ext", vec![b'a'; 16 * 1024 * 1024]) };
    let mut stream = bench.edge.open(ask).await;
    let deaf = bench.engine.request().await;
    assert_eq!(stream.ended().await.outcome, Outcome::TimedOut);
    drop(deaf);
    let ask = Ask { first_byte_timeout_ms: 50_000, idle_timeout_ms: 50, ..Ask::new("ext", "{}") };
    let mut stream = bench.edge.open(ask).await;
    let mut silent = bench.engine.request().await;
    silent.start_events().await;
    stream.head().await;
    let (_, end) = stream.rest().await;
    assert_eq!((end.outcome, end.error.unwrap().code), (Outcome::TimedOut, Code::DeadlineExceeded));
    silent.left().await;
}

/// Row 35: what a client sent as a credential does not reach the engine.
#[tokio::test]
async fn row_35_credentials_stay_out() {
    let mut bench = Bench::start().await;
    let mut ask = Ask::new("ext", "{}");
    for (name, value) in
        [("authorization", "Bearer client"), ("cookie", "a"), ("x-api-key", "b"), ("te", "trailers")]
    {
        ask.headers.push(Header { name: name.into(), value: value.into() });
    }
    let stream = bench.edge.open(ask).await;
    let mut exchange = bench.engine.request().await;
    let names: Vec<String> = exchange
        .head
        .lines()
        .skip(1)
        .filter_map(|line| Some(line.split_once(':')?.0.to_ascii_lowercase()))
        .collect();
    assert_eq!(names, ["host", "content-type", "x-request-id", "content-length"]);
    assert_eq!(exchange.header("x-request-id"), Some("request-1"));
    exchange.whole("200 OK", "", b"{}").await;
    stream.whole().await;
}

/// Bodies of every size arrive unchanged; an engine that refuses one early is heard.
#[tokio::test]
async fn bodies_of_any_size() {
    let mut bench = Bench::start().await;
    for size in [0, 1, 16 * 1024, 16 * 1024 + 1, 250 * 1024] {
        let body: Vec<u8> = (0..size).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let stream = bench.edge.open(Ask::new("ext", body.clone())).await;
        let mut exchange = bench.engine.request().await;
        assert_eq!(exchange.body.len(), size);
        assert!(exchange.body == body);
        exchange.whole("200 OK", "", &vec![b'z'; size]).await;
        let (_, bytes, end) = stream.whole().await;
        assert_eq!((bytes.len(), end.outcome), (size, Outcome::Complete));
        bench.engine.keep(exchange).await;
    }
    let stream = bench.edge.open(Ask::new("ext", vec![b'a'; 8 * 1024 * 1024])).await;
    let mut exchange = bench.engine.request().await;
    exchange.whole("413 Too Large", "", b"{}").await;
    let (head, _, end) = stream.whole().await;
    assert_eq!((head.status, end.outcome), (413, Outcome::Complete));
    exchange.left().await;
}

/// One connection carries one request after the other; one that the engine closed is not used again.
#[tokio::test]
async fn connections_are_kept_and_dropped() {
    let mut bench = Bench::start().await;
    let mut used = Vec::new();
    for turn in 0..4 {
        let stream = bench.ask("{}").await;
        let mut exchange = bench.engine.request().await;
        used.push(exchange.connection);
        let headers = if turn == 1 { "Connection: close\r\n" } else { "" };
        exchange.whole("200 OK", headers, b"{}").await;
        assert_eq!(stream.whole().await.2.outcome, Outcome::Complete);
        match turn {
            1 => exchange.left().await,
            // The engine closes it while nobody uses it.
            2 => drop(exchange),
            _ => bench.engine.keep(exchange).await,
        }
        rest().await;
    }
    assert_eq!(used[0], used[1]);
    assert!(used[1] != used[2] && used[2] != used[3], "{used:?}");
}

/// Row 69: a kept connection that ends under a request, read or not, and nobody can say which: it is not sent again here.
#[tokio::test]
async fn row_69_a_request_that_may_have_been_read_is_not_sent_again() {
    let mut bench = Bench::start().await;
    for how in ["not read", "read and closed", "read and reset"] {
        // The connection is kept, and rests.
        let stream = bench.ask("{}").await;
        let mut exchange = bench.engine.request().await;
        exchange.whole("200 OK", "", b"{}").await;
        assert_eq!(stream.whole().await.2.outcome, Outcome::Complete);
        rest().await;
        let mut stream = bench.ask("{}").await;
        crate::soon("the request", exchange.stream.readable()).await.unwrap();
        let first = exchange.connection;
        if how == "not read" {
            // With bytes that nobody has read its end is a reset.
            drop(exchange);
        } else {
            bench.engine.keep(exchange).await;
            let again = bench.engine.request().await;
            assert_eq!(again.connection, first, "{how}");
            if how == "read and reset" { again.reset() } else { drop(again) }
        }
        let end = stream.ended().await;
        assert_eq!((end.outcome, end.not_processed), (Outcome::EngineBroke, false), "{how}");
        assert!(bench.engine.is_quiet(), "{how}");
    }
}

/// What the node does not take it refuses before any work.
#[tokio::test]
async fn refusals_come_before_any_work() {
    let mut bench = Bench::start().await;
    let generation = bench.edge.connection().await.generation().0;
    for (ask, code) in [
        (Ask::new("other", "{}"), Code::NotFound),
        (Ask::new("00000000-0000-0000-0000-000000000000/ext", "{}"), Code::NotFound),
        (Ask { generation: Some(generation - 1), ..Ask::new("ext", "{}") }, Code::Conflict),
        (Ask { path: "/slots".into(), ..Ask::new("ext", "{}") }, Code::Unimplemented),
    ] {
        let end = bench.edge.open(ask).await.ended().await;
        assert_eq!(end.error.unwrap().code, code);
        assert!(end.not_processed);
    }
    assert!(bench.engine.is_quiet());
}

/// An engine that nobody can connect to is refused, and told as failed; when it is there it is ready by itself.
#[tokio::test]
async fn an_engine_that_is_away() {
    let edge = Edge::start().await;
    let place = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = place.local_addr().unwrap();
    drop(place);
    let lines = format!(
        "[[engine]]\nname = \"ext\"\nkind = \"external\"\nmodel = \"m\"\nurl = \"http://{address}\"\n"
    );
    let folder = Folder::new(&lines);
    folder.enroll(edge.token()).await.unwrap();
    let _agent = folder.start();
    let report = edge.engine("ext", EngineState::Loading).await;
    assert!(!report.cause.contains("127.0.0.1"), "{}", report.cause);
    let end = edge.open(Ask::new("ext", "{}")).await.ended().await;
    assert!(end.not_processed);
    assert_eq!((end.outcome, end.error.unwrap().code), (Outcome::EngineRefused, Code::Unavailable));
    let report = edge.engine("ext", EngineState::Failed).await;
    assert!(report.cause.contains("connection refused"), "{}", report.cause);
}
