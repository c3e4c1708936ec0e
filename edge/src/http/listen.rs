//! Listeners: accept, bound, hand over.
//!
//! Invariants: a listener never stops for a failed accept; connections are bounded, and one above the bound is
//! told so; a handshake has its time.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use umbel_wire::tls::TlsServer;

use super::connection::{Peer, drive};
use super::error::Failure;
use super::health::Metrics;
use super::openai::Applications;
use super::socket::{Socket, prepare};
use super::{Front, unread};

/// Of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// After an accept that failed for lack of descriptors: the next one would fail the same way at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves the OpenAI surface and health on plain HTTP until `shutdown`; then it accepts no more, idle
/// connections close, busy ones finish their request, and it returns when all are gone.
pub(crate) async fn serve(listener: TcpListener, front: Arc<Front>, shutdown: CancellationToken) {
    accept(listener, Arc::clone(&front), shutdown, turn_away, move |socket, address, shutdown| {
        applications(socket, address, Arc::clone(&front), shutdown)
    })
    .await;
}

/// The same with TLS.
pub(crate) async fn serve_tls(
    listener: TcpListener,
    tls: Arc<TlsServer>,
    front: Arc<Front>,
    shutdown: CancellationToken,
) {
    // Within TLS there is nothing to be said before its handshake.
    let turn_away = |_: &TcpStream, _: &Front| {};
    accept(listener, Arc::clone(&front), shutdown, turn_away, move |socket, address, shutdown| {
        let acceptor = TlsAcceptor::from(tls.config());
        let front = Arc::clone(&front);
        async move {
            let handshake = tokio::time::timeout(HANDSHAKE, acceptor.accept(socket));
            let secured = tokio::select! {
                secured = handshake => secured,
                () = shutdown.cancelled() => return,
            };
            if let Ok(Ok(socket)) = secured {
                applications(socket, address, front, shutdown).await;
            }
        }
    })
    .await;
}

/// Serves `/metrics` and health on plain HTTP.
pub(crate) async fn serve_metrics(listener: TcpListener, front: Arc<Front>, shutdown: CancellationToken) {
    accept(listener, Arc::clone(&front), shutdown, turn_away, move |socket, _, shutdown| {
        let front = Arc::clone(&front);
        async move { drive(socket, &front, &shutdown, &Metrics { front: &front }).await }
    })
    .await;
}

async fn applications<S: Socket>(
    socket: S,
    address: SocketAddr,
    front: Arc<Front>,
    shutdown: CancellationToken,
) {
    let service = Applications { front: Arc::clone(&front), peer: Peer::new(address) };
    drive(socket, &front, &shutdown, &service).await;
}

async fn accept<F, C>(
    listener: TcpListener,
    front: Arc<Front>,
    shutdown: CancellationToken,
    turn_away: impl Fn(&TcpStream, &Front),
    connected: F,
) where
    F: Fn(TcpStream, SocketAddr, CancellationToken) -> C,
    C: Future<Output = ()> + Send + 'static,
{
    let limit = front.options().connections;
    let room = Arc::new(Semaphore::new(limit));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        let Ok((socket, address)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        prepare(&socket);
        match Arc::clone(&room).try_acquire_owned() {
            Ok(permit) => {
                let connection = connected(socket, address, shutdown.clone());
                // Not an async block around it: that would hold the connection's future twice.
                tokio::spawn(connection.map(move |()| drop(permit)));
            }
            Err(_) => turn_away(&socket, &front),
        }
    }
    drop(listener);
    // All permits back: all connections gone.
    let all = u32::try_from(limit).unwrap_or(u32::MAX);
    let _ = room.acquire_many(all).await;
}

/// Tells one connection too many why, without waiting for it.
fn turn_away(socket: &TcpStream, front: &Front) {
    let failure = Failure::connections(front.options().connections);
    let _ = socket.try_write(&unread::refusal(&failure, front));
}
