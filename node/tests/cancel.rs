//! A client that leaves, in every phase: the engine's request is gone at once, and nothing else is touched.

use std::time::{Duration, Instant};

use umbel_contracts::proto::node::InferenceOutcome as Outcome;

use crate::{edge::Ask, relay::Bench, until};

/// The rows' own bound.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Row 57: in the middle of the stream; another stream goes on.
#[tokio::test]
async fn row_57_cancelled_in_mid_stream() {
    let mut bench = Bench::start().await;
    let mut other = bench.ask("{}").await;
    let mut stays = bench.engine.request().await;
    stays.start_events().await;
    other.head().await;
    let mut stream = bench.ask("{}").await;
    let mut exchange = bench.engine.request().await;
    exchange.start_events().await;
    for _ in 0..3 {
        exchange.chunk(b"data: x\n\n").await;
    }
    stream.head().await;
    stream.take(27).await;
    let asked = Instant::now();
    stream.reset();
    exchange.left().await;
    let end = stream.ended().await;
    assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());
    assert_eq!(end.outcome, Outcome::Cancelled);
    stays.chunk(b"data: y\n\n").await;
    stays.end_chunks().await;
    let (bytes, end) = other.rest().await;
    assert_eq!((bytes.as_slice(), end.outcome), (b"data: y\n\n".as_slice(), Outcome::Complete));
    until("no stream", async || (bench.folder.status().await["streams_in_flight"] == 0).then_some(())).await;
}

/// Row 58: before the first byte, while the engine is silent.
#[tokio::test]
async fn row_58_cancelled_before_the_first_byte() {
    let mut bench = Bench::start().await;
    let mut stream = bench.ask("{}").await;
    let mut exchange = bench.engine.request().await;
    let asked = Instant::now();
    stream.reset();
    exchange.left().await;
    assert_eq!(stream.ended().await.outcome, Outcome::Cancelled);
    assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());
}

/// Rows 57 and 58: while the head is half here, while the body is on its way, while nobody takes the answer, and by
/// dropping the stream.
#[tokio::test]
async fn rows_57_58_in_every_other_phase() {
    let mut bench = Bench::start().await;
    let mut stream = bench.ask("{}").await;
    let mut exchange = bench.engine.request().await;
    exchange.write(b"HTTP/1.1 200 OK\r\nContent-").await;
    stream.reset();
    exchange.left().await;
    assert_eq!(stream.ended().await.outcome, Outcome::Cancelled);

    // The engine does not read: the body stands in the way.
    let mut stream = bench.edge.open(Ask::new("ext", vec![b'a'; 16 * 1024 * 1024])).await;
    let exchange = bench.engine.request().await;
    stream.reset();
    assert_eq!(stream.ended().await.outcome, Outcome::Cancelled);
    drop(exchange);

    // The answer waits for credit.
    let mut stream = bench.ask("{}").await;
    let mut exchange = bench.engine.request().await;
    exchange.start_events().await;
    let block = vec![b'x'; 16 * 1024];
    let stalled = async {
        loop {
            exchange.chunk(&block).await;
        }
    };
    // It is read no further than its windows; then it stands still.
    let _ = tokio::time::timeout(Duration::from_millis(300), stalled).await;
    stream.reset();
    exchange.left().await;
    assert_eq!(stream.ended().await.outcome, Outcome::Cancelled);

    let stream = bench.ask("{}").await;
    let mut exchange = bench.engine.request().await;
    drop(stream);
    exchange.left().await;
}

/// A reader that takes nothing holds only its own stream up, and the engine's bytes stay at the engine.
#[tokio::test]
async fn a_slow_reader_holds_up_nobody() {
    let mut bench = Bench::start().await;
    let mut slow = bench.ask("{}").await;
    let mut exchange = bench.engine.request().await;
    exchange.start_events().await;
    slow.head().await;
    let sent = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = std::sync::Arc::clone(&sent);
    let writer = tokio::spawn(async move {
        let block = vec![b'x'; 64 * 1024];
        for _ in 0..512 {
            exchange.chunk(&block).await;
            count.fetch_add(block.len(), std::sync::atomic::Ordering::SeqCst);
        }
        exchange.end_chunks().await;
    });
    // Another stream is served meanwhile.
    for _ in 0..20 {
        let stream = bench.ask("{}").await;
        let mut exchange = bench.engine.request().await;
        exchange.whole("200 OK", "Connection: close\r\n", b"{}").await;
        assert_eq!(stream.whole().await.2.outcome, Outcome::Complete);
    }
    // The kernel's buffers took a few MiB; the node took none of the rest.
    assert!(sent.load(std::sync::atomic::Ordering::SeqCst) < 16 * 1024 * 1024);
    let (bytes, end) = slow.rest().await;
    assert_eq!((bytes.len(), end.outcome), (512 * 64 * 1024, Outcome::Complete));
    writer.await.unwrap();
}

/// Row 61: many streams that end in every way at once leave no slot taken, at the node as at the edge.
#[tokio::test]
async fn row_61_no_slot_is_left_taken() {
    let Bench { edge, mut engine, folder, agent: _agent } = Bench::start().await;
    let mut streams = Vec::new();
    for turn in 0..200 {
        streams.push((turn, edge.open(Ask::new("ext", "{}")).await));
    }
    // Requests come in any order; each is answered in its own way, or its connection just ends.
    let answering = tokio::spawn(async move {
        for turn in 0.. {
            let mut exchange = engine.request().await;
            match turn % 5 {
                0 => exchange.whole("200 OK", "", b"{}").await,
                1 => exchange.whole("500 Oops", "Connection: close\r\n", b"{}").await,
                2 => exchange.reset(),
                3 => {
                    exchange.start_events().await;
                    exchange.chunk(b"data: x\n\n").await;
                }
                _ => drop(exchange),
            }
        }
    });
    let mut ends = Vec::new();
    for (turn, mut stream) in streams {
        if turn % 3 == 0 {
            stream.reset();
        }
        if turn % 3 != 1 {
            ends.push(tokio::spawn(async move { stream.ended().await }));
        }
    }
    for end in ends {
        end.await.unwrap();
    }
    let connection = edge.connection().await;
    until("every slot to be free", async || {
        let status = folder.status().await;
        let free = status["streams_in_flight"] == 0 && status["engines"][0]["in_flight"] == 0;
        (free && connection.stats().streams_out == 0).then_some(())
    })
    .await;
    answering.abort();
}
