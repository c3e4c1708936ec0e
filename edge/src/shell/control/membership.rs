//! What joining a control plane left on disk: its directory under STATE/control-planes.
//!
//! Owns the files' names and their reading. Invariant: the key is 0600 and never leaves this host; a directory
//! counts only when it is complete (its description is written last).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use umbel_wire::files;
use umbel_wire::tls::{self, ClientIdentity, Trust};

const KEY: &str = "key.pem";
const CHAIN: &str = "certificate.pem";
const CA: &str = "ca.pem";
const ABOUT: &str = "control-plane.json";
/// The last refusal, for `doctor`.
pub(crate) const REJECTION: &str = "last-rejection.txt";

/// Most control planes of one site.
const MOST: usize = 16;

#[derive(Debug, Serialize, Deserialize)]
struct About {
    control_plane_id: String,
    edge_id: String,
    addresses: Vec<String>,
    /// The token that it came of; it is spent, and never sent again.
    #[serde(default)]
    token_id: String,
}

/// A joined control plane.
#[derive(Clone)]
pub(crate) struct Membership {
    /// Name of the directory, and of the control plane.
    pub(crate) name: String,
    pub(crate) directory: PathBuf,
    pub(crate) edge_id: String,
    pub(crate) addresses: Vec<String>,
    pub(crate) tls: Arc<rustls::ClientConfig>,
    pub(crate) not_after: umbel_wire::clock::Wall,
    /// SHA-256 of the certificate with which it is dialed: another one is another identity.
    pub(crate) certificate: [u8; 32],
    /// The token that the identity came of.
    pub(crate) token_id: String,
}

impl Membership {
    /// Reads a directory.
    pub(crate) fn read(directory: &Path) -> Result<Self, String> {
        let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let place = |file: &str| directory.join(file);
        let problem =
            |file: &str, error: &dyn std::fmt::Display| format!("{}: {error}", place(file).display());
        let about = files::read(&place(ABOUT)).map_err(|error| problem(ABOUT, &error))?;
        let about: About = serde_json::from_slice(&about).map_err(|error| problem(ABOUT, &error))?;
        let key = files::read_private(&place(KEY)).map_err(|error| problem(KEY, &error))?;
        let key = tls::parse_key(&key).map_err(|error| problem(KEY, &error))?;
        let chain = files::read(&place(CHAIN)).map_err(|error| problem(CHAIN, &error))?;
        let chain = tls::parse_chain(&chain).map_err(|error| problem(CHAIN, &error))?;
        let ca = files::read(&place(CA)).map_err(|error| problem(CA, &error))?;
        let ca = tls::parse_chain(&ca).map_err(|error| problem(CA, &error))?;
        let leaf = chain.first().ok_or_else(|| problem(CHAIN, &"no certificate in it"))?;
        let certificate = umbel_wire::ca::certificate_digest(leaf);
        let leaf = umbel_wire::peer::PeerCertificate::parse(leaf).map_err(|error| problem(CHAIN, &error))?;
        let tls = tls::wire_client(Trust::Ca(ca), Some(ClientIdentity::new(chain, key)))
            .map_err(|error| problem(KEY, &error))?;
        Ok(Self {
            name,
            directory: directory.to_owned(),
            edge_id: about.edge_id,
            addresses: about.addresses,
            tls,
            not_after: leaf.not_after,
            certificate,
            token_id: about.token_id,
        })
    }
}

impl Membership {
    /// Its control plane's last word was that this credential opens nothing any more.
    pub(crate) fn is_refused(&self) -> bool {
        let said = files::read(&self.directory.join(REJECTION)).unwrap_or_default();
        [b"CREDENTIAL_".as_slice(), b"CERTIFICATE_"].iter().any(|word| said.starts_with(word))
    }
}

/// SHA-256 of the authority of the control plane that a complete directory is of, whatever else in it is broken.
pub(crate) fn authority(directory: &Path) -> Option<[u8; 32]> {
    let ca = files::read(&directory.join(CA)).ok().filter(|_| directory.join(ABOUT).is_file())?;
    tls::parse_chain(&ca).ok()?.first().map(|ca| umbel_wire::ca::certificate_digest(ca))
}

/// Whether a directory is complete: an enrollment that broke off left none that is.
pub(crate) fn is_complete(directory: &Path) -> bool {
    directory.join(ABOUT).is_file()
}

/// Every joined control plane, by name; incomplete directories (an enrollment that is under way) are left out.
pub(crate) fn all(directory: &Path) -> Vec<(String, Result<Membership, String>)> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<_> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.retain(|path| path.join(ABOUT).is_file());
    paths.sort();
    paths
        .into_iter()
        .take(MOST)
        .map(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            (name, Membership::read(&path))
        })
        .collect()
}

/// What an enrollment brought.
pub(crate) struct Joined<'a> {
    pub(crate) control_plane_id: &'a str,
    pub(crate) edge_id: &'a str,
    pub(crate) addresses: &'a [String],
    pub(crate) token_id: &'a str,
    pub(crate) key_pem: &'a [u8],
    pub(crate) chain_pem: &'a str,
    pub(crate) ca_pem: &'a str,
}

/// Writes a directory, its description last; an earlier one counts no more from the start on, so that no reader mixes
/// the two.
pub(crate) fn write(directory: &Path, joined: &Joined<'_>) -> std::io::Result<()> {
    files::private_dir(directory)?;
    files::remove(&directory.join(ABOUT))?;
    files::remove(&directory.join(REJECTION))?;
    files::write_private(&directory.join(KEY), joined.key_pem)?;
    files::write_private(&directory.join(CHAIN), joined.chain_pem.as_bytes())?;
    files::write_private(&directory.join(CA), joined.ca_pem.as_bytes())?;
    let about = About {
        control_plane_id: joined.control_plane_id.to_owned(),
        edge_id: joined.edge_id.to_owned(),
        addresses: joined.addresses.to_vec(),
        token_id: joined.token_id.to_owned(),
    };
    files::write_private(&directory.join(ABOUT), &serde_json::to_vec_pretty(&about).unwrap_or_default())
}
