//! Jobs on engines that have no process: what is kept, what is refused, what a restart brings back.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::Path;

use serde_json::json;
use umbel_contracts::{
    causes::Cause,
    deployment::{EngineKind, Profile},
    proto::node::{
        DeploymentDrain, DeploymentUnload, EngineArtifact, EngineState as Told, RuntimeProbe, RuntimeUnload,
    },
};

use super::*;
use crate::{
    Config,
    config::Accelerator,
    core::gpus::Sweep,
    shell::{
        engines::View,
        gpu::{Gpus, Holders},
    },
};

mod host;

struct Node {
    engines: Arc<Engines>,
    deployments: Arc<Deployments>,
}

/// An agent's parts on a state directory.
fn node(folder: &Path, more: &str) -> Node {
    let text = format!("[node]\nstate_dir = \"/s\"\naccelerator = \"cpu\"\n{more}");
    let config = Config::parse(&text, Path::new("/etc/umbel/node.toml")).unwrap();
    let state = Arc::new(State::open(folder).unwrap());
    let holders = Arc::new(Holders::new(false));
    let engines = Engines::start(&config, &state, &holders, &[], Default::default());
    let gpus = Gpus::start(Accelerator::Cpu, None);
    let found = (Instant::now(), Sweep::default());
    let watch =
        Arc::new(Watch::new(&config, Arc::clone(&engines), Arc::clone(&state), gpus, holders, Ok(found)));
    let artifacts = Arc::new(Artifacts::new(config.artifacts.clone()));
    let deployments = Arc::new(Deployments::new(&state, &engines, &artifacts, &watch));
    Node { engines, deployments }
}

/// The agent ends: the state directory is free for the next.
async fn end(node: Node) {
    node.engines.stop(Duration::ZERO);
    node.engines.stopped().await;
}

const SIM: &str = "allow_sim = true\n[[engine]]\nname = \"own\"\nkind = \"sim\"\nmodel = \"m\"\n";

fn profile(kind: EngineKind, table: serde_json::Value) -> Profile {
    let serde_json::Value::Object(table) = table else { panic!() };
    Profile::read(kind, &table, "profile").unwrap()
}

/// A llama-server of `org/m`, whose files are in a folder of the root `models`.
fn llama_at(digest: String, path: String) -> DeploymentLoad {
    let llama = profile(EngineKind::LlamaServer, json!({}));
    DeploymentLoad {
        kind: "llama-server".into(),
        profile_json: llama.canonical(),
        profile_digest: llama.digest(),
        artifact: Some(EngineArtifact {
            repository: "org/m".into(),
            revision: "r1".into(),
            digest,
            root: "models".into(),
            path,
            main_file: "m.gguf".into(),
        }),
        ..sim("m", 4)
    }
}

fn sim(name: &str, capacity: u32) -> DeploymentLoad {
    let profile = profile(EngineKind::Sim, json!({ "tokens": 3 }));
    DeploymentLoad {
        deployment: name.into(),
        replica: 1,
        shard_index: 1,
        shard_count: 1,
        engine: format!("{name}.r1"),
        kind: "sim".into(),
        profile_json: profile.canonical(),
        profile_digest: profile.digest(),
        model: "qwen".into(),
        capacity,
        ..DeploymentLoad::default()
    }
}

async fn load(node: &Node, body: &DeploymentLoad) -> Result<DeploymentLoadReport, JobFailure> {
    node.deployments.load(body, |_| {}, &CancellationToken::new()).await
}

#[tokio::test]
async fn loaded_changed_drained_unloaded_and_there_again_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let here = node(dir.path(), SIM);
    let steps = std::sync::Mutex::new(Vec::new());
    let tell = |step: Step| steps.lock().unwrap().push(step.phase);
    let report = here.deployments.load(&sim("qwen", 4), tell, &CancellationToken::new()).await.unwrap();
    assert_eq!(report.engine, "qwen.r1");
    assert_eq!(steps.lock().unwrap().first().unwrap(), "validating");
    assert_eq!(steps.lock().unwrap().last().unwrap(), "ready");
    let declared = here.engines.by_name("qwen.r1").unwrap().declared();
    assert_eq!((declared.deployment.as_str(), declared.replica, declared.capacity), ("qwen", 1, 4));
    assert_eq!(declared.profile_digest, report.profile_digest);

    // The same again, and other figures: the same engine.
    load(&here, &sim("qwen", 4)).await.unwrap();
    load(&here, &sim("qwen", 9)).await.unwrap();
    assert_eq!(here.engines.by_name("qwen.r1").unwrap().declared().capacity, 9);
    assert_eq!(here.engines.list().len(), 2);

    // Drained: a stream that runs goes on, a new one is not taken; loaded again, it is.
    let engine = here.engines.by_name("qwen.r1").unwrap();
    let visit = engine.visit().unwrap();
    let body = DeploymentDrain { engine: "qwen.r1".into(), deadline_ms: 0 };
    let drained = here.deployments.drain(&body, |_| {}, &CancellationToken::new()).await.unwrap();
    assert_eq!(drained.left, 1);
    assert!(engine.visit().is_err());
    assert_eq!(engine.status().state(), Told::Draining);
    drop(visit);
    load(&here, &sim("qwen", 9)).await.unwrap();
    assert!(engine.visit().is_ok());

    // An agent that starts on the same directory has it again.
    drop(engine);
    end(here).await;
    let again = node(dir.path(), SIM);
    assert_eq!(again.engines.by_name("qwen.r1").unwrap().declared().capacity, 9);
    let health = again.deployments.runtime_health(&RuntimeHealth::default()).await.unwrap();
    assert_eq!(health.engines.len(), 2);
    let unload = DeploymentUnload { engine: "qwen.r1".into(), deadline_ms: 1000 };
    assert!(again.deployments.unload(&unload).await.unwrap().stopped);
    assert!(!again.deployments.unload(&unload).await.unwrap().stopped);
    assert!(again.engines.by_name("qwen.r1").is_none());
    end(again).await;
    assert!(node(dir.path(), SIM).engines.by_name("qwen.r1").is_none());
}

/// An agent that was killed between unloading a stopped engine and forgetting that it was stopped.
#[tokio::test]
async fn a_new_engine_is_not_stopped_for_one_of_its_name_before() {
    let dir = tempfile::tempdir().unwrap();
    let stopped = std::collections::BTreeSet::from(["qwen.r1".to_owned(), "own".to_owned()]);
    State::open(dir.path()).unwrap().set_parked(&stopped);
    let here = node(dir.path(), SIM);
    load(&here, &sim("qwen", 4)).await.unwrap();
    assert_eq!(here.engines.by_name("qwen.r1").unwrap().status().state(), Told::Ready);
    // What stands in the node's file is the same engine as before.
    assert_ne!(here.engines.by_name("own").unwrap().status().state(), Told::Ready);
    end(here).await;
}

/// Whatever is refused changes nothing, and says by which field.
#[tokio::test]
async fn what_cannot_run_here_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("models");
    std::fs::create_dir(&root).unwrap();
    let here = node(
        &dir.path().join("state"),
        &format!(
            "{SIM}[programs]\nvllm = \"/bin/sh\"\n[artifacts]\nquarantine = \"{0}/q\"\n[artifacts.roots]\nmodels = \"{0}/models\"\n",
            dir.path().display()
        ),
    );
    let vllm = profile(EngineKind::Vllm, json!({}));
    let body = DeploymentLoad {
        kind: "vllm".into(),
        profile_json: vllm.canonical(),
        profile_digest: vllm.digest(),
        artifact: Some(EngineArtifact {
            repository: "Qwen/Qwen3".into(),
            revision: "abc".into(),
            digest: "0".repeat(64),
            root: "models".into(),
            path: "Qwen--Qwen3/abc.0000".into(),
            main_file: String::new(),
        }),
        ..sim("qwen", 4)
    };
    let refused = load(&here, &body).await.unwrap_err();
    assert_eq!((refused.code.as_str(), refused.path.as_str()), ("ARTIFACT_MISSING", "artifact"));
    let with_gpu = DeploymentLoad { gpu_uuids: vec!["GPU-1".into()], ..body.clone() };
    assert_eq!(load(&here, &with_gpu).await.unwrap_err().code, "GPU_MISSING");
    let other = profile(EngineKind::Vllm, json!({ "max_model_len": 9 }));
    let lies = DeploymentLoad { profile_json: other.canonical(), ..body.clone() };
    assert_eq!(load(&here, &lies).await.unwrap_err().path, "profile_digest");
    let cli = profile(EngineKind::Cli, json!({ "program": "echo" }));
    let cli = DeploymentLoad {
        kind: "cli".into(),
        profile_json: cli.canonical(),
        profile_digest: cli.digest(),
        ..sim("qwen", 4)
    };
    let refused = load(&here, &cli).await.unwrap_err();
    assert!(refused.message.contains("[programs.cli]"), "{refused:?}");
    assert_eq!(here.engines.list().len(), 1);
    assert!(!dir.path().join("state/deployments.json").exists());

    // The node's own engines are not unloaded from afar, and what is not there is no failure.
    let own = RuntimeUnload { engine: "own".into(), deadline_ms: 0 };
    assert_eq!(here.deployments.runtime_unload(&own).await.unwrap_err().code, "NOT_DEPLOYED");
    let gone = RuntimeUnload { engine: "no.r1".into(), deadline_ms: 0 };
    assert!(!here.deployments.runtime_unload(&gone).await.unwrap().stopped);
    let health = DeploymentHealth { engine: "no.r1".into() };
    assert_eq!(here.deployments.health(&health).await.unwrap_err().code, "UNKNOWN_ENGINE");
}

#[tokio::test]
async fn a_cancelled_load_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let here = node(dir.path(), "allow_sim = true\n[endpoints]\ngone = \"http://127.0.0.1:1\"\n");
    let external = profile(EngineKind::External, json!({ "endpoint": "gone" }));
    let body = DeploymentLoad {
        kind: "external".into(),
        profile_json: external.canonical(),
        profile_digest: external.digest(),
        ..sim("gate", 4)
    };
    let cancel = CancellationToken::new();
    let tell = |step: Step| {
        if step.phase == "loading" {
            cancel.cancel();
        }
    };
    let failed = here.deployments.load(&body, tell, &cancel).await.unwrap_err();
    assert_eq!(failed.code, "CANCELLED");
    assert!(!here.engines.is_there("gate.r1"));
    // What the file does not permit any more says so, and is there again when it does.
    load(&here, &sim("qwen", 4)).await.unwrap();
    end(here).await;
    let strict = node(dir.path(), "");
    let mut changes = strict.engines.changes();
    let engine = strict.engines.by_name("qwen.r1").unwrap();
    let failed = async {
        while engine.view().state != EngineState::Failed {
            changes.changed().await.unwrap();
        }
    };
    timeout(Duration::from_secs(20), failed).await.expect("the engine to fail");
    assert!(engine.view().cause.contains("allow_sim"), "{}", engine.view().cause);
}

#[tokio::test]
async fn a_probe_leaves_nothing_and_is_told_to_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let here = node(dir.path(), "allow_sim = true\n");
    let body = RuntimeProbe { load: Some(sim("qwen", 1)), ..RuntimeProbe::default() };
    let seen = std::sync::Mutex::new(0);
    let tell = |_: Step| *seen.lock().unwrap() += here.engines.list().len();
    let report = here.deployments.probe(&body, tell, &CancellationToken::new()).await.unwrap();
    assert!(report.layers.iter().all(|layer| layer.ok) && report.layers.len() == 2, "{:?}", report.layers);
    assert_eq!(*seen.lock().unwrap(), 0, "it was among the engines that are told");
    assert!(!here.engines.is_there("probe.qwen.r1"));
    assert!(!dir.path().join("deployments.json").exists());
    let empty = RuntimeProbe::default();
    assert_eq!(
        here.deployments.probe(&empty, |_| {}, &CancellationToken::new()).await.unwrap_err().path,
        "load"
    );
}

#[test]
fn failures_have_names_and_say_whether_another_try_makes_sense() {
    for (cause, named, looks_again, code, retry) in [
        ("CRASH_LOOP: crashed 5 times", Some(Cause::CrashLoop), false, "CRASH_LOOP", false),
        ("CRASH_LOOP: crashed 5 times", Some(Cause::CudaError), false, "CUDA_ERROR", true),
        ("exited with code 3; started again in 1 s", None, false, "PROCESS_EXITED", false),
        ("was not ready within 5 s: x", None, false, "TIMED_OUT", false),
        ("PORT_TAKEN: 1 is taken", Some(Cause::PortTaken), true, "PORT_TAKEN", true),
        ("not reachable: refused", None, true, "FAILED", true),
        ("something", None, false, "FAILED", false),
    ] {
        let view = View {
            state: EngineState::Failed,
            cause: cause.to_owned(),
            code: named,
            exit: None,
            looks_again,
            tail: "last".to_owned(),
            since: umbel_wire::clock::Wall::now(),
            restarts: 0,
        };
        let failed = evidence::failure_of(view);
        assert_eq!((failed.code.as_str(), failed.retry), (code, retry), "{cause}");
        assert_eq!((failed.message.as_str(), failed.output_tail.as_str()), (cause, "last"));
    }
}

/// Puts an artifact `org/m` of one file, which is no GGUF file, into a folder of a root; its digest and path.
fn put(root: &Path) -> (String, String) {
    use sha2::Digest;
    let sha256 = data_encoding::HEXLOWER.encode(&sha2::Sha256::digest(b"model"));
    let files = [umbel_contracts::artifact::ArtifactFile { path: "m.gguf".into(), bytes: 5, sha256 }];
    let digest = umbel_contracts::artifact::digest(&files);
    let path = umbel_contracts::artifact::folder("org/m", "r1", &digest);
    let folder = root.join(&path);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("m.gguf"), "model").unwrap();
    let manifest =
        json!({ "repository": "org/m", "revision": "r1", "digest": digest, "bytes": 5, "files": files });
    std::fs::write(folder.join(umbel_contracts::artifact::MANIFEST), manifest.to_string()).unwrap();
    (digest, path)
}

/// An artifact in two roots is where a load says that it is, whichever of the two it names.
#[tokio::test]
async fn files_in_two_roots_are_taken_from_the_one_that_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    let more = format!(
        "{SIM}[programs]\nllama_server = \"/bin/sh\"\n[artifacts]\nquarantine = \"{at}/q\"\n[artifacts.roots]\nmodels = \"{at}/models\"\nmore = \"{at}/more\"\nnone = \"{at}/none\"\n"
    );
    let (digest, path) = put(&dir.path().join("models"));
    put(&dir.path().join("more"));
    let here = node(&dir.path().join("state"), &more);
    // Found, and then refused for what is in it.
    for (root, code, about) in [
        ("models", "ARTIFACT_UNFIT", "artifact"),
        ("more", "ARTIFACT_UNFIT", "artifact"),
        ("none", "ARTIFACT_MISSING", "artifact.path"),
    ] {
        let mut body = llama_at(digest.clone(), path.clone());
        body.artifact.as_mut().unwrap().root = root.into();
        let refused = load(&here, &body).await.unwrap_err();
        assert_eq!((refused.code.as_str(), refused.path.as_str()), (code, about), "{root}: {refused:?}");
    }
}

/// A whole file that the engine does not take: as it was brought, no download mends it; changed since, it is taken away.
#[tokio::test]
async fn a_file_that_was_changed_is_taken_away_and_one_that_never_fitted_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    let more = format!(
        "{SIM}[programs]\nllama_server = \"/bin/sh\"\n[artifacts]\nquarantine = \"{at}/q\"\n[artifacts.roots]\nmodels = \"{at}/models\"\n"
    );
    let (digest, path) = put(&dir.path().join("models"));
    let folder = dir.path().join("models").join(&path);
    std::fs::create_dir(dir.path().join("q")).unwrap();
    let here = node(&dir.path().join("state"), &more);
    let body = llama_at(digest, path);
    let refused = load(&here, &body).await.unwrap_err();
    assert_eq!((refused.code.as_str(), refused.retry), ("ARTIFACT_UNFIT", false), "{refused:?}");
    assert!(folder.exists());
    std::fs::write(folder.join("m.gguf"), "modex").unwrap();
    let refused = load(&here, &body).await.unwrap_err();
    assert_eq!((refused.code.as_str(), refused.retry), ("ARTIFACT_MISSING", true), "{refused:?}");
    assert!(!folder.exists(), "it is fetched anew");
}
