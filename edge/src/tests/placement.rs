//! `placement.explain` of a real site: what its nodes say is what placement sees.

use prost::Message;
use serde_json::{Value, json};
use umbel_contracts::event;
use umbel_contracts::proto::node::{
    Artifact, EngineMemory, EngineRuntime, EngineState, Gpu, GpuTelemetry, NodeArtifacts, NodeDeclared,
    NodeInventory, NodeTelemetry, StorageFree, StorageRoot,
};
use umbel_wire::Code;
use umbel_wire::clock::Wall;

use super::rig::{Edge, FakeNode, run, until};

const GIB: u64 = 1 << 30;

/// A host with two GPUs of 80 GiB that can load deployments.
fn equip(node: &mut FakeNode, runtimes: &[(&str, &str)]) {
    let gpu = |index: u32| Gpu {
        uuid: format!("GPU-{}-{index}", node.id),
        index,
        name: "NVIDIA H100 80GB HBM3".into(),
        memory_bytes: 80 * GIB,
        compute_capability: "9.0".into(),
        ..Gpu::default()
    };
    node.hello.capabilities = vec!["deployment.load.v1".into(), "artifact.acquire.v1".into()];
    node.hello.runtimes = runtimes
        .iter()
        .map(|(kind, version)| EngineRuntime {
            kind: (*kind).into(),
            engine_version: (*version).into(),
            ..EngineRuntime::default()
        })
        .collect();
    node.hello.inventory = Some(NodeInventory {
        sequence: 1,
        observed_at_unix_ms: Wall::now().unix_ms(),
        complete: true,
        driver_version: "550.54.14".into(),
        gpus: vec![gpu(0), gpu(1)],
        // One that says nothing of itself is not taken for the only one.
        storage: [("gone", Some(0)), ("models", Some(GIB)), ("state", None)]
            .map(|(name, reserve_bytes)| StorageRoot {
                name: name.into(),
                total_bytes: 1 << 40,
                reserve_bytes,
            })
            .to_vec(),
        ..NodeInventory::default()
    });
}

fn figures(node: &FakeNode, free: u64) -> NodeTelemetry {
    let gpu = |index: u32, used: u64, engines: Vec<EngineMemory>| GpuTelemetry {
        uuid: format!("GPU-{}-{index}", node.id),
        memory_used_bytes: Some(used),
        engines,
        ..GpuTelemetry::default()
    };
    NodeTelemetry {
        sequence: 1,
        observed_at_unix_ms: Wall::now().unix_ms(),
        storage: vec![
            StorageFree { name: "models".into(), free_bytes: free },
            StorageFree { name: "state".into(), free_bytes: 1 << 40 },
        ],
        gpus: vec![
            gpu(0, 30 * GIB, vec![EngineMemory { engine: "e".into(), bytes: 29 * GIB }]),
            gpu(1, 25 * GIB, Vec::new()),
        ],
        ..NodeTelemetry::default()
    }
}

fn document(change: impl FnOnce(&mut Value)) -> Value {
    let mut document = json!({
        "name": "qwen", "model": "org/qwen", "engine": { "kind": "vllm" }, "gpus": { "count": 1 },
        "artifact": { "repository": "org/qwen", "revision": "895c8d171bc0", "source": "hub", "files": [
            { "path": "config.json", "bytes": 0, "sha256": "0".repeat(64) },
            { "path": "model.safetensors", "bytes": 16 * GIB, "sha256": "0".repeat(64) }
        ] },
    });
    change(&mut document);
    document
}

async fn explained(edge: &Edge, document: Value) -> Value {
    let told = edge.ask("placement.explain", "", json!({ "document": document })).await.unwrap();
    told.result.unwrap()
}

fn first_against(told: &Value, node: &str) -> (String, String) {
    let node = told["nodes"].as_array().unwrap().iter().find(|one| one["node"] == node).unwrap();
    let against = &node["against"][0];
    (against["reason"].as_str().unwrap().into(), against["message"].as_str().unwrap().into())
}

#[test]
fn what_nodes_report_is_what_placement_sees() {
    run(async {
        let edge = Edge::start().await;
        let mut a = edge.node("a").await;
        equip(&mut a, &[("vllm", "0.11.0"), ("sim", "")]);
        let mut b = edge.node("b").await;
        equip(&mut b, &[("sim", "")]);
        let connection = a.connect(&edge).await;
        let _b = b.connect(&edge).await;

        // Both GPUs are free as far as anybody knows.
        let told = explained(&edge, document(|_| {})).await;
        assert_eq!(
            (&told["fits"], &told["nodes_total"], &told["nodes_left"]),
            (&json!(true), &json!(2), &json!(1))
        );
        let shard = &told["plan"][0]["shards"][0];
        assert_eq!((&shard["node"], &shard["acquire"]), (&json!("a"), &json!(true)));
        assert_eq!(
            first_against(&told, "b"),
            ("engine_missing".into(), "vllm is not installed; it has sim".into())
        );

        // An engine of its own file is pinned to one, and says so before anything is on it.
        let mut pinned = super::rig::engine("e", EngineState::Ready);
        pinned.gpu_uuids = vec![format!("GPU-{}-1", a.id)];
        let declared = NodeDeclared { engines: vec![pinned], ..NodeDeclared::default() };
        connection.event(event::NODE_DECLARED, "declared", declared.encode_to_vec());
        until("it is known", || !edge.view(&a).report.engines[0].gpus.is_empty()).await;
        let told = explained(&edge, document(|one| one["gpus"]["count"] = json!(2))).await;
        assert_eq!(first_against(&told, "a").1, "1 of 2 GPUs fit, 2 wanted: GPU 1 is held by e");
        let declared = NodeDeclared {
            engines: vec![super::rig::engine("e", EngineState::Ready)],
            ..NodeDeclared::default()
        };
        connection.event(event::NODE_DECLARED, "declared", declared.encode_to_vec());
        until("it is known", || edge.view(&a).report.engines[0].gpus.is_empty()).await;

        // An engine is seen on one, a stranger on the other, and the disk is nearly full.
        connection.event(event::NODE_TELEMETRY, "report", figures(&a, 5 * GIB).encode_to_vec());
        until("the figures came", || edge.view(&a).telemetry().is_some()).await;
        let told = explained(&edge, document(|one| one["gpus"]["memory_bytes"] = json!(60 * GIB))).await;
        assert_eq!(told["fits"], false);
        let (reason, message) = first_against(&told, "a");
        assert_eq!(reason, "gpu_held");
        assert_eq!(
            message,
            "0 of 2 GPUs fit, 1 wanted: GPU 0 is held by e, GPU 1 has 55.0 GiB free < 60.0 GiB: foreign processes hold \
             25.0 GiB"
        );
        let against =
            &told["nodes"].as_array().unwrap().iter().find(|one| one["node"] == "a").unwrap()["against"];
        assert_eq!((&against[1]["reason"], &against[1]["wanted"]), (&json!("space"), &json!(17 * GIB)));
        assert_eq!(against[1]["message"], "16.0 GiB of files and 1.0 GiB to stay free wanted, 5.0 GiB free");

        // With the files there, space is no matter; what is asked of the free GPU is lowered.
        let digest = umbel_contracts::deployment::DeploymentSpec::from_value(document(|_| {})).unwrap();
        let artifact = Artifact {
            repository: "org/qwen".into(),
            revision: "895c8d171bc0".into(),
            digest: digest.artifact.unwrap().digest(),
            bytes: 16 * GIB,
            ..Artifact::default()
        };
        let artifacts = NodeArtifacts { artifacts: vec![artifact] };
        connection.event(event::NODE_ARTIFACTS, "report", artifacts.encode_to_vec());
        until("the files are known", || !edge.view(&a).report.artifacts.is_empty()).await;
        let told = explained(&edge, document(|one| one["gpus"]["memory_bytes"] = json!(40 * GIB))).await;
        let shard = &told["plan"][0]["shards"][0];
        assert_eq!((&shard["gpu_indexes"], &shard["acquire"]), (&json!([1]), &json!(false)));
        // Two of it: one has a place, and the next is explained.
        let two = document(|one| one["replicas"] = json!(2));
        let told = explained(&edge, two).await;
        assert_eq!(
            (&told["fits"], &told["plan"]),
            (&json!(false), &json!([])),
            "whole GPUs are wanted: {told}"
        );

        edge.ask("node.drain", "node:a", json!({ "deadline_seconds": 0 })).await.unwrap();
        let told = explained(&edge, document(|one| one["gpus"]["memory_bytes"] = json!(40 * GIB))).await;
        assert_eq!(first_against(&told, "a").0, "draining");
        assert_eq!(told["remedies"][0]["changes"][0]["commands"], json!(["umbel ctl node undrain a"]));
    });
}

/// What is told of nodes is how they are, not how they would be once all replicas have their places.
#[test]
fn a_plan_tells_of_nodes_as_they_are_now() {
    run(async {
        let edge = Edge::start().await;
        let mut a = edge.node("a").await;
        equip(&mut a, &[("vllm", "0.11.0")]);
        let _a = a.connect(&edge).await;
        let told = explained(&edge, document(|one| one["replicas"] = json!(2))).await;
        assert_eq!((&told["fits"], told["plan"].as_array().unwrap().len()), (&json!(true), 2));
        let node = &told["nodes"][0];
        assert_eq!((&node["replicas"], &node["gpus_fit"]), (&json!(0), &json!(2)), "{node}");
        assert!(node["gpus"].as_array().unwrap().iter().all(|gpu| gpu["held_by"].is_null()), "{node}");
        // Three: two have a place, and the next one is explained beside them; ending those would help nobody.
        let told = explained(&edge, document(|one| one["replicas"] = json!(3))).await;
        assert_eq!((&told["fits"], told["plan"].as_array().unwrap().len()), (&json!(false), 2));
        assert_eq!(
            first_against(&told, "a").1,
            "0 of 2 GPUs fit, 1 wanted: GPU 0 is held by qwen.r1, GPU 1 is held by qwen.r2"
        );
        assert_eq!(told["remedies"], json!([]));

        // Nobody has said that it may get requests: that is no reason not to load there.
        edge.ask("node.eligible", "node:a", json!({ "eligible": false })).await.unwrap();
        let told = explained(&edge, document(|_| {})).await;
        let remark = json!(["not eligible: its requests wait until `umbel ctl node eligible a`"]);
        assert_eq!((&told["fits"], &told["nodes"][0]["remarks"]), (&json!(true), &remark));
        assert_eq!(told["plan"][0]["shards"][0]["remarks"], remark);
    });
}

/// A deployment of the site: what it wants, since when it waits, and what it holds against others.
#[test]
fn a_deployment_is_explained_by_its_name() {
    run(async {
        let edge = Edge::start().await;
        let mut a = edge.node("a").await;
        equip(&mut a, &[("vllm", "0.11.0")]);
        let connection = a.connect(&edge).await;
        let apply = async |document: Value| {
            edge.ask("deployment.apply", "", json!({ "document": document })).await.unwrap();
        };
        let why = async |name: &str| {
            edge.ask("placement.explain", "", json!({ "deployment": name })).await.unwrap().result.unwrap()
        };
        apply(document(|one| one["gpus"]["count"] = json!(2))).await;
        let told = loop {
            let told = why("qwen").await;
            if told["replicas_placed"] == 1 {
                break told;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!((&told["replicas_wanted"], &told["waiting_since"]), (&json!(1), &Value::Null));
        apply(document(|one| one["name"] = json!("other"))).await;
        let told = loop {
            let told = why("other").await;
            if told["waiting_since"] != Value::Null {
                break told;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(
            first_against(&told, "a").1,
            "0 of 2 GPUs fit, 1 wanted: GPU 0 is held by qwen.r1, GPU 1 is held by qwen.r1"
        );
        let change = &told["remedies"][0]["changes"][0];
        assert_eq!(change["commands"], json!(["umbel ctl model unload qwen -m 'why'"]));
        // The same document: nothing changes, and its replica keeps its place; more of them want more places.
        let said =
            |told: &Value| (told["changes"].clone(), told["replicas_placed"].clone(), told["fits"].clone());
        let told = explained(&edge, document(|one| one["gpus"]["count"] = json!(2))).await;
        assert_eq!(said(&told), (json!([]), json!(1), json!(false)), "{told}");
        let more = |one: &mut Value| (one["gpus"]["count"], one["replicas"]) = (json!(2), json!(2));
        let told = explained(&edge, document(more)).await;
        assert_eq!(said(&told), (json!(["replicas 1 -> 2"]), json!(1), json!(false)), "{told}");
        // Changed: it may take the place of what is there.
        let told = explained(&edge, document(|one| one["gpus"]["count"] = json!(1))).await;
        assert_eq!(told["fits"], true, "{told}");

        connection.close(umbel_wire::CloseReason::Shutdown);
        until("it is away", || !edge.connected(&a)).await;
        assert_eq!(first_against(&why("other").await, "a").0, "not_online");
        edge.ask("deployment.unload", "", json!({ "name": "other" })).await.unwrap();
        assert_eq!(why("other").await["replicas_wanted"], 0);
    });
}

#[test]
fn what_is_asked_is_checked() {
    run(async {
        let edge = Edge::start().await;
        let refused = |args: Value, selector: &'static str| {
            let edge = &edge;
            async move { edge.ask("placement.explain", selector, args).await.unwrap_err() }
        };
        for args in [
            json!({}),
            json!({ "deployment": "x", "document": document(|_| {}) }),
            json!({ "document": document(|_| {}), "limit": 257 }),
            json!({ "document": document(|one| one["gpus"]["count"] = json!(65)) }),
            json!({ "document": document(|one| one["engine"]["profile"] = json!({ "no_such_key": 1 })) }),
        ] {
            let error = refused(args.clone(), "").await;
            assert_eq!(error.code, Code::InvalidArgument, "{args}: {error:?}");
        }
        assert_eq!(refused(json!({ "deployment": "x" }), "").await.code, Code::NotFound);
        assert_eq!(refused(json!({ "document": document(|_| {}) }), "node:x").await.code, Code::NotFound);
        let told = explained(&edge, document(|_| {})).await;
        assert_eq!(
            (&told["fits"], &told["nodes_total"], &told["remedies"]),
            (&json!(false), &json!(0), &json!([]))
        );
    });
}
