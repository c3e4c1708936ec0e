//! Jobs of the running agent: taken, worked on, told.
//!
//! Owns the tasks of the bodies, their cancelling, and the talk with the edge about them. Leaves what may be taken and what is
//! due to `core/jobs`, and the work to [`bodies`]. Invariants: a body that breaks off has an end like any other; what runs goes
//! on while there is no connection; one request about jobs is under way at a time.

mod bodies;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use prost::Message;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use umbel_contracts::{
    bounds,
    causes::Cause,
    method,
    proto::node::{
        JobEndAck, JobFailure, JobLease, JobLeaseAck, JobProgressAck, JobReady, JobReadyAck, JobRefusal,
        RunningJob,
    },
};
use umbel_wire::{Code, Connection, Error, contained};

use crate::core::jobs::{AGAIN, Figures, Heard, Jobs as Table, Outcome, Step, Taken, Word};

pub(crate) use bodies::{Bodies, CAPABILITIES};

/// One request to the edge: an end is a write at its disk.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Between two looks whether the edge has heard what was given back.
const HEARD: Duration = Duration::from_millis(20);

/// All jobs of the node.
pub(crate) struct Jobs {
    table: Mutex<Table>,
    cancels: Mutex<HashMap<String, CancellationToken>>,
    bodies: Bodies,
    /// Something is due, or may be.
    wake: Notify,
    /// Ends the talk on the connection before.
    talking: Mutex<CancellationToken>,
}

/// A body says how far it is; never waits.
#[derive(Clone)]
pub(crate) struct Progress {
    jobs: Arc<Jobs>,
    id: String,
    attempt: u32,
}

impl Progress {
    /// Only the newest step is told.
    pub(crate) fn tell(&self, step: Step) {
        self.jobs.table().step(&self.id, self.attempt, step);
        self.jobs.wake.notify_one();
    }
}

impl Jobs {
    /// No job runs yet.
    pub(crate) fn new(bodies: Bodies) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::default(),
            cancels: Mutex::default(),
            bodies,
            wake: Notify::new(),
            talking: Mutex::default(),
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancels(&self) -> MutexGuard<'_, HashMap<String, CancellationToken>> {
        self.cancels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancel(&self, id: &str) {
        if let Some(token) = self.cancels().get(id) {
            token.cancel();
        }
    }

    /// Those that run, and those whose end is not told yet.
    pub(crate) fn names(&self) -> Vec<RunningJob> {
        self.table().names()
    }

    /// The edge says that this node is gone for good: nobody wants its jobs, nor the engines of its deployments.
    pub(crate) fn retire(self: &Arc<Self>) {
        for (_, cancel) in self.cancels().iter() {
            cancel.cancel();
        }
        let own = Arc::clone(self);
        tokio::spawn(async move { own.bodies.retire().await });
    }

    /// Gives back what runs, since the agent ends: the edge hears it, or the time is over. Nothing is given back twice.
    pub(crate) async fn hand_back(&self, patience: Duration) {
        self.table().hand_back(Instant::now());
        self.wake.notify_one();
        let heard = async {
            while !self.table().names().is_empty() {
                tokio::time::sleep(HEARD).await;
            }
        };
        // What the edge did not hear counts as a process that was lost.
        let _ = tokio::time::timeout(patience, heard).await;
    }

    /// In figures.
    pub(crate) fn figures(&self) -> Figures {
        self.table().figures()
    }

    /// No more are taken: the agent ends.
    pub(crate) fn close(&self) {
        self.table().close();
        self.wake.notify_one();
    }

    /// Takes a job, or says why not. Its body begins, and is not waited for.
    pub(crate) fn take(self: &Arc<Self>, lease: JobLease) -> JobLeaseAck {
        let refused = |refusal: JobRefusal, message: String| JobLeaseAck {
            claimed: false,
            refusal: refusal.into(),
            message,
        };
        // Of a newer edge.
        if lease.body.is_none() {
            return refused(JobRefusal::UnknownBody, "this agent does not know the work".to_owned());
        }
        let taken = self.table().take(&lease, Instant::now());
        match taken {
            Taken::Starts => self.start(lease),
            Taken::GoesOn => {}
            Taken::Refused(refusal, message) => {
                self.table().ready_again();
                self.wake.notify_one();
                return refused(refusal, message);
            }
            Taken::Another => {
                self.cancel(&lease.job_id);
                let message = "an earlier attempt of it has not ended yet".to_owned();
                return refused(JobRefusal::StillRuns, message);
            }
        }
        self.wake.notify_one();
        JobLeaseAck { claimed: true, ..JobLeaseAck::default() }
    }

    fn start(self: &Arc<Self>, lease: JobLease) {
        let JobLease { job_id: id, attempt, body, .. } = lease;
        let Some(body) = body else { return };
        let token = CancellationToken::new();
        self.cancels().insert(id.clone(), token.clone());
        let own = Arc::clone(self);
        tokio::spawn(async move {
            tracing::info!(job = %id, attempt, "a job begins");
            let progress = Progress { jobs: Arc::clone(&own), id: id.clone(), attempt };
            let work = Arc::clone(&own);
            let done = contained(async move { work.bodies.run(body, progress, token).await }).await;
            let outcome = match done {
                Ok(Ok(report)) => Outcome::Complete(Box::new(report)),
                Ok(Err(failure)) => Outcome::Fail(Box::new(failure)),
                Err(_) => Outcome::Fail(Box::new(JobFailure {
                    code: Cause::Internal.as_str().to_owned(),
                    message: "it broke off by a defect of the agent, whose log says where".to_owned(),
                    ..JobFailure::default()
                })),
            };
            if let Outcome::Fail(failure) = &outcome {
                tracing::warn!(job = %id, attempt, code = %failure.code, "a job came to nothing: {}", failure.message);
            }
            own.cancels().remove(&id);
            own.table().ended(&id, attempt, outcome, Instant::now());
            own.wake.notify_one();
        });
    }

    /// Talks with the edge about jobs until the connection ends.
    pub(crate) async fn talk(self: Arc<Self>, connection: Connection) {
        let own = CancellationToken::new();
        let before = {
            let mut talking = self.talking.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *talking, own.clone())
        };
        before.cancel();
        self.table().connected(Instant::now());
        tokio::select! {
            _ = connection.closed() => {}
            () = own.cancelled() => {}
            () = self.speak(&connection) => {}
        }
    }

    async fn speak(&self, connection: &Connection) {
        loop {
            let ready = self.table().take_ready();
            if ready {
                match self.ready(connection).await {
                    Ok(()) => {}
                    // An edge that knows no jobs gives none.
                    Err(error) if error.code == Code::Unimplemented => return,
                    Err(error) => {
                        tracing::debug!(code = error.code.name(), reason = %error.reason, "NodeJobReady");
                        self.table().ready_again();
                        tokio::time::sleep(AGAIN).await;
                        continue;
                    }
                }
            }
            let due = self.table().due(Instant::now());
            for word in due {
                self.say(connection, word).await;
            }
            let next = self.table().next_due();
            let until_next = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.wake.notified() => {}
                () = until_next => {}
            }
        }
    }

    async fn ready(&self, connection: &Connection) -> Result<(), Error> {
        let message = {
            let table = self.table();
            JobReady { slots: table.slots(), running: table.names() }
        };
        let answer = connection.request(method::NODE_JOB_READY, message.encode_to_vec(), TIMEOUT).await?;
        for id in bounds::decode::<JobReadyAck>(&answer)?.cancel_job_ids {
            tracing::info!(job = %id, "the edge does not want it any more");
            self.cancel(&id);
            self.table().forget(&id);
        }
        Ok(())
    }

    async fn say(&self, connection: &Connection, word: Word) {
        let (number, bytes) = word.message();
        let said = connection.request(number, bytes, TIMEOUT).await.and_then(|answer| match &word {
            Word::Progress(_) => bounds::decode::<JobProgressAck>(&answer).map(|ack| ack.cancel_requested),
            Word::End { .. } => bounds::decode::<JobEndAck>(&answer).map(|_| false),
        });
        let heard = match said {
            Ok(cancel) => Heard::Taken(cancel),
            Err(error) => {
                let id = word.job().0;
                tracing::debug!(job = %id, code = error.code.name(), reason = %error.reason, "NodeJob");
                Heard::of(&error)
            }
        };
        let cancel = self.table().heard(&word, heard);
        if cancel {
            self.cancel(word.job().0);
        }
    }
}
