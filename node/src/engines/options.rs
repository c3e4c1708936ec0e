//! The adapters' arguments, held against the option names of a named version of each engine.
//!
//! Owns reading the tables beside it and judging a command line by them. Invariant: whatever an adapter can emit is an
//! option of that version, with as many values as it takes there.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::{collections::BTreeMap, path::Path, time::Duration};

use serde_json::{Map, Value, json};
use umbel_contracts::{
    causes::Cause,
    deployment::{
        EngineKind, Profile,
        profile::{Holds, Key},
    },
};

use super::adapter::{self, Command, HostFacts};
use crate::{
    config::{Accelerator, EngineConfig, EngineSource, Origin, ProcessSource, Programs},
    core::deployments::Refusal,
};

const KINDS: [EngineKind; 3] = [EngineKind::Vllm, EngineKind::Sglang, EngineKind::LlamaServer];

fn text(kind: EngineKind) -> &'static str {
    match kind {
        EngineKind::Vllm => include_str!("options/vllm-0.33.0.txt"),
        EngineKind::Sglang => include_str!("options/sglang-0.5.23.txt"),
        _ => include_str!("options/llama-server-b10434.txt"),
    }
}

#[test]
fn what_is_told_of_the_options_is_the_version_that_they_are_of() {
    for kind in KINDS {
        let head = text(kind).lines().next().unwrap();
        assert!(head.contains(&format!(" {}, ", adapter::options_of(kind).unwrap())), "{head}");
    }
}

/// Option names and how many values each takes.
fn table(kind: EngineKind) -> BTreeMap<&'static str, &'static str> {
    let text = text(kind);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_once(' ').unwrap()).collect()
}

fn engine(kind: EngineKind, profile: Value, model: &Path) -> EngineConfig {
    let Value::Object(profile) = profile else { panic!() };
    EngineConfig {
        name: "qwen.r1".into(),
        source: EngineSource::Process(Box::new(ProcessSource {
            profile: Profile::read(kind, &profile, "profile").unwrap(),
            model: model.to_owned(),
            port: 0,
            gpus: vec!["GPU-a".into(), "GPU-b".into()],
            stall_timeout: Duration::ZERO,
        })),
        model: "Qwen/Qwen3".into(),
        aliases: vec!["qwen".into(), "chat".into()],
        category: "local_inference".into(),
        capacity: 8,
        max_context_tokens: 0,
        long_context_threshold_tokens: 0,
        long_context_capacity: 0,
        origin: Some(Origin {
            deployment: "qwen".into(),
            replica: 1,
            shard_index: 1,
            shard_count: 1,
            profile_digest: String::new(),
            artifact_digest: String::new(),
        }),
    }
}

fn facts(program: &Path) -> HostFacts {
    let program = Some(program.to_owned());
    let programs = Programs {
        vllm: program.clone(),
        sglang: program.clone(),
        llama_server: program,
        cli: BTreeMap::new(),
    };
    HostFacts { programs, accelerator: Accelerator::Auto }
}

fn prepared(config: &EngineConfig) -> (Command, Vec<String>) {
    let address = ([127, 0, 0, 1], 9000).into();
    let facts = facts(Path::new("/opt/engine"));
    let command = adapter::prepare(config, &facts, address, "s3cret", Path::new("/state/engines")).unwrap();
    let words = command.arguments.iter().map(|word| word.to_str().unwrap().to_owned()).collect();
    (command, words)
}

/// Each option is of the table, with as many values as it takes; what stands before the first is returned.
fn judge(kind: EngineKind, words: &[String]) -> Vec<String> {
    let table = table(kind);
    let mut before = Vec::new();
    let mut at = 0;
    while let Some(word) = words.get(at) {
        at += 1;
        if !word.starts_with("--") {
            before.push(word.clone());
            continue;
        }
        let values = words[at..].iter().take_while(|word| !word.starts_with("--")).count();
        let takes = *table.get(word.as_str()).unwrap_or_else(|| panic!("{kind} has no option {word}"));
        let fits = match takes {
            "none" => values == 0,
            "one" => values == 1,
            "optional" => values <= 1,
            _ => values >= 1,
        };
        assert!(fits, "{kind}: {word} takes {takes}, and has {values}");
        at += values;
    }
    before
}

fn values(key: &Key) -> Vec<Value> {
    match key.holds {
        Holds::Number(_, most) => vec![json!(most)],
        Holds::NumberOr(least, _, words) => vec![json!(least), json!(words[0])],
        Holds::Figure(least, _) => vec![json!((least.max(1)) as f64 / 1000.0)],
        Holds::Size(..) => vec![json!("1GiB")],
        Holds::Duration(..) => vec![json!("1m")],
        Holds::Flag => vec![json!(true), json!(false)],
        Holds::Switch => vec![json!(true)],
        Holds::Word(words) => words.iter().map(|word| json!(word)).collect(),
        Holds::Name => vec![json!("fp8")],
        Holds::File => vec![json!("template.jinja")],
        Holds::Counts(names, _) => vec![json!({ names[0]: 2 })],
    }
}

/// Every key of every profile, with every form of its value.
#[test]
fn every_option_that_can_be_emitted_is_one_of_the_named_version() {
    for kind in KINDS {
        for key in kind.keys() {
            for value in values(key) {
                let mut profile = Map::from_iter([(key.name.to_owned(), value)]);
                // Those that need another one.
                for (of, needs, with) in [
                    ("enable_auto_tool_choice", "tool_call_parser", json!("hermes")),
                    ("spec_method", "spec_tokens", json!(3)),
                    ("spec_tokens", "spec_method", json!("ngram")),
                ] {
                    if key.name == of {
                        profile.insert(needs.to_owned(), with);
                    }
                }
                let (_, words) = prepared(&engine(kind, Value::Object(profile), Path::new("/models/m")));
                judge(kind, &words);
                let own = matches!(key.holds, Holds::Duration(..));
                let option = format!("--{}", key.name.replace('_', "-"));
                let negated = format!("--no-{}", key.name.replace('_', "-"));
                let said = words.iter().filter(|word| **word == option || **word == negated).count();
                assert_eq!(said, usize::from(!own), "{kind} {}: {words:?}", key.name);
            }
        }
    }
}

#[test]
fn vllm_gets_its_names_gpus_and_key() {
    let (command, words) = prepared(&engine(
        EngineKind::Vllm,
        json!({ "max_model_len": 8192, "gpu_memory_utilization": 0.9, "enable_prefix_caching": false, "limit_mm_per_prompt": { "image": 2 }, "start_timeout": "1h" }),
        Path::new("/models/m"),
    ));
    assert_eq!(
        words.join(" "),
        "serve /models/m --host 127.0.0.1 --port 9000 --max-num-seqs 8 --shutdown-timeout 8 --tensor-parallel-size 2 \
         --no-enable-prefix-caching --gpu-memory-utilization 0.9 --limit-mm-per-prompt {\"image\":2} --max-model-len 8192 \
         --disable-uvicorn-access-log --disable-fastapi-docs --enable-prompt-tokens-details \
         --served-model-name Qwen/Qwen3 qwen chat"
    );
    assert_eq!(judge(EngineKind::Vllm, &words), ["serve", "/models/m"]);
    let of = |name: &str| {
        command
            .environment
            .iter()
            .filter(|(other, _)| other == name)
            .map(|(_, value)| value.to_str().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(of("VLLM_API_KEY"), ["s3cret"]);
    assert_eq!(of("CUDA_VISIBLE_DEVICES"), ["GPU-a,GPU-b"]);
    assert!(command.files.is_empty());
}

#[test]
fn sglang_gets_its_key_by_a_file() {
    let (command, words) =
        prepared(&engine(EngineKind::Sglang, json!({ "mem_fraction_static": 0.85 }), Path::new("/models/m")));
    assert_eq!(
        words.join(" "),
        "serve --model-path /models/m --config /state/engines/qwen.r1.key.yaml --host 127.0.0.1 --port 9000 \
         --served-model-name Qwen/Qwen3 --log-level-http warning --max-running-requests 8 --tp-size 2 \
         --mem-fraction-static 0.85 --enable-metrics --enable-cache-report"
    );
    assert_eq!(
        command.files,
        [("/state/engines/qwen.r1.key.yaml".into(), b"api-key: \"s3cret\"\n".to_vec())]
    );
    assert!(!command.environment.iter().any(|(_, value)| value == "s3cret"));
}

#[test]
fn llama_server_without_gpus_computes_on_none() {
    let mut config = engine(
        EngineKind::LlamaServer,
        json!({ "ctx_size": 4096, "threads": 2, "chat_template_file": "t.jinja" }),
        Path::new("/m/m.gguf"),
    );
    let EngineSource::Process(process) = &mut config.source else { panic!() };
    process.gpus.clear();
    let (command, words) = prepared(&config);
    assert_eq!(
        words.join(" "),
        "--model /m/m.gguf --alias Qwen/Qwen3 --host 127.0.0.1 --port 9000 --parallel 8 --device none \
         --chat-template-file /m/t.jinja --ctx-size 4096 --threads 2 --metrics --no-webui"
    );
    assert!(
        command.environment.iter().any(|(name, value)| name == "CUDA_VISIBLE_DEVICES" && value.is_empty())
    );
}

/// Row 95: whatever stands in a name is one argument; the bind is loopback; the key is in no argument; nothing of the
/// agent's environment goes along but what is listed.
#[test]
fn row_95_arguments_are_arguments_and_the_environment_a_list() {
    for kind in KINDS {
        let mut config = engine(kind, json!({}), Path::new("/m; touch x"));
        config.model = "m; touch x $(id)\n--host 0.0.0.0".into();
        let (command, words) = prepared(&config);
        assert!(words.contains(&config.model) && words.contains(&"/m; touch x".to_owned()));
        assert_eq!(words.iter().filter(|word| *word == "--host").count(), 1);
        let at = words.iter().position(|word| word == "--host").unwrap();
        assert_eq!(words[at + 1], "127.0.0.1");
        assert!(!words.iter().any(|word| word.contains("s3cret") || word.contains("remote")));
        assert!(!command.environment.iter().any(|(name, _)| {
            name == "LD_PRELOAD" || name == "PYTHONPATH" || name.to_string_lossy().starts_with("CARGO")
        }));
        let names: Vec<_> = command.environment.iter().map(|(name, _)| name).collect();
        assert!(names.iter().all(|name| names.iter().filter(|other| other == &name).count() == 1));
    }
}

fn refused(config: &EngineConfig, facts: &HostFacts) -> Refusal {
    adapter::validate(config, facts).unwrap_err()
}

#[test]
fn the_host_is_checked_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    let here = facts(Path::new("/bin/sh"));
    let folder = dir.path().join("model");
    let vllm = |profile| engine(EngineKind::Vllm, profile, &folder);
    let said = refused(&vllm(json!({})), &here);
    assert_eq!((said.code, said.path.as_str()), (Cause::ArtifactMissing, "artifact"));
    std::fs::create_dir(&folder).unwrap();
    assert!(refused(&vllm(json!({})), &here).message.contains("config.json"));
    std::fs::write(folder.join("config.json"), json!({ "max_position_embeddings": 4096 }).to_string())
        .unwrap();
    adapter::validate(&vllm(json!({})), &here).unwrap();
    for (profile, code, path) in [
        (json!({ "max_model_len": 8192 }), Cause::Context, "profile.max_model_len"),
        (json!({ "tensor_parallel_size": 4 }), Cause::Invalid, "profile"),
        (json!({ "chat_template": "none.jinja" }), Cause::ArtifactMissing, "profile.chat_template"),
    ] {
        let said = refused(&vllm(profile), &here);
        assert_eq!((said.code, said.path.as_str()), (code, path), "{said:?}");
    }
    let long = EngineConfig { max_context_tokens: 5000, ..vllm(json!({})) };
    assert_eq!(refused(&long, &here).path, "max_context_tokens");
    let dash = EngineConfig { aliases: vec!["-x".into()], ..vllm(json!({})) };
    assert_eq!(refused(&dash, &here).path, "aliases");
    for program in ["/nowhere/vllm", "/tmp"] {
        let said = refused(&vllm(json!({})), &facts(Path::new(program)));
        assert!(said.code == Cause::ProgramMissing && said.message.contains("programs.vllm"), "{said:?}");
    }
    let none = HostFacts { programs: Programs::default(), accelerator: Accelerator::Cpu };
    assert!(refused(&vllm(json!({})), &none).message.contains("programs.vllm is not set"));
    let file = dir.path().join("m.gguf");
    let llama = |port| {
        let mut config = engine(EngineKind::LlamaServer, json!({}), &file);
        let EngineSource::Process(process) = &mut config.source else { panic!() };
        process.port = port;
        config
    };
    assert_eq!(refused(&llama(0), &here).message, "the model's file m.gguf cannot be read: entity not found");
    std::fs::write(&file, b"").unwrap();
    assert_eq!(refused(&llama(0), &here).message, "the model's file m.gguf is too short for a GGUF file");
    std::fs::write(&file, b"PK\x03\x04").unwrap();
    assert!(refused(&llama(0), &here).message.contains("GGUF"));
    std::fs::write(&file, b"GGUF\x03").unwrap();
    adapter::validate(&llama(0), &here).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let said = refused(&llama(port), &here);
    assert!(said.code == Cause::PortTaken && !said.message.contains(&port.to_string()));
}

#[test]
fn versions_are_found_in_what_programs_say() {
    for (said, version) in [
        ("0.33.0\n", Some("0.33.0")),
        ("INFO 11-30 03:00:00 [init.py:1] torch\n0.33.0+cu130\n", Some("0.33.0+cu130")),
        ("sglang version: 0.5.23\ngit revision: 1234567", Some("0.5.23")),
        ("version: 10434 (7e4c0a9)\nbuilt with GNU 11.4.0", Some("10434")),
        ("no idea", None),
    ] {
        assert_eq!(adapter::version(said).as_deref(), version, "{said}");
    }
}
