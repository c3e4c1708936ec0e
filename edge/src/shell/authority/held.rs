//! The authorities whose keys this site holds: their files, which one signs, and whom nodes are told to trust.
//!
//! Owns the directory `ca` and the server certificate of the nodes' port, which follows the one that signs. Leaves
//! the order of a change to `core/authority`. Invariant: a key is on disk before a row names it, and is removed only
//! after no row does; whoever trusts one of the bundle reaches this edge.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use data_encoding::HEXLOWER;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::{Mutex, MutexGuard};
use umbel_contracts::proto::control::Problem;
use umbel_wire::ca::{Authority, AuthorityError, CERTIFICATE_FILE, KEY_FILE, SERVER_VALIDITY};
use umbel_wire::clock::Wall;
use umbel_wire::files;
use umbel_wire::tls::{TlsServer, wire_server};

use crate::StartError;
use crate::core::authority::{AuthorityRow, Keys, taken_up};

/// Most authorities that are looked at: the one of the directory and what changes left.
const MOST: usize = 16;

/// One authority with its files.
#[derive(Clone)]
struct Found {
    sha256: String,
    // The directory's own.
    own: bool,
    folder: PathBuf,
    authority: Arc<Authority>,
}

/// What is in force.
pub(crate) struct Held {
    pub(crate) row: AuthorityRow,
    signing: Arc<Authority>,
    // As `row.trusted()`.
    trusted: Vec<Arc<Authority>>,
    found: Vec<Found>,
}

impl Held {
    /// The one that signs.
    pub(crate) fn signing(&self) -> &Authority {
        &self.signing
    }

    /// Whom nodes are told to trust, the one that signs first.
    pub(crate) fn trusted(&self) -> &[Arc<Authority>] {
        &self.trusted
    }

    /// The same as certificates.
    pub(crate) fn bundle(&self) -> Vec<Vec<u8>> {
        self.trusted.iter().map(|authority| authority.certificate_der().to_vec()).collect()
    }

    /// The same as digests.
    pub(crate) fn digests(&self) -> Vec<String> {
        self.row.trusted().cloned().collect()
    }

    /// SHA-256 of the one that signs: what a token carries.
    pub(crate) fn sha256(&self) -> String {
        self.row.signing.clone()
    }

    /// The trusted one that a token's text names. Without a name it is from before the last change.
    pub(crate) fn named(&self, sha256: &str) -> &Authority {
        let named = self.row.named(sha256);
        let at = self.row.trusted().position(|one| one == named).and_then(|at| self.trusted.get(at));
        at.unwrap_or(&self.signing)
    }

    /// Whether any authority of this site has signed a client's certificate, whatever is trusted now.
    pub(crate) fn has_signed(&self, leaf: &[u8]) -> bool {
        let leaf = CertificateDer::from(leaf);
        self.found.iter().any(|one| one.authority.has_signed(&leaf))
    }

    /// What the nodes' port shows: a leaf of the one that signs, and a path to it for whoever trusts the previous one.
    fn server(&self, name: &str) -> Result<Pair, AuthorityError> {
        let now = Wall::now();
        let made = self.signing.issue_server(&[name.to_owned()], now, SERVER_VALIDITY)?;
        let mut chain = made.chain;
        let vouches = |one: &String| self.row.trusted().position(|trusted| trusted == one);
        let others = self.row.vouching().skip(1).filter_map(vouches);
        for previous in others.filter_map(|at| self.trusted.get(at)) {
            match previous.bridge(self.signing.certificate_der(), now) {
                Ok(bridge) => chain.push(bridge),
                Err(error) => tracing::warn!(%error, "nodes that lack the new authority cannot connect"),
            }
            // Tokens from before the switch name it.
            chain.push(previous.certificate_der().clone());
        }
        Ok((chain, made.key.private_key()))
    }
}

type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Every authority of the site, and the nodes' port.
pub(crate) struct Authorities {
    folder: PathBuf,
    site: String,
    server_name: String,
    nodes: Arc<TlsServer>,
    held: ArcSwap<Held>,
    // One step at a time.
    turn: Mutex<()>,
    // What the store has and this has not: its files could not be used, or the step broke off.
    not_in_force: ArcSwapOption<(AuthorityRow, Wall)>,
}

impl Authorities {
    /// Reads the directory; until [`Authorities::take_up`] it stands for a site whose authority never changed.
    pub(crate) fn open(folder: &Path, site: &str) -> Result<Self, StartError> {
        let found = find(folder)?;
        // Without a row nobody can say yet that it is missing one.
        let (held, _) = hold(None, found)?;
        let server_name = format!("{site}.umbel");
        let (chain, key) = held.server(&server_name).map_err(failed)?;
        let nodes = wire_server(chain, key).map_err(|error| StartError::Failed(error.to_string()))?;
        Ok(Self {
            folder: folder.to_owned(),
            site: site.to_owned(),
            server_name,
            nodes,
            held: ArcSwap::from_pointee(held),
            turn: Mutex::default(),
            not_in_force: ArcSwapOption::empty(),
        })
    }

    /// What is in force now.
    pub(crate) fn held(&self) -> Arc<Held> {
        self.held.load_full()
    }

    /// The nodes' port.
    pub(crate) fn nodes(&self) -> &Arc<TlsServer> {
        &self.nodes
    }

    /// Nobody else changes it while this is held.
    pub(crate) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// A step is stored: [`Authorities::take_up`] has to follow, however often it is tried.
    pub(crate) fn stored(&self, row: AuthorityRow) {
        self.not_in_force.store(Some(Arc::new((row, Wall::now()))));
    }

    /// What is stored and was not taken up yet.
    pub(crate) fn not_in_force(&self) -> Option<AuthorityRow> {
        self.not_in_force.load_full().map(|stored| stored.0.clone())
    }

    /// The same for people.
    pub(crate) fn problem(&self) -> Option<Problem> {
        let stored = self.not_in_force.load_full()?;
        let message = "a step of the change of authority is stored and not in force: the authority's files cannot be \
                       used; the edge's log says why, and the edge tries again by itself";
        Some(Problem {
            code: "CA_NOT_IN_FORCE".to_owned(),
            message: message.to_owned(),
            since_unix_ms: stored.1.unix_ms(),
            subject: String::new(),
        })
    }

    /// What a row would put in force.
    pub(crate) fn look(&self, row: AuthorityRow) -> Result<Held, StartError> {
        Ok(hold(Some(row), find(&self.folder)?)?.0)
    }

    /// Puts a stored row in force, from the next handshake on.
    pub(crate) fn take_up(&self, row: Option<AuthorityRow>) -> Result<(), StartError> {
        let (held, lost) = hold(row, find(&self.folder)?)?;
        if lost {
            tracing::error!(
                "the authority that should sign has no key here: the store is older than the directory; the newest that is \
                 there signs, and the one before it vouches until `umbel ctl ca finish`"
            );
        }
        let pair = held.server(&self.server_name).map_err(failed)?;
        self.nodes.reload(pair.0, pair.1).map_err(|error| StartError::Failed(error.to_string()))?;
        self.held.store(Arc::new(held));
        self.not_in_force.store(None);
        Ok(())
    }

    /// A new certificate for the nodes' port.
    pub(crate) fn renew(&self) -> Result<(), StartError> {
        let pair = self.held().server(&self.server_name).map_err(failed)?;
        self.nodes.reload(pair.0, pair.1).map_err(|error| StartError::Failed(error.to_string()))
    }

    /// Makes a new one; nothing knows of it until a row that names it is taken up. What an earlier attempt left goes.
    /// Blocks on the disk.
    pub(crate) fn make(&self) -> Result<String, AuthorityError> {
        let listed: Vec<String> = self.held().digests();
        for left in find(&self.folder).unwrap_or_default() {
            if left.folder != self.folder && !listed.contains(&left.sha256) {
                discard(&left);
            }
        }
        let now = Wall::now();
        // Of its own name: a path is found by names.
        let name = format!("{} {}", self.site, now.unix_ms() / 1000);
        let folder = self.folder.join(format!("{}", now.unix_ms()));
        let made = Authority::create(&folder, &name, now)?;
        Ok(HEXLOWER.encode(&made.digest()))
    }

    /// Removes the files of those that no row names any more. Blocks on the disk.
    pub(crate) fn discard(&self, sha256: &str) {
        if self.held().row.trusted().any(|one| one == sha256) {
            return;
        }
        for one in find(&self.folder).unwrap_or_default().iter().filter(|one| one.sha256 == sha256) {
            discard(one);
        }
    }
}

fn failed(error: AuthorityError) -> StartError {
    StartError::Failed(format!("cannot make the server's certificate: {error}"))
}

/// Whether a directory holds an authority, usable or not.
pub(crate) fn is_initialised(folder: &Path) -> bool {
    let inside =
        std::fs::read_dir(folder).map(|entries| entries.filter_map(Result::ok).map(|one| one.path()));
    folder.join(CERTIFICATE_FILE).exists()
        || inside.is_ok_and(|mut paths| paths.any(|path| path.join(CERTIFICATE_FILE).exists()))
}

/// Opens what is there: the directory's own first, then the others, newest first.
fn find(folder: &Path) -> Result<Vec<Found>, StartError> {
    let mut others: Vec<_> = std::fs::read_dir(folder)
        .map(|entries| entries.filter_map(Result::ok).map(|entry| entry.path()).collect())
        .unwrap_or_default();
    others.retain(|path: &PathBuf| path.join(CERTIFICATE_FILE).is_file());
    others.sort_by(|a, b| b.cmp(a));
    others.truncate(MOST);
    let mut found = Vec::new();
    // Its own may be gone after a finished change; a broken one is said so only where there is no other.
    match Authority::open(folder) {
        Ok(authority) => found.push(described(folder, authority, true)),
        Err(error) if others.is_empty() => {
            return Err(StartError::State(format!(
                "{error}. If this site is new, run `umbel edge init` first; if it is not, restore the directory from a \
                 backup: a new authority would lock out every enrolled node."
            )));
        }
        Err(error) => tracing::debug!(%error, "the directory has no authority of its own"),
    }
    for path in others {
        match Authority::open(&path) {
            Ok(authority) => found.push(described(&path, authority, false)),
            Err(error) => tracing::warn!("an authority cannot be used: {error}"),
        }
    }
    Ok(found)
}

fn described(folder: &Path, authority: Authority, own: bool) -> Found {
    let sha256 = HEXLOWER.encode(&authority.digest());
    Found { sha256, own, folder: folder.to_owned(), authority: Arc::new(authority) }
}

// The flag: the one that should sign is missing.
fn hold(stored: Option<AuthorityRow>, found: Vec<Found>) -> Result<(Held, bool), StartError> {
    let digest = |one: &Found| one.sha256.clone();
    let (own, others): (Vec<_>, Vec<_>) = found.iter().partition(|one| one.own);
    let own = own.first().map(|one| digest(one));
    let keys = Keys { own, others: others.into_iter().map(digest).collect() };
    let none =
        || StartError::State("no authority of this site can be used; restore the directory".to_owned());
    let (row, lost) = taken_up(stored, &keys).ok_or_else(none)?;
    let get =
        |digest: &String| found.iter().find(|one| one.sha256 == *digest).map(|one| one.authority.clone());
    let trusted: Vec<_> = row.trusted().filter_map(get).collect();
    let signing = trusted.first().cloned().ok_or_else(none)?;
    Ok((Held { signing, trusted, found, row }, lost))
}

/// The key first: a certificate without its key signs nothing.
fn discard(one: &Found) {
    let removed = files::remove(&one.folder.join(KEY_FILE))
        .and_then(|()| files::remove(&one.folder.join(CERTIFICATE_FILE)));
    if let Err(error) = removed {
        tracing::warn!(%error, "the files of an authority that is over cannot be removed");
        return;
    }
    // The directory's own stays, with the others in it.
    let _ = std::fs::remove_dir(&one.folder);
}
