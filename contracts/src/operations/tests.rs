//! The table of operations: order, names, schemas, strictness.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use super::*;

#[test]
fn names_are_unique_and_every_operation_is_found() {
    let names: Vec<_> = ALL.iter().map(|spec| spec.name.split_once('.').unwrap()).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), names.len());
    for spec in ALL {
        assert_eq!(find(spec.name).unwrap().name, spec.name);
        assert!(spec.class == Class::Read || spec.target != Target::AnyNodes, "{spec:?}");
    }
    assert!(find("schedule.request").is_none());
}

#[test]
fn every_argument_object_is_closed_and_every_result_open() {
    for spec in ALL {
        let args = serde_json::to_value(spec.args_schema()).unwrap();
        assert_eq!(args.get("additionalProperties"), Some(&Value::Bool(false)), "{spec:?}");
        let result = serde_json::to_value(spec.result_schema()).unwrap();
        assert_eq!(result.get("type").and_then(|kind| kind.as_str()), Some("object"), "{spec:?}");
        assert_eq!(result.get("additionalProperties"), None, "{spec:?}");
    }
}

#[test]
fn classes_go_both_ways_and_an_unknown_one_needs_the_most() {
    for class in [Class::Read, Class::Operate, Class::Admin] {
        assert_eq!(Class::from_number(class.to_proto() as i32), class);
        assert_eq!(class.as_str().parse(), Ok(class));
    }
    assert_eq!(Class::from_number(0), Class::Admin);
    assert_eq!(Class::from_number(9), Class::Admin);
}

#[test]
fn defaults_are_those_of_the_contract() {
    let args: EnrollmentCreateArgs =
        serde_json::from_str(r#"{"token_id":"t-1234567","secret_sha256":"","name":"n"}"#).unwrap();
    assert_eq!((args.expires_in_seconds, args.eligible), (900, false));
    assert!(serde_json::from_str::<NoArgs>(r#"{"x":1}"#).is_err());
}

#[test]
fn more_tokens_are_bounded_as_the_schema_says() {
    let args = serde_json::to_value(find("enrollment.create").unwrap().args_schema()).unwrap();
    assert_eq!(args.pointer("/properties/more/maxItems"), Some(&(TOKENS_AT_ONCE - 1).into()));
}

#[test]
fn arguments_that_are_too_large_name_the_field() {
    let of = |value: Value| value.as_object().cloned().unwrap_or_default();
    let files = vec!["x".repeat(600); 90];
    let large = serde_json::json!({ "document": { "artifact": { "files": files, "source": "hub" } } });
    let says = check_size(&of(large)).unwrap_err();
    assert_eq!(
        says,
        "args are 54322 bytes of JSON, and at most 49152 are allowed: document.artifact.files takes 54271 of them"
    );
    let many: Map<_, _> = (0..5000).map(|at| (format!("key-{at:05}"), at.into())).collect();
    assert!(check_size(&many).unwrap_err().ends_with("49152 are allowed"));
    check_size(&of(serde_json::json!({ "name": "x" }))).unwrap();
}
