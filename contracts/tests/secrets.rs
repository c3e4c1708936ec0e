//! Rule R4: no node address, token, credential, private endpoint or transport detail leaves its host in a status,
//! event, command result or error. The scan goes through descriptors, schemas, examples and documents.
//!
//! Two exceptions are named by the rule: a shard's fabric address inside a job lease (no such message exists yet), and
//! an enrollment result, which carries the issuing server's own addresses and CA digest.

use prost::Message;
use prost_reflect::{DynamicMessage, Kind, MessageDescriptor, ReflectMessage, Value};
use umbel_contracts::operations;
use umbel_contracts::proto::control::EdgeCommandRequest;

use crate::descriptors::{files_below, messages, root};
use crate::golden::vectors;

/// Words in a field's name that tell of what must not travel.
const FORBIDDEN: [&str; 22] = [
    "address",
    "addresses",
    "addr",
    "ip",
    "ips",
    "host",
    "port",
    "ports",
    "endpoint",
    "url",
    "uri",
    "socket",
    "token",
    "secret",
    "password",
    "credential",
    "key",
    "private",
    "certificate",
    "cert",
    "authorization",
    "cookie",
];

/// Fields that have such a word and may, each with its reason.
const ALLOWED: &[(&str, &str)] = &[
    ("umbel.wire.v1.Event.key", "names an event, so that only its newest is kept"),
    ("umbel.control.v1.EdgeEnrollRequest.token_id", "the token's public half, sent by the edge that uses it"),
    ("umbel.control.v1.EdgeEnrollRequest.token_secret", "the proof itself, to its issuer and nobody else"),
    ("umbel.control.v1.EdgeEnrollResponse.certificate_chain", "given to the edge whose key it is for"),
    ("umbel.control.v1.EdgeEnrollResponse.ca_certificate", "public, given to who must trust it"),
    ("umbel.node.v1.NodeEnrollRequest.token_id", "the token's public half, sent by the node that uses it"),
    ("umbel.node.v1.NodeEnrollRequest.token_secret", "the proof itself, to its issuer and nobody else"),
    ("umbel.node.v1.NodeEnrollResponse.certificate_chain", "given to the node whose key it is for"),
    ("umbel.node.v1.NodeEnrollResponse.ca_certificate", "public, given to who must trust it"),
    ("umbel.node.v1.Gpu.pci_address", "a slot inside the host; nothing that can be dialed"),
    ("umbel.control.v1.GpuSummary.pci_address", "a slot inside the host; nothing that can be dialed"),
    ("umbel.node.v1.Gpu.memory_is_host", "whose memory it is"),
    ("umbel.control.v1.GpuSummary.memory_is_host", "whose memory it is"),
    (
        "umbel.control.v1.EdgeNodeSnapshot.credential",
        "its dates and state; a message without key or certificate",
    ),
    ("umbel.control.v1.EdgeCredentialResponse.certificate_chain", "given to the edge whose key it is for"),
    ("umbel.node.v1.NodeHelloResponse.ca_certificates", "public, given to who must trust them"),
    ("umbel.node.v1.NodeHelloResponse.rotate_credential", "a wish, no credential"),
    ("umbel.node.v1.NodeCredentialResponse.certificate_chain", "given to the node whose key it is for"),
    ("umbel.node.v1.NodeCredentialResponse.ca_certificates", "public, given to who must trust them"),
    ("umbel.node.v1.NodeTrust.ca_certificates", "public, given to who must trust them"),
    ("umbel.node.v1.RuntimeProbeReport.first_token_ms", "a time: until the first of a model's tokens"),
];

/// Properties of arguments and results that have such a word and may.
const ALLOWED_PROPERTIES: &[(&str, &str)] = &[
    ("enrollment.create args.token_id", "the token's public half"),
    ("enrollment.create args.secret_sha256", "a hash: enough to check a secret, useless to make one"),
    ("enrollment.create args.more.token_id", "the token's public half"),
    ("enrollment.create args.more.secret_sha256", "a hash: enough to check a secret, useless to make one"),
    ("enrollment.create result.token_id", "the token's public half"),
    ("enrollment.create result.addresses", "R4's second exception: the issuing server's own"),
    ("enrollment.list result.enrollments.token_id", "the token's public half"),
    ("enrollment.revoke args.token_id", "the token's public half"),
    ("enrollment.revoke result.token_id", "the token's public half"),
    ("apikey.create args.key_id", "the key's public half"),
    ("apikey.create args.secret_sha256", "a hash: enough to check a secret, useless to make one"),
    ("apikey.create result.key_id", "the key's public half"),
    ("apikey.list result.apikeys.key_id", "the key's public half"),
    ("apikey.revoke args.key_id", "the key's public half"),
    ("apikey.revoke result.key_id", "the key's public half"),
    ("apikey.update args.key_id", "the key's public half"),
    ("apikey.usage args.key_id", "the key's public half"),
    ("request.list args.key_id", "the key's public half"),
    ("node.credential.approve args.key_sha256", "the hash of a public key"),
];

/// The forbidden word in a name, if it has one. LLM tokens are counted, not secret.
fn forbidden(name: &str) -> Option<&'static str> {
    if name.ends_with("_tokens") {
        return None;
    }
    FORBIDDEN.into_iter().find(|word| name.split('_').any(|part| part == *word))
}

#[test]
fn no_field_is_made_for_what_must_not_travel() {
    for message in messages() {
        for field in message.fields() {
            if let Some(word) = forbidden(field.name()) {
                let allowed = ALLOWED.iter().any(|(name, _)| *name == field.full_name());
                assert!(allowed, "{} has the word \"{word}\" (R4)", field.full_name());
            }
        }
    }
}

#[test]
fn every_exception_is_still_needed() {
    let exists = |name: &str| messages().flat_map(|message| names(&message)).any(|field| field == name);
    for (name, _) in ALLOWED {
        assert!(exists(name), "{name} is gone; take it off the list");
    }
    let properties: Vec<_> = all_properties();
    for (name, _) in ALLOWED_PROPERTIES {
        assert!(properties.iter().any(|property| property == name), "{name} is gone; take it off the list");
    }
}

fn names(message: &MessageDescriptor) -> Vec<String> {
    message.fields().map(|field| field.full_name().to_owned()).collect()
}

#[test]
fn no_argument_or_result_is_made_for_what_must_not_travel() {
    for property in all_properties() {
        let name = property.rsplit('.').next().unwrap();
        if let Some(word) = forbidden(name) {
            // Results hold objects of the operator API, which have their own list.
            let object = property.contains(" result.")
                && ALLOWED_IN_OBJECTS.iter().any(|(allowed, _)| *allowed == name);
            let allowed = object || ALLOWED_PROPERTIES.iter().any(|(allowed, _)| *allowed == property);
            assert!(allowed, "{property} has the word \"{word}\" (R4)");
        }
    }
}

/// `OPERATION args.PATH` and `OPERATION result.PATH` for every property of every schema.
pub(crate) fn all_properties() -> Vec<String> {
    let mut found = Vec::new();
    for spec in operations::ALL {
        let args = serde_json::to_value(spec.args_schema()).unwrap();
        properties(&args, &format!("{} args", spec.name), &mut found);
        let result = serde_json::to_value(spec.result_schema()).unwrap();
        properties(&result, &format!("{} result", spec.name), &mut found);
    }
    found
}

fn properties(schema: &serde_json::Value, path: &str, found: &mut Vec<String>) {
    if let Some(own) = schema.get("properties").and_then(serde_json::Value::as_object) {
        for (name, inner) in own {
            let path = format!("{path}.{name}");
            properties(inner, &path, found);
            found.push(path);
        }
    }
    for part in ["items", "anyOf", "oneOf", "allOf", "additionalProperties"] {
        match schema.get(part) {
            Some(serde_json::Value::Array(inner)) => {
                inner.iter().for_each(|inner| properties(inner, path, found))
            }
            Some(inner) => properties(inner, path, found),
            None => {}
        }
    }
}

/// Fields of the operator API's objects that have such a word and may.
const ALLOWED_IN_OBJECTS: &[(&str, &str)] = &[
    ("token_id", "a token's public half"),
    ("key_id", "a key's public half"),
    ("key_name", "what people call a key"),
    ("secret_sha256", "a hash: enough to check a secret, useless to make one"),
    ("key_sha256", "the hash of a public key, by which an edge is known"),
    ("credential", "whether it is good, until when, and the hash of its public key"),
    ("pci_address", "a slot inside the host; nothing that can be dialed"),
    ("memory_is_host", "whose memory it is"),
    ("addresses", "R4's second exception: the issuing server's own, in the result of minting a token"),
];

#[test]
fn no_object_of_the_operator_api_is_made_for_what_must_not_travel() {
    let mut seen = 0;
    for path in files_below(&root().join("src/objects")) {
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            let field = line.trim().strip_prefix("pub ").and_then(|rest| rest.split_once(": "));
            let Some((name, _)) = field.filter(|(name, _)| !name.contains(['(', ' '])) else { continue };
            seen += 1;
            if let Some(word) = forbidden(name) {
                let allowed = ALLOWED_IN_OBJECTS.iter().any(|(allowed, _)| *allowed == name);
                assert!(allowed, "{}: `{name}` has the word \"{word}\" (R4)", path.display());
            }
        }
    }
    assert!(seen > 150, "only {seen} fields were looked at");
}

#[test]
fn a_commands_metadata_has_no_place_for_it() {
    for key in operations::METADATA_KEYS {
        assert_eq!(forbidden(key), None, "{key}");
    }
    // The examples keep to the list, too.
    for vector in vectors().iter().filter(|vector| vector.message.name() == "EdgeCommandRequest") {
        let command = EdgeCommandRequest::decode(vector.bytes.as_slice()).unwrap();
        for key in command.metadata.keys() {
            assert!(operations::METADATA_KEYS.contains(&key.as_str()), "{}: {key}", vector.path.display());
        }
    }
}

/// What in a text looks like something that must not travel.
pub(crate) fn found_in(text: &str) -> Option<String> {
    let word = |character: char| {
        character.is_ascii_alphanumeric() || matches!(character, '.' | ':' | '_' | '-' | '[' | ']')
    };
    if text.contains("-----BEGIN") {
        return Some("PEM".to_owned());
    }
    text.split(|character| !word(character)).find_map(|part| {
        let bare = part.trim_matches(['.', '-', ':']);
        let secret = ["umbel1_", "umk_", "umo_", "sk-", "ghp_", "hf_"]
            .iter()
            .any(|prefix| bare.starts_with(prefix) && bare.len() > prefix.len() + 8);
        let address =
            bare.parse::<std::net::IpAddr>().is_ok() || bare.parse::<std::net::SocketAddr>().is_ok();
        let endpoint = bare.rsplit_once(':').is_some_and(|(host, port)| {
            port.len() >= 2
                && port.bytes().all(|byte| byte.is_ascii_digit())
                && host.contains('.')
                && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-')
        });
        (secret || address || endpoint).then(|| bare.to_owned())
    })
}

#[test]
fn the_scan_finds_what_it_is_for() {
    let secret = "x".repeat(43);
    for bad in [
        "dial 10.0.0.7 now",
        "10.0.0.7:7451",
        "[2001:db8::7]:7451",
        "fe80::1",
        "edge.example.com:7451",
        &format!("umbel1_{secret}"),
        &format!("key umk_0123456789abcdef_{secret}"),
        "-----BEGIN CERTIFICATE-----",
    ] {
        assert!(found_in(bad).is_some(), "{bad}");
    }
    for good in [
        "ber1",
        "1.95.0",
        "version 0.1.0",
        "NVIDIA H200",
        "00000000:17:00.0",
        "12:30",
        "gpu-04",
        "org/model:tag",
    ] {
        assert_eq!(found_in(good), None, "{good}");
    }
    for name in ["node_address", "ip", "token", "api_key", "listen_port", "base_url", "client_secret"] {
        assert!(forbidden(name).is_some(), "{name}");
    }
    for name in ["hostname", "prompt_tokens", "keepalive", "reports", "description"] {
        assert_eq!(forbidden(name), None, "{name}");
    }
}

#[test]
fn no_example_shows_it() {
    for vector in vectors() {
        let message = DynamicMessage::decode(vector.message.clone(), vector.bytes.as_slice()).unwrap();
        walk(&message, &vector.path.display().to_string());
    }
}

fn walk(message: &DynamicMessage, path: &str) {
    for (field, value) in message.fields() {
        walk_value(value, &format!("{path} {}", field.name()));
    }
    assert!(message.descriptor().fields().all(|field| !matches!(field.kind(), Kind::Float)), "{path}");
}

fn walk_value(value: &Value, path: &str) {
    match value {
        Value::String(text) => assert_eq!(found_in(text), None, "{path} (R4)"),
        Value::Bytes(bytes) => {
            if let Ok(text) = std::str::from_utf8(bytes) {
                assert_eq!(found_in(text), None, "{path} (R4)");
            }
        }
        Value::Message(inner) => walk(inner, path),
        Value::List(items) => items.iter().for_each(|item| walk_value(item, path)),
        Value::Map(entries) => entries.values().for_each(|value| walk_value(value, path)),
        _ => {}
    }
}

#[test]
fn no_document_shows_it() {
    for path in files_below(root()) {
        let named = path.file_name().unwrap().to_str().unwrap();
        // Configuration names what a host itself listens on and dials: its examples cannot do without.
        if !named.ends_with(".md") || named == "config.md" {
            continue;
        }
        for (number, line) in std::fs::read_to_string(&path).unwrap().lines().enumerate() {
            assert_eq!(found_in(line), None, "{}:{} (R4)", path.display(), number + 1);
        }
    }
}
