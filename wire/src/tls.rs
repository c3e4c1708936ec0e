//! TLS for both hops and for the HTTPS fronts, from one provider.
//!
//! Owns: every rustls configuration of Umbel, its keys, and what a TLS failure is called in words. Leaves to others:
//! sockets and time limits ([`crate::io`]), and who a peer is ([`crate::peer`], the registries).
//! Invariant: the wire speaks TLS 1.3 only, without early data, tickets or resumption (a resumed session would skip
//! the certificate); a dialer always verifies chain, name and time; no flag or variable turns that off.

use std::sync::Arc;

use rustls::CipherSuite;
use rustls::crypto::CryptoProvider;

mod authority;
mod client;
mod explain;
mod keys;
mod server;

pub use authority::UnknownAuthority;
pub(crate) use authority::signed_client;
pub use client::{ClientIdentity, Trust, api_client, wire_client};
pub use explain::{explain, explain_io};
pub use keys::{KeyPair, parse_chain, parse_key, read_pair, to_pem};
pub use server::{TlsServer, front_server, wire_server};

/// The framing's major version. Both sides must name it.
pub const ALPN: &[u8] = b"umbel/1";

/// Why a TLS configuration cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Certificate and key do not belong together; the pair in use stays.
    #[error("the certificate and the key do not belong together; write both before they are loaded")]
    Mismatch,
    /// Not PEM, or not what was expected in it.
    #[error("malformed {what}: {why}")]
    Malformed {
        /// Certificate, key, name.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The file system.
    #[error("{path}: {error}")]
    File {
        /// Which file.
        path: std::path::PathBuf,
        /// What the system says.
        #[source]
        error: std::io::Error,
    },
    /// The library refuses the configuration.
    #[error("TLS configuration: {0}")]
    Rustls(#[from] rustls::Error),
}

/// The peer did not agree on [`ALPN`]: it is no Umbel, or one with another framing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer does not speak umbel/1: wrong port, or a version with another framing")]
pub struct AlpnMismatch;

/// Checks what the handshake agreed on. Without this a peer that offers no ALPN at all would pass.
///
/// # Errors
/// If it is anything but [`ALPN`].
pub fn check_alpn(agreed: Option<&[u8]>) -> Result<(), AlpnMismatch> {
    if agreed == Some(ALPN) { Ok(()) } else { Err(AlpnMismatch) }
}

/// The one cryptography provider. Given to every configuration explicitly, so that none depends on a process-wide one.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: std::sync::OnceLock<Arc<CryptoProvider>> = std::sync::OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(cheapest_first(rustls::crypto::ring::default_provider()))).clone()
}

/// AES-128 before AES-256: as strong as the P-256 keys around it, and cheaper a record. The order counts on the
/// dialing side, whose first common suite is taken.
fn cheapest_first(mut provider: CryptoProvider) -> CryptoProvider {
    let preferred = CipherSuite::TLS13_AES_128_GCM_SHA256;
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != preferred);
    provider
}

/// What either verifier says to a TLS 1.2 signature; no configuration of the wire lets it come to that.
fn not_spoken() -> rustls::Error {
    rustls::Error::General("TLS 1.2 is not spoken here".to_owned())
}

#[cfg(test)]
mod tests;
