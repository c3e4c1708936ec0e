//! The HTTP listeners of operators and of metrics: TLS, the local socket and plain, each with bounds on what a silent
//! client can hold. Leaves routes to the router it is given, applications' requests to the edge's own front.
//!
//! Invariant: a handshake or a slow client is waited for in its own task and never in the accept loop (fault row 36);
//! on the drain each connection ends after its current answer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use umbel_wire::tls::TlsServer;

use crate::daemon::LocalListener;

/// Connections of one listener at once; beyond it newcomers wait in the kernel's queue.
const CONNECTIONS: usize = 512;
/// For a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// For a request's head, and between two requests of a connection.
const HEAD: Duration = Duration::from_secs(30);
/// Of connections that cannot be accepted no more is logged than one line in this time.
const LOGGED: Duration = Duration::from_secs(10);
/// Pause after accepting failed, for instance at the limit of descriptors.
const PAUSE: Duration = Duration::from_millis(200);

/// The parts of serving that all listeners share.
#[derive(Clone)]
struct Serving {
    router: Router,
    places: Arc<Semaphore>,
    drain: CancellationToken,
}

impl Serving {
    fn new(router: Router, drain: CancellationToken) -> Self {
        Self { router, places: Arc::new(Semaphore::new(CONNECTIONS)), drain }
    }

    async fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(self, stream: S) {
        let service = TowerToHyperService::new(self.router);
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(64 * 1024);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.drain.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!("a client's connection ended: {error}");
        }
    }

    /// Waits until every connection has ended.
    async fn drained(&self) {
        let all = u32::try_from(CONNECTIONS).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let _ = self.places.acquire_many(all).await;
    }
}

/// Serves over TLS until the drain and the end of all connections.
pub async fn serve_tls(
    listener: TcpListener,
    server: Arc<TlsServer>,
    router: Router,
    drain: CancellationToken,
) {
    let serving = Serving::new(router, drain.clone());
    accept(
        &serving,
        || listener.accept(),
        |serving, (stream, _)| {
            let acceptor = TlsAcceptor::from(server.config());
            async move {
                if stream.set_nodelay(true).is_err() {
                    return;
                }
                match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => serving.connection(stream).await,
                    Ok(Err(error)) => tracing::debug!("a TLS handshake failed: {error}"),
                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                }
            }
        },
    )
    .await;
}

/// Serves plain HTTP until the drain and the end of all connections.
pub async fn serve_plain(listener: TcpListener, router: Router, drain: CancellationToken) {
    let serving = Serving::new(router, drain.clone());
    accept(&serving, || listener.accept(), |serving, (stream, _)| serving.connection(stream)).await;
}

/// Serves the local socket until the drain and the end of all connections, then removes it.
pub async fn serve_local(listener: LocalListener, router: Router, drain: CancellationToken) {
    let serving = Serving::new(router, drain.clone());
    accept(&serving, || listener.accept(), |serving, stream| serving.connection(stream)).await;
}

async fn accept<A, S, T>(serving: &Serving, accept: impl Fn() -> A, serve: impl Fn(Serving, S) -> T)
where
    A: Future<Output = io::Result<S>>,
    T: Future<Output = ()> + Send + 'static,
{
    let accepting = async {
        let mut logged: Option<tokio::time::Instant> = None;
        loop {
            let Ok(place) = Arc::clone(&serving.places).acquire_owned().await else {
                return;
            };
            match accept().await {
                Ok(stream) => {
                    let served = serve(serving.clone(), stream);
                    tokio::spawn(async move {
                        served.await;
                        drop(place);
                    });
                }
                Err(error) => {
                    // The next one fails the same way, and a log that runs full is another trouble.
                    let now = tokio::time::Instant::now();
                    if logged.is_none_or(|at| now.duration_since(at) >= LOGGED) {
                        logged = Some(now);
                        tracing::warn!("a connection cannot be accepted: {error}");
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    };
    serving.drain.run_until_cancelled(accepting).await;
    serving.drained().await;
}
