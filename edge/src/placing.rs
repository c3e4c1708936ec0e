//! A large site before the placement core, for measuring what placement costs (`examples/placing.rs`).
//!
//! Owns nodes as the registry holds them, half of their GPUs in use, and a hundred deployments of many kinds. Decides nothing.

#![allow(clippy::expect_used, reason = "a measurement ends at the first surprise")]

use std::sync::Arc;
use std::time::Instant;

use umbel_contracts::deployment::DeploymentSpec;
use umbel_contracts::proto::node::{
    EngineMemory, EngineRuntime, Gpu, GpuTelemetry, NodeInventory, NodeTelemetry, StorageFree, StorageRoot,
};
use umbel_store::Position;
use umbel_wire::clock::Wall;
use umbel_wire::liveness::State;
use umbel_wire::{Generation, NodeId};
use uuid::Uuid;

use crate::core::placement::candidate::{Candidate, Given, candidates};
use crate::core::placement::explain::{Detail, explain_some};
use crate::core::placement::{Request, plan, take, told};
use crate::core::registry::Moment;
use crate::core::registry::node::{Credential, Node, NodeRow, ReportRow, Session};

const GIB: u64 = 1 << 30;
const KINDS: [(&str, u64, &str); 3] =
    [("NVIDIA H100 80GB HBM3", 80, "9.0"), ("NVIDIA A100-SXM4-40GB", 40, "8.0"), ("NVIDIA L40S", 46, "8.9")];

/// The site and what it should serve.
#[derive(Debug)]
pub struct Placing {
    nodes: Vec<Arc<Node>>,
    requests: Vec<Request>,
    moment: Moment,
}

/// One reading of the site.
#[derive(Clone, Debug)]
pub struct Reading(Vec<Candidate>);

impl Placing {
    /// So many nodes with so many GPUs each, and so many deployments.
    ///
    /// # Panics
    /// If a deployment's document is not one.
    #[must_use]
    pub fn new(nodes: u32, gpus: u32, deployments: u32) -> Self {
        let moment = Moment { now: Instant::now(), wall: 1_700_000_000_000 };
        let requests = (0..deployments).map(|number| Request::from(&document(number))).collect();
        Self {
            nodes: (0..nodes).map(|number| Arc::new(node(number, gpus, moment))).collect(),
            requests,
            moment,
        }
    }

    /// Reads what placement has to know out of the registry's nodes.
    #[must_use]
    pub fn read(&self) -> Reading {
        Reading(candidates(&self.nodes, &Given::default(), self.moment))
    }

    /// Places one replica of every deployment, each seeing what the ones before took. How many have a place.
    pub fn place_all(&self, reading: &mut Reading) -> usize {
        let mut placed = 0;
        for request in &self.requests {
            if let Some(found) = plan(request, &reading.0) {
                take(&found, request, &request.deployment, &mut reading.0);
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
        let why = explain_some(&request, &reading.0, Detail { most: told_of, only: &|_| true });
        assert!(why.plan.is_none(), "it should fit nowhere");
        let object = told::object(&why, &[], &reading.0);
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
