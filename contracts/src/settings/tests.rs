//! Good documents, everything that one can have wrong, and the laws of overlaying.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use quickcheck::{Arbitrary, Gen, quickcheck};
use serde_json::{Map, Value, json};

use super::*;

const NODE: &str = "11111111-2222-4333-8444-555555555555";

fn agents(default: Value) -> Value {
    json!({ "agents": { "default": default } })
}

#[test]
fn a_whole_document_is_good_and_typed() {
    let document = json!({
        "edge": {
            "api": { "body_max": "16MiB", "keepalive": "10s", "held_max": "64MiB", "stream_usage": "always" },
            "metrics": { "keys": true },
            "queue": { "max_requests": 10, "max_wait": "5s", "max_wait_loading": "20s" },
            "upstream": { "first_byte_timeout": "1m", "idle_timeout": "30s" },
            "liveness": { "stale": "20s", "offline": "1m" },
            "log": { "level": "info,umbel_edge=debug" },
            "shutdown": { "drain": "10m" },
            "clock": { "allowed_skew": "1m" },
            "audit": { "keep": "90d", "max_entries": 100_000 },
        },
        "agents": {
            "default": { "log": { "level": "debug" }, "labels": { "example.net/pool": "a" } },
            "nodes": { NODE: {
                "shutdown": { "drain": "1m" },
                "engines": {
                    "echo": { "kind": "sim", "model": "m", "aliases": ["n"], "tokens": 3, "token_delay": "1ms" },
                    "qwen": { "enabled": false, "capacity": 2, "long_context_capacity": 1 },
                },
            } },
        },
    });
    check(&document).unwrap();
    let edge: EdgeSettings = serde_json::from_value(edge_of(&document)).unwrap();
    assert_eq!(edge.queue.max_requests, Some(10));
    let effective = effective(&document, NODE);
    let agent: AgentSettings = serde_json::from_value(effective.clone()).unwrap();
    assert_eq!(agent.log.level.as_deref(), Some("debug"));
    assert_eq!(agent.engines["qwen"].enabled, Some(false));
    // What is typed says the same again.
    assert_eq!(tidy(serde_json::to_value(agent).unwrap()), effective);
    assert_eq!(tidy(serde_json::to_value(edge).unwrap()), edge_of(&document));
}

/// Row 81: what cannot work is refused where it is said, by the path of the field, with what would be right.
#[test]
fn row_81_bad_values_are_refused_with_their_path() {
    let engine = |engine: Value| agents(json!({ "engines": { "chat": engine } }));
    for (document, path, says) in [
        (json!({ "edge": { "queue": { "max_wait": "0s" } } }), "edge.queue.max_wait", "must be 1ms to 1d"),
        (
            json!({ "edge": { "queue": { "max_requests": 1_000_000_000 } } }),
            "edge.queue.max_requests",
            "1000000",
        ),
        (json!({ "edge": { "queue": { "max_requests": -1 } } }), "edge.queue.max_requests", "not -1"),
        (json!({ "edge": { "queue": { "max_requests": 1.5 } } }), "edge.queue.max_requests", "whole number"),
        (
            json!({ "edge": { "queue": { "max_requests": "7" } } }),
            "edge.queue.max_requests",
            "without quotes",
        ),
        (
            json!({ "edge": { "upstream": { "idle_timeout": 30 } } }),
            "edge.upstream.idle_timeout",
            "in quotes",
        ),
        (json!({ "edge": { "api": { "body_max": "1e9" } } }), "edge.api.body_max", "KiB"),
        (json!({ "edge": { "log": { "level": "loud" } } }), "edge.log.level", "trace"),
        (json!({ "edge": { "qeue": {} } }), "edge.qeue", "did you mean \"queue\""),
        (json!({ "agent": {} }), "agent", "did you mean \"agents\""),
        (engine(json!({ "capacity": -4 })), "agents.default.engines.chat.capacity", "1 to 1024"),
        (engine(json!({ "capacity": 1_000_000_000 })), "agents.default.engines.chat.capacity", "1 to 1024"),
        (engine(json!({ "aliases": ["a", "a"] })), "agents.default.engines.chat.aliases", "twice"),
        (
            engine(json!({ "model": "a", "aliases": ["a"] })),
            "agents.default.engines.chat.aliases",
            "own name",
        ),
        (
            engine(json!({ "capacity": 2, "long_context_capacity": 3 })),
            "agents.default.engines.chat.long_context_capacity",
            "at most",
        ),
        (
            engine(json!({ "kind": "sim", "threads": 3 })),
            "agents.default.engines.chat.threads",
            "llama-server",
        ),
        (engine(json!({ "kind": "vllm" })), "agents.default.engines.chat.kind", "one of"),
        (agents(json!({ "engines": { "../x": {} } })), "agents.default.engines.\"../x\"", "a-z"),
        (agents(json!({ "labels": { "a b": "c" } })), "agents.default.labels.\"a b\"", "label"),
        (agents(json!({ "labels": { "a": 1 } })), "agents.default.labels.a", "quotes"),
        (agents(json!({ "labels": [] })), "agents.default.labels", "table"),
        (json!({ "agents": { "nodes": { "n": { "log": 1 } } } }), "agents.nodes.n.log", "table"),
    ] {
        let fault = check(&document).unwrap_err();
        assert_eq!(fault.path, path, "{document}");
        assert!(fault.message.contains(says), "{document}: {fault}");
    }
    // Names that each are short enough and together do not fit into a hello.
    let aliases = |engine: usize| (0..16).map(|n| format!("{engine:0>64}{n:0>64}")).collect::<Vec<_>>();
    let engines = |count: usize| {
        let engine =
            |n: usize| (format!("e{n:02}"), json!({ "model": format!("m{n}"), "aliases": aliases(n) }));
        agents(json!({ "engines": (0..count).map(engine).collect::<Map<_, _>>() }))
    };
    assert_eq!(check(&engines(7)), Ok(()));
    let fault = check(&engines(9)).unwrap_err();
    assert!(fault.path == "agents.default.engines.e07" && fault.message.contains("16 KiB"), "{fault}");
    // A name that means two models on one node, one from the default and one of its own.
    let two = json!({ "agents": {
        "default": { "engines": { "a": { "model": "m", "aliases": ["both"] } } },
        "nodes": { "n": { "engines": { "b": { "model": "k", "aliases": ["both"] } } } },
    } });
    let fault = check(&two).unwrap_err();
    assert_eq!(fault.path, "agents.nodes.n.engines.b.aliases");
}

#[test]
fn what_stays_in_a_hosts_file_is_refused_by_name() {
    for (document, path) in [
        (agents(json!({ "state_dir": "/tmp" })), "agents.default.state_dir"),
        (agents(json!({ "programs": { "llama_server": "/bin/sh" } })), "agents.default.programs"),
        (agents(json!({ "allow_sim": true })), "agents.default.allow_sim"),
        (agents(json!({ "engines": { "a": { "url": "http://x:1" } } })), "agents.default.engines.a.url"),
        (
            agents(json!({ "engines": { "a": { "environment": {} } } })),
            "agents.default.engines.a.environment",
        ),
        (json!({ "edge": { "listen": {} } }), "edge.listen"),
        (json!({ "edge": { "liveness": { "heartbeat": "1s" } } }), "edge.liveness.heartbeat"),
    ] {
        let fault = check(&document).unwrap_err();
        assert_eq!(fault.path, path);
        assert!(fault.message.starts_with("cannot be set: "), "{fault}");
    }
    for path in ["/etc/passwd", "x", "../x", "a/../b", "a//b", "", ".", "C:\\x"] {
        let document = agents(json!({ "engines": { "a": { "model_file": path } } }));
        assert!(check(&document).unwrap_err().message.contains("ROOT/PATH"), "{path}");
    }
    check(&agents(json!({ "engines": { "a": { "model_file": "models/qwen/q8.gguf" } } }))).unwrap();
}

/// The types have exactly the keys of the tables, and the document lists them all, with those that are refused by name.
#[test]
fn types_and_document_have_the_keys_of_the_tables() {
    let document = include_str!("../../config.md");
    let mut settable: Vec<String> = Vec::new();
    for row in rows() {
        let line = format!("| `{}` | {} |", row.path, row.holds);
        if row.settable {
            assert!(document.contains(&line), "config.md needs this line:\n{line}");
            settable.push(row.path);
        }
    }
    let listed =
        document.lines().filter(|line| line.starts_with("| `edge.") || line.starts_with("| `agents."));
    // Those of edge.toml's own table are beside them.
    let listed = listed.filter(|line| line.matches('|').count() == 3).count();
    assert_eq!(listed, settable.len(), "config.md lists a setting that is none");
    let mut typed = Vec::new();
    fields(&schema::<EdgeSettings>(), "edge", &mut typed);
    fields(&schema::<AgentSettings>(), "agents", &mut typed);
    typed.sort();
    settable.sort();
    assert_eq!(typed, settable);
}

fn schema<T: schemars::JsonSchema>() -> Value {
    let inline =
        schemars::generate::SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    serde_json::to_value(inline.into_generator().into_root_schema_for::<T>()).unwrap()
}

fn fields(schema: &Value, at: &str, found: &mut Vec<String>) {
    if let Some(properties) = schema["properties"].as_object() {
        properties.iter().for_each(|(key, inner)| fields(inner, &format!("{at}.{key}"), found));
    } else if schema["additionalProperties"]["properties"].is_object() {
        fields(&schema["additionalProperties"], &format!("{at}.NAME"), found);
    } else {
        found.push(at.to_owned());
    }
}

/// Row 78: what a newer edge says is left out and told; what is known stays.
#[test]
fn row_78_keys_of_a_newer_edge_are_ignored_and_told() {
    let settings = json!({
        "log": { "level": "debug", "color": true },
        "weather": { "a": 1 },
        "engines": { "chat": { "capacity": 2, "speculative": { "draft": 1 } } },
    });
    let (kept, ignored) = known(settings, 64);
    assert_eq!(kept, json!({ "log": { "level": "debug" }, "engines": { "chat": { "capacity": 2 } } }));
    assert_eq!(ignored, ["engines.chat.speculative", "log.color", "weather"]);
    check_agent(&kept, "").unwrap();
}

#[test]
fn paths_find_and_put() {
    let mut document = json!({});
    let path: Path = "agents.default.labels.\"example.net/rack\"".parse().unwrap();
    assert_eq!(path.0.last().unwrap(), "example.net/rack");
    assert_eq!(path.to_string().parse::<Path>().unwrap(), path);
    assert!(path.put(&mut document, json!("r1")));
    assert_eq!(path.of(&document), Some(&json!("r1")));
    assert!(
        !"agents.default.labels.\"example.net/rack\".x".parse::<Path>().unwrap().put(&mut document, json!(1))
    );
    assert!(path.put(&mut document, Value::Null));
    assert_eq!(document, json!({}));
    for bad in ["", "a..b", ".a", "a.", "\"a", "\"a\"b", "a.b.c.d.e.f.g.h.i"] {
        bad.parse::<Path>().unwrap_err();
    }
}

#[test]
fn differences_are_told_by_field() {
    let from = json!({ "a": { "b": 1, "c": [1] }, "d": 2 });
    let to = json!({ "a": { "b": 2, "c": [1] }, "e": { "f": 3 } });
    let told: Vec<_> = diff(&from, &to).into_iter().map(|one| (one.path, one.from, one.to)).collect();
    assert_eq!(
        told,
        [
            ("a.b".to_owned(), json!(1), json!(2)),
            ("d".to_owned(), json!(2), Value::Null),
            ("e.f".to_owned(), Value::Null, json!(3)),
        ]
    );
    assert_eq!(diff(&to, &to), []);
}

/// Any small document: keys from a few letters, so that they meet.
#[derive(Clone, Debug)]
struct Tree(Value);

impl Arbitrary for Tree {
    fn arbitrary(g: &mut Gen) -> Self {
        fn tree(g: &mut Gen, depth: usize) -> Value {
            if depth == 0 || u8::arbitrary(g) % 3 == 0 {
                return json!(u8::arbitrary(g) % 4);
            }
            let keys = (0..u8::arbitrary(g) % 4).map(|_| g.choose(&["a", "b", "c"]).copied().unwrap_or("a"));
            let keys: Vec<_> = keys.collect();
            Value::Object(keys.into_iter().map(|key| (key.to_owned(), tree(g, depth - 1))).collect())
        }
        let root = tree(g, 3);
        Self(if root.is_object() { tidy(root) } else { json!({}) })
    }
}

quickcheck! {
    fn nothing_overlaid_changes_nothing(tree: Tree) -> bool {
        overlay(&tree.0, &json!({})) == tree.0
            && overlay(&json!({}), &tree.0) == tree.0
            && overlay(&tree.0, &tree.0) == tree.0
    }

    // A field of the upper one is as the upper one says; a field that only the lower one has stays.
    fn the_upper_one_wins(lower: Tree, upper: Tree) -> bool {
        let merged = overlay(&lower.0, &upper.0);
        let upper_holds = diff(&json!({}), &upper.0).into_iter().all(|one| {
            one.path.parse::<Path>().unwrap().of(&merged) == Some(&one.to)
        });
        let lower_holds = diff(&json!({}), &lower.0).into_iter().all(|one| {
            let path = one.path.parse::<Path>().unwrap();
            let shadowed = (1..=path.0.len()).any(|length| {
                Path(path.0[..length].to_vec()).of(&upper.0).is_some_and(|value| !value.is_object())
            }) || path.of(&upper.0).is_some();
            shadowed || path.of(&merged) == Some(&one.to)
        });
        upper_holds && lower_holds
    }

    fn a_diff_leads_back(from: Tree, to: Tree) -> bool {
        undo(&to.0, &diff(&from.0, &to.0)) == from.0
    }
}
