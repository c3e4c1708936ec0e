//! The node's credential and whom it trusts: rotation step by step, and what each dial shows.
//!
//! Owns key, certificate and trust in the state directory. Leaves the order of the steps to `umbel_wire::rotation`, dialing
//! to `edge`. Invariant: memory follows the disk (what is dialed with stands there), one write at a time, and a
//! bundle that could not be used is never kept.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use data_encoding::BASE64;
use prost::Message;
use tokio::sync::Notify;
use umbel_contracts::proto::node::{NodeCredentialRequest, NodeCredentialResponse};
use umbel_contracts::{bounds, method};
use umbel_wire::ca::certificate_digest;
use umbel_wire::clock::Wall;
use umbel_wire::peer::{PeerCertificate, PeerName};
use umbel_wire::rotation::{Dials, Held, Pending, Shows, Step, next};
use umbel_wire::tls::{ClientIdentity, KeyPair, Trust, wire_client};
use umbel_wire::{Code, Connection, EdgeId, Error, NodeId};

use crate::StartError;
use crate::core::identity::{Identity, PendingCredential};

use crate::shell::state::State;

mod keeper;

pub(crate) use keeper::talk;

/// One request to the edge.
const TIMEOUT: Duration = Duration::from_secs(10);

type Tls = Arc<rustls::ClientConfig>;

#[derive(Debug)]
struct Inner {
    identity: Identity,
    active: Tls,
    pending: Option<(PendingCredential, Tls)>,
    dials: Dials,
}

/// What is shown of the credential. No key.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct Shown {
    /// `valid`, `rotating`, or `expired` by this host's clock.
    pub(crate) state: &'static str,
    pub(crate) not_after_unix_ms: i64,
    /// SHA-256 of each CA that is trusted for the edge.
    pub(crate) trusts: Vec<String>,
}

/// Key, certificate and trust of this node.
#[derive(Debug)]
pub(crate) struct Credentials {
    state: Arc<State>,
    inner: Mutex<Inner>,
    /// One step at a time, across waits.
    turn: tokio::sync::Mutex<()>,
    /// The edge wants a new certificate.
    asked: Notify,
    /// There is a certificate that the present connection has not shown.
    anew: Notify,
}

fn unusable(why: impl std::fmt::Display) -> StartError {
    StartError::Failed(format!("the identity in the state directory cannot be used: {why}"))
}

fn local(what: &str, error: impl std::fmt::Display) -> Error {
    Error::new(Code::Internal, "STATE_DIRECTORY", format!("{what}: {error}"))
}

impl Credentials {
    /// Takes up what stands in the state directory, also what a rotation that was cut off has left.
    ///
    /// # Errors
    /// If the identity's key or certificate cannot be used.
    pub(crate) fn open(state: &Arc<State>, identity: Identity) -> Result<Self, StartError> {
        let active = client_config(state, &identity)?;
        let pending =
            state.pending().filter(|pending| pending.key_file != identity.key_file).and_then(|pending| {
                match client_config(state, &identity.with(&pending)) {
                    Ok(tls) => Some((pending, tls)),
                    Err(error) => {
                        tracing::warn!(
                            "a pending certificate cannot be used, another one is asked for: {error}"
                        );
                        None
                    }
                }
            });
        let inner = Inner { identity, active, pending, dials: Dials::default() };
        Ok(Self {
            state: Arc::clone(state),
            inner: Mutex::new(inner),
            turn: tokio::sync::Mutex::default(),
            asked: Notify::new(),
            anew: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the next dial shows.
    pub(crate) fn dial(&self) -> Tls {
        let mut inner = self.lock();
        let pending = inner.pending.as_ref().map(|(_, tls)| Arc::clone(tls));
        let shows = inner.dials.next(pending.is_some());
        pending.filter(|_| shows == Shows::Pending).unwrap_or_else(|| Arc::clone(&inner.active))
    }

    /// A dial failed. True if the other certificate is to be tried at once.
    pub(crate) fn failed(&self, rejected: bool) -> bool {
        self.lock().dials.failed(rejected)
    }

    /// The edge has accepted a connection.
    pub(crate) fn accepted(&self) {
        self.lock().dials.accepted();
    }

    /// The edge wants a new certificate.
    pub(crate) fn ask(&self, cause: &str) {
        tracing::info!(cause, "the edge wants a new certificate");
        self.asked.notify_one();
    }

    /// Resolves when a certificate waits to be shown.
    pub(crate) async fn wants_anew(&self) {
        self.anew.notified().await;
    }

    /// SHA-256 of each CA certificate that is trusted for the edge.
    pub(crate) fn trusted(&self) -> Vec<Vec<u8>> {
        let inner = self.lock();
        let der = inner.identity.trusted().iter().filter_map(|text| BASE64.decode(text.as_bytes()).ok());
        der.map(|der| certificate_digest(&der).to_vec()).collect()
    }

    pub(crate) fn shown(&self) -> Shown {
        let trusts = self.trusted().iter().map(|one| data_encoding::HEXLOWER.encode(one)).collect();
        let inner = self.lock();
        let not_after_unix_ms = inner.identity.not_after_unix_ms;
        let state = if inner.pending.is_some() {
            "rotating"
        } else if Wall::now().unix_ms() > not_after_unix_ms {
            "expired"
        } else {
            "valid"
        };
        Shown { state, not_after_unix_ms, trusts }
    }

    /// Two thirds of the certificate's life are over, by this host's clock.
    fn is_due(&self) -> bool {
        let inner = self.lock();
        let leaf =
            inner.identity.certificate_chain.first().and_then(|text| BASE64.decode(text.as_bytes()).ok());
        let leaf = leaf.and_then(|der| PeerCertificate::parse(&der).ok());
        leaf.is_some_and(|leaf| Wall::now() >= leaf.renew_at())
    }

    fn held(&self, identity: &Identity) -> Held {
        let usable = self.lock().pending.is_some();
        let pending = self.state.pending().and_then(|pending| match pending.key_file == identity.key_file {
            true => Some(Pending::Adopted),
            // One that cannot be shown is none, whatever the disk has of it: another one is asked for.
            false => usable.then_some(Pending::OfSpare),
        });
        Held { spare_key: self.state.has_key(identity.spare_key_file()), pending }
    }

    /// Keeps exactly these CA certificates, on disk before in memory. Says which it has now.
    ///
    /// # Errors
    /// If they cannot be used or kept: then those before stay.
    pub(crate) async fn trust(self: &Arc<Self>, bundle: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, Error> {
        let _turn = self.turn.lock().await;
        let wanted: Vec<String> = bundle.iter().map(|der| BASE64.encode(der)).collect();
        let identity = self.lock().identity.clone();
        let refused = |why: &'static str| Error::new(Code::InvalidArgument, "TRUST", why);
        let Some(identity) = identity.trusting(wanted).map_err(refused)? else { return Ok(self.trusted()) };
        if bundle.iter().any(|der| PeerCertificate::parse(der).is_err()) {
            return Err(refused("the bundle of CA certificates has one that is none"));
        }
        self.on_disk(move |own| own.adopt(identity)).await?;
        tracing::info!("the edge's certificate authorities have changed; what it gave is kept");
        Ok(self.trusted())
    }

    /// Goes on with a rotation as far as it goes over this connection, which has shown the active certificate or the
    /// pending one. True if there is a certificate to be shown by a new connection.
    ///
    /// # Errors
    /// What the edge refused or the disk did not take: later again.
    pub(crate) async fn go_on(
        self: &Arc<Self>,
        connection: &Connection,
        wanted: bool,
    ) -> Result<bool, Error> {
        let _turn = self.turn.lock().await;
        loop {
            let step = self.on_disk(move |own| Ok(own.next(wanted))).await?;
            match step {
                None => return Ok(false),
                Some(Step::Show) => return Ok(true),
                Some(Step::Ask) => {
                    let answer = self.request(connection).await?;
                    self.on_disk(move |own| own.keep(answer)).await?;
                }
                Some(step) => self.on_disk(move |own| own.write(step)).await?,
            }
        }
    }

    fn next(&self, wanted: bool) -> Option<Step> {
        let (identity, said) = {
            let inner = self.lock();
            (inner.identity.clone(), inner.dials.said())
        };
        next(self.held(&identity), wanted, said)
    }

    /// One of the steps that are a write. Blocks on the disk.
    fn write(&self, step: Step) -> Result<(), Error> {
        let (identity, spare) = {
            let inner = self.lock();
            (inner.identity.clone(), inner.identity.spare_key_file())
        };
        match step {
            Step::MakeKey => self.state.key(spare, true).map(drop).map_err(|error| local("new key", error)),
            Step::Adopt => {
                let pending =
                    self.state.pending().ok_or_else(|| local("pending certificate", "it is gone"))?;
                self.adopt(identity.with(&pending))?;
                self.lock().dials.renewed();
                tracing::info!("the edge has accepted the new certificate; the one before is retired");
                Ok(())
            }
            Step::DropKey => self.state.drop_key(spare).map_err(|error| local("old key", error)),
            Step::DropPending => {
                self.state.set_pending(None).map_err(|error| local("pending certificate", error))?;
                self.lock().pending = None;
                Ok(())
            }
            Step::Ask | Step::Show => Ok(()),
        }
    }

    /// The identity changes: on disk, then in memory, with what its TLS needs.
    fn adopt(&self, identity: Identity) -> Result<(), Error> {
        let active = client_config(&self.state, &identity).map_err(|error| local("identity", error))?;
        let pending =
            self.lock().pending.clone().filter(|(pending, _)| pending.key_file != identity.key_file);
        let was_pending = pending.is_some();
        // The pending one trusts whom the identity trusts.
        let pending = pending.and_then(|(pending, _)| {
            let tls = client_config(&self.state, &identity.with(&pending)).ok()?;
            Some((pending, tls))
        });
        let unusable = was_pending && pending.is_none();
        self.state.set_identity(&identity).map_err(|error| local("identity", error))?;
        if unusable && let Err(error) = self.state.set_pending(None) {
            tracing::warn!(%error, "a pending certificate that cannot be used stays on the disk; it is not shown");
        }
        let mut inner = self.lock();
        (inner.identity, inner.active, inner.pending) = (identity, active, pending);
        Ok(())
    }

    async fn request(self: &Arc<Self>, connection: &Connection) -> Result<NodeCredentialResponse, Error> {
        let signing_request = self.on_disk(Self::signing_request).await?;
        let request = NodeCredentialRequest { signing_request };
        let answer = connection.request(method::NODE_CREDENTIAL, request.encode_to_vec(), TIMEOUT).await?;
        bounds::decode::<NodeCredentialResponse>(&answer)
    }

    /// For the new key. Blocks on the disk.
    fn signing_request(&self) -> Result<Vec<u8>, Error> {
        let spare = self.lock().identity.spare_key_file();
        let key = self.state.key(spare, false).map_err(|error| local("new key", error))?;
        key.signing_request().map_err(|error| local("signing request", error))
    }

    /// Keeps the edge's answer, if it is about this node and its new key. Blocks on the disk.
    fn keep(&self, answer: NodeCredentialResponse) -> Result<(), Error> {
        let identity = self.lock().identity.clone();
        let spare = identity.spare_key_file();
        let key = self.state.key(spare, false).map_err(|error| local("new key", error))?;
        check(&identity, &key, &answer)?;
        let pending = PendingCredential {
            certificate_chain: answer.certificate_chain.iter().map(|der| BASE64.encode(der)).collect(),
            key_file: spare.to_owned(),
            not_after_unix_ms: answer.not_after_unix_ms,
        };
        let tls = client_config(&self.state, &identity.with(&pending))
            .map_err(|error| local("new certificate", error))?;
        self.state.set_pending(Some(&pending)).map_err(|error| local("new certificate", error))?;
        let mut inner = self.lock();
        inner.pending = Some((pending, tls));
        inner.dials.renewed();
        Ok(())
    }

    async fn on_disk<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let own = Arc::clone(self);
        tokio::task::spawn_blocking(move || work(&own))
            .await
            .map_err(|error| local("state directory", error))?
    }
}

/// Checks that an answer is about this node and this key.
fn check(identity: &Identity, key: &KeyPair, answer: &NodeCredentialResponse) -> Result<(), Error> {
    let bad = |why: &str| Error::new(Code::Internal, "CREDENTIAL_ANSWER", format!("the edge's answer {why}"));
    let leaf = answer.certificate_chain.first().ok_or_else(|| bad("has no certificate"))?;
    let leaf = PeerCertificate::parse(leaf).map_err(|_| bad("has a certificate that is none"))?;
    if leaf.key_hash != key.key_hash() {
        return Err(bad("has a certificate for another key"));
    }
    let edge = EdgeId::parse(&identity.edge_id).map_err(|_| bad("is for an edge without a name"))?;
    if leaf.name != Some(PeerName::Node(edge, NodeId(identity.node_id))) {
        return Err(bad("is for another edge or node"));
    }
    Ok(())
}

/// TLS towards the edge with this identity.
///
/// # Errors
/// If key or certificates cannot be used.
pub(crate) fn client_config(state: &State, identity: &Identity) -> Result<Tls, StartError> {
    let decode = |text: &String| BASE64.decode(text.as_bytes()).map(Into::into).map_err(unusable);
    let trusted = identity.trusted().iter().map(decode).collect::<Result<Vec<_>, _>>()?;
    let chain = identity.certificate_chain.iter().map(decode).collect::<Result<Vec<_>, _>>()?;
    let key = state.key(&identity.key_file, false)?;
    wire_client(Trust::Ca(trusted), Some(ClientIdentity::new(chain, key.private_key()))).map_err(unusable)
}

#[cfg(test)]
mod tests;
