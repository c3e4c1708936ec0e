//! Asking edges how they are: many at once, each within a deadline, and none for another's sake.
//!
//! One question is on its way to an edge at a time for all who ask the same. An edge that let a deadline pass is
//! asked in a lane of its own until it answers, so that dead sites never take the places of live ones. Invariant:
//! an asker gets what is known at its deadline, whatever the edges do.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dashmap::DashMap;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, join_all};
use prost::Message;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use umbel_contracts::bounds::Bounded;
use umbel_contracts::method;
use umbel_contracts::proto::control::{
    DeploymentSnapshot, EdgeNodeSnapshot, EdgeStatusRequest, EdgeStatusResponse, EdgeSummary, JobSnapshot,
    QueueSnapshot,
};
use umbel_contracts::serve::StatusQuestion;
use umbel_wire::error::{Code, Error};
use umbel_wire::ids::EdgeId;
use umbel_wire::{Connection, Open, Terminal, clock, contained};

use super::delimited::{Delimited, malformed};
use super::plane::{Link, Plane};
use crate::core::commands::{Broken, lost};

/// Questions at once to edges that answer: with the slow lane the design's 256.
const QUICK: usize = 224;
/// Questions at once to edges that did not answer the last one in time.
const SLOW: usize = 32;
/// Bytes of one edge's answer: 5,000 nodes with eight GPUs and four providers each are about 12 MiB.
const ANSWER_MAX: usize = 24 * 1024 * 1024;
/// Bytes of all answers that are being read.
const READING_MAX: usize = 256 * 1024 * 1024;

/// Everything that one edge said in answer to one question, all of one reading.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) observed_at_unix_ms: i64,
    pub(crate) summary: Option<EdgeSummary>,
    pub(crate) nodes: Vec<EdgeNodeSnapshot>,
    pub(crate) queues: Vec<QueueSnapshot>,
    pub(crate) deployments: Vec<DeploymentSnapshot>,
    pub(crate) jobs: Vec<JobSnapshot>,
}

/// What came of a question.
pub(crate) type Asked = Result<Arc<Answer>, Error>;

type Flight = Shared<BoxFuture<'static, Asked>>;

/// What makes two questions the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    edge_id: EdgeId,
    generation: u64,
    nodes: String,
    sections: Vec<String>,
}

/// The questions on their way.
pub(crate) struct Questions {
    /// Guards of this map are locks: they stay inside one statement.
    flights: DashMap<Key, Flight>,
    quick: Arc<Semaphore>,
    slow: Arc<Semaphore>,
    reading: Arc<Semaphore>,
}

impl Default for Questions {
    fn default() -> Self {
        Self {
            flights: DashMap::new(),
            quick: Arc::new(Semaphore::new(QUICK)),
            slow: Arc::new(Semaphore::new(SLOW)),
            // Counted in KiB, since a semaphore counts in u32 at a time.
            reading: Arc::new(Semaphore::new(READING_MAX / 1024)),
        }
    }
}

/// Asks all `links` the same and waits until the deadline at most. `None`: no answer by then.
pub(crate) async fn ask_all(
    plane: &Arc<Plane>,
    links: Vec<Link>,
    question: &StatusQuestion,
    deadline: Duration,
) -> HashMap<EdgeId, Option<Asked>> {
    let until = Instant::now() + deadline;
    let asked = links.into_iter().map(|link| {
        let edge_id = link.edge_id.clone();
        let flight = join(plane, link, question, deadline);
        async move { (edge_id, tokio::time::timeout_at(until, flight).await.ok()) }
    });
    join_all(asked).await.into_iter().collect()
}

/// The flight of this question to this edge: the one on its way, or a new one.
fn join(plane: &Arc<Plane>, link: Link, question: &StatusQuestion, deadline: Duration) -> Flight {
    let key = Key {
        edge_id: link.edge_id.clone(),
        generation: link.generation.0,
        nodes: question.nodes.clone(),
        sections: question.sections.clone(),
    };
    let flights = &plane.questions.flights;
    let start = || {
        // Later askers may join with a longer deadline: never shorter than the default.
        let time = deadline.max(plane.settings.status_deadline);
        let task = tokio::spawn(fly(Arc::clone(plane), link, key.clone(), time));
        async move { task.await.unwrap_or_else(|_| Err(malformed())) }.boxed().shared()
    };
    flights.entry(key.clone()).or_insert_with(start).clone()
}

async fn fly(plane: Arc<Plane>, link: Link, key: Key, time: Duration) -> Asked {
    let sent = OnceLock::new();
    let asked = contained(tokio::time::timeout(time, ask(&plane, &link, &key, time, &sent))).await;
    // One that broke off is over, too: the next one asks anew.
    let asked = asked.unwrap_or_else(|broken| Ok(Err(broken.into())));
    let asked = asked.unwrap_or_else(|_| Err(timed_out(time)));
    let mut fleet = plane.fleet();
    match &asked {
        Ok(said) => {
            let now = clock::now();
            fleet.views.heard(now, &link.edge_id, link.generation);
            if let Some(summary) = said.summary.clone() {
                let at = said.observed_at_unix_ms;
                if let Err(error) = fleet.views.summary(now, &link.edge_id, link.generation, at, summary) {
                    tracing::debug!(edge = %link.edge_id, "{error}");
                }
            }
        }
        // One that waited most of the time for its turn is not slow.
        Err(error) if error.code == Code::DeadlineExceeded && waited(&sent) >= time / 2 => {
            fleet.views.slow(&link.edge_id, link.generation);
        }
        Err(_) => {}
    }
    drop(fleet);
    plane.questions.flights.remove(&key);
    asked.map(Arc::new)
}

/// How long ago the question was sent; nothing if it was not.
fn waited(sent: &OnceLock<Instant>) -> Duration {
    sent.get().map(Instant::elapsed).unwrap_or_default()
}

fn timed_out(time: Duration) -> Error {
    Error::new(
        Code::DeadlineExceeded,
        "STATUS_TIMED_OUT",
        format!("The edge is connected and did not answer within {} ms.", time.as_millis()),
    )
}

async fn ask(
    plane: &Plane,
    link: &Link,
    key: &Key,
    time: Duration,
    sent: &OnceLock<Instant>,
) -> Result<Answer, Error> {
    let slow = plane.fleet().views.get(&link.edge_id).is_some_and(|view| view.slow);
    let lane = if slow { &plane.questions.slow } else { &plane.questions.quick };
    let _place = lane.acquire().await.map_err(|_| timed_out(time))?;
    sent.get_or_init(Instant::now);
    let request = EdgeStatusRequest {
        request_id: uuid::Uuid::new_v4().to_string(),
        node_selector: key.nodes.clone(),
        sections: key.sections.clone(),
        deadline_ms: u32::try_from(time.as_millis()).unwrap_or(u32::MAX),
        known_revision: None,
        include_decommissioned: false,
    };
    let mut answer = Answer::default();
    let mut first = true;
    call(
        plane,
        &link.connection,
        method::EDGE_STATUS,
        request.encode_to_vec(),
        time,
        |part: EdgeStatusResponse| {
            if first {
                answer.observed_at_unix_ms = part.observed_at_unix_ms;
                answer.summary = part.summary;
                first = false;
            }
            answer.nodes.extend(part.nodes);
            answer.queues.extend(part.queues);
            answer.deployments.extend(part.deployments);
            answer.jobs.extend(part.jobs);
            Ok(())
        },
    )
    .await
    .map_err(Broken::into_error)?;
    if first { Err(malformed()) } else { Ok(answer) }
}

/// Calls a method as a stream and takes its messages one by one.
pub(crate) async fn call<M: Bounded>(
    plane: &Plane,
    connection: &Connection,
    method: u32,
    message: Vec<u8>,
    timeout: Duration,
    mut take: impl FnMut(M) -> Result<(), Error>,
) -> Result<(), Broken> {
    let open = Open { method, message, end: true, timeout, ..Open::default() };
    let mut stream = connection.open(open, |_| ()).map_err(Broken::Refused)?;
    let mut reader = Delimited::new(ANSWER_MAX);
    let mut room = Vec::new();
    while let Some(chunk) = stream.data().await {
        let kib = u32::try_from(chunk.len().div_ceil(1024)).unwrap_or(u32::MAX);
        let permit = plane.questions.reading.try_acquire_many(kib);
        room.push(permit.map_err(|_| Broken::Unknown(busy()))?);
        reader.push(&chunk).map_err(Broken::Unknown)?;
        while let Some(message) = reader.next::<M>().map_err(Broken::Unknown)? {
            take(message).map_err(Broken::Unknown)?;
        }
    }
    match stream.terminal() {
        Some(Terminal::Ended { error: None, .. }) if reader.is_empty() => Ok(()),
        Some(Terminal::Ended { error: None, .. }) => Err(Broken::Unknown(malformed())),
        Some(Terminal::Ended { error: Some(error), .. }) => Err(Broken::ended(error)),
        Some(Terminal::Lost(_)) | None => Err(Broken::Unknown(lost())),
    }
}

fn busy() -> Error {
    Error::new(
        Code::ResourceExhausted,
        "TOO_MANY_ANSWERS",
        "Too many large answers are being read at once. Ask for fewer sites or nodes.",
    )
    .with_retry_after(Duration::from_secs(1))
}
