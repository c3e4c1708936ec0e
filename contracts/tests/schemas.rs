//! The operations' JSON schemas as they are kept for review, and examples of each held against them.
//!
//! `schemas/OPERATION.json` is what the types say; `golden/operations/OPERATION/CASE.args.json` and `.result.json` are
//! append-only: what an older `ctl` sent must be taken and what an older edge stored must be read.
//! Invariant: the checker here knows every keyword that the schemas use, so nothing passes unlooked at.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use umbel_contracts::operations::{self, Operation, Spec, Target};

use crate::descriptors::{files_below, root};
use crate::secrets::{all_properties, found_in};

/// Decodes what an operation takes or gives and encodes it again.
type Again = fn(Value) -> Result<Value, serde_json::Error>;

fn again<T: serde::de::DeserializeOwned + serde::Serialize>(
    value: Value,
) -> Result<Value, serde_json::Error> {
    serde_json::from_value::<T>(value).and_then(serde_json::to_value)
}

fn codec<O: Operation>() -> (&'static str, Again, Again) {
    (O::NAME, again::<O::Args>, again::<O::Result>)
}

macro_rules! codecs {
    ($($operation:ident)+) => { [$(codec::<operations::$operation>()),+] };
}

/// The types of every operation.
fn codecs() -> BTreeMap<&'static str, (Again, Again)> {
    let all = codecs! {
        AuditExport AuditQuery AuditTail AuditVerify ApiKeyCreate ApiKeyList ApiKeyRevoke ApiKeyUpdate ApiKeyUsage
        ArtifactAcquire ArtifactList ArtifactRemove
        CaRotate CaShow CommandCancel CommandShow
        DeploymentApply DeploymentDelete DeploymentDrain DeploymentList DeploymentLoad DeploymentPause DeploymentRestart DeploymentShow DeploymentUnload
        EdgeBackup EngineList EngineLogs EngineRestart EngineShow EngineStop EnrollmentCreate EnrollmentList EnrollmentRevoke JobCancel JobList JobShow CredentialApprove CredentialRevoke
        CredentialRotate NodeDecommission NodeDisable NodeDrain NodeEligible NodeEnable NodeLabel NodeList
        NodeReadinessCheck NodeRename NodeShow NodeUndrain PlacementExplain QueueShow RequestList RequestRelease RequestShow RuntimeHealth RuntimeProbe RuntimeUnload SettingsDiff SettingsGet SettingsHistory
        SettingsRollback SettingsSet
    };
    all.into_iter().map(|(name, args, result)| (name, (args, result))).collect()
}

/// What is kept of one operation.
fn kept(spec: &Spec) -> Value {
    let target = match spec.target {
        Target::Nothing => "nothing",
        Target::Nodes => "nodes",
        Target::AnyNodes => "nodes, empty is all",
    };
    json!({
        "operation": spec.name,
        "class": spec.class.as_str(),
        "target": target,
        "args": spec.args_schema(),
        "result": spec.result_schema(),
    })
}

#[test]
fn the_kept_schemas_are_those_of_the_types() {
    let folder = root().join("schemas");
    let mut files: BTreeSet<PathBuf> = files_below(&folder).into_iter().collect();
    for spec in operations::ALL {
        let path = folder.join(format!("{}.json", spec.name));
        let text = serde_json::to_string_pretty(&kept(spec)).unwrap() + "\n";
        if std::env::var_os("UMBEL_REGENERATE").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        files.remove(&path);
        let stands = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            stands == text,
            "{} is not what the types say: UMBEL_REGENERATE=1, then look at the change",
            path.display()
        );
    }
    assert_eq!(files, BTreeSet::new(), "schemas of nothing");
}

/// One half of a case.
struct Example {
    operation: String,
    is_args: bool,
    path: PathBuf,
    value: Value,
}

fn examples() -> Vec<Example> {
    let files = files_below(&root().join("golden/operations"));
    files.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Example {
    let parts: Vec<_> = path.iter().rev().take(2).map(|part| part.to_str().unwrap()).collect();
    let is_args = parts[0].ends_with(".args.json");
    assert!(
        is_args || parts[0].ends_with(".result.json"),
        "{}: CASE.args.json or CASE.result.json",
        path.display()
    );
    let text = std::fs::read_to_string(path).unwrap();
    let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Example { operation: parts[1].to_owned(), is_args, path: path.to_owned(), value }
}

#[test]
fn every_operation_has_an_example_of_both() {
    let examples = examples();
    for spec in operations::ALL {
        for is_args in [true, false] {
            let has = |example: &&Example| example.operation == spec.name && example.is_args == is_args;
            let half = if is_args { "args" } else { "result" };
            assert!(
                examples.iter().any(|example| has(&example)),
                "golden/operations/{}/CASE.{half}.json",
                spec.name
            );
        }
    }
    let named: BTreeSet<_> = codecs().into_keys().collect();
    assert_eq!(named, operations::ALL.iter().map(|spec| spec.name).collect(), "add it to codecs above");
}

#[test]
fn every_example_is_valid_and_its_type_keeps_all_of_it() {
    let codecs = codecs();
    for example in examples() {
        let path = example.path.display();
        let spec =
            operations::find(&example.operation).unwrap_or_else(|| panic!("{path}: no such operation"));
        let (args, result) = codecs[spec.name];
        let (schema, again) =
            if example.is_args { (spec.args_schema(), args) } else { (spec.result_schema(), result) };
        let wrong = faults(&serde_json::to_value(schema).unwrap(), &example.value, "$");
        assert_eq!(wrong, Vec::<String>::new(), "{path}");
        let typed = again(example.value.clone()).unwrap_or_else(|error| panic!("{path}: {error}"));
        let lost = missing(&example.value, &typed, "$");
        assert_eq!(lost, Vec::<String>::new(), "{path}: the type does not keep these");
    }
}

/// Places of `written` that are not in `read`; what a type adds by default is none.
fn missing(written: &Value, read: &Value, at: &str) -> Vec<String> {
    match (written, read) {
        (Value::Object(written), Value::Object(read)) => written
            .iter()
            .flat_map(|(key, value)| {
                missing(value, read.get(key).unwrap_or(&Value::Null), &format!("{at}.{key}"))
            })
            .collect(),
        (Value::Array(written), Value::Array(read)) if written.len() == read.len() => written
            .iter()
            .zip(read)
            .flat_map(|(written, read)| missing(written, read, &format!("{at}[]")))
            .collect(),
        _ if written == read => Vec::new(),
        _ => vec![at.to_owned()],
    }
}

#[test]
fn every_field_is_in_some_example() {
    // A node whole is shown by the vectors of `EdgeNodeSnapshot`. Results share their objects: once is enough.
    let whole = ["node.list result.nodes.", "node.show result.nodes."];
    let shared = |path: &str| match path.split_once(" result") {
        Some((_, rest)) => format!("result{rest}"),
        None => path.to_owned(),
    };
    let all = all_properties();
    let mut unseen: BTreeSet<String> = all
        .iter()
        .filter(|path| !whole.iter().any(|whole| path.starts_with(whole)))
        .map(|path| shared(path))
        .collect();
    for example in examples() {
        let half = if example.is_args { "args" } else { "result" };
        see(&example.value, &shared(&format!("{} {half}", example.operation)), &mut unseen);
    }
    assert_eq!(unseen, BTreeSet::new(), "no example in golden/operations shows these");
}

fn see(value: &Value, path: &str, unseen: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, inner) in object {
                let path = format!("{path}.{key}");
                unseen.remove(&path);
                see(inner, &path, unseen);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| see(item, path, unseen)),
        _ => {}
    }
}

#[test]
fn no_example_shows_what_must_not_travel() {
    for example in examples() {
        // R4's second exception: the issuing server's own addresses.
        let issued = example.operation == "enrollment.create" && !example.is_args;
        let mut value = example.value;
        if let Some(object) = value.as_object_mut().filter(|_| issued) {
            object.remove("addresses");
        }
        look(&value, &example.path);
    }
}

fn look(value: &Value, path: &Path) {
    match value {
        Value::String(text) => assert_eq!(found_in(text), None, "{} (R4)", path.display()),
        Value::Array(items) => items.iter().for_each(|item| look(item, path)),
        Value::Object(object) => object.values().for_each(|item| look(item, path)),
        _ => {}
    }
}

#[test]
fn unknown_arguments_are_refused_and_unknown_results_taken() {
    let codecs = codecs();
    for example in examples() {
        let (args, result) = codecs[example.operation.as_str()];
        let mut newer = example.value.clone();
        newer.as_object_mut().unwrap().insert("of_tomorrow".to_owned(), json!(1));
        let taken = if example.is_args { args(newer) } else { result(newer) };
        assert_eq!(taken.is_ok(), !example.is_args, "{}", example.path.display());
    }
}

/// Keywords that only describe.
const ONLY_WORDS: [&str; 5] = ["$schema", "title", "description", "default", "format"];

/// What of a value a schema does not allow.
fn faults(schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let Value::Object(schema) = schema else {
        return if *schema == Value::Bool(false) {
            vec![format!("{at}: nothing may stand here")]
        } else {
            Vec::new()
        };
    };
    let mut found = Vec::new();
    for (keyword, rule) in schema {
        match keyword.as_str() {
            words if ONLY_WORDS.contains(&words) => {}
            "required" | "properties" | "additionalProperties" | "items" => {}
            "anyOf" | "oneOf" => {
                let fit = rule
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter(|inner| faults(inner, value, at).is_empty())
                    .count();
                if fit == 0 || (keyword == "oneOf" && fit > 1) {
                    found.push(format!("{at}: {fit} of {keyword} fit"));
                }
            }
            _ => {
                if !holds(keyword, rule, value) {
                    found.push(format!("{at}: {keyword} {rule}"));
                }
            }
        }
    }
    found.extend(faults_inside(schema, value, at));
    found
}

fn faults_inside(schema: &Map<String, Value>, value: &Value, at: &str) -> Vec<String> {
    let mut found = Vec::new();
    if let (Some(inner), Value::Array(items)) = (schema.get("items"), value) {
        found.extend(items.iter().flat_map(|item| faults(inner, item, &format!("{at}[]"))));
    }
    let Value::Object(object) = value else { return found };
    for key in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
        if !object.contains_key(key.as_str().unwrap()) {
            found.push(format!("{at}: no {key}"));
        }
    }
    let own = schema.get("properties").and_then(Value::as_object);
    let rest = schema.get("additionalProperties").unwrap_or(&Value::Bool(true));
    for (key, inner) in object {
        let rule = own.and_then(|own| own.get(key)).unwrap_or(rest);
        found.extend(faults(rule, inner, &format!("{at}.{key}")));
    }
    found
}

/// Whether one keyword holds that looks at nothing inside.
fn holds(keyword: &str, rule: &Value, value: &Value) -> bool {
    let length = || value.as_str().map(|text| text.chars().count() as u64);
    match keyword {
        "type" => match rule {
            Value::Array(kinds) => kinds.iter().any(|kind| is(kind.as_str().unwrap(), value)),
            kind => is(kind.as_str().unwrap(), value),
        },
        "enum" => rule.as_array().unwrap().contains(value),
        "const" => rule == value,
        "minLength" => length().is_none_or(|length| length >= rule.as_u64().unwrap()),
        "maxLength" => length().is_none_or(|length| length <= rule.as_u64().unwrap()),
        // Told to people; what the text means is held against its type.
        "examples" | "pattern" => true,
        "minItems" => value.as_array().is_none_or(|items| items.len() as u64 >= rule.as_u64().unwrap()),
        "maxItems" => value.as_array().is_none_or(|items| items.len() as u64 <= rule.as_u64().unwrap()),
        "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap()),
        "maximum" => value.as_f64().is_none_or(|number| number <= rule.as_f64().unwrap()),
        other => panic!("a schema uses {other}: say here what it means"),
    }
}

fn is(kind: &str, value: &Value) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type {other}"),
    }
}

#[test]
fn the_checker_finds_each_kind_of_fault() {
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["name"],
        "properties": {
            "name": { "type": "string", "minLength": 1, "maxLength": 3 },
            "level": { "anyOf": [{ "type": "integer", "minimum": 1, "maximum": 9 }, { "type": "null" }] },
            "words": { "type": "array", "maxItems": 2, "items": { "enum": ["a", "b"] } },
        },
    });
    assert!(faults(&schema, &json!({ "name": "abc", "level": null, "words": ["a"] }), "$").is_empty());
    for bad in [
        json!([]),
        json!({}),
        json!({ "name": "" }),
        json!({ "name": "abcd" }),
        json!({ "name": 1 }),
        json!({ "name": "a", "level": 0 }),
        json!({ "name": "a", "level": 10 }),
        json!({ "name": "a", "words": ["c"] }),
        json!({ "name": "a", "words": ["a", "b", "a"] }),
        json!({ "name": "a", "more": 1 }),
    ] {
        assert_eq!(faults(&schema, &bad, "$").len(), 1, "{bad}");
    }
}
