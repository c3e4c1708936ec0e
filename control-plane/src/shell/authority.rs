//! The control plane's own keys: the authority that signs edges, and the certificates of its two TLS ports.
//!
//! The server's certificate is made anew at each start and again at two thirds of its life, so that it never has to
//! be kept or renewed by hand; a certificate of the operator's own for the API is read again when its file changes.
//! Invariant: the authority's key leaves neither this module nor its 0600 file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;
use umbel_wire::ca::{Authority, SERVER_VALIDITY};
use umbel_wire::clock::Wall;
use umbel_wire::tls::{TlsServer, front_server, read_pair, wire_server};

use crate::{Config, StartError};

/// The name that edges verify, whatever address they dial.
pub(crate) const SERVER_NAME: &str = "control-plane.umbel";
/// Directory of the authority in the state directory.
pub(crate) const CA_DIR: &str = "ca";
/// How often certificates are looked at: whoever replaced one does not wait long, and a look is two calls.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The operator's own certificate for the API.
#[derive(Debug, Clone)]
struct Given {
    chain: PathBuf,
    key: PathBuf,
    changed: [Option<SystemTime>; 2],
}

/// Keys and certificates in use.
pub(crate) struct Keys {
    pub(crate) authority: Authority,
    pub(crate) edges: Arc<TlsServer>,
    pub(crate) api: Arc<TlsServer>,
    names: Vec<String>,
    given: Option<Given>,
}

/// Where the authority stands.
pub(crate) fn ca_dir(config: &Config) -> PathBuf {
    config.state_dir.join(CA_DIR)
}

impl Keys {
    /// Opens the authority and makes the servers' certificates.
    pub(crate) fn open(config: &Config, now: Wall) -> Result<Self, StartError> {
        let authority = Authority::open(&ca_dir(config)).map_err(|error| {
            StartError::State(format!(
                "{error}. If this control plane is new, run `umbel control-plane init` first; if it is not, restore \
                 the directory from a backup: a new authority would lock out every enrolled edge."
            ))
        })?;
        let names = names(config);
        let made = issue(&authority, &names, now)?;
        let edges = wire_server(made.0.clone(), made.1.clone_key()).map_err(tls)?;
        let given = match (&config.api_cert_file, &config.api_key_file) {
            (Some(chain), Some(key)) => {
                Some(Given { chain: chain.clone(), key: key.clone(), changed: changed(chain, key) })
            }
            _ => None,
        };
        let api = match &given {
            Some(given) => {
                let (chain, key) = read_pair(&given.chain, &given.key)
                    .map_err(|error| StartError::Config(error.to_string()))?;
                front_server(chain, key)
            }
            None => front_server(made.0, made.1),
        };
        Ok(Self { authority, edges, api: api.map_err(tls)?, names, given })
    }

    /// Renews what is about to end and reads again what changed, until the drain.
    pub(crate) async fn watch(&self, drain: CancellationToken) {
        let mut given = self.given.clone();
        while drain.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
            let now = Wall::now();
            if now >= self.edges.renew_at() {
                self.renew(now, given.is_none());
            }
            if let Some(given) = &mut given {
                given.reload(&self.api);
            }
        }
    }

    fn renew(&self, now: Wall, api_too: bool) {
        let renewed = issue(&self.authority, &self.names, now).and_then(|(chain, key)| {
            if api_too {
                self.api.reload(chain.clone(), key.clone_key()).map_err(tls)?;
            }
            self.edges.reload(chain, key).map_err(tls)
        });
        match renewed {
            Ok(()) => tracing::info!("server certificate renewed"),
            Err(error) => tracing::error!("the server certificate cannot be renewed: {error}"),
        }
    }
}

impl Given {
    fn reload(&mut self, api: &TlsServer) {
        let seen = changed(&self.chain, &self.key);
        if seen == self.changed {
            return;
        }
        self.changed = seen;
        let read = read_pair(&self.chain, &self.key);
        match read.and_then(|(chain, key)| api.reload(chain, key)) {
            Ok(()) => tracing::info!("the API's certificate was read again"),
            Err(error) => tracing::error!("the API goes on with its former certificate: {error}"),
        }
    }
}

/// When the two files were written.
fn changed(chain: &Path, key: &Path) -> [Option<SystemTime>; 2] {
    [chain, key].map(|path| std::fs::metadata(path).and_then(|meta| meta.modified()).ok())
}

fn names(config: &Config) -> Vec<String> {
    let mut names: Vec<String> =
        [SERVER_NAME, "localhost", "127.0.0.1", "::1"].into_iter().map(str::to_owned).collect();
    names.extend(config.server_names.iter().cloned());
    names
}

type Pair = (Vec<rustls::pki_types::CertificateDer<'static>>, rustls::pki_types::PrivateKeyDer<'static>);

fn issue(authority: &Authority, names: &[String], now: Wall) -> Result<Pair, StartError> {
    let made = authority
        .issue_server(names, now, SERVER_VALIDITY)
        .map_err(|error| StartError::Config(format!("[tls] server_names: {error}.")))?;
    Ok((made.chain, made.key.private_key()))
}

fn tls(error: umbel_wire::tls::TlsError) -> StartError {
    StartError::Failed(error.to_string())
}
