//! TLS failures in words that say what to do.

use rustls::{AlertDescription, CertificateError, Error};

use super::UnknownAuthority;

/// What went wrong and what to do, in one sentence, for a dialer. Names no address.
#[must_use]
pub fn explain(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(certificate) => explain_certificate(certificate),
        Error::NoApplicationProtocol | Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            "the server does not speak umbel/1: wrong port, or a version with another framing".to_owned()
        }
        Error::AlertReceived(AlertDescription::ProtocolVersion) | Error::PeerIncompatible(_) => {
            "the server does not speak TLS 1.3: wrong port, or a proxy in between that ends TLS".to_owned()
        }
        Error::InvalidMessage(_) => {
            "the server does not speak TLS: wrong port, or a proxy in between".to_owned()
        }
        other => format!("TLS failed: {other}"),
    }
}

/// As [`explain`], for an error of the socket that may carry a TLS failure inside.
#[must_use]
pub fn explain_io(error: &std::io::Error) -> String {
    if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        return explain(tls);
    }
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => {
            "the server closed the connection during TLS: wrong port, or it is shutting down".to_owned()
        }
        kind => format!("the connection failed during TLS: {kind}"),
    }
}

fn explain_certificate(error: &CertificateError) -> String {
    match error {
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet: the clock of this host is behind (or the server's was ahead); \
             set the clock, nothing was used up"
                .to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the server's certificate has expired, or the clock of this host is ahead; check the clock, then the \
             server's certificate"
                .to_owned()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "the server's certificate is not of the CA that this host trusts: wrong address, something in between, or \
             a server that was set up anew; enroll with a new token if it was"
                .to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the server's certificate is for another name: the address leads to another site or server".to_owned()
        }
        CertificateError::Other(other) => match other.0.downcast_ref::<UnknownAuthority>() {
            Some(unknown) => unknown.to_string(),
            None => format!("the server's certificate is refused: {other}"),
        },
        other => format!("the server's certificate is refused: {other:?}"),
    }
}
