//! Requests and events.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use umbel_wire::{CloseReason, Code, Error};

use crate::rig::{LIMIT, Recorder, echo, link, nobody, until, within};

#[tokio::test]
async fn requests_go_both_ways() {
    let link = link(Recorder::requests(echo), Recorder::requests(echo)).await;
    for connection in [&link.dialer, &link.acceptor] {
        for size in [0, 1, 1_000, 60 * 1024] {
            let payload = vec![7; size];
            let answer = within("an answer", connection.request(1, payload.clone(), LIMIT)).await.unwrap();
            assert_eq!(answer, payload);
        }
        assert_eq!(connection.stats().requests_out, 0);
    }
    assert_eq!(link.dialer.generation(), link.acceptor.generation());
    assert_eq!((link.dialer.protocol(), link.acceptor.protocol()), (1, 1));
}

#[tokio::test]
async fn an_unknown_method_is_unimplemented() {
    let link = link(nobody(), nobody()).await;
    let error = link.dialer.request(77, Bytes::new(), LIMIT).await.unwrap_err();
    assert_eq!((error.code, &*error.reason), (Code::Unimplemented, "UNKNOWN_METHOD"));
}

#[tokio::test]
async fn a_dropped_handler_answers_internal() {
    let link = link(nobody(), Arc::new(Recorder::default())).await;
    let error = link.dialer.request(1, Bytes::new(), LIMIT).await.unwrap_err();
    assert_eq!(error.code, Code::Internal);
}

/// Fault row 38: the sender refuses before any byte is written, and the session lives on.
#[tokio::test]
async fn too_large_is_refused_at_home() {
    let too_much = |request: umbel_wire::IncomingRequest| request.respond(Ok(vec![0; 61 * 1024]));
    let link = link(Recorder::requests(too_much), Recorder::requests(echo)).await;
    let frames = link.dialer.stats().frames_out;
    let error = link.dialer.request(1, vec![0; 61 * 1024], LIMIT).await.unwrap_err();
    assert_eq!(error.code, Code::TooLarge);
    assert_eq!(link.dialer.stats().frames_out, frames);
    let error = link.acceptor.request(1, Bytes::new(), LIMIT).await.unwrap_err();
    assert_eq!(&*error.reason, "ANSWER_TOO_LARGE");
    assert!(link.dialer.request(1, Bytes::from_static(b"x"), LIMIT).await.is_ok());
}

#[tokio::test]
async fn at_most_256_wait() {
    let held = Arc::new(std::sync::Mutex::new(Vec::new()));
    let keep = held.clone();
    let link = link(nobody(), Recorder::requests(move |request| keep.lock().unwrap().push(request))).await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..256 {
        let connection = link.dialer.clone();
        calls.spawn(async move { connection.request(1, Bytes::new(), LIMIT).await });
    }
    until("all are held", || held.lock().unwrap().len() == 256).await;
    let error = link.dialer.request(1, Bytes::new(), LIMIT).await.unwrap_err();
    assert_eq!(error.code, Code::ResourceExhausted);
    held.lock().unwrap().clear();
    while let Some(answer) = calls.join_next().await {
        assert_eq!(answer.unwrap().unwrap_err().code, Code::Internal);
    }
    assert_eq!((link.dialer.stats().requests_out, link.acceptor.stats().requests_in), (0, 0));
}

#[tokio::test]
async fn a_deadline_ends_both_sides() {
    let cancelled = Arc::new(AtomicUsize::new(0));
    let seen = cancelled.clone();
    let handler = Recorder::requests(move |request| {
        let seen = seen.clone();
        tokio::spawn(async move {
            request.cancelled().await;
            seen.fetch_add(1, Ordering::Relaxed);
        });
    });
    let link = link(nobody(), handler).await;
    let error = link.dialer.request(1, Bytes::new(), Duration::from_millis(30)).await.unwrap_err();
    assert_eq!(error.code, Code::DeadlineExceeded);
    until("the handler hears it", || cancelled.load(Ordering::Relaxed) == 1).await;
    until("gauges at base", || link.dialer.stats().requests_out + link.acceptor.stats().requests_in == 0)
        .await;
    assert_eq!(link.dialer.stats().timers + link.acceptor.stats().timers, 0);
}

#[tokio::test]
async fn dropping_a_call_cancels_it() {
    let cancelled = Arc::new(AtomicUsize::new(0));
    let started = Arc::new(AtomicUsize::new(0));
    let (seen, begun) = (cancelled.clone(), started.clone());
    let handler = Recorder::requests(move |request| {
        let (seen, begun) = (seen.clone(), begun.clone());
        tokio::spawn(async move {
            begun.fetch_add(1, Ordering::Relaxed);
            request.cancelled().await;
            seen.fetch_add(1, Ordering::Relaxed);
        });
    });
    let link = link(nobody(), handler).await;
    let connection = link.dialer.clone();
    let call = tokio::spawn(async move { connection.request(1, Bytes::new(), LIMIT).await });
    until("it runs", || started.load(Ordering::Relaxed) == 1).await;
    call.abort();
    until("it is cancelled", || cancelled.load(Ordering::Relaxed) == 1).await;
    until("gauges at base", || link.dialer.stats().requests_out + link.acceptor.stats().requests_in == 0)
        .await;
}

/// Fault row 46, requests: ten thousand cancelled ones cost nothing lasting.
#[tokio::test]
async fn ten_thousand_cancelled_requests() {
    let handler = Recorder::requests(|request| {
        if request.method == 2 {
            return echo(request);
        }
        tokio::spawn(async move { request.cancelled().await });
    });
    let link = link(nobody(), handler).await;
    for _ in 0..100 {
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let connection = link.dialer.clone();
            calls.spawn(async move {
                tokio::select! {
                    _ = connection.request(1, Bytes::new(), LIMIT) => panic!("never answered"),
                    () = tokio::task::yield_now() => {}
                }
            });
        }
        while calls.join_next().await.is_some() {}
        until("none is left", || link.dialer.stats().requests_out == 0).await;
    }
    assert_eq!(link.dialer.request(2, Bytes::from_static(b"ok"), LIMIT).await.unwrap(), "ok");
    until("gauges at base", || link.acceptor.stats().requests_in == 0).await;
    assert_eq!(link.dialer.stats().timers + link.acceptor.stats().timers, 0);
}

#[tokio::test]
async fn a_lost_connection_fails_calls_at_once() {
    let handler = Recorder::requests(|request| {
        tokio::spawn(async move { request.cancelled().await });
    });
    let link = link(nobody(), handler).await;
    let connection = link.dialer.clone();
    let call = tokio::spawn(async move { connection.request(1, Bytes::new(), LIMIT).await });
    until("it is there", || link.acceptor.stats().requests_in == 1).await;
    link.acceptor.close(CloseReason::Revoked);
    let error = within("the failure", call).await.unwrap().unwrap_err();
    assert_eq!((error.code, &*error.reason), (Code::Unavailable, "OUTCOME_UNKNOWN"));
    let error = link.dialer.request(1, Bytes::new(), LIMIT).await.unwrap_err();
    assert_eq!((error.code, &*error.reason), (Code::Unavailable, "CONNECTION_LOST"));
}

#[tokio::test]
async fn events_are_acknowledged() {
    let (sender, receiver) = (Arc::new(Recorder::default()), Arc::new(Recorder::default()));
    let link = link(sender.clone(), receiver.clone()).await;
    link.dialer.event(1, "a", Bytes::from_static(b"old"));
    link.dialer.event(1, "a", Bytes::from_static(b"new"));
    link.dialer.event(99, "b", Bytes::new());
    until("both acks", || sender.acks.lock().unwrap().len() == 2).await;
    let events = receiver.events.lock().unwrap().clone();
    assert_eq!(events, [(1, "a".to_owned(), b"new".to_vec()), (99, "b".to_owned(), Vec::new())]);
    let acks = sender.acks.lock().unwrap().clone();
    assert_eq!(acks[0], (1, "a".to_owned(), Ok(())));
    assert_eq!(acks[1].2.as_ref().map_err(|error: &Error| &*error.reason), Err("REPLAY"));
    assert_eq!(link.acceptor.stats().event_gaps, 0);
}
