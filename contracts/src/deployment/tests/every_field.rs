//! Each field of a document with what it may not hold: every message is one for people.

use serde_json::{Value, json};

use super::super::shape::{DOCUMENT, Field, Kind};
use super::*;
use crate::deployment::profile::Holds;

/// Words of Rust and of its libraries; a person is told neither.
const NOT_FOR_PEOPLE: [&str; 16] = [
    "u32",
    "u64",
    "i64",
    "i128",
    "usize",
    "f64",
    "expected",
    "variant",
    "struct",
    "invalid type",
    "invalid value",
    "invalid length",
    "missing field",
    "Option",
    "sequence",
    " at line ",
];

/// Paths of all fields, with what each holds; entries of lists by their first.
fn paths(fields: &'static [Field], at: &str, all: &mut Vec<(String, Kind)>) {
    for field in fields {
        let path = if at.is_empty() { field.name.to_owned() } else { format!("{at}.{}", field.name) };
        all.push((path.clone(), field.kind));
        match field.kind {
            Kind::Table(fields) => paths(fields, &path, all),
            Kind::Tables(fields, _) => paths(fields, &format!("{path}[0]"), all),
            Kind::Texts(_) => all.push((format!("{path}[0]"), Kind::Text)),
            _ => {}
        }
    }
}

/// Values of every type, and of every size.
fn values() -> Vec<Value> {
    let mut values = vec![
        json!(true),
        json!(-1),
        json!(1.5),
        json!(1e300),
        json!(u64::MAX),
        json!(i64::MIN),
        json!([]),
        json!([[1]]),
        json!({}),
        json!({ "surprise": { "deep": [1, 2, 3] } }),
        json!(""),
        json!(" "),
        json!("\u{0}\u{1b}[31m"),
        json!("\u{202e}evil"),
        json!("99999999999999999999TiB"),
        json!("-1"),
        json!("x".repeat(100_000)),
    ];
    values.push(json!(vec!["x"; 5_000]));
    values
}

/// What every message keeps to.
fn is_for_people(path: &str, value: &Value, fault: &crate::settings::Fault) {
    let (said, message) = (fault.to_string(), &fault.message);
    let context = format!("{path} = {}: {said}", value.to_string().chars().take(60).collect::<String>());
    for word in NOT_FOR_PEOPLE {
        assert!(!message.contains(word), "{word:?} in {context}");
    }
    let legal = [
        "must be",
        "is not legal: ",
        "unknown key",
        "is missing: ",
        "at most",
        "at least",
        "may not",
        "is no revision: ",
        "is no repository: ",
        "needs ",
        "need each other",
        "can only be",
        "has a part",
        "has a character",
        "has an empty",
        "name is empty",
        "more than",
        "longer than",
        "have to ",
        "it has: ",
    ];
    assert!(legal.iter().any(|words| message.contains(words)), "it does not say what is legal: {context}");
    assert!(!fault.path.is_empty() && !message.chars().any(char::is_control), "{context}");
    assert!(said.len() < 700, "{} bytes: {context}", said.len());
}

/// The beginning of a value, as a message has to show it.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) if text.chars().all(|c| c.is_ascii_graphic()) => text.chars().take(16).collect(),
        Value::Number(number) => number.to_string(),
        Value::Bool(value) => value.to_string(),
        _ => String::new(),
    }
}

#[test]
fn every_fault_of_every_field_is_told_in_words_with_bound_and_value() {
    let mut all = Vec::new();
    paths(DOCUMENT, "", &mut all);
    assert!(all.len() > 30, "{}", all.len());
    let mut refused = 0;
    for (path, _) in &all {
        for value in values() {
            let Err(faults) = DeploymentSpec::from_value(with(path, value.clone())) else { continue };
            refused += 1;
            assert!(faults.0.len() <= 32);
            for fault in &faults.0 {
                is_for_people(path, &value, fault);
            }
            let of_it = |fault: &&crate::settings::Fault| fault.path == *path;
            if let Some(fault) = faults.0.iter().find(of_it) {
                let shown = shown(&value);
                assert!(fault.message.contains(&shown), "{path}: {shown:?} is not told: {fault}");
            } else {
                // It is about what is in it, or about what it leaves out.
                let related = faults
                    .0
                    .iter()
                    .any(|fault| fault.path.starts_with(path.as_str()) || path.contains(&fault.path));
                let between = ["capacity", "gpus", "category", "engine", "artifact"];
                let between =
                    faults.0.iter().all(|fault| between.iter().any(|name| fault.path.contains(name)));
                assert!(related || between, "{path}: {faults}");
            }
        }
    }
    assert!(refused > 400, "{refused}");
}

/// Every key of every engine's profile, likewise.
#[test]
fn every_fault_of_a_profile_is_told_in_words_with_bound_and_value() {
    for kind in EngineKind::ALL {
        for key in kind.keys() {
            for value in values() {
                let table = [(key.name.to_owned(), value.clone())].into_iter().collect();
                let Err(fault) = Profile::read(kind, &table, "engine.profile") else { continue };
                if fault.path.ends_with(key.name) {
                    is_for_people(key.name, &value, &fault);
                }
            }
        }
    }
}

#[test]
fn one_wrong_field_is_one_fault() {
    for (path, value) in [
        ("artifact.files[0].path", json!("../m.gguf")),
        ("artifact.files[0].path", json!(5)),
        ("artifact.files[0].bytes", json!(-5)),
        ("artifact.files", json!("all")),
        ("artifact.main_file", json!(5)),
        ("artifact", json!("Qwen/Qwen3-8B")),
        ("capacity", json!(0)),
        ("capacity", json!("8")),
        ("gpus.count", json!("one")),
        ("gpus.count", json!(65)),
        ("engine.kind", json!("vlm")),
        ("long_context_capacity", json!("2")),
        ("max_context_tokens", json!(-1)),
        ("nodes_per_replica", json!(17)),
        ("name", Value::Null),
    ] {
        let faults = faults(with(path, value.clone()));
        assert_eq!(faults.len(), 1, "{path} = {value}: {faults:?}");
        assert!(faults[0].starts_with(path), "{path} = {value}: {faults:?}");
    }
}

/// The shape and the type are one: what the one lets pass the other reads, and no key is in one only.
#[test]
fn the_shape_has_every_field_of_the_type() {
    let schema = serde_json::to_value(schemars::schema_for!(DeploymentSpec)).unwrap();
    let keys = |table: &Value| -> Vec<String> {
        let mut keys: Vec<String> = table["properties"].as_object().unwrap().keys().cloned().collect();
        keys.sort();
        keys
    };
    let names = |fields: &[Field]| -> Vec<String> {
        let mut names: Vec<String> = fields.iter().map(|field| field.name.to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(DOCUMENT), keys(&schema));
    for field in DOCUMENT {
        let (Kind::Table(fields), definition) = (field.kind, field.name) else { continue };
        let definition = match definition {
            "artifact" => "ArtifactSpec",
            "engine" => "EngineSpec",
            _ => "GpuSpec",
        };
        assert_eq!(names(fields), keys(&schema["$defs"][definition]), "{definition}");
    }
    let kinds = EngineKind::ALL.map(EngineKind::as_str);
    let mut all = Vec::new();
    paths(DOCUMENT, "", &mut all);
    let (_, kind) = all.iter().find(|(path, _)| path == "engine.kind").unwrap();
    let Kind::Is(Holds::Word(words)) = kind else { panic!("a word") };
    assert_eq!(*words, kinds);
}

/// A whole document of wrong types, an empty one, and none.
#[test]
fn documents_of_another_shape_are_refused_whole() {
    assert_eq!(
        faults(json!({})),
        [
            "name: is missing: the deployment's name, 1 to 40 of a-z, 0-9 and '-'",
            "engine: is missing: a table with the engine's kind, such as kind = \"vllm\""
        ]
    );
    for value in [json!([]), json!(1), json!("x"), Value::Null] {
        let faults = faults(value.clone());
        assert!(
            faults.len() == 1 && faults[0].starts_with("must be a table with keys of name"),
            "{faults:?}"
        );
    }
    let told = |value: Value| ArtifactSpec::from_value(value).unwrap_err().to_string();
    assert!(told(json!(5)).starts_with("must be a table with keys of repository"), "{}", told(json!(5)));
    assert!(
        told(json!({ "repository": 5 }))
            .starts_with("repository: must be a text, in quotes, not 5; revision: is missing")
    );
    let file = ConfigFile::from_text(
        Path::new("x.toml"),
        "name = \"a\"\nreplicas = 99999999999999999999\n[engine]\nkind = \"sim\"\n",
    );
    let errors = DeploymentSpec::from_file(&file).unwrap_err();
    assert_eq!(
        errors[0].to_string(),
        "x.toml:2:12: a number that no key takes: whole ones are at most 18446744073709551615"
    );
}
