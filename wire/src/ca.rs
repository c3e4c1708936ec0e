//! A small certificate authority: each edge has one for its nodes, each control plane one for its edges.
//!
//! Owns: the CA's key and certificate on disk, and what a certificate of ours contains. Leaves to others: who may
//! have one (enrollment), and what is stored about it.
//! Invariant: of a signing request only the public key is taken; names, usages and times are ours. The CA's key
//! is written once, 0600, in a 0700 directory.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
};
use rustls_pki_types::{CertificateDer, CertificateSigningRequestDer};
use sha2::{Digest, Sha256};

use crate::clock::Wall;
use crate::files;
use crate::ids::{EdgeId, KeyHash, NodeId};
use crate::peer::{PeerCertificate, PeerName, key_hash};
use crate::secret::random_bytes;
use crate::tls::{KeyPair, TlsError, parse_chain, to_pem};

mod change;

pub use change::names;

/// How long a client certificate is good.
pub const CLIENT_VALIDITY: Duration = Duration::from_secs(90 * 24 * 3600);
/// A host that was off may come back with an expired certificate for so long, by proof of its key.
pub const CLIENT_GRACE: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long a server certificate is good; the issuer renews its own at two thirds.
pub const SERVER_VALIDITY: Duration = Duration::from_secs(90 * 24 * 3600);
/// How long a CA is good.
pub const CA_VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Certificates begin this much in the past, for peers whose clock is a little behind.
pub const BACKDATED: Duration = Duration::from_secs(300);
/// A signing request above this is not read; ours are below 300 bytes.
pub const LARGEST_REQUEST: usize = 4 * 1024;

/// File name of the CA's certificate in its directory: what clients of the operator API are given.
pub const CERTIFICATE_FILE: &str = "ca.pem";
/// File name of the CA's key in its directory.
pub const KEY_FILE: &str = "ca.key";

/// Why the CA cannot be had or does not sign.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The file system.
    #[error("{path}: {error}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        #[source]
        error: std::io::Error,
    },
    /// There is already a CA; a second one would cut off everybody who trusts the first.
    #[error("{0} already holds a CA; it is never overwritten")]
    Exists(PathBuf),
    /// Certificate and key do not belong together, or are not what they should be.
    #[error("the CA in {path} cannot be used: {why}")]
    Unusable {
        /// Its directory.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The signing request is malformed, or its key is of a kind that is not taken. The peer's fault.
    #[error("the signing request is refused: {0}")]
    Request(String),
    /// The library does not sign; a defect.
    #[error("signing failed: {0}")]
    Signing(#[from] rcgen::Error),
}

/// A certificate that was just signed.
#[derive(Clone, Debug)]
pub struct Issued {
    /// DER, leaf first, then the CA.
    pub chain: Vec<Vec<u8>>,
    /// SHA-256 of the subject's public key.
    pub key_hash: KeyHash,
    /// In lower-case hex.
    pub serial: String,
    /// Not valid after.
    pub not_after: Wall,
    /// SHA-256 of the certificate of the CA that signed it.
    pub issuer: [u8; 32],
}

/// A server's certificate with its key.
#[derive(Debug)]
pub struct ServerCredential {
    /// Leaf first, then the CA.
    pub chain: Vec<CertificateDer<'static>>,
    /// The leaf's key.
    pub key: KeyPair,
    /// Not valid after.
    pub not_after: Wall,
}

/// A CA that can sign.
#[derive(Debug)]
pub struct Authority {
    certificate: CertificateDer<'static>,
    digest: [u8; 32],
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes a new CA in `dir` (created 0700). `name` says whose it is, for people.
    ///
    /// # Errors
    /// [`AuthorityError::Exists`] if there is one; or the file system's.
    pub fn create(dir: &Path, name: &str, now: Wall) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(&format!("Umbel CA {name}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        set_times(&mut params, now, CA_VALIDITY);
        let certificate = params.self_signed(&key)?;
        Self::install(dir, certificate.der().clone(), key)
    }

    /// Takes over an existing CA (PEM), so that an organisation's own can be used.
    ///
    /// # Errors
    /// If the two do not belong together, it is not a CA, or `dir` already holds one.
    pub fn import(dir: &Path, certificate_pem: &[u8], key_pem: &[u8]) -> Result<Self, AuthorityError> {
        let unusable = |why: String| AuthorityError::Unusable { path: dir.to_owned(), why };
        let chain = parse_chain(certificate_pem).map_err(|error| unusable(error.to_string()))?;
        let key = KeyPair::from_pem(key_pem).map_err(|error| unusable(error.to_string()))?;
        let certificate =
            chain.into_iter().next().ok_or_else(|| unusable("no certificate in the PEM".to_owned()))?;
        check_pair(&certificate, &key).map_err(unusable)?;
        Self::install(dir, certificate, key)
    }

    /// Opens the CA in `dir`.
    ///
    /// # Errors
    /// If a file is missing, readable by others, or the two do not belong together.
    pub fn open(dir: &Path) -> Result<Self, AuthorityError> {
        let unusable = |why: String| AuthorityError::Unusable { path: dir.to_owned(), why };
        let certificate_path = dir.join(CERTIFICATE_FILE);
        let key_path = dir.join(KEY_FILE);
        let pem = files::read(&certificate_path).map_err(|error| file(&certificate_path, error))?;
        let key = files::read_private(&key_path).map_err(|error| file(&key_path, error))?;
        let key = KeyPair::from_pem(&key).map_err(|error| unusable(error.to_string()))?;
        let chain = parse_chain(&pem).map_err(|error| unusable(error.to_string()))?;
        let certificate =
            chain.into_iter().next().ok_or_else(|| unusable("no certificate in it".to_owned()))?;
        check_pair(&certificate, &key).map_err(unusable)?;
        Self::assemble(certificate, key)
    }

    /// Signs an edge's request: `spiffe://umbel/EDGE_ID`.
    ///
    /// # Errors
    /// [`AuthorityError::Request`] if the request is at fault.
    pub fn sign_edge(
        &self,
        request: &[u8],
        edge: &EdgeId,
        now: Wall,
        validity: Duration,
    ) -> Result<Issued, AuthorityError> {
        self.sign_client(&Request::read(request)?, &PeerName::Edge(edge.clone()), now, validity)
    }

    /// Signs a node's request: `spiffe://umbel/EDGE_ID/node/NODE_ID`.
    ///
    /// # Errors
    /// [`AuthorityError::Request`] if the request is at fault.
    pub fn sign_node(
        &self,
        request: &[u8],
        edge: &EdgeId,
        node: NodeId,
        now: Wall,
        validity: Duration,
    ) -> Result<Issued, AuthorityError> {
        self.sign_read_node(&Request::read(request)?, edge, node, now, validity)
    }

    /// The same for a request that was read before.
    ///
    /// # Errors
    /// [`AuthorityError::Request`] if the request is at fault.
    pub fn sign_read_node(
        &self,
        request: &Request,
        edge: &EdgeId,
        node: NodeId,
        now: Wall,
        validity: Duration,
    ) -> Result<Issued, AuthorityError> {
        self.sign_client(request, &PeerName::Node(edge.clone(), node), now, validity)
    }

    /// A new key and certificate for one of this tier's own servers. A name that is an IP address becomes an IP name.
    ///
    /// # Errors
    /// If a name is not a DNS name or address.
    pub fn issue_server(
        &self,
        names: &[String],
        now: Wall,
        validity: Duration,
    ) -> Result<ServerCredential, AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = leaf(names.first().map_or("umbel", String::as_str), random_serial(), now, validity);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        for name in names {
            params.subject_alt_names.push(match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(name.as_str().try_into()?),
            });
        }
        let not_after = Wall(params.not_after.unix_timestamp() * 1000);
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(ServerCredential {
            chain: vec![certificate.der().clone(), self.certificate.clone()],
            key,
            not_after,
        })
    }

    /// The CA's certificate, DER.
    #[must_use]
    pub fn certificate_der(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// SHA-256 of [`Self::certificate_der`]: what an enrollment token carries.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    fn sign_client(
        &self,
        request: &Request,
        name: &PeerName,
        now: Wall,
        validity: Duration,
    ) -> Result<Issued, AuthorityError> {
        let uri = name.to_string();
        let serial = random_serial();
        let mut params = leaf(&uri, serial, now, validity);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.subject_alt_names = vec![SanType::URI(uri.as_str().try_into()?)];
        let not_after = Wall(params.not_after.unix_timestamp() * 1000);
        let certificate = params.signed_by(&request.params.public_key, &self.issuer)?;
        Ok(Issued {
            chain: vec![certificate.der().to_vec(), self.certificate.to_vec()],
            key_hash: request.key_hash(),
            serial: data_encoding::HEXLOWER.encode(&serial),
            not_after,
            issuer: self.digest(),
        })
    }

    fn install(
        dir: &Path,
        certificate: CertificateDer<'static>,
        key: KeyPair,
    ) -> Result<Self, AuthorityError> {
        let certificate_path = dir.join(CERTIFICATE_FILE);
        let key_path = dir.join(KEY_FILE);
        files::private_dir(dir).map_err(|error| file(dir, error))?;
        if certificate_path.exists() {
            return Err(AuthorityError::Exists(dir.to_owned()));
        }
        // The key first: a certificate without its key would pass for a CA. A key alone is left of a crash here.
        files::write_private(&key_path, key.to_pem().as_bytes()).map_err(|error| file(&key_path, error))?;
        let pem = to_pem(std::slice::from_ref(&certificate));
        files::write_public(&certificate_path, pem.as_bytes())
            .map_err(|error| file(&certificate_path, error))?;
        Self::assemble(certificate, key)
    }

    fn assemble(certificate: CertificateDer<'static>, key: KeyPair) -> Result<Self, AuthorityError> {
        let issuer = Issuer::from_ca_cert_der(&certificate, key)?;
        let digest = certificate_digest(&certificate);
        Ok(Self { certificate, digest, issuer })
    }
}

/// SHA-256 of a certificate, DER.
#[must_use]
pub fn certificate_digest(der: &[u8]) -> [u8; 32] {
    Sha256::digest(der).into()
}

/// The hash of the key that a signing request proves to hold.
///
/// # Errors
/// [`AuthorityError::Request`] if the request is malformed or its key is of a kind that is not taken.
pub fn request_key_hash(request: &[u8]) -> Result<KeyHash, AuthorityError> {
    Ok(Request::read(request)?.key_hash())
}

/// A signing request whose sender has proved to hold its key. To read it is most of what a certificate costs.
#[derive(Debug)]
pub struct Request {
    params: CertificateSigningRequestParams,
    key_hash: KeyHash,
}

impl Request {
    /// Reads a request, PKCS#10 DER, and checks its signature.
    ///
    /// # Errors
    /// [`AuthorityError::Request`] if it is malformed or its key is of a kind that is not taken.
    pub fn read(request: &[u8]) -> Result<Self, AuthorityError> {
        let params = read_request(request)?;
        let key_hash = key_hash(&params.public_key.subject_public_key_info());
        Ok(Self { params, key_hash })
    }

    /// SHA-256 of its public key.
    #[must_use]
    pub fn key_hash(&self) -> KeyHash {
        self.key_hash
    }
}

fn read_request(request: &[u8]) -> Result<CertificateSigningRequestParams, AuthorityError> {
    if request.len() > LARGEST_REQUEST {
        return Err(AuthorityError::Request("it is above 4 KiB".to_owned()));
    }
    let parsed = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request))
        .map_err(|error| AuthorityError::Request(error.to_string()))?;
    let algorithm = parsed.public_key.algorithm();
    // Small and quick to check; an RSA key of any size would let a peer choose our work.
    if algorithm != &rcgen::PKCS_ECDSA_P256_SHA256 && algorithm != &rcgen::PKCS_ED25519 {
        return Err(AuthorityError::Request("its key is neither P-256 nor Ed25519".to_owned()));
    }
    Ok(parsed)
}

fn leaf(common: &str, serial: [u8; 16], now: Wall, validity: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(common);
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.is_ca = IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    set_times(&mut params, now, validity);
    params
}

fn random_serial() -> [u8; 16] {
    let mut serial = [0; 16];
    random_bytes(&mut serial);
    // A serial number is positive and of constant length.
    serial[0] = serial[0] & 0x7f | 0x40;
    serial
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    // X.520 allows 64 characters; the names that are checked stand in the SAN.
    distinguished.push(DnType::CommonName, name.chars().take(64).collect::<String>());
    distinguished
}

fn set_times(params: &mut CertificateParams, now: Wall, validity: Duration) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let now = Duration::from_millis(u64::try_from(now.0).unwrap_or(0));
    params.not_before = epoch + now.saturating_sub(BACKDATED);
    params.not_after = epoch + now + validity;
}

fn check_pair(certificate: &CertificateDer<'_>, key: &KeyPair) -> Result<(), String> {
    let parsed = PeerCertificate::parse(certificate).map_err(|error| error.to_string())?;
    if parsed.key_hash != key.key_hash() {
        return Err("certificate and key do not belong together".to_owned());
    }
    let (_, x509) = x509_parser::parse_x509_certificate(certificate).map_err(|_| "not X.509".to_owned())?;
    if !x509.is_ca() {
        return Err("the certificate is not a CA's (basicConstraints)".to_owned());
    }
    Ok(())
}

fn file(path: &Path, error: std::io::Error) -> AuthorityError {
    AuthorityError::File { path: path.to_owned(), error }
}

impl From<TlsError> for AuthorityError {
    fn from(error: TlsError) -> Self {
        Self::Request(error.to_string())
    }
}

#[cfg(test)]
mod tests;
