//! A host in trouble: disks that hang or are full, GPUs that are given, gone or silent.

use umbel_contracts::proto::node::{Gpu, MigInstance};

use super::*;
use crate::core::gpus::Seen;

/// Taking an engine away needs no disk: it ends, and the node says what is wrong; bringing one is refused by name until the disk takes
/// it.
#[tokio::test]
async fn an_unload_that_cannot_be_kept_ends_the_engine_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let here = node(dir.path(), SIM);
    load(&here, &sim("qwen", 4)).await.unwrap();
    let list = dir.path().join("deployments.json");
    std::fs::remove_file(&list).unwrap();
    // No file can take its place.
    std::fs::create_dir(&list).unwrap();
    let unload = DeploymentUnload { engine: "qwen.r1".into(), deadline_ms: 1000 };
    assert!(here.deployments.unload(&unload).await.unwrap().stopped);
    assert!(!here.engines.is_there("qwen.r1"));
    let says = here.deployments.state.unwritable().unwrap();
    assert!(says.contains("unloaded all the same"), "{says}");
    let refused = load(&here, &sim("other", 4)).await.unwrap_err();
    assert_eq!((refused.code.as_str(), refused.retry), ("STATE_NOT_WRITABLE", true), "{refused:?}");
    std::fs::remove_dir(&list).unwrap();
    load(&here, &sim("other", 4)).await.unwrap();
    assert_eq!(here.deployments.state.unwritable(), None);
}

/// A load that waits for a disk that hangs holds up nobody else: others are loaded and unloaded meanwhile.
#[tokio::test]
async fn a_root_that_hangs_holds_up_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    let more = format!(
        "{SIM}[programs]\nllama_server = \"/bin/sh\"\n[artifacts]\nquarantine = \"{at}/q\"\n[artifacts.roots]\nmodels = \"{at}/models\"\n"
    );
    let digest = "0".repeat(64);
    let path = umbel_contracts::artifact::folder("org/m", "r1", &digest);
    let folder = dir.path().join("models").join(&path);
    std::fs::create_dir_all(&folder).unwrap();
    // Whoever reads it waits for somebody who writes.
    let manifest = folder.join(umbel_contracts::artifact::MANIFEST);
    assert!(std::process::Command::new("mkfifo").arg(&manifest).status().unwrap().success());
    let here = node(&dir.path().join("state"), &more);
    load(&here, &sim("qwen", 4)).await.unwrap();
    let body = llama_at(digest, path);
    let deployments = Arc::clone(&here.deployments);
    let hanging =
        tokio::spawn(async move { deployments.load(&body, |_| {}, &CancellationToken::new()).await });
    let reads = async {
        loop {
            let mut file = std::fs::OpenOptions::new();
            std::os::unix::fs::OpenOptionsExt::custom_flags(
                &mut file,
                rustix::fs::OFlags::NONBLOCK.bits() as i32,
            );
            match file.write(true).open(&manifest) {
                Ok(writer) => return writer,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let writer = timeout(Duration::from_secs(20), reads).await.expect("the load to wait for the disk");
    let unload = DeploymentUnload { engine: "qwen.r1".into(), deadline_ms: 1000 };
    let unloaded = timeout(Duration::from_secs(20), here.deployments.unload(&unload)).await;
    assert!(unloaded.expect("an unload beside it").unwrap().stopped);
    let loaded = timeout(Duration::from_secs(20), load(&here, &sim("other", 4))).await;
    loaded.expect("a load beside it").unwrap();
    std::fs::remove_file(&manifest).unwrap();
    drop(writer);
    let refused = timeout(Duration::from_secs(20), hanging).await.unwrap().unwrap().unwrap_err();
    assert_eq!(refused.code, "ARTIFACT_MISSING", "{refused:?}");
}

/// A node with these GPUs, the last of which does not answer.
fn node_with_gpus(folder: &Path, more: &str, gpus: &[Gpu]) -> Node {
    let text = format!("[node]\nstate_dir = \"/s\"\naccelerator = \"nvidia\"\n{more}");
    let config = Config::parse(&text, Path::new("/etc/umbel/node.toml")).unwrap();
    let state = Arc::new(State::open(folder).unwrap());
    state.set_gpus(gpus.to_vec());
    let holders = Arc::new(Holders::new(true));
    let engines = Engines::start(&config, &state, &holders, &[], Default::default());
    let (lost, here) = gpus.split_last().unwrap();
    let found = Sweep {
        seen: here.iter().map(|facts| Seen { facts: facts.clone(), ..Seen::default() }).collect(),
        unreadable: vec!["one cannot be read".into()],
        silent: [lost.uuid.clone()].into(),
        ..Sweep::default()
    };
    let driver = Gpus::start(Accelerator::Nvidia, Some(Path::new("/nowhere")));
    let found = Ok((Instant::now(), found));
    let watch =
        Arc::new(Watch::new(&config, Arc::clone(&engines), Arc::clone(&state), driver, holders, found));
    let artifacts = Arc::new(Artifacts::new(config.artifacts.clone()));
    let deployments = Arc::new(Deployments::new(&state, &engines, &artifacts, &watch));
    Node { engines, deployments }
}

/// Rows 83 and 96: a GPU that another engine has, one that is not here, one that does not answer and a part of that are refused
/// by name, before anything is started.
#[tokio::test]
async fn rows_83_96_a_gpu_is_given_once_and_only_if_it_answers() {
    let dir = tempfile::tempdir().unwrap();
    let gpu = |uuid: &str, part: &str| Gpu {
        uuid: uuid.into(),
        mig_instances: vec![MigInstance { uuid: part.into(), ..MigInstance::default() }],
        ..Gpu::default()
    };
    let own = "[programs]\nllama_server = \"/bin/sh\"\n[[engine]]\nname = \"own\"\nkind = \"llama-server\"\nmodel = \"m\"\nmodel_file = \"/nowhere\"\ngpus = [\"GPU-1\", \"MIG-2\"]\n";
    let gpus = [gpu("GPU-1", "MIG-1"), gpu("GPU-2", "MIG-2"), gpu("GPU-3", "MIG-3")];
    let here = node_with_gpus(dir.path(), own, &gpus);
    for (given, code, says) in [
        ("GPU-1", "GPU_IN_USE", "GPU GPU-1 is given to engine own"),
        ("MIG-2", "GPU_IN_USE", "engine own"),
        ("GPU-9", "GPU_MISSING", "has no GPU GPU-9"),
        ("GPU-3", "GPU_MISSING", "GPU GPU-3 does not answer"),
        ("MIG-3", "GPU_MISSING", "GPU MIG-3 does not answer"),
    ] {
        let llama = profile(EngineKind::LlamaServer, json!({}));
        let body = DeploymentLoad {
            kind: "llama-server".into(),
            profile_json: llama.canonical(),
            profile_digest: llama.digest(),
            gpu_uuids: vec![given.into()],
            artifact: Some(EngineArtifact {
                repository: "org/m".into(),
                revision: "r1".into(),
                digest: "0".repeat(64),
                root: "models".into(),
                path: "org--m/r1.0000".into(),
                main_file: "m.gguf".into(),
            }),
            ..sim("m", 4)
        };
        let refused = load(&here, &body).await.unwrap_err();
        assert_eq!((refused.code.as_str(), refused.path.as_str(), refused.retry), (code, "gpu_uuids", true));
        assert!(refused.message.contains(says), "{refused:?}");
        assert!(!here.engines.is_there("m.r1"));
    }
}
