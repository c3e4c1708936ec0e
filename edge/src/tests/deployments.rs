//! What an edge says of its deployments and jobs: snapshot, operations, metrics, the summary and the rows hold against each
//! other at every moment while deployments come up, grow, fail and go; what was done is in the audit and told as events.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures_util::StreamExt as _;
use prost::Message;
use serde_json::{Value, json};
use umbel_contracts::bounds;
use umbel_contracts::daemon::exposition::{Sample, TextFormat, read};
use umbel_contracts::objects::{DeploymentObject, JobObject};
use umbel_contracts::proto::control::{EdgeStatusRequest, EdgeStatusResponse, EdgeSummary};
use umbel_contracts::proto::node::job_complete::Report;
use umbel_contracts::proto::node::job_lease::Body;
use umbel_contracts::proto::node::{
    DeclaredEngine, DeploymentDrainReport, DeploymentLoad, DeploymentLoadReport, DeploymentUnloadReport,
    EngineRuntime, EngineState, EngineStatus, JobComplete, JobFail, JobFailure, JobLease, JobLeaseAck,
    JobProgress, JobReady, NodeDeclared,
};
use umbel_contracts::serve::{Follow, Told};
use umbel_contracts::{event, method};
use umbel_wire::{Connection, Handler, IncomingRequest};

use super::rig::{Edge, FakeNode, TIME, engine, run};
use crate::core::deployments::{DeploymentRow, Deployments, ReplicaRow, ReplicaState};
use crate::shell::status::{Question, Reading};

/// A node that carries out what it is asked, with engines that are ready at once.
#[derive(Clone, Default)]
struct Agent(Arc<Doings>);

#[derive(Default)]
struct Doings {
    engines: Mutex<BTreeMap<String, DeclaredEngine>>,
    /// Loads come to nothing, and this is why.
    broken: Mutex<Option<&'static str>>,
}

impl Handler for Agent {
    fn on_request(&self, connection: &Connection, request: IncomingRequest) {
        assert_eq!(request.method, method::NODE_JOB_LEASE);
        let lease = JobLease::decode(&*request.payload).unwrap();
        request.respond(Ok(JobLeaseAck { claimed: true, ..JobLeaseAck::default() }.encode_to_vec()));
        tokio::spawn(self.clone().work(connection.clone(), lease));
    }
}

impl Agent {
    async fn room(connection: &Connection) {
        let ready = JobReady { slots: 8, running: Vec::new() };
        // It may be over.
        let _ = connection.request(method::NODE_JOB_READY, ready.encode_to_vec(), TIME).await;
    }

    async fn work(self, connection: Connection, lease: JobLease) {
        let JobLease { job_id, lease_id, body, .. } = lease;
        let said = JobProgress {
            job_id: job_id.clone(),
            lease_id: lease_id.clone(),
            phase: "working".to_owned(),
            ..JobProgress::default()
        };
        let _ = connection.request(method::NODE_JOB_PROGRESS, said.encode_to_vec(), TIME).await;
        let (number, payload) = match self.done(&connection, body.unwrap()) {
            Ok(report) => {
                let said = JobComplete { job_id, lease_id, report: Some(report) };
                (method::NODE_JOB_COMPLETE, said.encode_to_vec())
            }
            Err(code) => {
                let failure =
                    Some(JobFailure { code: code.to_owned(), retry: false, ..JobFailure::default() });
                (method::NODE_JOB_FAIL, JobFail { job_id, lease_id, failure }.encode_to_vec())
            }
        };
        let _ = connection.request(number, payload, TIME).await;
        Self::room(&connection).await;
    }

    fn done(&self, connection: &Connection, body: Body) -> Result<Report, &'static str> {
        match body {
            Body::DeploymentLoad(load) => {
                if let Some(code) = *self.0.broken.lock().unwrap() {
                    return Err(code);
                }
                let name = load.engine.clone();
                self.0.engines.lock().unwrap().insert(name.clone(), declared(load));
                self.tell(connection);
                Ok(Report::DeploymentLoad(DeploymentLoadReport { engine: name, ..Default::default() }))
            }
            Body::DeploymentDrain(drain) => Ok(Report::DeploymentDrain(DeploymentDrainReport {
                engine: drain.engine,
                ..Default::default()
            })),
            Body::DeploymentUnload(unload) => {
                self.0.engines.lock().unwrap().remove(&unload.engine);
                self.tell(connection);
                let (engine, stopped) = (unload.engine, true);
                Ok(Report::DeploymentUnload(DeploymentUnloadReport { engine, stopped, milliseconds: 1 }))
            }
            other => panic!("not asked of it: {other:?}"),
        }
    }

    /// What it has now.
    fn tell(&self, connection: &Connection) {
        let own = std::iter::once(engine("e", EngineState::Ready));
        let engines = own.chain(self.0.engines.lock().unwrap().values().cloned()).collect();
        let said = NodeDeclared { engines, ..NodeDeclared::default() };
        connection.event(event::NODE_DECLARED, "declared", said.encode_to_vec());
    }
}

fn declared(load: DeploymentLoad) -> DeclaredEngine {
    let status = EngineStatus {
        name: load.engine.clone(),
        state: EngineState::Ready.into(),
        ..EngineStatus::default()
    };
    DeclaredEngine {
        name: load.engine,
        kind: load.kind,
        model: load.model,
        aliases: load.aliases,
        category: load.category,
        capacity: load.capacity,
        status: Some(status),
        deployment: load.deployment,
        replica: load.replica,
        shard_index: 1,
        shard_count: 1,
        ..DeclaredEngine::default()
    }
}

async fn node(edge: &Edge, name: &str) -> (FakeNode, Agent, Connection) {
    let mut node = edge.node(name).await;
    let work = ["deployment.load.v1", "deployment.drain.v1", "deployment.unload.v1"];
    node.hello.capabilities = work.map(str::to_owned).to_vec();
    node.hello.runtimes = vec![EngineRuntime { kind: "sim".to_owned(), ..EngineRuntime::default() }];
    let agent = Agent::default();
    let connection = node.connect_by(edge, Arc::new(agent.clone())).await;
    Agent::room(&connection).await;
    (node, agent, connection)
}

fn value(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> u64 {
    samples.iter().filter(|one| one.name == name && one.has(labels)).map(|one| one.value as u64).sum()
}

/// What the site's control planes would be told now: every part within its bounds.
async fn told(edge: &Edge) -> (EdgeSummary, Vec<DeploymentObject>, Vec<JobObject>) {
    let site = &edge.running.site;
    let question = Question::check(EdgeStatusRequest::default()).unwrap();
    let mut reading = Reading::new(site, question).await;
    let (mut summary, mut deployments, mut jobs) = (None, Vec::new(), Vec::new());
    while let Some(part) = reading.next(site) {
        let part = bounds::decode::<EdgeStatusResponse>(&part.encode_to_vec()).unwrap();
        summary = summary.or(part.summary);
        deployments.extend(part.deployments.into_iter().map(DeploymentObject::from_proto));
        jobs.extend(part.jobs.into_iter().map(JobObject::from_proto));
    }
    (summary.unwrap(), deployments, jobs)
}

/// Everything that is said at this moment, held against everything else; the deployments as they are told.
async fn agree(edge: &Edge) -> Vec<DeploymentObject> {
    let site = &edge.running.site;
    // No round is under way, and nothing here waits for anything: one moment.
    let _quiet = site.deployments.quiet().await;
    let (summary, told, jobs) = told(edge).await;
    let samples = read(&edge.running.front.metrics().encode(TextFormat::OpenMetrics)).unwrap().0;
    let (figures, of_jobs) = (summary.deployments.unwrap(), summary.jobs.unwrap());
    let shown: Vec<DeploymentObject> = site.deployments.read(|table| {
        table.rows.values().map(|row| crate::shell::deployments::object(site, table, row, false)).collect()
    });
    assert_eq!(told, shown, "the snapshot and the operations");
    let count = |is: &dyn Fn(&DeploymentObject) -> bool| told.iter().filter(|one| is(one)).count();
    assert_eq!(figures.total as usize, told.len());
    assert_eq!(figures.short as usize, count(&|one| one.ready < one.wanted));
    assert_eq!(figures.replicas_wanted, told.iter().map(|one| one.wanted).sum::<u32>());
    assert_eq!(figures.replicas_ready, told.iter().map(|one| one.ready).sum::<u32>());
    let replicas = || told.iter().flat_map(|one| &one.replicas);
    let failed = replicas().filter(|one| one.state == "failed").count();
    assert_eq!(figures.replicas_failed as usize, failed);
    let mut listed: Vec<_> =
        figures.listed.iter().map(|one| (one.name.clone(), one.wanted, one.ready)).collect();
    listed.sort();
    let lines: Vec<_> = told.iter().map(|one| (one.name.clone(), one.wanted, one.ready)).collect();
    assert_eq!(listed, lines, "all of so few are in the summary");
    for state in ["ready", "loading", "changing", "degraded", "failed", "unplaced", "unloading", "unloaded"] {
        let metric = value(&samples, "umbel_edge_deployments", &[("state", state)]);
        assert_eq!(metric as usize, count(&|one| one.state.as_str() == state), "{state}");
        let code = format!("DEPLOYMENT_{}", state.to_ascii_uppercase());
        let problems: Vec<_> = summary.problems.iter().filter(|one| one.code == code).collect();
        let wants_people = ["degraded", "failed", "unplaced"].contains(&state);
        assert_eq!(problems.len() as u64, if wants_people { metric } else { 0 }, "{problems:?}");
    }
    for one in &told {
        let name = [("deployment", one.name.as_str())];
        let metric = |metric: &str| value(&samples, metric, &name) as u32;
        assert_eq!(metric("umbel_edge_deployment_replicas_wanted"), one.wanted);
        assert_eq!(metric("umbel_edge_deployment_replicas_ready"), one.ready);
        assert_eq!(metric("umbel_edge_deployment_replicas") as usize, one.replicas.len());
        for replica in &one.replicas {
            let labels = [name[0], ("state", replica.state.as_str())];
            let same = one.replicas.iter().filter(|other| other.state == replica.state).count();
            assert_eq!(value(&samples, "umbel_edge_deployment_replicas", &labels) as usize, same);
            // What is done for it is a job of its own node, and open unless its end is just being taken.
            if let Some(job) = &replica.job {
                let view = site.jobs.view(&job.job_id).unwrap();
                assert_eq!(view.row.node, replica.node_id);
                assert_eq!(view.row.owner, format!("deployment/{}", one.name));
            }
        }
        let in_rows = site.deployments.read(|table| {
            table.replicas_of(&one.name).filter(|row| row.state == ReplicaState::Ready).count()
        });
        assert_eq!(in_rows, one.replicas.iter().filter(|replica| replica.state == "ready").count());
    }
    let open = site.jobs.list(|view| !view.state.is_end());
    let mut in_table: Vec<_> = open.iter().map(|view| (view.id.clone(), view.state)).collect();
    let mut in_status: Vec<_> = jobs.iter().map(|job| (job.job_id.clone(), job.state)).collect();
    in_table.sort_by(|a, b| a.0.cmp(&b.0));
    in_status.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(in_table, in_status, "jobs that have not ended");
    assert_eq!((of_jobs.queued + of_jobs.running) as usize, open.len());
    assert_eq!(value(&samples, "umbel_edge_jobs", &[]) as usize, open.len());
    assert_eq!(value(&samples, "umbel_edge_jobs", &[("state", "queued")]), u64::from(of_jobs.queued));
    told
}

/// Agrees at every moment until something holds.
async fn watch(edge: &Edge, what: &str, holds: impl Fn(&[DeploymentObject]) -> bool) {
    let deadline = std::time::Instant::now() + TIME;
    loop {
        let told = agree(edge).await;
        if holds(&told) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "never: {what}: {told:#?}");
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

async fn apply(edge: &Edge, name: &str, replicas: u32, more: Value) {
    let mut document = json!({ "name": name, "model": format!("org/{name}"), "replicas": replicas,
        "engine": { "kind": "sim" } });
    document.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
    let standing = edge.ask("deployment.apply", "", json!({ "document": document })).await.unwrap();
    assert_eq!(standing.error, None);
}

fn one<'a>(told: &'a [DeploymentObject], name: &str) -> &'a DeploymentObject {
    told.iter().find(|one| one.name == name).unwrap()
}

/// Rows "figures agree" of deployments; each operation is audited with who and why, each step is told.
#[test]
fn all_that_is_said_of_deployments_agrees_at_every_moment() {
    run(async {
        let edge = Edge::start().await;
        let (a, agent_a, _connection_a) = node(&edge, "a").await;
        let (_b, agent_b, _connection_b) = node(&edge, "b").await;
        apply(&edge, "chat", 2, json!({})).await;
        watch(&edge, "both are ready", |told| one(told, "chat").ready == 2).await;
        apply(&edge, "chat", 3, json!({})).await;
        apply(&edge, "nowhere", 1, json!({ "selector": "label:rack=r9" })).await;
        watch(&edge, "a third one, and one that fits nowhere", |told| {
            one(told, "chat").ready == 3 && one(told, "nowhere").state.as_str() == "unplaced"
        })
        .await;
        let view = edge.view(&a);
        let snapshot = crate::shell::status::node_in_detail(&edge.running.site, &view);
        let of_chat = snapshot.providers.iter().filter(|one| one.deployment == "chat" && one.replica > 0);
        assert!(of_chat.count() >= 1, "{:?}", snapshot.providers);
        assert_eq!(snapshot.detail.unwrap().runtimes[0].kind, "sim");

        for agent in [&agent_a, &agent_b] {
            *agent.0.broken.lock().unwrap() = Some("PROGRAM_MISSING");
        }
        apply(&edge, "broken", 1, json!({})).await;
        watch(&edge, "it failed and was given up", |told| one(told, "broken").state.as_str() == "failed")
            .await;
        let samples = read(&edge.running.front.metrics().encode(TextFormat::OpenMetrics)).unwrap().0;
        let of_load = [("kind", "deployment.load"), ("code", "PROGRAM_MISSING")];
        assert!(value(&samples, "umbel_edge_job_failures_total", &of_load) >= 1);
        let loads = [("kind", "deployment.load"), ("outcome", "succeeded")];
        // Three that came up, and those that took the number of a newer document.
        let loaded = value(&samples, "umbel_edge_jobs_ended_total", &loads);
        assert!(loaded >= 3, "{loaded}");
        let failed = [("kind", "deployment.load"), ("outcome", "failed")];
        let ended = loaded + value(&samples, "umbel_edge_jobs_ended_total", &failed);
        let took = value(&samples, "umbel_edge_job_duration_seconds_count", &[("kind", "deployment.load")]);
        assert_eq!(took, ended, "each that ended has its duration");
        let given_up = [("deployment", "broken")];
        assert_eq!(value(&samples, "umbel_edge_deployment_replicas_given_up", &given_up), 1);

        let replica = json!({ "name": "chat", "replica": 1 });
        edge.ask("deployment.unload", "", replica).await.unwrap();
        watch(&edge, "another one in its place", |told| {
            let chat = one(told, "chat");
            chat.replicas.len() == 3 && chat.replicas.iter().all(|one| one.number != 1)
        })
        .await;
        edge.ask("deployment.drain", "", json!({ "name": "chat" })).await.unwrap();
        watch(&edge, "none is left", |told| one(told, "chat").state.as_str() == "unloaded").await;

        for (action, count) in [("deployment.apply", 4), ("deployment.unload", 1), ("deployment.drain", 1)] {
            let entries = edge.audit(action).await;
            assert_eq!(entries.len(), count, "{action}");
            for entry in entries {
                assert_eq!(entry.record.actor, "local", "{action}");
                assert!(entry.record.detail.contains("a test"), "{action}: {}", entry.record.detail);
            }
        }
        let follow = Follow { recent: 1_000, ..Follow::default() };
        let mut events = edge.running.site.events.ring().follow(&follow);
        let mut kinds = BTreeMap::new();
        while let Some(next) = events.next().await {
            let Told::Event { event, .. } = next else { continue };
            if event.deployment.as_deref() == Some("chat") {
                *kinds.entry(event.kind.clone()).or_insert(0) += 1;
            }
        }
        for kind in [
            "deployment_applied",
            "deployment_unloaded",
            "replica_placed",
            "replica_ready",
            "replica_draining",
            "replica_unloaded",
            "job_queued",
            "job_succeeded",
        ] {
            assert!(kinds.contains_key(kind), "nothing told of {kind}: {kinds:?}");
        }
        edge.running.drain(TIME).await;
    });
}

/// A model that gets another name and keeps the one before as an alias: while its replicas change the old name is what it was, then it
/// means the new one, and nothing is left against it.
#[test]
fn a_name_kept_as_an_alias_leads_to_the_new_model_after_the_change() {
    run(async {
        let edge = Edge::start().await;
        let (a, _agent_a, _connection_a) = node(&edge, "a").await;
        let (b, _agent_b, _connection_b) = node(&edge, "b").await;
        apply(&edge, "chat", 2, json!({ "aliases": ["small"] })).await;
        watch(&edge, "both are ready", |told| one(told, "chat").ready == 2).await;
        let resolved = |name: &str| edge.running.site.dispatch.resolve(name).map(|known| known.name);
        let is = |name: &str, model: &str| resolved(name).is_some_and(|found| *found == *model);
        assert!(is("small", "org/chat") && is("org/chat", "org/chat"));
        apply(&edge, "chat", 2, json!({ "model": "org/next", "aliases": ["org/chat", "small"] })).await;
        watch(&edge, "both run under the new name", |told| {
            let chat = one(told, "chat");
            // Somebody answers to the old names at every moment.
            assert!(resolved("small").is_some() && resolved("org/chat").is_some(), "{chat:?}");
            chat.ready == 2 && chat.state.as_str() == "ready" && chat.replicas.iter().all(|one| !one.outdated)
        })
        .await;
        super::rig::until("the old names mean the new model", || {
            is("small", "org/next") && is("org/chat", "org/next") && is("org/next", "org/next")
        })
        .await;
        for node in [&a, &b] {
            let left: Vec<_> = edge.view(node).problems.values().map(|one| one.message.clone()).collect();
            assert!(!left.iter().any(|message| message.contains("chat.r")), "{left:?}");
        }
        edge.running.drain(TIME).await;
    });
}

/// A site of a thousand deployments: what leaves it stays within its bounds, the short ones first.
#[test]
fn a_large_site_is_told_within_the_bounds() {
    const ALL: usize = 1_000;
    const REPLICAS: usize = 8;
    run(async {
        let edge = Edge::start().await;
        let site = &edge.running.site;
        let row = |at: usize| -> DeploymentRow {
            let spec = json!({ "name": format!("deployment-{at:04}"), "model": format!("an-organization/a-model-{at:04}"),
                "replicas": REPLICAS, "engine": { "kind": "sim" } });
            serde_json::from_value(
                json!({ "spec": spec, "version": 3, "engine_digest": "d", "created_at_unix_ms": 1,
                "applied_at_unix_ms": 2, "applied_by": "ann@main" }),
            )
            .unwrap()
        };
        let replica = |at: usize, number: usize| -> ReplicaRow {
            // Every tenth deployment lacks one, and an engine said a lot about it.
            let broken = at.is_multiple_of(10) && number == 1;
            let cause = if broken { "x".repeat(20_000) } else { String::new() };
            serde_json::from_value(json!({ "deployment": format!("deployment-{at:04}"), "number": number, "version": 3,
                "engine_digest": "d", "node": uuid::Uuid::new_v4(), "gpus": ["GPU-7f3a9c12-0000-4000-8000-000000000001"],
                "state": if broken { "failed" } else { "ready" }, "since_unix_ms": 3, "cause": cause }))
            .unwrap()
        };
        let rows = (0..ALL).map(row);
        let replicas = (0..ALL).flat_map(|at| (1..=REPLICAS).map(move |number| replica(at, number)));
        let _quiet = site.deployments.quiet().await;
        site.deployments.replace(Deployments::of(rows, replicas));
        let begun = std::time::Instant::now();
        let summary = crate::shell::status::summary(site).await;
        let of_summary = begun.elapsed();
        assert!(summary.encoded_len() <= 16 * 1024, "{}", summary.encoded_len());
        let figures = summary.deployments.clone().unwrap();
        assert_eq!((figures.total, figures.short), (1_000, 100));
        assert!(figures.listed.len() >= 64, "beside as many problems as fit: {}", figures.listed.len());
        assert!(figures.listed.iter().take(100).all(|one| one.ready < one.wanted), "the short ones first");
        let begun = std::time::Instant::now();
        let sections = vec!["deployments".to_owned()];
        let question =
            Question::check(EdgeStatusRequest { sections, ..EdgeStatusRequest::default() }).unwrap();
        let mut reading = Reading::new(site, question).await;
        let read = begun.elapsed();
        let (mut bytes, mut parts, mut told) = (0, 0, 0);
        while let Some(part) = reading.next(site) {
            let encoded = part.encode_to_vec();
            bytes += encoded.len();
            parts += 1;
            told += bounds::decode::<EdgeStatusResponse>(&encoded).unwrap().deployments.len();
        }
        assert_eq!(told, ALL);
        println!(
            "{ALL} deployments of {REPLICAS} replicas: summary {} bytes with {} listed in {of_summary:?}; status {bytes} \
             bytes in {parts} parts, read in {read:?}, all in {:?}",
            summary.encoded_len(),
            figures.listed.len(),
            begun.elapsed()
        );
        // Nothing of it is real: no round may look at it.
        site.deployments.replace(Deployments::default());
    });
}
