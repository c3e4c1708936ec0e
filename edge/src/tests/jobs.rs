//! Jobs from the edge to a node that speaks the wire, and back: leases, ends, restarts, other nodes.

use std::sync::{Arc, Mutex};

use futures_util::StreamExt as _;
use prost::Message;
use serde_json::json;
use umbel_contracts::objects::JobState;
use umbel_contracts::proto::control::{EdgeNodeSnapshot, EdgeStatusResponse};
use umbel_contracts::proto::node::job_complete::Report;
use umbel_contracts::proto::node::job_lease::Body;
use umbel_contracts::proto::node::{
    ArtifactAcquire, JobComplete, JobFail, JobFailure, JobLease, JobLeaseAck, JobProgress, JobProgressAck,
    JobReady, JobReadyAck, JobRefusal, RunningJob, RuntimeHealth, RuntimeHealthReport,
};
use umbel_contracts::serve::{Follow, Told};
use umbel_contracts::{bounds, method};
use umbel_store::Commit;
use umbel_wire::{Code, Connection, Error, Handler, IncomingRequest, InstanceId};

use super::rig::{Edge, FakeNode, TIME, run, until};
use crate::core::jobs::Order;
use crate::shell::{jobs, status};

/// The node's side of jobs: it keeps the leases that it is given, or refuses them.
#[derive(Default)]
struct Agent {
    leases: Mutex<Vec<JobLease>>,
    refuse: Mutex<Option<JobRefusal>>,
}

impl Agent {
    fn last(&self) -> JobLease {
        self.leases.lock().unwrap().last().unwrap().clone()
    }

    async fn has(&self, count: usize) -> JobLease {
        until("the node is given its job", || self.leases.lock().unwrap().len() >= count).await;
        self.last()
    }
}

impl Handler for Agent {
    fn on_request(&self, _connection: &Connection, request: IncomingRequest) {
        assert_eq!(request.method, method::NODE_JOB_LEASE);
        self.leases.lock().unwrap().push(JobLease::decode(&*request.payload).unwrap());
        let ack = match *self.refuse.lock().unwrap() {
            Some(refusal) => JobLeaseAck { refusal: refusal.into(), ..JobLeaseAck::default() },
            None => JobLeaseAck { claimed: true, ..JobLeaseAck::default() },
        };
        request.respond(Ok(ack.encode_to_vec()));
    }
}

struct Rig {
    edge: Edge,
    node: FakeNode,
    agent: Arc<Agent>,
    connection: Connection,
}

impl Rig {
    async fn start() -> Self {
        let edge = Edge::start().await;
        let mut node = edge.node("gpu-1").await;
        node.hello.capabilities = vec!["runtime.health.v1".to_owned()];
        let agent = Arc::new(Agent::default());
        let connection = node.connect_by(&edge, Arc::clone(&agent) as Arc<dyn Handler>).await;
        Self { edge, node, agent, connection }
    }

    async fn submit(&self) -> String {
        let body = Body::RuntimeHealth(RuntimeHealth::default());
        let order = Order {
            id: None,
            node: self.node.id,
            body,
            owner: "deployment/chat".to_owned(),
            actor: "ann".to_owned(),
            reason: String::new(),
        };
        jobs::submit(&self.edge.running.site, order).await.unwrap()
    }

    async fn ready(&self, running: Vec<RunningJob>) -> JobReadyAck {
        let ready = JobReady { slots: 2, running };
        let answer = self.connection.request(method::NODE_JOB_READY, ready.encode_to_vec(), TIME).await;
        JobReadyAck::decode(answer.unwrap()).unwrap()
    }

    /// The kinds of all events of a job, the oldest first.
    async fn told(&self, id: &str) -> Vec<String> {
        let follow = Follow { recent: 1_000, ..Follow::default() };
        let mut events = self.edge.running.site.events.ring().follow(&follow);
        let mut kinds = Vec::new();
        while let Some(next) = events.next().await {
            let Told::Event { event, .. } = next else { continue };
            if event.job_id.as_deref() == Some(id) {
                kinds.push(event.kind.clone());
            }
        }
        kinds
    }

    fn state(&self, id: &str) -> JobState {
        self.edge.running.site.jobs.view(id).unwrap().state
    }

    async fn becomes(&self, id: &str, state: JobState) {
        until(state.as_str(), || self.state(id) == state).await;
    }
}

async fn complete(connection: &Connection, lease: &JobLease) -> Result<(), Error> {
    let report = Some(Report::RuntimeHealth(RuntimeHealthReport::default()));
    let said = JobComplete { job_id: lease.job_id.clone(), lease_id: lease.lease_id.clone(), report };
    connection.request(method::NODE_JOB_COMPLETE, said.encode_to_vec(), TIME).await.map(drop)
}

async fn fail(connection: &Connection, lease: &JobLease, code: &str, retry: bool) -> Result<(), Error> {
    let failure = Some(JobFailure {
        code: code.to_owned(),
        retry,
        output_tail: "the last line".to_owned(),
        ..JobFailure::default()
    });
    let said = JobFail { job_id: lease.job_id.clone(), lease_id: lease.lease_id.clone(), failure };
    connection.request(method::NODE_JOB_FAIL, said.encode_to_vec(), TIME).await.map(drop)
}

async fn progress(connection: &Connection, lease: &JobLease) -> Result<JobProgressAck, Error> {
    let said = JobProgress {
        job_id: lease.job_id.clone(),
        lease_id: lease.lease_id.clone(),
        phase: "looking".to_owned(),
        ..JobProgress::default()
    };
    let answer = connection.request(method::NODE_JOB_PROGRESS, said.encode_to_vec(), TIME).await?;
    Ok(JobProgressAck::decode(answer).unwrap())
}

#[test]
fn a_job_reaches_its_node_and_its_end_is_kept() {
    run(async {
        let rig = Rig::start().await;
        let id = rig.submit().await;
        rig.ready(Vec::new()).await;
        let lease = rig.agent.has(1).await;
        assert_eq!((lease.job_id.as_str(), lease.attempt, lease.lease_ms), (id.as_str(), 1, 60_000));
        rig.becomes(&id, JobState::Running).await;
        assert!(!progress(&rig.connection, &lease).await.unwrap().cancel_requested);
        let mut changes = rig.edge.running.site.jobs.changes();
        changes.borrow_and_update();
        complete(&rig.connection, &lease).await.unwrap();
        assert!(changes.has_changed().unwrap());
        complete(&rig.connection, &lease).await.unwrap();
        assert_eq!(fail(&rig.connection, &lease, "X", false).await.unwrap_err().code, Code::Conflict);
        let shown = jobs::show(&rig.edge.running.site, &id).await.unwrap();
        assert_eq!((shown.state, shown.report.is_some()), (JobState::Succeeded, true));
        assert_eq!(rig.edge.audited("job.submit").await.len(), 1);
        assert_eq!(rig.edge.audited("job.ended").await.len(), 1);
        let edge = rig.edge.crash().await;
        let view = edge.running.site.jobs.list(|view| view.row.owner == "deployment/chat");
        assert_eq!((view.len(), view[0].state), (1, JobState::Succeeded));
    });
}

#[test]
fn what_runs_goes_on_across_a_restart_of_the_edge() {
    run(async {
        let rig = Rig::start().await;
        let id = rig.submit().await;
        rig.ready(Vec::new()).await;
        let old = rig.agent.has(1).await;
        rig.becomes(&id, JobState::Running).await;
        let Rig { edge, node, agent, connection } = rig;
        let edge = edge.crash().await;
        assert_eq!(edge.running.site.jobs.view(&id).unwrap().state, JobState::Leased);
        drop(connection);
        let connection = node.connect_by(&edge, Arc::clone(&agent) as Arc<dyn Handler>).await;
        let rig = Rig { edge, node, agent, connection };
        let running =
            RunningJob { job_id: id.clone(), attempt: 1, lease_id: old.lease_id.clone(), ended: false };
        let stranger = RunningJob { job_id: "gone".to_owned(), attempt: 1, ..RunningJob::default() };
        let ack = rig.ready(vec![running, stranger]).await;
        assert_eq!(ack.cancel_job_ids, ["gone"]);
        let newer = rig.agent.has(2).await;
        assert_eq!((newer.job_id.as_str(), newer.attempt), (id.as_str(), 1));
        assert_ne!(newer.lease_id, old.lease_id);
        assert_eq!(complete(&rig.connection, &old).await.unwrap_err().reason, "JOB_LEASE_OLD");
        assert_eq!(progress(&rig.connection, &old).await.unwrap_err().code, Code::Conflict);
        complete(&rig.connection, &newer).await.unwrap();
        assert_eq!(rig.state(&id), JobState::Succeeded);
    });
}

/// Row 8 and row 21: another process of the node has lost the attempt, and what the older connection says is stale.
#[test]
fn with_another_process_the_attempt_is_lost() {
    run(async {
        let rig = Rig::start().await;
        let id = rig.submit().await;
        rig.ready(Vec::new()).await;
        rig.agent.has(1).await;
        rig.becomes(&id, JobState::Running).await;
        let Rig { edge, mut node, agent, connection } = rig;
        connection.close(umbel_wire::CloseReason::Truncated);
        until("the edge sees its end", || !edge.connected(&node)).await;
        node.instance = InstanceId::random();
        let connection = node.connect_by(&edge, Arc::clone(&agent) as Arc<dyn Handler>).await;
        let rig = Rig { edge, node, agent, connection };
        rig.ready(Vec::new()).await;
        let second = rig.agent.has(2).await;
        assert_eq!(second.attempt, 2);
        fail(&rig.connection, &second, "SOURCE_UNREACHABLE", true).await.unwrap();
        let third = rig.agent.has(3).await;
        assert_eq!(third.attempt, 3);
        fail(&rig.connection, &third, "SOURCE_UNREACHABLE", true).await.unwrap();
        assert_eq!(rig.state(&id), JobState::Failed);
        let shown = jobs::show(&rig.edge.running.site, &id).await.unwrap().failure.unwrap();
        assert_eq!(
            (shown.code.as_str(), shown.output_tail.as_deref()),
            ("SOURCE_UNREACHABLE", Some("the last line"))
        );
    });
}

#[test]
fn another_nodes_job_is_not_its_to_tell_of() {
    run(async {
        let rig = Rig::start().await;
        let id = rig.submit().await;
        rig.ready(Vec::new()).await;
        let lease = rig.agent.has(1).await;
        rig.becomes(&id, JobState::Running).await;
        let other = rig.edge.node("gpu-2").await;
        let connection = other.connect(&rig.edge).await;
        for refused in [
            complete(&connection, &lease).await.unwrap_err(),
            fail(&connection, &lease, "X", false).await.unwrap_err(),
            progress(&connection, &lease).await.unwrap_err(),
        ] {
            assert_eq!((refused.code, &*refused.reason), (Code::PermissionDenied, "JOB_OF_ANOTHER_NODE"));
        }
        assert_eq!(rig.state(&id), JobState::Running);
    });
}

#[test]
fn a_job_is_cancelled_and_one_that_its_node_cannot_do_fails_at_once() {
    run(async {
        let rig = Rig::start().await;
        let site = Arc::clone(&rig.edge.running.site);
        let waits = rig.submit().await;
        jobs::cancel(&site, &waits, Some("ann"), Commit::new()).await.unwrap();
        assert_eq!(rig.state(&waits), JobState::Cancelled);
        let id = rig.submit().await;
        rig.ready(Vec::new()).await;
        let lease = rig.agent.has(1).await;
        rig.becomes(&id, JobState::Running).await;
        jobs::cancel(&site, &id, Some("ann"), Commit::new()).await.unwrap();
        assert!(progress(&rig.connection, &lease).await.unwrap().cancel_requested);
        fail(&rig.connection, &lease, "CANCELLED", false).await.unwrap();
        assert_eq!(rig.state(&id), JobState::Cancelled);
        let told = rig.told(&id).await;
        assert_eq!(told, ["job_queued", "job_leased", "job_started", "job_cancelling", "job_cancelled"]);
        assert_eq!(
            jobs::cancel(&site, "none", Some("ann"), Commit::new()).await.unwrap_err().code,
            Code::NotFound
        );
        // It names no artifact.acquire.
        let order = Order {
            id: None,
            node: rig.node.id,
            body: Body::ArtifactAcquire(ArtifactAcquire::default()),
            owner: String::new(),
            actor: "ann".to_owned(),
            reason: String::new(),
        };
        let unable = jobs::submit(&site, order).await.unwrap();
        rig.ready(Vec::new()).await;
        rig.becomes(&unable, JobState::Failed).await;
        let failure = jobs::show(&site, &unable).await.unwrap().failure.unwrap();
        assert_eq!(failure.code, "CAPABILITY_MISSING");
        assert_eq!(rig.agent.leases.lock().unwrap().len(), 1, "it was never sent");
    });
}

/// Whatever people give as reasons and a node says of its progress, what is told of the node is within its bound.
#[test]
fn a_node_that_says_much_of_many_jobs_is_told_within_its_bound() {
    run(async {
        let rig = Rig::start().await;
        let site = Arc::clone(&rig.edge.running.site);
        for _ in 0..64 {
            let order = Order {
                id: None,
                node: rig.node.id,
                body: Body::RuntimeHealth(RuntimeHealth { engine: "e".repeat(200) }),
                owner: String::new(),
                actor: "ann".to_owned(),
                reason: "r".repeat(1024),
            };
            jobs::submit(&site, order).await.unwrap();
        }
        let ready = JobReady { slots: 64, running: Vec::new() };
        rig.connection.request(method::NODE_JOB_READY, ready.encode_to_vec(), TIME).await.unwrap();
        rig.agent.has(64).await;
        let leases = rig.agent.leases.lock().unwrap().clone();
        for lease in leases {
            let said = JobProgress {
                job_id: lease.job_id,
                lease_id: lease.lease_id,
                phase: "looking".to_owned(),
                message: "m".repeat(3 * 1024),
                ..JobProgress::default()
            };
            rig.connection.request(method::NODE_JOB_PROGRESS, said.encode_to_vec(), TIME).await.unwrap();
        }
        let node = site.read(|registry| registry.node(&rig.node.id).cloned()).unwrap();
        let told = status::node_in_detail(&site, &node).encode_to_vec();
        assert!(told.len() > 64 * 1024, "{}", told.len());
        let nodes = vec![EdgeNodeSnapshot::decode(&*told).unwrap()];
        let part = EdgeStatusResponse { nodes, ..EdgeStatusResponse::default() }.encode_to_vec();
        let jobs = bounds::decode::<EdgeStatusResponse>(&part).unwrap().nodes[0].detail.clone().unwrap().jobs;
        assert!((40..64).contains(&jobs.len()), "{}", jobs.len());
    });
}

#[test]
fn a_refused_job_waits_for_room_and_an_end_waits_for_the_disk() {
    run(async {
        let rig = Rig::start().await;
        *rig.agent.refuse.lock().unwrap() = Some(JobRefusal::NoRoom);
        let id = rig.submit().await;
        rig.ready(Vec::new()).await;
        rig.agent.has(1).await;
        rig.becomes(&id, JobState::Queued).await;
        *rig.agent.refuse.lock().unwrap() = None;
        rig.ready(Vec::new()).await;
        let lease = rig.agent.has(2).await;
        rig.becomes(&id, JobState::Running).await;
        rig.edge.disk.full(true);
        let refused = complete(&rig.connection, &lease).await.unwrap_err();
        assert_eq!(refused.code, Code::InsufficientStorage);
        assert_eq!(rig.state(&id), JobState::Running);
        rig.edge.disk.full(false);
        // As a node does: it keeps the end until it is taken.
        let deadline = std::time::Instant::now() + TIME;
        while let Err(error) = complete(&rig.connection, &lease).await {
            assert_eq!(error.code, Code::InsufficientStorage);
            assert!(std::time::Instant::now() < deadline, "never taken");
        }
        assert_eq!(rig.state(&id), JobState::Succeeded);
    });
}

#[test]
fn jobs_of_a_node_that_is_gone_for_good_end() {
    run(async {
        let rig = Rig::start().await;
        let id = rig.submit().await;
        let gone = rig.edge.ask_confirmed("node:gpu-1", "gpu-1", serde_json::json!({})).await.unwrap();
        assert!(gone.error.is_none());
        rig.becomes(&id, JobState::Failed).await;
        let order = Order {
            id: Some(jobs::new_id()),
            node: rig.node.id,
            body: Body::RuntimeHealth(RuntimeHealth::default()),
            owner: String::new(),
            actor: "ann".to_owned(),
            reason: String::new(),
        };
        assert_eq!(jobs::submit(&rig.edge.running.site, order).await.unwrap_err().code, Code::Gone);
    });
}

#[test]
fn operators_see_jobs_begin_them_and_cancel_them() {
    run(async {
        let rig = Rig::start().await;
        let begun = rig.edge.ask("runtime.health", "node:gpu-1", json!({})).await.unwrap();
        let job = begun.result.unwrap()["jobs"][0].clone();
        assert_eq!((&job["state"], &job["kind"]), (&json!("queued"), &json!("runtime.health")));
        let id = job["job_id"].as_str().unwrap().to_owned();
        rig.ready(Vec::new()).await;
        let lease = rig.agent.has(1).await;
        rig.becomes(&id, JobState::Running).await;
        progress(&rig.connection, &lease).await.unwrap();
        let shown = rig.edge.ask("job.show", "", json!({ "job_id": id })).await.unwrap().result.unwrap();
        assert_eq!((&shown["state"], &shown["progress"]["phase"]), (&json!("running"), &json!("looking")));
        let cancelled =
            rig.edge.ask("job.cancel", "", json!({ "job_id": id })).await.unwrap().result.unwrap();
        assert_eq!(cancelled["cancel_requested"], true);
        complete(&rig.connection, &lease).await.unwrap();
        let again = rig.edge.ask("job.cancel", "", json!({ "job_id": id })).await;
        assert_eq!(again.unwrap_err().reason, "JOB_ENDED");
        for _ in 0..3 {
            rig.submit().await;
        }
        let list = |args| rig.edge.ask("job.list", "", args);
        let first = list(json!({ "limit": 2, "running": true })).await.unwrap().result.unwrap();
        assert_eq!(first["jobs"].as_array().unwrap().len(), 2);
        let second =
            list(json!({ "limit": 2, "running": true, "cursor": first["next_cursor"] })).await.unwrap();
        let second = second.result.unwrap();
        assert_eq!(
            (second["jobs"].as_array().unwrap().len(), &second["next_cursor"]),
            (1, &serde_json::Value::Null)
        );
        let ended = list(json!({ "state": "succeeded" })).await.unwrap().result.unwrap();
        assert_eq!(ended["jobs"][0]["job_id"], json!(id));
        assert_eq!(
            rig.edge.ask("runtime.health", "node:none", json!({})).await.unwrap_err().reason,
            "NO_MATCH"
        );
        let unknown = rig.edge.ask("job.show", "", json!({ "job_id": jobs::new_id() })).await;
        assert_eq!(unknown.unwrap_err().reason, "UNKNOWN_JOB");
    });
}
