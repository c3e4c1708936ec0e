//! Documents: what is read, what is refused and where, canonical forms.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::config::ConfigFile;

mod every_field;

const DIGEST: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn document() -> Value {
    json!({
        "name": "qwen3",
        "model": "Qwen/Qwen3-8B",
        "aliases": ["small"],
        "artifact": {
            "repository": "Qwen/Qwen3-8B", "revision": "895c8d17", "source": "hub", "main_file": "a/m.gguf",
            "files": [{ "path": "a/m.gguf", "bytes": 5, "sha256": DIGEST }]
        },
        "engine": { "kind": "llama-server" },
        "replicas": 2,
        "gpus": { "count": 1, "memory_bytes": "40GiB", "names": ["*H200*"], "capability": "8.9", "driver": "550.54" },
        "selector": "label:rack=a",
        "strategy": "pack",
        "capacity": 8,
        "max_context_tokens": 4096,
        "long_context_threshold_tokens": 1024,
        "long_context_capacity": 2,
        "drain_deadline": "1m",
        "replace_delay": "2m"
    })
}

/// The document with one field set to something else.
fn with(path: &str, value: Value) -> Value {
    let mut document = document();
    let pointer = format!("/{}", path.replace(['.', '['], "/").replace(']', ""));
    match document.pointer_mut(&pointer) {
        Some(there) => *there = value,
        None => {
            let (table, key) = pointer.rsplit_once('/').unwrap();
            document.pointer_mut(table).unwrap()[key] = value;
        }
    }
    document
}

fn faults(document: Value) -> Vec<String> {
    DeploymentSpec::from_value(document).unwrap_err().0.iter().map(ToString::to_string).collect()
}

#[test]
fn toml_and_json_are_one_document_with_one_digest() {
    let spec = DeploymentSpec::from_value(document()).unwrap();
    assert_eq!(spec.gpus.memory_bytes, Some(40 << 30));
    let text = toml::to_string(&document()).unwrap();
    let file = ConfigFile::from_text(Path::new("x.toml"), text);
    let read = DeploymentSpec::from_file(&file).unwrap();
    assert_eq!((read.digest(), &read), (spec.digest(), &spec));
    let again = DeploymentSpec::from_json(&String::from_utf8(canonical(&spec)).unwrap()).unwrap();
    assert_eq!(again, spec, "the canonical form is a document");
}

#[test]
fn what_is_not_said_has_its_default() {
    let spec = DeploymentSpec::from_value(json!({ "name": "a", "engine": { "kind": "sim" } })).unwrap();
    assert_eq!(
        (spec.model(), spec.capacity(), spec.category(), spec.replicas),
        ("a", 4, "local_inference", 1)
    );
    assert_eq!((spec.replace_delay, spec.drain_deadline), (REPLACE_DELAY_DEFAULT, DRAIN_DEADLINE_DEFAULT));
    assert_eq!(spec.strategy, Strategy::Spread);
}

#[test]
fn a_fault_names_the_field_the_value_and_what_is_legal() {
    for (path, value, says) in [
        ("name", json!("Qwen_3"), "name: \"Qwen_3\" is not legal: 1 to 40 of a-z"),
        ("name", json!("q".repeat(41)), "name: "),
        ("aliases", json!(["x", "x"]), "aliases[1]: \"x\" is not legal"),
        ("replicas", json!(65), "replicas: must be a whole number from 0 to 64, not 65"),
        ("capacity", json!(0), "capacity: must be a whole number from 1 to 1024, not 0"),
        ("gpus.count", json!(0), "gpus.memory_bytes: a condition on no GPU"),
        ("gpus.capability", json!("9"), "gpus.capability: \"9\" is not legal: two numbers"),
        ("gpus.driver", json!("new"), "gpus.driver: \"new\" is not legal"),
        ("selector", json!("rack=a"), "selector: \"rack=a\" is not legal: at character 1 of the selector"),
        (
            "nodes_per_replica",
            json!(2),
            "nodes_per_replica: 2 is not legal: more than one node needs fabric_label",
        ),
        (
            "long_context_threshold_tokens",
            json!(4096),
            "long_context_threshold_tokens: 4096 is not legal: it is below",
        ),
        (
            "long_context_capacity",
            json!(9),
            "long_context_capacity: must be a whole number from 1 to 8, not 9",
        ),
        ("category", json!("cli"), "category: \"cli\" is not legal: of an engine of kind llama-server"),
        (
            "replace_delay",
            json!("2d"),
            "replace_delay: must be a duration in quotes such as \"30s\", 0s to 1d, not \"2d\"",
        ),
        (
            "artifact.revision",
            json!("main"),
            "artifact.revision: \"main\" is not legal: a branch means other files",
        ),
        ("artifact.source", json!("https://x"), "artifact.source: \"https://x\" is not legal"),
        ("artifact.files[0].path", json!("../m"), "artifact.files[0].path: \"../m\" has a part"),
        ("artifact.files[0].sha256", json!("A"), "artifact.files[0].sha256: must be 64"),
        ("artifact.main_file", json!("b"), "artifact.main_file: \"b\" is not legal: it is the path of one"),
        ("artifact", Value::Null, "artifact: none is not legal: an engine of kind llama-server needs"),
        (
            "artifact.files[0].bytes",
            json!(0),
            "artifact.files[0].bytes: 0 is not legal: the file is the model",
        ),
        (
            "model",
            json!("a,b"),
            "model: \"a,b\" is not legal: of an engine of kind llama-server the engine would",
        ),
        (
            "engine.profile",
            json!({ "chat_template_file": "none.jinja" }),
            "engine.profile.chat_template_file: \"none.jinja\" is not legal: \"a/none.jinja\" is not among",
        ),
    ] {
        let faults = faults(with(path, value));
        assert!(faults.iter().any(|fault| fault.starts_with(says)), "{path}: {faults:?}");
    }
}

/// What a node's adapter would refuse too, but only once the files are there.
#[test]
fn what_an_engine_would_take_for_something_else_is_refused_with_the_document() {
    let file = |path: &str| json!({ "path": path, "bytes": 5, "sha256": DIGEST });
    let vllm = |more: Value| {
        let mut document = json!({
            "name": "q", "model": "m", "engine": { "kind": "vllm", "profile": { "chat_template": "t/t.jinja" } },
            "artifact": {
                "repository": "a/b", "revision": "r1", "source": "hub",
                "files": [file("config.json"), file("t/t.jinja"), file("m.safetensors")]
            },
        });
        for (key, value) in more.as_object().unwrap() {
            document[key] = value.clone();
        }
        DeploymentSpec::from_value(document)
    };
    assert!(vllm(json!({ "aliases": ["small"] })).is_ok());
    // A comma is no harm to this one, nor is a dash to one that is not told aliases.
    assert!(vllm(json!({ "model": "a,b" })).is_ok());
    assert!(DeploymentSpec::from_value(with("aliases", json!(["-h", "a,b"]))).is_ok());
    let artifact = |files: &[&str]| {
        let files: Vec<Value> = files.iter().map(|path| file(path)).collect();
        json!({ "artifact": { "repository": "a/b", "revision": "r1", "source": "hub", "files": files } })
    };
    for (more, says) in [
        (
            json!({ "model": "--host" }),
            "model: \"--host\" is not legal: of an engine of kind vllm the engine",
        ),
        (
            json!({ "aliases": ["a", "--port"] }),
            "aliases[1]: \"--port\" is not legal: of an engine of kind vllm",
        ),
        (
            artifact(&["t/t.jinja", "m.safetensors"]),
            "artifact.files: has no config.json or params.json: an engine of kind vllm serves the folder",
        ),
        (
            artifact(&["config.json", "t.jinja"]),
            "engine.profile.chat_template: \"t/t.jinja\" is not legal: \"t/t.jinja\" is not among artifact.files",
        ),
    ] {
        let faults = vllm(more.clone()).unwrap_err();
        assert_eq!(faults.0.len(), 1, "{faults}");
        assert!(faults.to_string().starts_with(says), "{faults}");
    }
    assert!(vllm(artifact(&["params.json", "t/t.jinja"])).is_ok(), "Mistral's own form");
}

#[test]
fn what_types_refuse_has_its_path_too() {
    for (path, value, says) in [
        (
            "engine.kind",
            json!("vlm"),
            "engine.kind: must be one of vllm, sglang, llama-server, external, cli, sim, not \"vlm\"",
        ),
        ("gpus.memory", json!(1), "gpus.memory: unknown key \"memory\"; known here: count, memory_bytes"),
        (
            "gpus.memory_bytes",
            json!("40"),
            "gpus.memory_bytes: must be a size such as \"40GiB\", or a whole number of bytes, at most 16TiB, not \"40\"",
        ),
        ("artifact.files[0].size", json!(1), "artifact.files[0].size: unknown key \"size\""),
        ("replicas", json!(-1), "replicas: must be a whole number from 0 to 64, not -1"),
        (
            "gpus.memory_bytes",
            json!("999999999TiB"),
            "gpus.memory_bytes: must be a size such as \"40GiB\", or a",
        ),
        ("artifact.files[0].path", Value::Null, "artifact.files[0].path: is missing: the file's name"),
        ("artifact.files", json!({}), "artifact.files: must be a list of at most 256 tables, not {}"),
    ] {
        let faults = faults(with(path, value));
        assert!(faults[0].starts_with(says), "{path}: {faults:?}");
    }
    let file = ConfigFile::from_text(
        Path::new("x.toml"),
        "name = \"a\"\n[engine]\nkind = \"sim\"\n[gpus]\ncont = 1\n",
    );
    let errors = DeploymentSpec::from_file(&file).unwrap_err();
    assert_eq!(errors[0].to_string(), "x.toml:5:1: gpus.cont: unknown key \"cont\", did you mean \"count\"?");
}

#[test]
fn all_faults_are_told_at_once() {
    let mut document = with("capacity", json!(0));
    document["name"] = json!("-");
    document["gpus"]["driver"] = json!("x");
    let faults = faults(document);
    assert_eq!(faults.len(), 3, "what follows from the capacity is no fault of its own: {faults:?}");
}

#[test]
fn figures_change_without_a_restart_and_files_do_not() {
    let of = |document| DeploymentSpec::from_value(document).unwrap().engine_digest();
    let base = of(document());
    for (path, value) in [
        ("capacity", json!(16)),
        ("replicas", json!(3)),
        ("aliases", json!([])),
        ("selector", json!("all")),
        ("artifact.source", json!("mirror")),
    ] {
        assert_eq!(of(with(path, value)), base, "{path}");
    }
    for (path, value) in [
        ("artifact.revision", json!("other")),
        ("artifact.files[0].bytes", json!(6)),
        ("model", json!("other")),
        ("gpus.count", json!(2)),
    ] {
        assert_ne!(of(with(path, value)), base, "{path}");
    }
}

#[test]
fn engines_of_deployments_are_told_by_their_names() {
    let spec = DeploymentSpec::from_value(document()).unwrap();
    assert_eq!(of_engine(&spec.engine_name(2, None)), Some(("qwen3", 2)));
    assert_eq!(of_engine(&spec.engine_name(12, Some(1))), Some(("qwen3", 12)));
    for other in ["qwen3", "chat", ".r1", "a.r0", "a.rx"] {
        assert_eq!(of_engine(other), None, "{other}");
    }
}

#[test]
fn the_examples_are_documents() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples/deployments");
    let mut kinds = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let file = ConfigFile::read(&entry.unwrap().path()).unwrap();
        let spec = DeploymentSpec::from_file(&file)
            .unwrap_or_else(|errors| panic!("{}: {errors:?}", file.path().display()));
        kinds.push(spec.engine.kind);
        // Nobody applies an example of which a file is made up: no node would find it.
        let artifact = spec.artifact.iter().flat_map(|artifact| &artifact.files);
        for one in artifact {
            let repeats = one.sha256.as_bytes().windows(2).filter(|pair| pair.first() == pair.last()).count();
            assert!(repeats <= 16, "{}: {} has no real digest", file.path().display(), one.path);
        }
        if let Some(artifact) = &spec.artifact {
            assert_eq!(artifact.revision.len(), 40, "{}: a commit", file.path().display());
            assert!(file.text().contains("umbel ctl artifact resolve"), "{}", file.path().display());
        }
    }
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds, [EngineKind::Vllm, EngineKind::Sglang, EngineKind::LlamaServer, EngineKind::External]);
}

/// A document of as many files as one may have, their names so long.
fn many_files(name: impl Fn(usize) -> String) -> Value {
    let files: Vec<Value> = (1..=crate::artifact::FILES_MAX)
        .map(|n| json!({ "path": name(n), "bytes": 4_987_654_321_u64, "sha256": DIGEST }))
        .collect();
    let mut document = with("artifact.files", json!(files));
    document["artifact"]["main_file"] = json!(name(1));
    document
}

/// A model in as many pieces as a document may have is applied by one command.
#[test]
fn the_most_files_fit_into_a_command() {
    let most = crate::artifact::FILES_MAX;
    let document = many_files(|n| format!("checkpoint/model-{n:05}-of-{most:05}.safetensors"));
    DeploymentSpec::from_value(document).unwrap();
}

/// What passes the check fits into a command with all that may be beside it; what does not fit is refused by its own field.
#[test]
fn a_document_that_passes_fits_into_a_command() {
    let spec =
        |long: usize| DeploymentSpec::from_value(many_files(|n| format!("{n:03}{}", "x".repeat(long))));
    let fits = (1..200).rev().find_map(|long| Some((long, spec(long).ok()?))).unwrap();
    let document = canonical(&fits.1);
    let left = DOCUMENT_BYTES_MAX - document.len();
    assert!(left <= 2 * crate::artifact::FILES_MAX, "the bound is the whole document's: {left}");
    let args = json!({
        "document": serde_json::from_slice::<Value>(&document).unwrap(),
        "if_version": u64::MAX,
        "deployment": "n".repeat(NAME_BYTES_MAX),
        "within_ms": u64::MAX,
    });
    crate::operations::check_size(args.as_object().unwrap()).unwrap();
    let faults = spec(fits.0 + 1).unwrap_err();
    assert_eq!(faults.0.len(), 1, "{faults}");
    assert!(
        faults.0[0].path == "artifact.files" && faults.0[0].message.contains("at most 48128"),
        "{faults}"
    );
    // The same of an artifact that stands for itself, and of a profile.
    let artifact = many_files(|n| format!("{n:03}{}", "x".repeat(fits.0 + 10)))["artifact"].take();
    let faults = ArtifactSpec::from_value(artifact).unwrap_err();
    assert!(faults.0[0].path == "files" && faults.0[0].message.contains("at most 48128"), "{faults}");
}
