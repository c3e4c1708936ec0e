//! HELLO and its answers: every refusal is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use umbel_wire::tls::{Trust, wire_client};
use umbel_wire::{
    CloseReason, Code, DialStep, DialTarget, Error, Generation, HelloOut, NoHandler, Purpose, Rejection,
    Verdict, VersionRange, WelcomeOut, dial_once, negotiate,
};

use crate::rig::{LIMIT, Recorder, Server, echo, hello, nobody, until, within};

async fn dial(target: DialTarget, hello: HelloOut) -> Result<umbel_wire::Welcome, umbel_wire::DialError> {
    within("dial", dial_once(target, hello, |_, _| Ok(nobody()))).await.map(|(_, welcome)| welcome)
}

#[tokio::test]
async fn a_rejection_is_told_with_everything() {
    let told = Rejection::new(
        Error::new(Code::Conflict, "DUPLICATE_IDENTITY", "another process uses this certificate")
            .with_retry_after(Duration::from_secs(30)),
    );
    let server = Server::rejecting(told.clone()).await;
    // Many times: closing with unread input would send RST and lose the reason now and then.
    for _ in 0..50 {
        let big = HelloOut { payload: vec![1; 50_000], ..hello() };
        let error = dial(server.target(), big).await.unwrap_err();
        assert_eq!((error.step, error.rejection.as_ref()), (DialStep::Hello, Some(&told)));
    }
}

#[tokio::test]
async fn versions_that_do_not_meet() {
    let mine = VersionRange { min: 2, max: 3 };
    let server = Server::start(move |newcomer, _| {
        Box::pin(async move {
            let theirs = newcomer.hello().versions;
            match negotiate(mine, theirs) {
                Ok(protocol) => {
                    newcomer.accept(WelcomeOut { protocol, ..WelcomeOut::default() }, nobody());
                }
                Err(verdict) => newcomer.reject(Rejection::versions(verdict, mine, theirs)),
            }
        })
    })
    .await;
    for (versions, verdict) in [
        (VersionRange { min: 1, max: 1 }, Verdict::TooOld),
        (VersionRange { min: 4, max: 9 }, Verdict::TooNew),
        (VersionRange { min: 0, max: 0 }, Verdict::Unknown),
    ] {
        let error = dial(server.target(), HelloOut { versions, ..hello() }).await.unwrap_err();
        let rejection = error.rejection.unwrap();
        assert_eq!((rejection.verdict, rejection.yours, rejection.mine), (Some(verdict), versions, mine));
        assert_eq!(rejection.error.code, Code::Conflict);
    }
    let welcome = dial(server.target(), HelloOut { versions: VersionRange { min: 1, max: 2 }, ..hello() })
        .await
        .unwrap();
    assert_eq!(welcome.protocol, 2);
}

#[tokio::test]
async fn a_welcome_carries_everything() {
    let server = Server::start(|newcomer, _| {
        Box::pin(async move {
            assert_eq!(
                (newcomer.hello().purpose, &newcomer.hello().payload[..]),
                (Purpose::Hello, &b"hello"[..])
            );
            assert_eq!(newcomer.hello().instance, hello().instance);
            assert!(newcomer.certificate().is_some() && newcomer.address().ip().is_loopback());
            let registered = newcomer.connection();
            let out = WelcomeOut {
                generation: Generation(9),
                payload: vec![3; 60 * 1024],
                reconnect_spread: Duration::from_millis(750),
                max_streams: 3,
                ..WelcomeOut::default()
            };
            let connection = newcomer.accept(out, Recorder::requests(echo));
            assert_eq!((registered.generation(), connection.generation()), (Generation(9), Generation(9)));
        })
    })
    .await;
    let dialed = within("dial", dial_once(server.target(), hello(), |_, _| Ok(nobody()))).await;
    let (connection, welcome) = dialed.unwrap();
    assert_eq!(
        (welcome.generation, welcome.payload.len(), welcome.max_streams),
        (Generation(9), 60 * 1024, 3)
    );
    assert_eq!(connection.reconnect_spread(), Duration::from_millis(750));
    assert_eq!(connection.request(1, "x", LIMIT).await.unwrap(), "x");
}

#[tokio::test]
async fn a_dropped_newcomer_is_rejected() {
    let server = Server::start(|newcomer, _| Box::pin(async move { drop(newcomer) })).await;
    let error = dial(server.target(), hello()).await.unwrap_err();
    assert_eq!(error.rejection.unwrap().error.code, Code::Internal);
}

#[tokio::test]
async fn an_enrollment_is_one_exchange() {
    let closed = Arc::new(AtomicBool::new(false));
    let seen = closed.clone();
    let server = Server::start(move |newcomer, _| {
        let seen = seen.clone();
        Box::pin(async move {
            assert!(newcomer.certificate().is_none());
            let connection = newcomer.connection();
            newcomer.answer(b"certificate".to_vec());
            connection.gone().await;
            seen.store(true, Ordering::Relaxed);
        })
    })
    .await;
    let target = DialTarget { tls: server.pki.stranger(), ..server.target() };
    let hello = HelloOut { purpose: Purpose::Enroll, ..hello() };
    let (connection, welcome) = within("dial", dial_once(target, hello, |_, _| Ok(nobody()))).await.unwrap();
    assert_eq!(welcome.payload, "certificate");
    connection.close(CloseReason::Shutdown);
    within("gone", connection.gone()).await;
    until("closed there", || closed.load(Ordering::Relaxed)).await;
}

/// A first frame above 16 KiB from a key nobody knows: refused before it is read, and told.
#[tokio::test]
async fn an_unknown_key_gets_a_small_frame_only() {
    let server = Server::start(|newcomer, _| Box::pin(async move { newcomer.answer(Vec::new()) })).await;
    let target = || DialTarget { tls: server.pki.stranger(), ..server.target() };
    let error = dial(target(), HelloOut { payload: vec![1; 17_000], ..hello() }).await.unwrap_err();
    assert_eq!(error.rejection.unwrap().error.code, Code::Unauthenticated);
    assert!(dial(target(), HelloOut { payload: vec![1; 15_000], ..hello() }).await.is_ok());
}

#[tokio::test]
async fn a_wrong_ca_or_name_is_no_connection() {
    let server = Server::start(|newcomer, _| Box::pin(async move { newcomer.answer(Vec::new()) })).await;
    let strange = wire_client(Trust::CaDigest([9; 32]), None).unwrap();
    let error = dial(DialTarget { tls: strange, ..server.target() }, hello()).await.unwrap_err();
    assert_eq!(error.step, DialStep::Tls);
    let error = dial(DialTarget { server_name: "site-2.umbel".into(), ..server.target() }, hello())
        .await
        .unwrap_err();
    assert_eq!(error.step, DialStep::Tls);
    let error =
        dial(DialTarget { addresses: vec!["no-such-host.invalid:1".into()], ..server.target() }, hello())
            .await;
    assert_eq!(error.unwrap_err().step, DialStep::Lookup);
    let error = dial(DialTarget { addresses: Vec::new(), ..server.target() }, hello()).await;
    assert_eq!(error.unwrap_err().step, DialStep::Lookup);
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = dial(DialTarget { addresses: vec![closed.to_string()], ..server.target() }, hello()).await;
    assert_eq!(error.unwrap_err().step, DialStep::Connect);
    // A dead address before a live one costs nothing but the attempt.
    let addresses = vec![closed.to_string(), server.address.to_string()];
    assert!(dial(DialTarget { addresses, ..server.target() }, hello()).await.is_ok());
}

#[tokio::test]
async fn a_role_that_refuses_the_welcome() {
    let (server, mut accepted) = Server::accepting(Arc::new(NoHandler)).await;
    let refuse = |_: &umbel_wire::Connection, _: &umbel_wire::Welcome| {
        Err(Error::new(Code::Conflict, "WRONG_SITE", "this is another site"))
    };
    let error = within("dial", dial_once(server.target(), hello(), refuse)).await.err().unwrap();
    assert_eq!(error.step, DialStep::Hello);
    let connection = within("accept", accepted.recv()).await.unwrap();
    within("the end", connection.closed()).await;
}

/// Revoked while the door still worked on it: the connection closes with the reason right after WELCOME.
#[tokio::test]
async fn closed_before_it_was_accepted() {
    let server = Server::start(|newcomer, _| {
        Box::pin(async move {
            newcomer.connection().close(CloseReason::Revoked);
            newcomer.accept(WelcomeOut::default(), nobody());
        })
    })
    .await;
    let (connection, _) =
        within("dial", dial_once(server.target(), hello(), |_, _| Ok(nobody()))).await.unwrap();
    let CloseReason::ByPeer(goaway) = within("the end", connection.closed()).await else {
        panic!("no reason")
    };
    assert_eq!(goaway.reason, "revoked");
}
