//! The site's own keys: the authority that signs nodes, and the certificates of the TLS ports.
//!
//! The nodes' port gets a new server certificate at each start and again at two thirds of its life, so that it
//! never has to be kept or renewed by hand; the certificate of the HTTPS front is the operator's and is read again
//! when its file changes. Invariant: the authority's key leaves neither its 0600 file nor this process.

mod expiry;
mod held;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;
use umbel_wire::clock::Wall;
use umbel_wire::contained_now;
use umbel_wire::tls::{TlsServer, front_server, read_pair};

pub(crate) use self::expiry::Expiries;
pub(crate) use self::held::{Authorities, Held, is_initialised};
use crate::shell::site::Site;
use crate::{Config, StartError};

/// Directory of the authority in the state directory.
const CA_DIR: &str = "ca";
/// How often certificates are looked at: whoever replaced one does not wait long, and a look is two calls.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Where the authority stands.
pub(crate) fn ca_dir(config: &Config) -> PathBuf {
    config.state_dir.join(CA_DIR)
}

/// The operator's own certificate for the HTTPS front.
struct Given {
    chain: PathBuf,
    key: PathBuf,
    changed: [Option<SystemTime>; 2],
    server: Arc<TlsServer>,
}

/// Keys and certificates in use.
pub(crate) struct Certificates {
    pub(crate) authorities: Arc<Authorities>,
    given: Option<Given>,
}

impl Certificates {
    /// Opens the authority and makes or reads the servers' certificates.
    pub(crate) fn open(config: &Config) -> Result<Self, StartError> {
        let authorities = Authorities::open(&ca_dir(config), config.site.as_str())?;
        let given = match (&config.api.cert_file, &config.api.key_file) {
            (Some(chain), Some(key)) => Some(Given::open(chain, key)?),
            _ => None,
        };
        Ok(Self { authorities: Arc::new(authorities), given })
    }

    /// The HTTPS front's certificate, if the file names one.
    pub(crate) fn front(&self) -> Option<Arc<TlsServer>> {
        self.given.as_ref().map(|given| Arc::clone(&given.server))
    }

    /// Renews what is about to end and reads again what changed, until it is cancelled.
    pub(crate) async fn watch(mut self, site: Arc<Site>, shutdown: CancellationToken) {
        self.tell(&site.expiries);
        while shutdown.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
            // A look that breaks off is not the last one.
            let _ = contained_now(|| {
                if Wall::now() >= self.authorities.nodes().renew_at() {
                    self.renew();
                }
                if let Some(given) = &mut self.given {
                    given.reload();
                }
                self.tell(&site.expiries);
            });
        }
    }

    fn tell(&self, expiries: &Expiries) {
        expiries.set("nodes", self.authorities.nodes().not_after());
        expiries.set("authority", self.authorities.held().signing().not_after());
        if let Some(given) = &self.given {
            expiries.set("https", given.server.not_after());
        }
    }

    fn renew(&self) {
        match self.authorities.renew() {
            Ok(()) => tracing::info!("the nodes' port has a new certificate"),
            Err(error) => tracing::error!("the certificate of the nodes' port cannot be renewed: {error}"),
        }
    }
}

impl Given {
    fn open(chain: &Path, key: &Path) -> Result<Self, StartError> {
        let seen = changed(chain, key);
        let (certificates, private) =
            read_pair(chain, key).map_err(|error| StartError::Config(format!("[tls]: {error}")))?;
        let server = front_server(certificates, private)
            .map_err(|error| StartError::Config(format!("[tls]: {error}")))?;
        Ok(Self { chain: chain.to_owned(), key: key.to_owned(), changed: seen, server })
    }

    fn reload(&mut self) {
        let seen = changed(&self.chain, &self.key);
        if seen == self.changed {
            return;
        }
        self.changed = seen;
        let read = read_pair(&self.chain, &self.key);
        match read.and_then(|(chain, key)| self.server.reload(chain, key)) {
            Ok(()) => tracing::info!("the HTTPS certificate was read again"),
            Err(error) => tracing::error!("HTTPS goes on with its former certificate: {error}"),
        }
    }
}

/// When the two files were written.
fn changed(chain: &Path, key: &Path) -> [Option<SystemTime>; 2] {
    [chain, key].map(|path| std::fs::metadata(path).and_then(|meta| meta.modified()).ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use umbel_wire::ca::{Authority, ServerCredential};
    use umbel_wire::{files, tls};

    use super::*;

    /// Row 31: certificate and key are written one after the other, whichever comes first, and looked at in between.
    #[test]
    fn row_31_a_pair_caught_between_two_writes_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        let authority = Authority::create(&place("ca"), "ber1", Wall::now()).unwrap();
        let issue = |days: u64| {
            let names = ["edge.example".to_owned()];
            authority.issue_server(&names, Wall::now(), Duration::from_secs(days * 86_400)).unwrap()
        };
        let write_chain = |made: &ServerCredential| {
            files::write_public(&place("cert.pem"), tls::to_pem(&made.chain).as_bytes()).unwrap();
        };
        let write_key = |made: &ServerCredential| {
            files::write_private(&place("key.pem"), made.key.to_pem().as_bytes()).unwrap();
        };
        let first = issue(1);
        write_chain(&first);
        write_key(&first);
        let mut given = Given::open(&place("cert.pem"), &place("key.pem")).unwrap();
        let serves = |given: &Given, made: &ServerCredential| given.server.not_after() == made.not_after;
        assert!(serves(&given, &first));
        let mut serving = first;
        for (days, chain_first) in [(2, true), (3, false)] {
            let next = issue(days);
            if chain_first {
                write_chain(&next)
            } else {
                write_key(&next)
            }
            for _ in 0..3 {
                given.reload();
                assert!(serves(&given, &serving), "the pair before is served");
            }
            if chain_first {
                write_key(&next)
            } else {
                write_chain(&next)
            }
            given.reload();
            assert!(serves(&given, &next));
            serving = next;
        }
    }
}
