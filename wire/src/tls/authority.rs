//! Whom a certificate comes from: a refusal that names the CA that was shown and those that are trusted, and whether
//! a given CA has signed a client's certificate.
//!
//! Leaves every check to rustls. Invariant: what a peer wrote into a certificate is shown only as plain characters,
//! within a length.

use std::fmt;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};

use super::provider;
use crate::ca::{certificate_digest, names};
use crate::peer::PeerCertificate;

/// The server's certificate is of a CA that this host does not trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownAuthority {
    shown: String,
    shown_sha256: Option<[u8; 32]>,
    trusted: Vec<[u8; 32]>,
}

impl UnknownAuthority {
    pub(super) fn new(
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        trusted: Vec<[u8; 32]>,
    ) -> Self {
        let (_, shown) = names(end_entity);
        let issuer = intermediates.iter().find(|certificate| names(certificate).0 == shown);
        Self { shown, shown_sha256: issuer.map(|certificate| certificate_digest(certificate)), trusted }
    }

    pub(super) fn error(self) -> rustls::Error {
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(self))))
    }
}

impl std::error::Error for UnknownAuthority {}

impl fmt::Display for UnknownAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |digest: &[u8; 32]| data_encoding::HEXLOWER.encode(digest.get(..8).unwrap_or_default());
        let shown = if self.shown.is_empty() { "one without a name" } else { &self.shown };
        let sha256 =
            self.shown_sha256.as_ref().map_or_else(String::new, |one| format!(" ({}...)", short(one)));
        let trusted: Vec<_> = self.trusted.iter().map(|one| format!("{}...", short(one))).collect();
        write!(
            f,
            "the server's certificate is of CA \"{shown}\"{sha256}, not of the CA that this host trusts ({}): wrong \
             address, something in between, or a server whose CA was changed or set up anew while this host was away; \
             if it was, enroll this host with a new token",
            trusted.join(", ")
        )
    }
}

/// rustls's own verifier, with the two CAs named where it does not find a path.
#[derive(Debug)]
pub(super) struct NamingVerifier {
    inner: Arc<WebPkiServerVerifier>,
    trusted: Vec<[u8; 32]>,
}

impl NamingVerifier {
    pub(super) fn new(inner: Arc<WebPkiServerVerifier>, trusted: Vec<[u8; 32]>) -> Self {
        Self { inner, trusted }
    }
}

impl ServerCertVerifier for NamingVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now).map_err(
            |error| match error {
                rustls::Error::InvalidCertificate(
                    CertificateError::UnknownIssuer | CertificateError::BadSignature,
                ) => UnknownAuthority::new(end_entity, intermediates, self.trusted.clone()).error(),
                error => error,
            },
        )
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Whether `authority` has signed `leaf`, a client's certificate, judged within the leaf's own time.
pub(crate) fn signed_client(authority: &CertificateDer<'_>, leaf: &CertificateDer<'_>) -> bool {
    let Ok(parsed) = PeerCertificate::parse(leaf) else { return false };
    let mut roots = RootCertStore::empty();
    if roots.add(authority.clone().into_owned()).is_err() {
        return false;
    }
    let Ok(verifier) = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build()
    else {
        return false;
    };
    let begins = u64::try_from(parsed.not_before.unix_ms() / 1000).unwrap_or(0);
    let then = UnixTime::since_unix_epoch(std::time::Duration::from_secs(begins.saturating_add(1)));
    verifier.verify_client_cert(leaf, &[], then).is_ok()
}
