//! A large site before the placement core, for measuring what placement costs (`examples/placing.rs`).
//!
//! Owns nodes as the registry holds them, half of their GPUs in use, a hundred deployments of many kinds, and the table that the
//! reconciler's rounds start from. Decides nothing.

#![allow(clippy::expect_used, reason = "a measurement ends at the first surprise")]

use std::sync::Arc;
use std::time::Instant;

use umbel_contracts::deployment::DeploymentSpec;
use umbel_contracts::proto::node::{
    DeclaredEngine, EngineMemory, EngineRuntime, EngineState, EngineStatus, Gpu, GpuTelemetry, NodeInventory,
    NodeTelemetry, StorageFree, StorageRoot,
};
use umbel_store::Position;
use umbel_wire::clock::Wall;
use umbel_wire::liveness::State;
use umbel_wire::{Generation, NodeId};
use uuid::Uuid;

use crate::core::deployments::reading::{self, NodePlaces};
use crate::core::deployments::{Deployments, Outcome, ReplicaState};
use crate::core::placement::candidate::{Given, candidates};
use crate::core::placement::explain::{Detail, explain_some};
use crate::core::placement::{Fleet, Request, told};
use crate::core::registry::Moment;
use crate::core::registry::node::{Credential, Declared, Node, NodeRow, ReportRow, Session};

const GIB: u64 = 1 << 30;
const KINDS: [(&str, u64, &str); 3] =
    [("NVIDIA H100 80GB HBM3", 80, "9.0"), ("NVIDIA A100-SXM4-40GB", 40, "8.0"), ("NVIDIA L40S", 46, "8.9")];

/// The site and what it should serve.
#[derive(Debug)]
pub struct Placing {
    nodes: Vec<Arc<Node>>,
    requests: Vec<Request>,
    moment: Moment,
    table: Deployments,
}

/// One reading of the site.
#[derive(Clone, Debug)]
pub struct Reading(Fleet);

impl Placing {
    /// So many nodes with so many GPUs each, and so many deployments.
    ///
    /// # Panics
    /// If a deployment's document is not one.
    #[must_use]
    pub fn new(nodes: u32, gpus: u32, deployments: u32) -> Self {
        let moment = Moment { now: Instant::now(), wall: 1_700_000_000_000 };
        let documents: Vec<DeploymentSpec> = (0..deployments).map(document).collect();
        let requests = documents.iter().map(Request::from).collect();
        let mut table = Deployments::default();
        for document in documents {
            let change = table.propose(document, None, "a person", moment.wall).expect("a change");
            table.changed(&change);
        }
        Self {
            nodes: (0..nodes).map(|number| Arc::new(node(number, gpus, moment))).collect(),
            requests,
            moment,
            table,
        }
    }

    /// A round of the reconciler from the reading of the site to what it comes to, which is left at that. How many replicas it
    /// changes.
    #[must_use]
    pub fn round(&self) -> usize {
        self.decided().0.replicas.len()
    }

    fn decided(&self) -> (Outcome, Deployments) {
        let mut table = self.table.clone();
        let facts = reading::facts(&self.nodes, |_| None, &table, self.moment.now, self.moment.wall);
        let mut places = NodePlaces::of(&self.nodes, reading::given(&table, |_| None), self.moment);
        let mut ids = 0;
        let mut id = || {
            ids += 1;
            format!("job-{ids}")
        };
        let outcome = table.decide(&facts, &mut places, &mut id);
        (outcome, table)
    }

    /// A round is done, and all that it began has come up: there is nothing more to do.
    pub fn settle(&mut self) {
        let (mut outcome, mut table) = self.decided();
        for row in outcome.replicas.values_mut().flatten() {
            (row.state, row.job) = (ReplicaState::Ready, None);
            let Some(node) = self.nodes.iter_mut().find(|node| node.id == row.node) else { continue };
            let node = Arc::make_mut(node);
            let (name, deployment, gpu_uuids) = (row.engine(), row.deployment.clone(), row.gpus.clone());
            let declared = DeclaredEngine { name, deployment, gpu_uuids, ..DeclaredEngine::default() };
            node.report.engines.push(Declared::new(&declared, self.moment.wall));
            let status = EngineStatus { state: EngineState::Ready.into(), ..EngineStatus::default() };
            node.engines.insert(row.engine(), Box::new(status));
        }
        table.applied(&outcome);
        self.table = table;
    }

    /// The same deployments, and each wants more than any node has.
    #[must_use]
    pub fn impossible(mut self) -> Self {
        for request in &mut self.requests {
            request.gpus.count = 9;
        }
        for row in self.table.rows.values_mut() {
            row.spec.gpus.count = 9;
        }
        self
    }

    /// Reads what placement has to know out of the registry's nodes.
    #[must_use]
    pub fn read(&self) -> Reading {
        Reading(Fleet::of(candidates(&self.nodes, &Given::default(), self.moment)))
    }

    /// The copy of the table that a round is decided on.
    pub fn copy(&self) {
        drop(self.table.clone());
    }

    /// Places one replica of every deployment, each seeing what the ones before took. How many have a place.
    pub fn place_all(&self, reading: &mut Reading) -> usize {
        let mut placed = 0;
        for request in &self.requests {
            if let Some(found) = reading.0.plan(request) {
                reading.0.take(&found, request, &request.deployment);
                placed += 1;
            }
        }
        placed
    }

    /// Explains one that fits nowhere, as an operator gets it. The bytes of the answer.
    ///
    /// # Panics
    /// If the answer has no JSON form.
    #[must_use]
    pub fn explain(&self, reading: &Reading, told_of: usize) -> usize {
        let mut request = self.requests.first().cloned().unwrap_or_default();
        (request.gpus.count, request.gpus.memory_bytes) = (8, 70 * GIB);
        let why = explain_some(&request, reading.0.nodes(), Detail { most: told_of, only: &|_| true });
        assert!(why.plan.is_none(), "it should fit nowhere");
        let object = told::object(&why, &[], reading.0.nodes(), &self.table.stocks());
        serde_json::to_vec(&object).expect("an object").len()
    }
}

/// Of one to eight GPUs, by name, selector or neither, most with files that only some nodes have.
fn document(number: u32) -> DeploymentSpec {
    let count = match number % 4 {
        0 | 1 => 1,
        2 => 2,
        _ => 4,
    };
    let strategy = if number.is_multiple_of(3) { "pack" } else { "spread" };
    let mut document = serde_json::json!({
        "name": format!("m{number}"), "engine": { "kind": "vllm" }, "replicas": 1,
        "gpus": { "count": count }, "strategy": strategy,
        "artifact": { "repository": "org/m", "revision": format!("{number:08x}"), "source": "hub", "files": [
            { "path": "config.json", "bytes": 0, "sha256": "0".repeat(64) },
            { "path": "model.safetensors", "bytes": 20 * GIB, "sha256": "0".repeat(64) }
        ] },
    });
    let gpus = document.get_mut("gpus").and_then(|gpus| gpus.as_object_mut()).expect("gpus");
    match number % 5 {
        0 => drop(gpus.insert("names".to_owned(), serde_json::json!(["*H100*", "*L40S*"]))),
        1 => drop(gpus.insert("memory_bytes".to_owned(), (39 * GIB).into())),
        2 => drop(gpus.insert("capability".to_owned(), "8.9".into())),
        _ => {}
    }
    let document = document.as_object_mut().expect("a document");
    if number.is_multiple_of(4) {
        document.insert("selector".to_owned(), format!("label:rack=r{}", number % 10).into());
    }
    DeploymentSpec::from_value(document.clone().into()).expect("a document")
}

fn node(number: u32, gpus: u32, moment: Moment) -> Node {
    let id = NodeId(Uuid::from_u128(u128::from(number) + 1));
    let credential = Credential {
        key_sha256: "00".repeat(32),
        not_after_unix_ms: 0,
        revoked_at_unix_ms: None,
        ..Credential::default()
    };
    let mut row = NodeRow::enrolled(&format!("gpu-{number:04}"), "t", credential, Wall(1));
    row.eligible = !number.is_multiple_of(50);
    row.draining = number % 50 == 1;
    row.labels.insert("rack".to_owned(), format!("r{}", number % 10));
    let mut node = Node::new(id, row, Position(1), ReportRow::default());
    node.capabilities = vec!["deployment.load.v1".to_owned(), "artifact.acquire.v1".to_owned()];
    node.session = Some(Session {
        generation: Generation(1),
        protocol: 1,
        named: true,
        leaving: false,
        given_trust: false,
    });
    node.liveness = if number % 50 == 2 { State::Offline } else { State::Online };
    let runtime = EngineRuntime {
        kind: "vllm".to_owned(),
        engine_version: "0.11.0".to_owned(),
        ..EngineRuntime::default()
    };
    node.report.runtimes = vec![runtime.into()];
    node.report.told(&inventory(number, gpus), &telemetry(number, gpus), moment);
    node
}

fn uuid(node: u32, gpu: u32) -> String {
    format!("GPU-{:08x}-0000-4000-8000-{:012x}", node, gpu)
}

fn inventory(number: u32, gpus: u32) -> NodeInventory {
    let (name, gib, capability) =
        KINDS.get(number as usize % KINDS.len()).copied().unwrap_or(("GPU", 80, "9.0"));
    let gpu = |index| Gpu {
        uuid: uuid(number, index),
        index,
        name: name.to_owned(),
        memory_bytes: gib * GIB,
        compute_capability: capability.to_owned(),
        pci_address: format!("0000:{index:02x}:00.0"),
        ..Gpu::default()
    };
    NodeInventory {
        complete: true,
        hostname: format!("gpu-{number:04}"),
        driver_version: "550.54.14".to_owned(),
        gpus: (0..gpus).map(gpu).collect(),
        storage: vec![StorageRoot {
            name: "models".to_owned(),
            total_bytes: 1 << 42,
            reserve_bytes: Some(4 * GIB),
        }],
        ..NodeInventory::default()
    }
}

fn telemetry(number: u32, gpus: u32) -> NodeTelemetry {
    let gpu = |index: u32| {
        let engine = EngineMemory { engine: format!("e{}", index / 2), bytes: 30 * GIB };
        let busy = (number + index / 2).is_multiple_of(2);
        GpuTelemetry {
            uuid: uuid(number, index),
            utilization_percent: Some(50),
            memory_used_bytes: Some(if busy { 31 * GIB } else { GIB / 2 }),
            temperature_celsius: Some(60),
            power_milliwatts: Some(300_000),
            engines: if busy { vec![engine] } else { Vec::new() },
            ..GpuTelemetry::default()
        }
    };
    NodeTelemetry {
        gpus: (0..gpus).map(gpu).collect(),
        storage: vec![StorageFree { name: "models".to_owned(), free_bytes: 1 << 40 }],
        ..NodeTelemetry::default()
    }
}
