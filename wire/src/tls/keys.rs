//! Private keys, signing requests, and PEM.
//!
//! Invariant: a private key is wiped when dropped, never printed, and leaves only as PEM for a 0600 file or as DER for
//! the TLS library.

use std::fmt;
use std::path::Path;

use rcgen::{CertificateParams, DistinguishedName, PublicKeyData, SignatureAlgorithm, SigningKey};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use zeroize::Zeroize;

use super::TlsError;
use crate::files;
use crate::ids::KeyHash;
use crate::peer::key_hash;
use crate::secret::SecretText;

/// A chain longer than this is refused: a leaf, two intermediates and a root are plenty.
const LONGEST_CHAIN: usize = 8;

/// A private key with its public half. P-256 when made here: every client and browser takes it.
pub struct KeyPair(rcgen::KeyPair);

impl KeyPair {
    /// A new P-256 key.
    ///
    /// # Errors
    /// If the system has no random source.
    pub fn generate() -> Result<Self, rcgen::Error> {
        rcgen::KeyPair::generate().map(Self)
    }

    /// Reads a PKCS#8 key, PEM.
    ///
    /// # Errors
    /// If it is not one, or of a kind that cannot sign here.
    pub fn from_pem(pem: &[u8]) -> Result<Self, TlsError> {
        let malformed = |why: String| TlsError::Malformed { what: "private key", why };
        let text = std::str::from_utf8(pem).map_err(|_| malformed("not text".to_owned()))?;
        rcgen::KeyPair::from_pem(text).map(Self).map_err(|error| malformed(error.to_string()))
    }

    /// As PEM, for a 0600 file.
    #[must_use]
    pub fn to_pem(&self) -> KeyPem {
        KeyPem(SecretText::new(self.0.serialize_pem()))
    }

    /// For the TLS library.
    #[must_use]
    pub fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.0.serialized_der().to_vec()))
    }

    /// What registries know the holder by.
    #[must_use]
    pub fn key_hash(&self) -> KeyHash {
        key_hash(&self.0.subject_public_key_info())
    }

    /// A signing request (PKCS#10, DER). It carries no name: names are the issuer's.
    ///
    /// # Errors
    /// If the library does not sign; a defect.
    pub fn signing_request(&self) -> Result<Vec<u8>, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        Ok(params.serialize_request(&self.0)?.der().to_vec())
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({})", self.key_hash())
    }
}

impl Drop for KeyPair {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl PublicKeyData for KeyPair {
    fn der_bytes(&self) -> &[u8] {
        self.0.der_bytes()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.0.algorithm()
    }
}

impl SigningKey for KeyPair {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.0.sign(message)
    }
}

/// A private key's PEM; wiped when dropped.
#[derive(Clone, Debug)]
pub struct KeyPem(SecretText);

impl KeyPem {
    /// The PEM's bytes, for the file.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.expose().as_bytes()
    }
}

/// Reads the certificates of a PEM file, leaf first.
///
/// # Errors
/// If there is none, one is malformed, or there are more than eight.
pub fn parse_chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let malformed = |why: String| TlsError::Malformed { what: "certificate", why };
    let chain = CertificateDer::pem_slice_iter(pem)
        .take(LONGEST_CHAIN + 1)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| malformed(error.to_string()))?;
    match chain.len() {
        0 => Err(malformed("no certificate in it".to_owned())),
        length if length > LONGEST_CHAIN => Err(malformed("more than eight certificates in it".to_owned())),
        _ => Ok(chain),
    }
}

/// Reads the first private key of a PEM file (PKCS#8, SEC1 or PKCS#1).
///
/// # Errors
/// If there is none or it is malformed.
pub fn parse_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem)
        .map_err(|error| TlsError::Malformed { what: "private key", why: error.to_string() })
}

/// Reads a certificate file and its key file.
///
/// # Errors
/// If one cannot be read, the key is readable by others, or one is malformed.
pub fn read_pair(
    certificates: &Path,
    key: &Path,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let file = |path: &Path, error| TlsError::File { path: path.to_owned(), error };
    let chain = files::read(certificates).map_err(|error| file(certificates, error))?;
    let mut pem = files::read_private(key).map_err(|error| file(key, error))?;
    let parsed = parse_key(&pem);
    pem.zeroize();
    Ok((parse_chain(&chain)?, parsed?))
}

/// Certificates as PEM.
#[must_use]
pub fn to_pem(chain: &[CertificateDer<'_>]) -> String {
    let mut text = String::new();
    for certificate in chain {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let encoded = data_encoding::BASE64.encode(certificate);
        let mut rest = encoded.as_str();
        while let Some((line, more)) = rest.split_at_checked(64) {
            text.push_str(line);
            text.push('\n');
            rest = more;
        }
        if !rest.is_empty() {
            text.push_str(rest);
            text.push('\n');
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    text
}
