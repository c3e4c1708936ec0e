//! Requests that are taken, and all that is refused of others; what becomes of a kept one as the node's file changes.

use serde_json::{Value, json};

use super::*;

pub(crate) fn profile(kind: EngineKind, table: Value) -> Profile {
    let Value::Object(table) = table else { panic!() };
    Profile::read(kind, &table, "profile").unwrap()
}

fn load(kind: EngineKind, table: Value) -> DeploymentLoad {
    let profile = profile(kind, table);
    let artifact = kind.needs_artifact().then(|| EngineArtifact {
        repository: "Qwen/Qwen3-8B".into(),
        revision: "abc".into(),
        digest: "0".repeat(64),
        root: "models".into(),
        path: "Qwen--Qwen3-8B/abc.0000".into(),
        main_file: if kind.needs_main_file() { "m.gguf".into() } else { String::new() },
    });
    DeploymentLoad {
        deployment: "qwen".into(),
        replica: 1,
        shard_index: 1,
        shard_count: 1,
        engine: "qwen.r1".into(),
        kind: kind.as_str().into(),
        profile_json: profile.canonical(),
        profile_digest: profile.digest(),
        model: "Qwen/Qwen3-8B".into(),
        aliases: vec!["qwen".into()],
        artifact,
        gpu_uuids: if kind.has_process() { vec!["GPU-a".into()] } else { Vec::new() },
        capacity: 4,
        ..DeploymentLoad::default()
    }
}

fn grounds() -> Grounds {
    let config = Config::parse(
        "[node]\nstate_dir = \"/s\"\nallow_sim = true\n[programs]\nvllm = \"/opt/vllm\"\n[programs.cli]\necho = \"/opt/echo\"\n\
         [endpoints]\ngate = \"http://gateway.lan:8000/v1\"\n[artifacts]\nquarantine = \"/q\"\n[artifacts.roots]\nmodels = \"/m\"\n",
        std::path::Path::new("/etc/umbel/node.toml"),
    )
    .unwrap();
    Grounds::of(&config)
}

#[test]
fn each_kind_becomes_an_engine_of_this_nodes_file() {
    let of = |kind, table| Kept::read(&load(kind, table)).unwrap().config(&grounds());
    let vllm = of(EngineKind::Vllm, json!({ "max_model_len": 4096 }));
    let process = vllm.source.process().unwrap();
    assert_eq!(process.model, std::path::Path::new("/m/Qwen--Qwen3-8B/abc.0000"));
    assert_eq!(
        (vllm.name.as_str(), vllm.category.as_str(), process.gpus.len()),
        ("qwen.r1", "local_inference", 1)
    );
    assert_eq!(vllm.profile_digest(), process.profile.digest());
    let llama = of(EngineKind::LlamaServer, json!({}));
    assert_eq!(
        llama.source.process().unwrap().model,
        std::path::Path::new("/m/Qwen--Qwen3-8B/abc.0000/m.gguf")
    );
    let external = of(EngineKind::External, json!({ "endpoint": "gate" }));
    assert_eq!(
        external.source,
        EngineSource::External { authority: "gateway.lan:8000".into(), base_path: String::new() }
    );
    assert_eq!(external.category, "api");
    let cli = of(EngineKind::Cli, json!({ "program": "echo" }));
    assert_eq!((cli.source.kind(), cli.category.as_str()), ("cli", "cli"));
    assert_eq!(of(EngineKind::Sim, json!({ "tokens": 3 })).source.kind(), "sim");
    assert_eq!(grounds().kinds(), [EngineKind::Vllm, EngineKind::External, EngineKind::Cli, EngineKind::Sim]);
}

/// What the node's own file has not, or not any more, says so in the engine's state; nothing else is tried.
#[test]
fn what_the_file_does_not_allow_is_missing_by_name() {
    let none = Grounds::default();
    for (kind, table, word) in [
        (EngineKind::Vllm, json!({}), "artifact root \"models\""),
        (EngineKind::External, json!({ "endpoint": "gate" }), "no \"gate\" in [endpoints]; it has: none"),
        (EngineKind::Cli, json!({ "program": "echo" }), "no \"echo\" in [programs.cli]"),
        (EngineKind::Sim, json!({}), "node.allow_sim is not true"),
    ] {
        let config = Kept::read(&load(kind, table)).unwrap().config(&none);
        let EngineSource::Missing { kind: said, why } = config.source else { panic!("{kind}") };
        assert!(said == kind.as_str() && why.contains(word), "{why}");
    }
}

#[test]
fn it_is_kept_as_it_was() {
    for (kind, table) in [
        (
            EngineKind::Vllm,
            json!({ "gpu_memory_utilization": 0.85, "kv_cache_memory_bytes": "1GiB", "limit_mm_per_prompt": { "image": 1 } }),
        ),
        (EngineKind::Sglang, json!({ "schedule_conservativeness": 1 })),
        (EngineKind::LlamaServer, json!({ "gpu_layers": "all", "start_timeout": "5m" })),
        (EngineKind::Cli, json!({ "program": "echo" })),
    ] {
        let kept = Kept::read(&load(kind, table)).unwrap();
        let text = serde_json::to_string(&kept).unwrap();
        assert_eq!(serde_json::from_str::<Kept>(&text).unwrap(), kept, "{text}");
        // The record of a process has the same in it.
        let config = kept.config(&grounds());
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<EngineConfig>(&text).unwrap(), config, "{text}");
    }
}

/// Rows 94 and 95, and all else: the field is named.
#[test]
fn rows_94_and_95_what_is_wrong_is_refused_by_its_field() {
    type Change = fn(&mut DeploymentLoad);
    let cases: [(&str, Change); 29] = [
        ("kind", |load| load.kind = "tgi".into()),
        ("deployment", |load| load.deployment = "../x".into()),
        ("deployment", |load| load.deployment = "x".repeat(41)),
        ("engine", |load| load.engine = "qwen.r2".into()),
        ("engine", |load| load.engine = "qwen.r1/../../x".into()),
        ("engine", |load| load.engine = "qwen.r1.s9999".into()),
        ("engine", |load| load.replica = 0),
        ("shard_index", |load| load.shard_index = 2),
        ("profile", |load| load.profile_json = b"{".to_vec()),
        ("profile.host", |load| load.profile_json = b"{\"host\":\"0.0.0.0\",\"kind\":\"vllm\"}".to_vec()),
        ("profile", |load| load.kind = "sglang".into()),
        ("profile_digest", |load| load.profile_digest = "0".repeat(64)),
        ("profile_digest", |load| load.profile_json = b"{ \"kind\":\"vllm\"}".to_vec()),
        ("model", |load| load.model = "a b".into()),
        ("aliases", |load| load.aliases = vec!["Qwen/Qwen3-8B".into()]),
        ("aliases", |load| load.aliases = vec!["x\n".into()]),
        ("capacity", |load| load.capacity = 0),
        ("capacity", |load| load.capacity = 5000),
        ("long_context_capacity", |load| load.long_context_capacity = 9),
        ("long_context_threshold_tokens", |load| load.long_context_capacity = 2),
        ("artifact", |load| load.artifact = None),
        ("artifact.path", |load| load.artifact.as_mut().unwrap().path = "../../etc".into()),
        ("artifact.path", |load| load.artifact.as_mut().unwrap().path = "/etc".into()),
        ("artifact.repository", |load| load.artifact.as_mut().unwrap().repository = "..".into()),
        ("artifact.digest", |load| load.artifact.as_mut().unwrap().digest = "zz".into()),
        ("gpu_uuids", |load| load.gpu_uuids = vec!["0".into()]),
        ("gpu_uuids", |load| load.gpu_uuids = vec!["GPU-a".into(); 2]),
        ("category", |load| load.category = "cli".into()),
        ("category", |load| load.category = "cloud".into()),
    ];
    for (path, change) in cases {
        let mut load = load(EngineKind::Vllm, json!({}));
        change(&mut load);
        let refusal = Kept::read(&load).unwrap_err();
        assert_eq!(refusal.path, path, "{refusal:?}");
    }
    let mut load = load(EngineKind::LlamaServer, json!({ "ctx_size": 4096 }));
    load.max_context_tokens = 2048;
    assert_eq!(Kept::read(&load).unwrap_err().code, Cause::Context);
    load.max_context_tokens = 1024;
    Kept::read(&load).unwrap();
    load.artifact.as_mut().unwrap().main_file = "../m.gguf".into();
    assert_eq!(Kept::read(&load).unwrap_err().path, "artifact.main_file");
}

#[test]
fn figures_change_and_what_a_process_was_started_with_does_not() {
    let first = Kept::read(&load(EngineKind::Vllm, json!({}))).unwrap();
    let mut figures = load(EngineKind::Vllm, json!({}));
    (figures.capacity, figures.aliases) = (9, Vec::new());
    assert!(first.goes_on_as(&Kept::read(&figures).unwrap()));
    assert!(!first.goes_on_as(&Kept::read(&load(EngineKind::Vllm, json!({ "max_model_len": 1 }))).unwrap()));
    let mut gpus = load(EngineKind::Vllm, json!({}));
    gpus.gpu_uuids = vec!["GPU-b".into()];
    assert!(!first.goes_on_as(&Kept::read(&gpus).unwrap()));
    let sim = |tokens| Kept::read(&load(EngineKind::Sim, json!({ "tokens": tokens }))).unwrap();
    assert!(sim(1).goes_on_as(&sim(2)));
}

#[test]
fn a_gpu_belongs_to_one() {
    let (a, b) = (vec!["GPU-a".to_owned()], vec!["GPU-b".to_owned(), "GPU-c".to_owned()]);
    let wanted = ["GPU-x".to_owned(), "GPU-c".to_owned()];
    assert_eq!(shared_gpu(&wanted, [("one", &a[..]), ("two", &b[..])]), Some(("GPU-c", "two")));
    assert_eq!(shared_gpu(&wanted, [("one", &a[..])]), None);
}
