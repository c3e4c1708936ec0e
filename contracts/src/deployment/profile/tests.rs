//! Profiles: what is refused, where, and that equal ones are equal bytes.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use serde_json::{Map, Value, json};

use super::*;

fn read(kind: EngineKind, table: Value) -> Result<Profile, Fault> {
    let Value::Object(table) = table else { unreachable!() };
    Profile::read(kind, &table, "engine.profile")
}

fn refused(kind: EngineKind, table: Value) -> String {
    read(kind, table).unwrap_err().to_string()
}

/// A value that a key takes.
fn good(holds: Holds) -> Value {
    match holds {
        Holds::Number(least, _) | Holds::NumberOr(least, ..) => json!(least),
        Holds::Figure(least, _) => serde_json::to_value(Figure { milli: least }).unwrap(),
        Holds::Size(..) => json!("1GiB"),
        Holds::Duration(..) => json!("1m"),
        Holds::Flag | Holds::Switch => json!(true),
        Holds::Word(words) => json!(words[0]),
        Holds::Name => json!("a-b_c.1"),
        Holds::File => json!("folder/file.txt"),
        Holds::Counts(names, most) => json!({ names[0]: most }),
    }
}

/// A value that a key refuses.
fn bad(holds: Holds) -> Vec<Value> {
    match holds {
        Holds::Number(least, most) | Holds::NumberOr(least, most, _) => {
            let mut bad = vec![json!(-1), json!("7"), json!(1.5), json!(true), json!(u64::from(most) + 1)];
            bad.extend(least.checked_sub(1).map(|below| json!(below)));
            bad
        }
        Holds::Figure(_, most) => vec![json!(-1), json!("1"), json!(0.00012), json!(most)],
        Holds::Size(..) => vec![json!(5), json!("1B"), json!("many")],
        Holds::Duration(..) => vec![json!(5), json!("100d"), json!("soon")],
        Holds::Flag => vec![json!("true"), json!(1)],
        Holds::Switch => vec![json!(false), json!(1)],
        Holds::Word(_) => vec![json!("nothing-of-it"), json!(""), json!(1)],
        Holds::Name => vec![
            json!(""),
            json!("-x"),
            json!("a b"),
            json!("a\n"),
            json!("x".repeat(65)),
            json!("$(id)"),
            json!("--host"),
        ],
        Holds::File => vec![
            json!("/etc/passwd"),
            json!("../x"),
            json!("a/../b"),
            json!("a//b"),
            json!("c:\\x"),
            json!("a\0b"),
            json!("x".repeat(300)),
        ],
        Holds::Counts(..) => vec![json!({ "smell": 1 }), json!([1]), json!({ "image": -1 })],
    }
}

#[test]
fn every_key_takes_what_it_may_and_nothing_else() {
    for kind in EngineKind::ALL {
        for key in kind.keys() {
            let with = |value: Value| json!({ key.name: value });
            if !matches!(kind, EngineKind::Cli)
                && !["enable_auto_tool_choice", "spec_method", "spec_tokens"].contains(&key.name)
            {
                read(kind, with(good(key.holds)))
                    .unwrap_or_else(|fault| panic!("{kind} {}: {fault}", key.name));
            }
            for value in bad(key.holds) {
                let fault = read(kind, with(value.clone())).unwrap_err();
                assert_eq!(fault.path, format!("engine.profile.{}", key.name), "{value}: {fault}");
                assert!(
                    fault.message.contains("must")
                        || fault.message.contains("switched on")
                        || !fault.message.is_empty()
                );
            }
            assert!(key.says.len() > 10 && key.says.ends_with('.'), "{}", key.name);
        }
    }
}

/// Row 95: where it listens, its key, foreign code, free arguments and variables are refused by name, however written.
#[test]
fn row_95_what_no_profile_may_say() {
    for kind in [EngineKind::Vllm, EngineKind::Sglang, EngineKind::LlamaServer] {
        for key in [
            "host",
            "--host",
            "port",
            "trust_remote_code",
            "trust-remote-code",
            "--trust-remote-code",
            "api_key",
            "env",
            "LD_PRELOAD",
            "extra_args",
            "log-requests",
        ] {
            let said = refused(kind, json!({ key: "0.0.0.0" }));
            assert!(
                said.starts_with(&format!("engine.profile.{key}: may not stand in a profile: ")),
                "{said}"
            );
        }
        for (name, _) in refused::REFUSED {
            assert!(!kind.keys().iter().any(|key| key.name == *name), "{kind}: {name} is a key");
        }
    }
    for value in ["; touch x", "$(id)", "a\n--host 0.0.0.0", "--trust-remote-code"] {
        assert!(refused(EngineKind::Vllm, json!({ "quantization": value })).contains("must be a name"));
    }
}

#[test]
fn unknown_keys_are_named_with_the_likely_one() {
    let said = refused(EngineKind::Vllm, json!({ "max_model_length": 4096 }));
    assert_eq!(
        said,
        "engine.profile.max_model_length: is no key of vllm's profile; did you mean \"max_model_len\"?"
    );
    let said = refused(EngineKind::Vllm, json!({ "max-model-len": 4096 }));
    assert_eq!(said, "engine.profile.max-model-len: is written \"max_model_len\" in a profile");
    let said = refused(EngineKind::Vllm, json!({ "ctx_size": 4096 }));
    assert_eq!(said, "engine.profile.ctx_size: is a key of llama-server's profile, not of vllm's");
    assert!(refused(EngineKind::Cli, json!({})).starts_with("engine.profile.program: is missing"));
    assert!(refused(EngineKind::External, json!({})).starts_with("engine.profile.endpoint: is missing"));
}

#[test]
fn keys_that_contradict_each_other() {
    for (kind, table, key) in [
        (EngineKind::Vllm, json!({ "enable_auto_tool_choice": true }), "enable_auto_tool_choice"),
        (EngineKind::Vllm, json!({ "spec_tokens": 3 }), "spec_method"),
        (
            EngineKind::Vllm,
            json!({ "max_num_seqs": 64, "max_num_batched_tokens": 32 }),
            "max_num_batched_tokens",
        ),
        (
            EngineKind::Vllm,
            json!({ "enable_chunked_prefill": false, "max_model_len": 8192, "max_num_batched_tokens": 4096 }),
            "max_num_batched_tokens",
        ),
        (EngineKind::LlamaServer, json!({ "batch_size": 256, "ubatch_size": 512 }), "ubatch_size"),
        (EngineKind::LlamaServer, json!({ "cache_type_v": "q8_0", "flash_attn": "off" }), "cache_type_v"),
    ] {
        assert_eq!(read(kind, table).unwrap_err().path, format!("engine.profile.{key}"));
    }
}

#[test]
fn equal_profiles_have_equal_bytes() {
    let one = read(EngineKind::Vllm, json!({ "max_model_len": 8192, "gpu_memory_utilization": 0.9, "kv_cache_memory_bytes": "1024MiB", "start_timeout": "60s" })).unwrap();
    let other = read(EngineKind::Vllm, json!({ "start_timeout": "1m", "kv_cache_memory_bytes": "1GiB", "gpu_memory_utilization": 0.900, "max_model_len": 8192 })).unwrap();
    assert_eq!(one, other);
    assert_eq!(
        String::from_utf8(one.canonical()).unwrap(),
        "{\"gpu_memory_utilization\":0.9,\"kind\":\"vllm\",\"kv_cache_memory_bytes\":\"1GiB\",\"max_model_len\":8192,\"start_timeout\":\"1m\"}"
    );
    assert_eq!((one.canonical(), one.digest()), (other.canonical(), other.digest()));
    assert_eq!(Profile::from_canonical(&one.canonical(), "p").unwrap(), one);
    assert_eq!(one.digest().len(), 64);
    // An integer where a figure is meant is the same figure.
    let whole = read(EngineKind::Sglang, json!({ "schedule_conservativeness": 1 })).unwrap();
    assert_eq!(whole, read(EngineKind::Sglang, json!({ "schedule_conservativeness": 1.0 })).unwrap());
    for (bytes, path) in [
        (&b"[]"[..], "p"),
        (b"{\"kind\":\"gemini\"}", "p.kind"),
        (b"{\"kind\":\"vllm\",\"host\":1}", "p.host"),
    ] {
        assert_eq!(Profile::from_canonical(bytes, "p").unwrap_err().path, path);
    }
}

#[test]
fn what_a_profile_says_of_context_requests_and_gpus() {
    let llama = |table| read(EngineKind::LlamaServer, table).unwrap();
    assert_eq!(llama(json!({ "ctx_size": 8192 })).context_tokens(4), Some(2048));
    assert_eq!(llama(json!({ "ctx_size": 8192, "kv_unified": true })).context_tokens(4), Some(8192));
    assert_eq!(llama(json!({})).context_tokens(4), None);
    let vllm = read(
        EngineKind::Vllm,
        json!({ "tensor_parallel_size": 4, "pipeline_parallel_size": 2, "max_num_seqs": 8 }),
    )
    .unwrap();
    assert_eq!((vllm.gpus(), vllm.max_requests(), vllm.context_tokens(1)), (Some(8), Some(8), None));
    assert_eq!(read(EngineKind::Sim, Map::new().into()).unwrap().gpus(), None);
}

#[test]
fn figures_are_written_without_needless_decimals() {
    for (milli, text) in [(900, "0.9"), (925, "0.925"), (1000, "1"), (0, "0"), (10_050, "10.05")] {
        assert_eq!(Figure { milli }.to_string(), text);
        assert_eq!(serde_json::to_string(&Figure { milli }).unwrap(), text);
    }
    for number in [0.29, 0.57, 0.001, 0.999] {
        assert!(Figure::from_number(number).is_some(), "{number}");
    }
}
