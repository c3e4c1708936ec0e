//! What joining a control plane left on disk: its directory under STATE/control-planes.
//!
//! Owns the files' names and their reading. Invariant: the key is 0600 and never leaves this host; a directory
//! counts only when it is complete (its description is written last).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use umbel_wire::files;
use umbel_wire::peer::PeerCertificate;
use umbel_wire::rotation::{Held, Pending, Step};
use umbel_wire::tls::{self, ClientIdentity, KeyPair, Trust};

/// Key and certificate: a renewal uses the other pair of names.
const FIRST: [&str; 2] = ["key.pem", "certificate.pem"];
const SECOND: [&str; 2] = ["key.2.pem", "certificate.2.pem"];
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
    /// The second pair of names holds the credential in use.
    #[serde(default)]
    second: bool,
    /// What the other pair holds was in use before, and has to go.
    #[serde(default)]
    retiring: bool,
}

impl About {
    fn read(directory: &Path) -> Result<Self, String> {
        let path = directory.join(ABOUT);
        let problem = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let about = files::read(&path).map_err(|error| problem(&error))?;
        serde_json::from_slice(&about).map_err(|error| problem(&error))
    }

    fn write(&self, directory: &Path) -> io::Result<()> {
        let content = serde_json::to_vec_pretty(self).map_err(io::Error::other)?;
        files::write_private(&directory.join(ABOUT), &content)
    }

    /// Names of key and certificate in use.
    fn used(&self) -> [&'static str; 2] {
        if self.second { SECOND } else { FIRST }
    }

    /// The other names.
    fn spare(&self) -> [&'static str; 2] {
        if self.second { FIRST } else { SECOND }
    }
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
    /// When two thirds of the certificate's life are over.
    pub(crate) renew_at: umbel_wire::clock::Wall,
    /// The token that the identity came of: another one is another identity.
    pub(crate) token_id: String,
}

impl Membership {
    /// Reads a directory.
    pub(crate) fn read(directory: &Path) -> Result<Self, String> {
        let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let about = About::read(directory)?;
        let (tls, leaf) = credential(directory, about.used())?;
        Ok(Self {
            name,
            directory: directory.to_owned(),
            edge_id: about.edge_id,
            addresses: about.addresses,
            tls,
            not_after: leaf.not_after,
            renew_at: leaf.renew_at(),
            token_id: about.token_id,
        })
    }
}

/// A pair of key and certificate, as TLS needs it.
fn credential(
    directory: &Path,
    [key_name, chain_name]: [&str; 2],
) -> Result<(Arc<rustls::ClientConfig>, PeerCertificate), String> {
    let place = |file: &str| directory.join(file);
    let problem = |file: &str, error: &dyn std::fmt::Display| format!("{}: {error}", place(file).display());
    let key = files::read_private(&place(key_name)).map_err(|error| problem(key_name, &error))?;
    let key = tls::parse_key(&key).map_err(|error| problem(key_name, &error))?;
    let chain = files::read(&place(chain_name)).map_err(|error| problem(chain_name, &error))?;
    let chain = tls::parse_chain(&chain).map_err(|error| problem(chain_name, &error))?;
    let ca = files::read(&place(CA)).map_err(|error| problem(CA, &error))?;
    let ca = tls::parse_chain(&ca).map_err(|error| problem(CA, &error))?;
    let leaf = chain.first().ok_or_else(|| problem(chain_name, &"no certificate in it"))?;
    let leaf = PeerCertificate::parse(leaf).map_err(|error| problem(chain_name, &error))?;
    let tls = tls::wire_client(Trust::Ca(ca), Some(ClientIdentity::new(chain, key)))
        .map_err(|error| problem(key_name, &error))?;
    Ok((tls, leaf))
}

/// What a renewal has come to.
pub(crate) fn held(directory: &Path) -> Result<Held, String> {
    let about = About::read(directory)?;
    let [key, chain] = about.spare();
    let pending = directory.join(chain).is_file().then_some(Pending::OfSpare);
    let pending = if about.retiring { Some(Pending::Adopted) } else { pending };
    Ok(Held { spare_key: directory.join(key).is_file(), pending })
}

/// The certificate that was given and not yet accepted, if it can be used.
pub(crate) fn pending(directory: &Path) -> Option<Arc<rustls::ClientConfig>> {
    let about = About::read(directory).ok().filter(|about| !about.retiring)?;
    let spare = about.spare();
    credential(directory, spare).ok().map(|(tls, _)| tls)
}

/// The key of a renewal that is under way.
pub(crate) fn spare_key(directory: &Path) -> io::Result<KeyPair> {
    let [key, _] = About::read(directory).map_err(io::Error::other)?.spare();
    KeyPair::from_pem(&files::read_private(&directory.join(key))?).map_err(io::Error::other)
}

/// Keeps the certificate that was given for the spare key.
pub(crate) fn keep(directory: &Path, chain_pem: &str) -> io::Result<()> {
    let [_, chain] = About::read(directory).map_err(io::Error::other)?.spare();
    files::write_private(&directory.join(chain), chain_pem.as_bytes())
}

/// One of a renewal's steps that are a write.
pub(crate) fn write_step(directory: &Path, step: Step) -> io::Result<()> {
    let about = About::read(directory).map_err(io::Error::other)?;
    let [key, chain] = about.spare();
    match step {
        Step::MakeKey => {
            let made = KeyPair::generate().map_err(io::Error::other)?;
            files::write_private(&directory.join(key), made.to_pem().as_bytes())
        }
        Step::Adopt => About { second: !about.second, retiring: true, ..about }.write(directory),
        Step::DropKey => files::remove(&directory.join(key)),
        Step::DropPending => {
            files::remove(&directory.join(chain))?;
            if about.retiring { About { retiring: false, ..about }.write(directory) } else { Ok(()) }
        }
        Step::Ask | Step::Show => Ok(()),
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
pub(crate) fn write(directory: &Path, joined: &Joined<'_>) -> io::Result<()> {
    files::private_dir(directory)?;
    files::remove(&directory.join(ABOUT))?;
    files::remove(&directory.join(REJECTION))?;
    let [key, chain] = FIRST;
    // What a renewal of the earlier identity left.
    for left in SECOND {
        files::remove(&directory.join(left))?;
    }
    files::write_private(&directory.join(key), joined.key_pem)?;
    files::write_private(&directory.join(chain), joined.chain_pem.as_bytes())?;
    files::write_private(&directory.join(CA), joined.ca_pem.as_bytes())?;
    let about = About {
        control_plane_id: joined.control_plane_id.to_owned(),
        edge_id: joined.edge_id.to_owned(),
        addresses: joined.addresses.to_vec(),
        token_id: joined.token_id.to_owned(),
        second: false,
        retiring: false,
    };
    about.write(directory)
}
