//! The accepting side: certificates that can be replaced while it runs, and the verifier of clients.
//!
//! Invariant: what is served is always a pair that belongs together; live sessions keep what they began with.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, ServerSessionMemoryCache};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};

use super::{ALPN, TlsError, not_spoken, provider};
use crate::clock::Wall;
use crate::peer::{LARGEST_CERTIFICATE, PeerCertificate};

/// TLS 1.2 sessions kept for resumption on a front; TLS 1.3 ones live in tickets.
const FRONT_SESSIONS: usize = 1024;

#[derive(Clone, Copy, Debug)]
enum Door {
    Wire,
    Front,
}

/// A server's TLS configuration whose certificate can be replaced while it runs.
#[derive(Debug)]
pub struct TlsServer {
    door: Door,
    current: ArcSwap<Current>,
}

#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    leaf: PeerCertificate,
}

/// For a wire port: TLS 1.3, [`ALPN`], a client certificate asked for but judged at hello.
///
/// # Errors
/// If chain and key are malformed or do not belong together.
pub fn wire_server(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<TlsServer>, TlsError> {
    TlsServer::new(Door::Wire, chain, key)
}

/// For an HTTPS front: HTTP/1.1, no client certificate, with resumption (official clients open a connection a
/// stream), and TLS 1.2 beside 1.3 where the binary is built with it.
///
/// # Errors
/// If chain and key are malformed or do not belong together.
pub fn front_server(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<TlsServer>, TlsError> {
    TlsServer::new(Door::Front, chain, key)
}

impl TlsServer {
    fn new(
        door: Door,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Arc<Self>, TlsError> {
        let current = door.current(chain, key)?;
        Ok(Arc::new(Self { door, current: ArcSwap::from_pointee(current) }))
    }

    /// What the next handshake uses.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        self.current.load().config.clone()
    }

    /// Replaces the certificate from the next handshake on. Live sessions stay.
    ///
    /// # Errors
    /// If the new pair is malformed or does not belong together (files caught between two writes); the old pair
    /// then still serves.
    pub fn reload(
        &self,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<(), TlsError> {
        self.current.store(Arc::new(self.door.current(chain, key)?));
        Ok(())
    }

    /// When the certificate in use ends.
    #[must_use]
    pub fn not_after(&self) -> Wall {
        self.current.load().leaf.not_after
    }

    /// When the certificate in use should be renewed: two thirds of its life.
    #[must_use]
    pub fn renew_at(&self) -> Wall {
        self.current.load().leaf.renew_at()
    }
}

impl Door {
    fn current(
        self,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Current, TlsError> {
        let malformed = |why: String| TlsError::Malformed { what: "server certificate", why };
        let leaf = chain.first().ok_or_else(|| malformed("the chain is empty".to_owned()))?;
        let leaf = PeerCertificate::parse(leaf).map_err(|error| malformed(error.to_string()))?;
        let config = match self {
            Self::Wire => wire_config(chain, key)?,
            Self::Front => front_config(chain, key)?,
        };
        Ok(Current { config: Arc::new(config), leaf })
    }
}

fn wire_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, TlsError> {
    let verifier = PossessionVerifier { algorithms: provider().signature_verification_algorithms };
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(chain, key)
        .map_err(pair_error)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.max_early_data_size = 0;
    Ok(config)
}

fn front_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, TlsError> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(rustls::ALL_VERSIONS)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(pair_error)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.session_storage = ServerSessionMemoryCache::new(FRONT_SESSIONS);
    config.ticketer = rustls::crypto::ring::Ticketer::new()?;
    config.max_early_data_size = 0;
    Ok(config)
}

/// Certificate and key from files caught between two writes are the common case; it gets its own words.
pub(super) fn pair_error(error: rustls::Error) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(_) => TlsError::Mismatch,
        error => TlsError::Rustls(error),
    }
}

/// Checks that the client holds the key of a well-formed certificate, and nothing else. Who it is, and whether it may
/// come in, is judged at hello against the registry, so that every refusal can be explained in words.
#[derive(Debug)]
struct PossessionVerifier {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for PossessionVerifier {
    fn client_auth_mandatory(&self) -> bool {
        // A peer that enrolls has no certificate yet.
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        if end_entity.len() > LARGEST_CERTIFICATE {
            return Err(rustls::Error::InvalidCertificate(CertificateError::BadEncoding));
        }
        // The parser that checks the signature below must take it too.
        ParsedCertificate::try_from(end_entity)?;
        PeerCertificate::parse(end_entity)
            .map_err(|_| rustls::Error::InvalidCertificate(CertificateError::BadEncoding))?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(not_spoken())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
