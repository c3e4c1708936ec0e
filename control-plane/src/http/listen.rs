//! The HTTP listeners: TLS, Unix socket and plain, each with bounds on what a silent client can hold.
//!
//! Invariant: a handshake or a slow client is waited for in its own task and never in the accept loop (fault row 36);
//! on the drain each connection ends after its current answer.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use umbel_wire::tls::TlsServer;

/// Connections of one listener at once; beyond it newcomers wait in the kernel's queue.
const CONNECTIONS: usize = 512;
/// For a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// For a request's head, and between two requests of a connection.
const HEAD: Duration = Duration::from_secs(30);
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
pub(crate) async fn tls(
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
pub(crate) async fn plain(listener: TcpListener, router: Router, drain: CancellationToken) {
    let serving = Serving::new(router, drain.clone());
    accept(&serving, || listener.accept(), |serving, (stream, _)| serving.connection(stream)).await;
}

/// Serves the local socket until the drain and the end of all connections, then removes it.
pub(crate) async fn local(listener: LocalListener, router: Router, drain: CancellationToken) {
    let serving = Serving::new(router, drain.clone());
    accept(&serving, || listener.listener.accept(), |serving, (stream, _)| serving.connection(stream)).await;
}

async fn accept<A, S, T>(serving: &Serving, accept: impl Fn() -> A, serve: impl Fn(Serving, S) -> T)
where
    A: Future<Output = io::Result<S>>,
    T: Future<Output = ()> + Send + 'static,
{
    let accepting = async {
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
                    tracing::warn!("a connection cannot be accepted: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    };
    serving.drain.run_until_cancelled(accepting).await;
    serving.drained().await;
}

/// A Unix socket that only its owner can open; its file goes when it is dropped.
pub(crate) struct LocalListener {
    listener: UnixListener,
    path: PathBuf,
}

impl LocalListener {
    /// Binds the socket, with mode 0600 from its first moment on. A file that a former process left is replaced.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        if let Ok(found) = std::fs::symlink_metadata(path) {
            if !found.file_type().is_socket() {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "there is a file that is no socket",
                ));
            }
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process answers there"));
            }
        }
        // Bound under another name, so that nobody can connect before the mode is set.
        let mut draft = path.as_os_str().to_owned();
        draft.push(".new");
        let draft = PathBuf::from(draft);
        match std::fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&draft)?;
        std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o600))?;
        std::fs::rename(&draft, path)?;
        Ok(Self { listener, path: path.to_owned() })
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        // One that is gone already is as good.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whether somebody answers at a local socket.
pub(crate) async fn answers(path: &Path) -> bool {
    UnixStream::connect(path).await.is_ok()
}
