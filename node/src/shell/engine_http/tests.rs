//! Answers cut anywhere, and bytes that are no answer.

use super::*;

/// Feeds `input` in parts of the given sizes; head and body, or why not.
fn read(input: &[u8], sizes: &[usize]) -> Result<(Option<Head>, Vec<u8>, Answer), Bad> {
    let mut answer = Answer::new();
    let (mut head, mut body, mut at) = (None, Vec::new(), 0);
    let mut sizes = sizes.iter().copied().map(|size| size.max(1)).chain(std::iter::repeat(usize::MAX / 2));
    while at < input.len() {
        let until = (at + sizes.next().unwrap_or(1)).min(input.len());
        let mut part = input[at..until].to_vec();
        at = until;
        if head.is_none() {
            let Some((found, behind)) = answer.head(&part)? else { continue };
            head = Some(found);
            part.drain(..behind);
        }
        let count = answer.body(&mut part);
        body.extend_from_slice(&part[..count]);
        answer.check()?;
    }
    Ok((head, body, answer))
}

const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Type: text/event-stream\r\nSet-Cookie: a=b\r\n\
    Transfer-Encoding: chunked\r\n\r\n6\r\ndata: \r\n1;x=y\r\n1\r\n0B \r\n\xe4\xb8\xad\xf0\x9f\x98\x80\n\n!!\r\n0\r\nX: y\r\n\r\n";
const SIZED: &[u8] = b"HTTP/1.1 429 Too Many\r\nContent-Length: 5\r\nRetry-After: 7\r\n\r\nhello";

#[test]
fn a_chunked_answer() {
    let (head, body, answer) = read(CHUNKED, &[]).unwrap();
    let head = head.unwrap();
    assert_eq!(head.status, 200);
    assert_eq!(head.headers, [("content-type", b"text/event-stream".to_vec())]);
    assert_eq!(body, b"data: 1\xe4\xb8\xad\xf0\x9f\x98\x80\n\n!!");
    assert!(answer.is_reusable());
}

/// Row 50: one byte a segment changes nothing.
#[test]
fn row_50_one_byte_at_a_time() {
    for input in [CHUNKED, SIZED] {
        let whole = read(input, &[]).unwrap();
        let single = read(input, &vec![1; input.len()]).unwrap();
        assert_eq!((whole.0, whole.1), (single.0, single.1));
        assert!(single.2.is_reusable());
    }
}

/// Row 52: an answer that was cut is never complete.
#[test]
fn row_52_every_cut_is_short() {
    for input in [CHUNKED, SIZED] {
        for cut in 0..input.len() {
            let (_, _, mut answer) = read(&input[..cut], &[]).unwrap();
            assert!(!answer.is_complete(), "complete after {cut} bytes");
            assert_eq!(answer.end(), Err(Bad::Short));
        }
    }
}

#[test]
fn an_answer_without_length_ends_with_the_connection() {
    let (_, body, mut answer) = read(b"HTTP/1.0 200 OK\r\n\r\nabc", &[20]).unwrap();
    assert_eq!(body, b"abc");
    assert!(!answer.is_complete());
    assert_eq!(answer.end(), Ok(()));
    assert!(answer.is_complete() && !answer.is_reusable());
}

#[test]
fn interim_answers_are_skipped() {
    let (head, body, answer) = read(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\n\r\n", &[3]).unwrap();
    assert_eq!(head.unwrap().status, 204);
    assert!(body.is_empty() && answer.is_reusable());
    assert!(read(b"HTTP/1.1 101 Switching\r\n\r\n", &[]).is_err());
    let hints = "HTTP/1.1 103 Early Hints\r\n\r\n";
    let some = format!("{}HTTP/1.1 204 No\r\n\r\n", hints.repeat(100));
    assert_eq!(read(some.as_bytes(), &[7; 1_000]).unwrap().0.unwrap().status, 204);
    let endless = hints.repeat(1_000);
    assert_eq!(
        read(endless.as_bytes(), &[7; 10_000]).unwrap_err(),
        Bad::HeadTooLarge,
        "they are bounded too"
    );
}

#[test]
fn what_cannot_be_trusted_is_not_kept() {
    let kept = |head: &str| read(head.as_bytes(), &[]).unwrap().2.is_reusable();
    assert!(kept("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"));
    assert!(!kept("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: x, Close\r\n\r\n"));
    assert!(!kept("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"));
    assert!(!kept("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nX"));
    assert!(!kept("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"));
}

/// A length that does not count does not go on: a client would cut the answer there and take it for whole.
#[test]
fn only_the_length_that_counts_is_told() {
    let told = |head: &str| {
        let headers = read(head.as_bytes(), &[]).unwrap().0.unwrap().headers;
        let mut lengths = headers.into_iter().filter(|(name, _)| *name == "content-length");
        let first = lengths.next().map(|(_, value)| String::from_utf8(value).unwrap());
        assert!(lengths.next().is_none());
        first
    };
    assert_eq!(told("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc").as_deref(), Some("3"));
    assert_eq!(
        told("HTTP/1.1 200 OK\r\nContent-Length: 03, 3\r\nContent-Length: 3\r\n\r\n").as_deref(),
        Some("3")
    );
    assert_eq!(told("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"), None);
    assert_eq!(told("HTTP/1.1 204 No\r\nContent-Length: 3\r\n\r\n"), None);
    assert_eq!(told("HTTP/1.0 200 OK\r\n\r\n"), None);
}

#[test]
fn nonsense_is_refused() {
    for head in [
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0x10\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    ] {
        assert_eq!(read(head.as_bytes(), &[]).unwrap_err(), Bad::NotHttp, "{head}");
    }
    let long = format!("HTTP/1.1 200 OK\r\nX: {}", "y".repeat(20_000));
    assert_eq!(read(long.as_bytes(), &[100; 300]).unwrap_err(), Bad::HeadTooLarge);
    for chunks in ["g\r\n", "\r\n", "1\r\nab", "1\r\na\r\n-1\r\n", "1\n", "fffffffffffffffff\r\n", "0\r\n\n"]
    {
        let input = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
        assert_eq!(read(input.as_bytes(), &[]).unwrap_err(), Bad::Chunk, "{chunks}");
    }
}

/// Fast streams of an engine are read together, slow again at once when they are, and end as they ended.
#[tokio::test]
async fn fast_streams_are_read_by_the_clock() {
    use tokio::io::AsyncWriteExt;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let pool = Pool::new(Place::Local(listener.local_addr().unwrap()));
    let (mut links, mut engines) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        links.push(pool.connect().await.unwrap());
        let (engine, _) = listener.accept().await.unwrap();
        engine.set_nodelay(true).unwrap();
        engines.push(engine);
    }
    // One alone is not worth a tick.
    links[0].hurry();
    engines[0].write_all(b"one").await.unwrap();
    assert_eq!(links[0].read().await.unwrap().bytes(), b"one");
    assert!(!links[0].is_timed());
    links.iter_mut().for_each(Link::hurry);
    for (link, engine) in links.iter_mut().zip(&mut engines) {
        link.hurry();
        engine.write_all(b"a").await.unwrap();
        engine.write_all(b"b").await.unwrap();
        assert_eq!(link.read().await.unwrap().bytes(), b"ab");
        assert!(link.is_timed());
    }
    // More than a read takes at once: all of it comes, in order.
    let large: Vec<u8> = (0..100_000u32).map(|at| at as u8).collect();
    engines[1].write_all(&large).await.unwrap();
    let mut got = Vec::new();
    while got.len() < large.len() {
        got.extend_from_slice(links[1].read().await.unwrap().bytes());
    }
    assert_eq!(got, large);
    // Nothing at a tick: the runtime watches it again.
    let (link, engine) = (&mut links[2], &mut engines[2]);
    let (read, ()) = tokio::join!(link.read(), async {
        while pool.ticks.is_running() {
            tokio::task::yield_now().await;
        }
        engine.write_all(b"later").await.unwrap();
    });
    assert_eq!(read.unwrap().bytes(), b"later");
    assert!(!links[2].is_timed());
    engines.truncate(4);
    assert!(links[4].read().await.unwrap().is_empty(), "the engine closed it");
    assert!(links[3].is_timed());
    links.truncate(4);
    pool.lock().trusted = true;
    pool.keep(links.pop().unwrap());
    let mut link = pool.kept(false).unwrap();
    assert!(link.is_reused());
    link.write(b"again").await.unwrap();
    engines[3].write_all(b"yes").await.unwrap();
    assert_eq!(link.read().await.unwrap().bytes(), b"yes");
    assert!(pool.kept(false).is_none());
}

/// Five minutes of requests with pauses around the five seconds after which the engine closes an unused connection, on a
/// clock that goes ahead while nobody has anything to do.
#[tokio::test]
async fn behaviour_24_an_engine_that_closes_unused_connections_breaks_no_request() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let pool = Pool::new(Place::Local(listener.local_addr().unwrap()));
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut request = [0; 64];
                let unused = Duration::from_secs(5);
                while let Ok(Ok(1..)) = tokio::time::timeout(unused, stream.read(&mut request)).await {
                    stream.write_all(ANSWER).await.unwrap();
                }
            });
        }
    });
    tokio::time::pause();
    let (began, mut kept) = (Instant::now(), 0);
    for pause in [5_000, 10, 3_990, 4_000, 4_990, 5_010, 0, 1_000].iter().cycle() {
        let mut link = match pool.kept(true) {
            Some(link) => link,
            None => pool.connect().await.unwrap(),
        };
        kept += usize::from(link.is_reused());
        link.write(b"ask").await.unwrap();
        link.may_take(Duration::from_secs(600), Duration::from_secs(300));
        assert_eq!(link.read().await.unwrap().bytes(), ANSWER);
        pool.keep(link);
        tokio::time::sleep(Duration::from_millis(*pause)).await;
        if began.elapsed() >= Duration::from_secs(300) {
            break;
        }
    }
    assert!(kept > 5, "{kept}: connections are kept");
}

/// Connections of an engine are used again at once when one of them was open after a rest, and not any more when one was
/// closed right behind an answer.
#[tokio::test]
async fn a_connection_is_used_again_at_once_only_where_engines_keep_them() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let pool = Pool::new(Place::Local(listener.local_addr().unwrap()));
    let link = pool.connect().await.unwrap();
    let (engine, _) = listener.accept().await.unwrap();
    pool.keep(link);
    let kept = pool.lock().unused[0].2;
    assert!(pool.lock().take(kept).is_none(), "nothing is known of it");
    let (stream, patience, _) = pool.lock().take(kept + RESTED).unwrap();
    // As one that rested.
    pool.lock().unused.push((stream, patience, kept - RESTED));
    let link = pool.kept(false).unwrap();
    assert!(pool.lock().trusted);
    pool.keep(link);
    let link = pool.kept(false).unwrap();
    pool.keep(link);
    drop(engine);
    while let Some(link) = pool.kept(false) {
        pool.keep(link);
    }
    assert!(!pool.lock().trusted);
    // The same for whoever believes the runtime, which hears of it in its next turn.
    let link = pool.connect().await.unwrap();
    let (engine, _) = listener.accept().await.unwrap();
    pool.lock().trusted = true;
    pool.keep(link);
    drop(engine);
    while let Some(link) = pool.kept(true) {
        pool.keep(link);
        tokio::task::yield_now().await;
    }
    assert!(!pool.lock().trusted);
}

/// What a kept connection says of a request that broke it: only an end that came before it proves that it was not read.
#[tokio::test]
async fn a_request_that_came_behind_the_connections_end_is_told_from_one_that_was_read() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let pool = Pool::new(Place::Local(listener.local_addr().unwrap()));
    for how in ["ended before", "read it and ended", "read it and broke off"] {
        let mut link = pool.connect().await.unwrap();
        let (mut engine, _) = listener.accept().await.unwrap();
        if how == "ended before" {
            drop(engine);
            link.answers().await;
            link.write(b"ask").await.unwrap();
        } else {
            link.write(b"ask").await.unwrap();
            tokio::io::AsyncReadExt::read_exact(&mut engine, &mut [0; 3]).await.unwrap();
            if how == "read it and broke off" {
                engine.set_zero_linger().unwrap();
            }
            drop(engine);
        }
        let read = link.read().await;
        match how {
            "read it and broke off" => assert!(read.is_err(), "{how}"),
            _ => assert!(read.unwrap().is_empty(), "{how}"),
        }
        assert_eq!(link.had_ended().await, how == "ended before", "{how}");
    }
}

quickcheck::quickcheck! {
    /// Any chunks in any cut come out as they went in.
    fn chunks_survive_any_cut(chunks: Vec<Vec<u8>>, sizes: Vec<usize>) -> bool {
        let mut input = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        let mut sent = Vec::new();
        for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
            input.extend_from_slice(format!("{:X}\r\n", chunk.len()).as_bytes());
            input.extend_from_slice(chunk);
            input.extend_from_slice(b"\r\n");
            sent.extend_from_slice(chunk);
        }
        input.extend_from_slice(b"0\r\n\r\n");
        let sizes: Vec<usize> = sizes.iter().map(|size| size % 23).collect();
        let (_, body, answer) = read(&input, &sizes).unwrap();
        body == sent && answer.is_reusable()
    }

    /// Arbitrary bytes never panic and never grow the reader.
    fn arbitrary_bytes(head: bool, input: Vec<u8>, sizes: Vec<usize>) -> bool {
        let mut bytes = if head { b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec() } else { Vec::new() };
        bytes.extend_from_slice(&input);
        let sizes: Vec<usize> = sizes.iter().map(|size| size % 7).collect();
        match read(&bytes, &sizes) {
            Ok((_, body, _)) => body.len() <= input.len(),
            Err(_) => true,
        }
    }

    /// Bytes changed in a good answer never panic.
    fn flipped_bytes(at: usize, byte: u8, sizes: Vec<usize>) -> bool {
        let mut bytes = CHUNKED.to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        let sizes: Vec<usize> = sizes.iter().map(|size| size % 7).collect();
        read(&bytes, &sizes).map_or(true, |(_, body, _)| body.len() < CHUNKED.len())
    }
}
