//! Listeners.
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use umbel_wire::tls::TlsServer;

use super::Front;

/// Serves the OpenAI surface and health on plain HTTP until `shutdown`; then it accepts no more, idle
/// connections close, busy ones finish their request, and it returns when all are gone.
pub async fn serve(listener: TcpListener, front: Arc<Front>, shutdown: CancellationToken) {
    let _ = (listener, front, shutdown);
    unimplemented!()
}

/// The same with TLS.
pub async fn serve_tls(
    listener: TcpListener,
    tls: Arc<TlsServer>,
    front: Arc<Front>,
    shutdown: CancellationToken,
) {
    let _ = (listener, tls, front, shutdown);
    unimplemented!()
}

/// Serves `/metrics` and health on plain HTTP.
pub async fn serve_metrics(listener: TcpListener, front: Arc<Front>, shutdown: CancellationToken) {
    let _ = (listener, front, shutdown);
    unimplemented!()
}
