//! The dialing side: whom to trust, and as whom to come.
//!
//! Invariant: every configuration made here verifies chain, name and time of the server.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::authority::{NamingVerifier, UnknownAuthority};
use super::{ALPN, TlsError, not_spoken, provider};
use crate::ca::certificate_digest;

/// Whom a dialer trusts.
#[derive(Clone, Debug)]
pub enum Trust {
    /// These CAs, DER: kept since enrollment. Several while a CA is being changed.
    Ca(Vec<CertificateDer<'static>>),
    /// The CA with this SHA-256, wherever it comes from: what an enrollment token carries. The server sends it.
    CaDigest([u8; 32]),
}

/// A client certificate with its key.
pub struct ClientIdentity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl ClientIdentity {
    /// `chain` leaf first.
    #[must_use]
    pub fn new(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Self {
        Self { chain, key }
    }

    /// The chain, leaf first.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }
}

impl Clone for ClientIdentity {
    fn clone(&self) -> Self {
        Self { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

impl fmt::Debug for ClientIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientIdentity(..)")
    }
}

/// For dialing a control plane or an edge on its wire port.
///
/// # Errors
/// If a CA certificate or the identity is malformed or does not belong together.
pub fn wire_client(trust: Trust, identity: Option<ClientIdentity>) -> Result<Arc<ClientConfig>, TlsError> {
    let mut config = client(trust, identity)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    Ok(Arc::new(config))
}

/// For the operator API over HTTPS: the same trust, HTTP/1.1, and no identity but the bearer token.
///
/// # Errors
/// If a CA certificate is malformed.
pub fn api_client(ca: &[CertificateDer<'static>]) -> Result<Arc<ClientConfig>, TlsError> {
    let mut config = client(Trust::Ca(ca.to_vec()), None)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn client(trust: Trust, identity: Option<ClientIdentity>) -> Result<ClientConfig, TlsError> {
    let builder =
        ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13])?;
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::Ca(certificates) => anchored(&certificates)?,
        Trust::CaDigest(digest) => {
            Arc::new(DigestVerifier { digest, algorithms: provider().signature_verification_algorithms })
        }
    };
    // The name is rustls's: both verifiers here check chain, name and time.
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    Ok(match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            builder.with_client_auth_cert(identity.chain, identity.key).map_err(super::server::pair_error)?
        }
    })
}

fn anchored(certificates: &[CertificateDer<'static>]) -> Result<Arc<NamingVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate.clone())?;
    }
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|error| TlsError::Malformed { what: "CA certificate", why: error.to_string() })?;
    let trusted = certificates.iter().map(|certificate| certificate_digest(certificate)).collect();
    Ok(Arc::new(NamingVerifier::new(inner, trusted)))
}

/// Trusts the CA of a digest that the server itself sends, and then verifies as if it had been configured.
#[derive(Debug)]
struct DigestVerifier {
    digest: [u8; 32],
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for DigestVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let authority = intermediates
            .iter()
            .find(|certificate| certificate_digest(certificate) == self.digest)
            .ok_or_else(|| UnknownAuthority::new(end_entity, intermediates, vec![self.digest]).error())?;
        let verifier = anchored(&[authority.clone().into_owned()])
            .map_err(|_| rustls::Error::InvalidCertificate(CertificateError::BadEncoding))?;
        verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
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
