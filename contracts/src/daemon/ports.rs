//! Taking a TCP port at the start, with words that name the key of the file to change.

use std::io::ErrorKind;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

use super::StartError;

/// Connections that may wait to be accepted: as many as the kernel allows by itself. With the usual 128 a few hundred
/// clients or nodes that come at once are told nothing, and try again only after a second.
const WAITING: u32 = 4096;

/// Binds a port. `key` is the key of the daemon's file that gave `address`: `listen.api`.
///
/// # Errors
/// [`StartError::Failed`] with the key and what to do.
pub async fn bind(key: &str, address: SocketAddr) -> Result<TcpListener, StartError> {
    listen(address).map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::AddrInUse => "Another process listens there: end it, or choose another port",
            ErrorKind::PermissionDenied => "This user may not: choose a port above 1023",
            ErrorKind::AddrNotAvailable => "This host has no such address: correct it",
            _ => "Correct it",
        };
        StartError::Failed(format!("cannot listen on {address}: {error}. {remedy} in {key}."))
    })
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // After a restart the port may still belong to connections that are ending.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(WAITING)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
    use super::*;

    /// None of them waits for a second try: this test's runtime accepts nothing meanwhile.
    #[tokio::test]
    async fn hundreds_may_come_at_once() {
        let listener = bind("listen.api", SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut waiting = Vec::new();
        for _ in 0..300 {
            let socket = std::net::TcpStream::connect_timeout(&address, std::time::Duration::from_secs(60));
            waiting.push(socket.unwrap());
        }
        for _ in &waiting {
            listener.accept().await.unwrap();
        }
    }
}
