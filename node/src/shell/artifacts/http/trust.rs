//! Whom a source's certificate has to be of, and what it means where it is not.
//!
//! Invariant: what leaves here as a sentence names no host and no file; those stand in the log.

use std::sync::Arc;

use rustls::{CertificateError, ClientConfig, RootCertStore};
use umbel_wire::tls;

use crate::core::artifacts::Reason;

/// Where systems keep the authorities that they trust.
const SYSTEM_TRUST: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// A configuration that trusts what stands in a file.
pub(super) fn of_file(path: &str) -> Result<Arc<ClientConfig>, String> {
    trusting(path, true)
}

/// One that trusts what this system trusts.
pub(super) fn of_system() -> Result<Arc<ClientConfig>, String> {
    SYSTEM_TRUST
        .iter()
        .find(|path| std::path::Path::new(path).exists())
        .ok_or_else(|| "no list of authorities is where systems keep it".to_owned())
        .and_then(|path| trusting(path, false))
}

/// A configuration that trusts what stands in a PEM file. Of a system's list those that rustls cannot use are left out.
fn trusting(path: &str, all: bool) -> Result<Arc<ClientConfig>, String> {
    let text = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    let mut authorities = tls::parse_chain(&text).map_err(|error| format!("{path}: {error}"))?;
    if !all {
        authorities.retain(|one| RootCertStore::empty().add(one.clone()).is_ok());
    }
    tls::api_client(&authorities).map_err(|error| format!("{path}: {error}"))
}

/// What is wrong with a certificate, and what would be right; without a host or a name in it.
pub(super) fn judged(certificate: &CertificateError) -> (Reason, &'static str) {
    let is_of_unknown = match certificate {
        CertificateError::UnknownIssuer => true,
        CertificateError::Other(other) => other.0.is::<tls::UnknownAuthority>(),
        _ => false,
    };
    match certificate {
        _ if is_of_unknown => (
            Reason::SourceCertificateUntrusted,
            "has a certificate of an authority that is not trusted here: set the source's ca_file, or the system's list",
        ),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => (
            Reason::SourceCertificateExpired,
            "has a certificate that has expired: who runs it renews it, or this node's clock is ahead",
        ),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => (
            Reason::SourceCertificateExpired,
            "has a certificate that is not valid yet: this node's clock is behind, or the one of who made it was ahead",
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => (
            Reason::SourceCertificateOtherName,
            "has a certificate for another host name than its url in the node's file",
        ),
        _ => (
            Reason::SourceCertificateUntrusted,
            "has a certificate that cannot be used (the node's log says why)",
        ),
    }
}
