//! Admission in the running edge: one lock around the core, tasks that wait, and the nodes' connections.
//!
//! Owns how a waiting request is woken and which connection a lease's stream is opened on. Leaves every
//! decision to [`crate::core::admission`]. Invariants: no lock is held while the wire is called or anything is
//! awaited; a [`Slot`] or [`Waiting`] that is dropped, in whatever way, gives back what it held.

mod asked;
mod gauges;
mod slot;
mod told;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};
use umbel_wire::numbered::Numbered;
use umbel_wire::{Connection, Generation, NodeId};

use gauges::Gauges;
pub(crate) use slot::{Slot, Waiting};

use crate::core::admission::{Admission, Decision, Grant, Output, ProviderIndex, RetryBudget};
pub(crate) use crate::core::admission::{
    Ask, Avoid, ChoiceFigures, Class, Figures, KeyNumber, LeaseCounts, LeaseId, LeaseReading, Limits,
    ModelIndex, NotTaken, Outcome, Prefix, ProviderState, QueueReading, Reading, Refusal, RefusalReason,
    Released, Ticket,
};
use crate::core::providers::Expected;
use crate::core::registry::Call;
use crate::core::usage::Usage;
use crate::metrics::{Metrics, ModelMetrics};
use crate::shell::requests::Requests;

/// Where the streams of a provider go.
#[derive(Debug)]
struct Link {
    connection: Connection,
    generation: Generation,
    node_id: NodeId,
    provider_id: Arc<str>,
    model: Arc<str>,
}

/// A model that callers may use.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// For [`Ask`].
    pub(crate) model: ModelIndex,
    /// Its canonical name.
    pub(crate) name: Arc<str>,
    /// Its metrics.
    pub(crate) metrics: Arc<ModelMetrics>,
}

type Granted = (Grant, Arc<Link>);

struct State {
    admission: Admission,
    budget: RetryBudget,
    waiting: Numbered<Ticket, oneshot::Sender<Result<Granted, Refusal>>>,
    links: Numbered<ProviderIndex, Arc<Link>>,
    models: Numbered<ModelIndex, Known>,
    /// Models that admission forgot and whose metrics are still there.
    forgotten: Vec<Known>,
    /// Providers that are wanted and not there yet.
    expected: Vec<Expected>,
    /// When the clock task wakes next.
    armed: Option<Instant>,
}

/// Gives requests their slots.
pub(crate) struct Dispatch {
    state: Mutex<State>,
    metrics: Arc<Metrics>,
    /// What slots are asked for and held by.
    requests: Arc<Requests>,
    /// A deadline earlier than the armed one came up.
    earlier: Notify,
    /// Something changed while someone watches.
    changed: Notify,
    watchers: AtomicUsize,
    /// Of prefixes' hashes: nobody outside can know it.
    seed: u64,
}

impl std::fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatch").finish_non_exhaustive()
    }
}

/// The answer to [`Dispatch::admit`].
pub(crate) enum Admitted {
    /// A slot at once.
    Slot(Slot),
    /// To be awaited.
    Waiting(Waiting),
    /// No.
    Refused(Refusal),
}

impl Dispatch {
    /// An empty dispatch. Spawn [`Dispatch::run`] beside it. `first_lease` must lie above every lease that an
    /// earlier process of this edge gave (wall time in ms shifted left by 20 bits does).
    pub(crate) fn new(limits: Limits, first_lease: u64, metrics: Arc<Metrics>) -> Arc<Self> {
        let dispatch = Arc::new(Self {
            state: Mutex::new(State {
                admission: Admission::new(limits, first_lease),
                budget: RetryBudget::default(),
                waiting: Numbered::default(),
                links: Numbered::default(),
                models: Numbered::default(),
                forgotten: Vec::new(),
                expected: Vec::new(),
                armed: None,
            }),
            metrics: Arc::clone(&metrics),
            requests: Arc::default(),
            earlier: Notify::new(),
            changed: Notify::new(),
            watchers: AtomicUsize::new(0),
            seed: RandomState::new().hash_one(0u64),
        });
        let gauges = Gauges { dispatch: Arc::downgrade(&dispatch) };
        metrics.register(|registry| registry.register_collector(Box::new(gauges)));
        dispatch
    }

    /// Other bounds of the queues, for requests that come from now on; one that waits keeps its deadline.
    pub(crate) fn set_queue_limits(&self, waiting: usize, max_wait: Duration, max_wait_loading: Duration) {
        self.change(|state, _| state.admission.set_queue_limits(waiting, max_wait, max_wait_loading));
    }

    /// Applies deadlines as time passes. Runs for ever; drop it with the runtime.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            let (next, unconfirmed) = {
                let mut state = self.lock();
                let unconfirmed = state.admission.expire(now());
                let named =
                    |lease: &LeaseId| Some((lease.0, Arc::clone(state.admission.provider_of(*lease)?)));
                let unconfirmed: Vec<_> = unconfirmed.iter().filter_map(named).collect();
                state.settle();
                state.armed = state.admission.next_deadline();
                (state.armed, unconfirmed)
            };
            self.tell_watchers();
            for (lease, provider_id) in unconfirmed {
                tracing::warn!(lease, %provider_id, "its node has not confirmed the end of a reset request");
            }
            match next {
                Some(at) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(at.into()) => {}
                        () = self.earlier.notified() => {}
                    }
                }
                None => self.earlier.notified().await,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere must not take the site down; the core has no half-done states across calls.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a change of the core, wakes who was decided on, and re-arms the clock.
    fn change<T>(&self, change: impl FnOnce(&mut State, Instant) -> T) -> T {
        let now = now();
        self.apply(|state| change(state, now))
    }

    /// The same for whoever knows the time.
    fn apply<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        // Outlives the lock whatever panics: a slot in it takes the lock when it is dropped.
        let result;
        let rearm;
        let forgotten;
        {
            let mut state = self.lock();
            result = change(&mut state);
            state.settle();
            forgotten = std::mem::take(&mut state.forgotten);
            rearm = match (state.admission.next_deadline(), state.armed) {
                (Some(next), Some(armed)) => next < armed,
                (next, None) => next.is_some(),
                (None, Some(_)) => false,
            };
            if rearm {
                state.armed = state.admission.next_deadline();
            }
        }
        if rearm {
            self.earlier.notify_one();
        }
        for known in forgotten {
            known.metrics.forget();
        }
        self.tell_watchers();
        result
    }

    /// The model of a name or alias.
    pub(crate) fn resolve(&self, name: &str) -> Option<Known> {
        let mut state = self.lock();
        let model = state.admission.resolve(name)?;
        if let Some(known) = state.models.get(&model) {
            return Some(known.clone());
        }
        let name = Arc::clone(state.admission.model_name(model)?);
        let metrics = Arc::new(self.metrics.model(&name));
        let known = Known { model, name, metrics };
        state.models.insert(model, known.clone());
        Some(known)
    }

    /// Asks for a slot.
    pub(crate) fn admit(self: &Arc<Self>, now: Instant, ask: &Ask) -> Admitted {
        self.apply(|state| {
            if !ask.at_head {
                state.budget.earn();
            }
            match state.admission.admit(now, ask) {
                Decision::Granted(grant) => match state.links.get(&grant.provider) {
                    Some(link) => Admitted::Slot(Slot::new(self, grant, Arc::clone(link))),
                    None => {
                        // A provider is only open while its link is there; give the slot back all the same.
                        state.admission.end(now, grant.lease);
                        let reason = RefusalReason::NoneCame(Duration::ZERO);
                        Admitted::Refused(Refusal { reason, retry_after: None })
                    }
                },
                Decision::Waiting(ticket) => {
                    let (wake, woken) = oneshot::channel();
                    state.waiting.insert(ticket, wake);
                    Admitted::Waiting(Waiting::new(self, ticket, woken))
                }
                Decision::Refused(refusal) => Admitted::Refused(refusal),
            }
        })
    }

    /// How a prompt begins, from its raw bytes.
    pub(crate) fn prefix(&self, prompt: &[u8]) -> Prefix {
        Prefix::of(self.seed, prompt)
    }

    /// Tokens that a prompt of so many bytes is estimated to have, from what the model's engines reported.
    pub(crate) fn estimate(&self, model: ModelIndex, prompt_bytes: u64) -> u64 {
        self.lock().admission.estimate(model, prompt_bytes)
    }

    /// What a request used in the end: corrects the model's bytes a token, and the key's turn. `estimated_tokens`
    /// is what its slot said.
    pub(crate) fn used(
        &self,
        model: ModelIndex,
        key: KeyNumber,
        class: Class,
        prompt_bytes: u64,
        estimated_tokens: u64,
        usage: &Usage,
    ) {
        self.lock().admission.used(model, (key, class), prompt_bytes, estimated_tokens, usage);
    }

    /// Refuses all that a key has waiting: it was revoked.
    pub(crate) fn refuse_key(&self, key: KeyNumber) {
        self.change(|state, now| state.admission.refuse_key(now, key));
    }

    /// Refuses all that waits: the edge ends.
    pub(crate) fn refuse_all(&self) {
        self.change(|state, now| state.admission.refuse_all(now));
    }

    /// Ends an unconfirmed lease by hand: its slot is free again.
    pub(crate) fn release(&self, lease: LeaseId) -> Released {
        self.change(|state, now| state.admission.release(now, lease))
    }

    /// Takes one second try out of the budget; false if there is none.
    pub(crate) fn may_retry(&self) -> bool {
        self.lock().budget.spend()
    }

    /// A lease's connection was lost: so are its node's others.
    fn lost_with(&self, lease: LeaseId, node_id: NodeId, generation: Generation) {
        // The first of them told of all.
        let told = self.lock().admission.lost_before(lease);
        if !told {
            // Losses are always taken.
            let _ = self.tell(&Call::Lost { node: node_id, generation }, None);
        }
    }

    fn end(&self, lease: LeaseId) {
        self.change(|state, now| state.admission.end(now, lease));
    }
}

impl State {
    /// Wakes everyone whom the core decided on. A slot for someone who is gone goes to the next.
    fn settle(&mut self) {
        for model in self.admission.take_forgotten() {
            self.forgotten.extend(self.models.remove(&model));
        }
        while let Some(output) = self.admission.next_output() {
            match output {
                Output::Granted(ticket, grant) => {
                    let wake = self.waiting.remove(&ticket);
                    let sent = match (wake, self.links.get(&grant.provider)) {
                        (Some(wake), Some(link)) => wake.send(Ok((grant, Arc::clone(link)))).is_ok(),
                        _ => false,
                    };
                    if !sent {
                        self.admission.end(now(), grant.lease);
                    }
                }
                Output::Refused(ticket, refusal) => {
                    if let Some(wake) = self.waiting.remove(&ticket) {
                        // Gone: then nobody needs to be told.
                        let _ = wake.send(Err(refusal));
                    }
                }
            }
        }
    }
}

/// The runtime's clock, so that deadlines and the task that waits for them agree also where a test holds it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
