//! Taking a TCP port at the start, with words that name the key of the file to change.

use std::io::ErrorKind;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use super::StartError;

/// Binds a port. `key` is the key of the daemon's file that gave `address`: `listen.api`.
///
/// # Errors
/// [`StartError::Failed`] with the key and what to do.
pub async fn bind(key: &str, address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).await.map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::AddrInUse => "Another process listens there: end it, or choose another port",
            ErrorKind::PermissionDenied => "This user may not: choose a port above 1023",
            ErrorKind::AddrNotAvailable => "This host has no such address: correct it",
            _ => "Correct it",
        };
        StartError::Failed(format!("cannot listen on {address}: {error}. {remedy} in {key}."))
    })
}

/// The same for a listener that the file may turn off.
///
/// # Errors
/// As [`bind`].
pub async fn bind_if_on(key: &str, address: Option<SocketAddr>) -> Result<Option<TcpListener>, StartError> {
    match address {
        Some(address) => bind(key, address).await.map(Some),
        None => Ok(None),
    }
}
