//! One accepted connection of a node.
//!
//! Owns its answers, and its one certificate at a time. Leaves what is said to `core/session` and admission. Invariant:
//! everything it does carries its generation.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use umbel_contracts::method;
use umbel_wire::{
    CloseReason, Code, Connection, Error, Generation, Goaway, Handler, IncomingRequest, NodeId, UnderWay,
    clock,
};

use crate::core::door::{self, Named, Over};
use crate::core::jobs::Speaker;
use crate::core::registry::StaleGeneration;
use crate::core::session::{Moment, Naming, NotTaken, Said, Session, named};
use crate::shell::jobs;
use crate::shell::site::Site;

use super::rotation;

/// Between two certificates for one connection: each is a signature and a write.
const ASKING: Duration = Duration::from_secs(1);

/// The handler of one generation.
pub(super) struct NodeSession {
    site: Arc<Site>,
    own: Session,
    named: Mutex<Option<Named>>,
    asking: Arc<AtomicBool>,
}

impl NodeSession {
    pub(super) fn new(site: Arc<Site>, id: NodeId, generation: Generation) -> Self {
        let own = Session { id, generation };
        Self { site, own, named: Mutex::default(), asking: Arc::default() }
    }

    /// The time for naming leases has passed since WELCOME, or since the last look. True: look again.
    pub(super) fn naming_is_over(&self, site: &Site, connection: &Connection) -> bool {
        let named = *self.named();
        let Session { id, generation } = self.own;
        let (now, wall) = (clock::now(), site.wall());
        let over = site.change(|registry| door::naming_is_over(registry, id, generation, named, now, wall));
        match over {
            Over::Again => return true,
            Over::Done => site.settings.nudge(id),
            Over::Close(reason) => {
                tracing::warn!(node = %id, %generation, "its naming of leases came to nothing: {reason}");
                connection.close(reason);
            }
        }
        false
    }

    fn named(&self) -> MutexGuard<'_, Option<Named>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn says(&self, said: Said) -> Result<Vec<u8>, NotTaken> {
        if let Said::Leases(leases) = said {
            return named(&mut &*self, &leases);
        }
        let (now, wall, spread) = (clock::now(), self.site.wall(), self.site.reconnect_spread());
        self.site.change(|registry| self.own.says(registry, said, Moment { now, wall, spread }))
    }

    fn taken<T>(&self, connection: &Connection, result: Result<T, NotTaken>) -> Result<T, Error> {
        result.map_err(|not| match not {
            NotTaken::Refused(error) => error,
            NotTaken::Stale => {
                let (error, close) = self.site.read(|registry| self.own.stale(registry));
                let Session { id, generation } = self.own;
                tracing::info!(node = %id, %generation, replaced = close.is_none(), "an older connection spoke");
                close.into_iter().for_each(|reason| connection.close(reason));
                error
            }
        })
    }

    /// What it says of its jobs: each end is a write. A connection carries a bounded number of requests.
    fn job(&self, connection: &Connection, request: IncomingRequest) {
        let Session { id, generation } = self.own;
        let owner = self.site.read(|registry| registry.slots.owner(&id).cloned());
        let Some(owner) = owner.filter(|owner| owner.generation == generation) else {
            return request.respond(self.taken(connection, Err(NotTaken::Stale)));
        };
        let speaker = Speaker { node: id, instance: owner.instance.to_string(), generation };
        let site = Arc::clone(&self.site);
        tokio::spawn(async move {
            let answer = jobs::taken(&site, speaker, request.method, &request.payload).await;
            request.respond(answer);
        });
    }

    // One at a time: each is a signature and a write.
    fn credential(&self, request: IncomingRequest) {
        let Some(asking) = UnderWay::take(&self.asking) else {
            let message = "this node's last request for a certificate is not answered yet";
            let error = Error::new(Code::ResourceExhausted, "ASKING_ALREADY", message);
            return request.respond(Err(error.with_retry_after(Duration::from_secs(1))));
        };
        let (site, Session { id, generation }) = (Arc::clone(&self.site), self.own);
        tokio::spawn(async move {
            site.trip("credential");
            let answer = rotation::give(&site, id, generation, &request.payload).await;
            request.respond(answer);
            tokio::time::sleep(ASKING).await;
            drop(asking);
        });
    }
}

impl Naming for &NodeSession {
    fn is_current(&mut self) -> bool {
        self.site.read(|registry| registry.slots.is_current(&self.own.id, self.own.generation))
    }

    fn carried(&mut self, named: &[u64]) -> Vec<u64> {
        let cancel = self.site.dispatch.carried(self.own.id, self.own.generation, named);
        *self.named() = Some(Named { at: clock::now(), left: cancel.len() });
        cancel
    }

    fn complete(&mut self) -> Result<(), StaleGeneration> {
        self.site.change(|registry| registry.complete(self.own.id, self.own.generation))?;
        self.site.settings.nudge(self.own.id);
        Ok(())
    }
}

impl Handler for NodeSession {
    fn on_request(&self, connection: &Connection, request: IncomingRequest) {
        if request.method == method::NODE_CREDENTIAL {
            return self.credential(request);
        }
        if jobs::is_ours(request.method) {
            return self.job(connection, request);
        }
        let said = Said::request(request.method, &request.payload);
        let answer = said.map_err(NotTaken::from).and_then(|said| self.says(said));
        request.respond(self.taken(connection, answer));
    }

    fn on_event(&self, connection: &Connection, event: u32, _key: &str, payload: &[u8]) -> Result<(), Error> {
        let taken = Said::event(event, payload).map_err(NotTaken::from).and_then(|said| self.says(said));
        self.taken(connection, taken).map(drop)
    }

    fn on_goaway(&self, _connection: &Connection, goaway: &Goaway) {
        self.site.change(|registry| self.own.drains(registry, goaway));
    }

    fn on_closed(&self, _connection: &Connection, reason: &CloseReason) {
        let (why, Session { id, generation }) = (reason.name(), self.own);
        let owner = self.site.change(|registry| registry.closed(id, generation, why));
        self.site.jobs.closed(id, generation);
        tracing::info!(node = %id, %generation, owned = owner.is_some(), "a node's connection ended: {reason}");
    }
}
