//! The certificate that this edge shows to one control plane: renewed step by step while it is connected.
//!
//! Owns what each dial shows and when a new certificate is asked for. Leaves the order of the steps to
//! `umbel_wire::rotation` and the files to [`super::membership`]. Invariant: what is dialed with stands on the disk;
//! the site needs none of it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prost::Message;
use rustls::pki_types::CertificateDer;
use tokio::sync::Notify;
use umbel_contracts::proto::control::{EdgeCredentialRequest, EdgeCredentialResponse};
use umbel_contracts::{bounds, method};
use umbel_wire::clock::Wall;
use umbel_wire::peer::{PeerCertificate, PeerName};
use umbel_wire::rotation::{Dials, Shows, Step, next};
use umbel_wire::tls;
use umbel_wire::{Code, Connection, EdgeId, Error};

use super::membership::{self, Membership};

/// One request to the control plane.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often the certificate's age is looked at.
const LOOK: Duration = Duration::from_secs(600);
/// After a failure: the first pause and the longest.
const AGAIN: Duration = Duration::from_secs(5);
const AGAIN_MAX: Duration = Duration::from_secs(900);

type Tls = Arc<rustls::ClientConfig>;

struct Inner {
    active: Tls,
    renew_at: Wall,
    pending: Option<Tls>,
    dials: Dials,
}

/// Key and certificate towards one control plane.
pub(super) struct Renewal {
    directory: PathBuf,
    edge_id: String,
    inner: Mutex<Inner>,
    /// One step at a time, across waits.
    turn: tokio::sync::Mutex<()>,
    anew: Notify,
}

fn local(error: impl std::fmt::Display) -> Error {
    Error::new(Code::Internal, "STATE_DIRECTORY", error.to_string())
}

impl Renewal {
    /// Takes up what stands in the directory, also what a renewal that was cut off has left. Blocks on the disk.
    pub(super) fn open(membership: &Membership) -> Self {
        let inner = Inner {
            active: Arc::clone(&membership.tls),
            renew_at: membership.renew_at,
            pending: membership::pending(&membership.directory),
            dials: Dials::default(),
        };
        Self {
            directory: membership.directory.clone(),
            edge_id: membership.edge_id.clone(),
            inner: Mutex::new(inner),
            turn: tokio::sync::Mutex::default(),
            anew: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the next dial shows.
    pub(super) fn dial(&self) -> Tls {
        let mut inner = self.lock();
        let pending = inner.pending.clone();
        let shows = inner.dials.next(pending.is_some());
        pending.filter(|_| shows == Shows::Pending).unwrap_or_else(|| Arc::clone(&inner.active))
    }

    /// A dial failed. True if the other certificate is to be tried at once.
    pub(super) fn failed(&self, rejected: bool) -> bool {
        self.lock().dials.failed(rejected)
    }

    /// The control plane has accepted a connection.
    pub(super) fn accepted(&self) {
        self.lock().dials.accepted();
    }

    /// Resolves when a certificate waits to be shown.
    pub(super) async fn wants_anew(&self) {
        self.anew.notified().await;
    }

    /// Renews over this connection, as long as it lives. `wanted`: the control plane said so in its answer to hello.
    pub(super) async fn talk(self: Arc<Self>, connection: Connection, wanted: bool) {
        tokio::select! {
            _ = connection.closed() => {}
            () = self.keep(&connection, wanted) => {}
        }
    }

    async fn keep(self: &Arc<Self>, connection: &Connection, mut wanted: bool) {
        let (mut pause, mut by_itself) = (AGAIN, true);
        loop {
            // By this host's own clock once a connection: it may be wrong.
            if by_itself && Wall::now() >= self.lock().renew_at {
                (wanted, by_itself) = (true, false);
            }
            let wait = match self.go_on(connection, wanted).await {
                Ok(shown_anew) => {
                    if shown_anew {
                        self.anew.notify_one();
                    }
                    (wanted, pause) = (false, AGAIN);
                    LOOK
                }
                Err(error) => {
                    tracing::warn!(%error, retry_in = ?pause, "no new certificate from a control plane");
                    let wait = error.retry_after.unwrap_or_default().max(pause).min(AGAIN_MAX);
                    pause = (pause * 2).min(AGAIN_MAX);
                    wait
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Goes on as far as it goes over this connection. True if there is a certificate to be shown by a new one.
    async fn go_on(self: &Arc<Self>, connection: &Connection, wanted: bool) -> Result<bool, Error> {
        let _turn = self.turn.lock().await;
        loop {
            let step = self
                .on_disk(move |own| {
                    let held = membership::held(&own.directory).map_err(local)?;
                    Ok(next(held, wanted, own.lock().dials.said()))
                })
                .await?;
            match step {
                None => return Ok(false),
                Some(Step::Show) => return Ok(true),
                Some(Step::Ask) => {
                    let request = self.on_disk(Self::request).await?.encode_to_vec();
                    let answer = connection.request(method::EDGE_CREDENTIAL, request, TIMEOUT).await?;
                    let answer = bounds::decode::<EdgeCredentialResponse>(&answer)?;
                    self.on_disk(move |own| own.given(answer)).await?;
                }
                Some(step) => self.on_disk(move |own| own.write(step)).await?,
            }
        }
    }

    fn request(&self) -> Result<EdgeCredentialRequest, Error> {
        let key = membership::spare_key(&self.directory).map_err(local)?;
        Ok(EdgeCredentialRequest { signing_request: key.signing_request().map_err(local)? })
    }

    /// Keeps the answer, if it is about this edge and its new key.
    fn given(&self, answer: EdgeCredentialResponse) -> Result<(), Error> {
        let key = membership::spare_key(&self.directory).map_err(local)?;
        let leaf = answer.certificate_chain.first().and_then(|der| PeerCertificate::parse(der).ok());
        let name = EdgeId::parse(&self.edge_id).ok().map(PeerName::Edge);
        if leaf.is_none_or(|leaf| leaf.key_hash != key.key_hash() || leaf.name != name) {
            let message = "the control plane's answer is for another edge or key";
            return Err(Error::new(Code::Internal, "CREDENTIAL_ANSWER", message));
        }
        let chain: Vec<_> = answer.certificate_chain.into_iter().map(CertificateDer::from).collect();
        membership::keep(&self.directory, &tls::to_pem(&chain)).map_err(local)?;
        self.take_up(membership::pending(&self.directory));
        Ok(())
    }

    fn write(&self, step: Step) -> Result<(), Error> {
        membership::write_step(&self.directory, step).map_err(local)?;
        match step {
            Step::Adopt => {
                let own = Membership::read(&self.directory).map_err(local)?;
                tracing::info!(control_plane = %own.name, "it has accepted the new certificate");
                {
                    let mut inner = self.lock();
                    (inner.active, inner.renew_at) = (own.tls, own.renew_at);
                }
                self.take_up(None);
            }
            Step::DropPending => self.take_up(membership::pending(&self.directory)),
            _ => {}
        }
        Ok(())
    }

    fn take_up(&self, pending: Option<Tls>) {
        let mut inner = self.lock();
        inner.pending = pending;
        inner.dials.renewed();
    }

    async fn on_disk<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let own = Arc::clone(self);
        tokio::task::spawn_blocking(move || work(&own)).await.map_err(local)?
    }
}
