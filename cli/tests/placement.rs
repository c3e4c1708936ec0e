//! `ctl model why` and `ctl model plan` against canned answers.

use crate::{
    run::{canned, golden},
    server::Server,
};

const COMMANDS: &str = "POST /api/v1/edges/berlin/commands";

fn server(case: &str, change: impl FnOnce(&mut serde_json::Value)) -> Server {
    let server = Server::start();
    let berlin: serde_json::Value = serde_json::from_str(&canned("edges.json")).unwrap();
    let one = serde_json::json!({ "items": [berlin["items"][0]] });
    server.on("GET /api/v1/edges", 200, one.to_string());
    let mut result = example("placement.explain", case);
    change(&mut result);
    server.on(COMMANDS, 200, answer(&result));
    server
}

/// What a site answers to one operation.
fn answer(result: &serde_json::Value) -> String {
    serde_json::json!({
        "command_id": "00000000-0000-4000-8000-00000000000a", "edge_id": "berlin", "phase": "succeeded",
        "result": result,
    })
    .to_string()
}

/// A canned result of an operation's examples.
fn example(operation: &str, case: &str) -> serde_json::Value {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../contracts/golden/operations");
    let path = root.join(format!("{operation}/{case}.result.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn sent(server: &Server) -> serde_json::Value {
    let asked = server.asked();
    let last = asked.iter().rev().find(|asked| !asked.body.is_empty());
    serde_json::from_str(&last.unwrap().body).unwrap()
}

#[test]
fn why_names_every_node_its_numbers_and_what_would_help() {
    let server = server("nowhere", |result| {
        result.as_object_mut().unwrap().remove("waiting_since");
    });
    let ran = server.ctl(&["model", "why", "qwen3-235b"]);
    golden("model-why.txt", &ran.out);
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(ran.err.contains("1 of 1 replica of qwen3-235b cannot be placed at berlin"), "{}", ran.err);
    assert_eq!(sent(&server)["args"], serde_json::json!({ "deployment": "qwen3-235b", "limit": 8 }));
    let ran =
        server.ctl(&["deployment", "why", "qwen3-235b", "--nodes", "node:gpu-04", "-n", "1", "-o", "json"]);
    assert_eq!(ran.code, 3);
    assert!(ran.out.contains("\"reason\": \"gpu_foreign\""), "{}", ran.out);
    assert_eq!(sent(&server)["target_selector"], "node:gpu-04");
}

#[test]
fn a_plan_of_a_document_changes_nothing_and_says_where_it_would_run() {
    let server = server("document", |_| {});
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pair.toml");
    let text = format!(
        "name = \"pair\"\nnodes_per_replica = 2\nfabric_label = \"ib\"\n[engine]\nkind = \"vllm\"\n[gpus]\ncount = 1\n\
         memory_bytes = \"40GiB\"\n[artifact]\nrepository = \"org/pair\"\nrevision = \"895c8d1\"\nsource = \"hub\"\n\
         files = [{{ path = \"model.safetensors\", bytes = 16000000000, sha256 = \"{digest}\" }},\n\
         {{ path = \"config.json\", bytes = 600, sha256 = \"{digest}\" }}]\n",
        digest = "0".repeat(64)
    );
    std::fs::write(&file, &text).unwrap();
    let ran = server.ctl(&["model", "plan", file.to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    golden("model-plan.txt", &ran.out);
    let args = sent(&server)["args"].clone();
    assert_eq!(args["document"]["gpus"]["memory_bytes"], 40_u64 << 30);

    std::fs::write(&file, text.replace("count = 1", "count = 65")).unwrap();
    let ran = server.ctl(&["model", "plan", file.to_str().unwrap()]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("gpus.count") && ran.err.contains("65"), "{}", ran.err);
}

/// A document whose replicas are there as it says changes nothing, whether or not one more would fit.
#[test]
fn a_plan_of_what_runs_already_says_that_nothing_changes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pair.toml");
    std::fs::write(&file, "name = \"pair\"\n[engine]\nkind = \"sim\"\n").unwrap();
    for (changes, placed, says) in [
        (serde_json::json!([]), 1, "with its 1 replica: nothing changes."),
        (serde_json::json!(["capacity 4 -> 8"]), 1, "as they run. Changes: capacity 4 -> 8."),
        (serde_json::json!(["replicas 3 -> 1"]), 3, "of which 2 would go. Changes: replicas 3 -> 1."),
    ] {
        for fits in [true, false] {
            let server = server("document", |result| {
                (result["changes"], result["fits"]) = (changes.clone(), fits.into());
                (result["replicas_placed"], result["replicas_wanted"]) = (placed.into(), 1.into());
            });
            let ran = server.ctl(&["model", "plan", file.to_str().unwrap()]);
            assert_eq!(ran.code, 0, "{}", ran.err);
            assert!(ran.out.contains(says) && !ran.out.contains("missing"), "{}", ran.out);
            assert_eq!(ran.out.lines().count(), 1, "{}", ran.out);
        }
    }
}

/// Of what the memory is taken, what a change takes from others, and which other sites could run it: of a deployment its document is
/// asked of them, and of these a site that does not answer is counted.
#[test]
fn why_tells_of_memory_of_what_others_lose_and_of_other_sites() {
    let server = server("memory", |result| {
        result.as_object_mut().unwrap().remove("waiting_since");
    });
    let berlin: serde_json::Value = serde_json::from_str(&canned("edges.json")).unwrap();
    let named = |name: &str, connection: &str| {
        let mut edge = berlin["items"][0].clone();
        (edge["edge_id"], edge["connection"]) = (name.into(), connection.into());
        edge
    };
    let edges = [
        named("berlin", "connected"),
        named("gone", "disconnected"),
        named("lyon", "connected"),
        named("muc1", "connected"),
        named("rome", "connected"),
    ];
    server.on("GET /api/v1/edges", 200, serde_json::json!({ "items": edges }).to_string());
    let mut shown = example("deployment.show", "one");
    let document = serde_json::json!({ "name": "qwen3-235b", "engine": { "kind": "vllm" } });
    shown["document"] = document.clone();
    server.on_operation(COMMANDS, "deployment.show", answer(&shown));
    let fits = example("placement.explain", "document");
    server.on("POST /api/v1/edges/muc1/commands", 200, answer(&fits));
    let fits_not = example("placement.explain", "nowhere");
    server.on("POST /api/v1/edges/rome/commands", 200, answer(&fits_not));
    let ran = server.ctl(&["model", "why", "qwen3-235b", "--site", "berlin"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    golden("model-why-memory.txt", &ran.out);
    assert_eq!(sent(&server)["args"], serde_json::json!({ "document": document, "limit": 0 }));
    assert!(server.asked().iter().all(|asked| !asked.line.contains("/gone/")), "it is not connected");

    // For programs it is the object of the one site, and no other site is asked.
    let before = server.asked().len();
    let ran = server.ctl(&["model", "why", "qwen3-235b", "--site", "berlin", "-o", "json"]);
    assert_eq!((ran.code, ran.out.contains("Other sites")), (3, false));
    assert!(server.asked().iter().skip(before).all(|asked| !asked.line.contains("/muc1/")));
}
