//! Contract documents: each has its parts, and each message, field, method, event, operation and word has its entry.

use std::collections::BTreeMap;
use std::path::PathBuf;

use umbel_contracts::operations;

use crate::descriptors::{messages, pool, root};

/// The document of each package.
const OF_PACKAGE: [(&str, &str); 3] = [
    ("umbel.wire.v1", "wire.md"),
    ("umbel.control.v1", "control-edge.md"),
    ("umbel.node.v1", "edge-node.md"),
];

/// Every contract document.
const DOCUMENTS: [&str; 7] = [
    "wire.md",
    "control-edge.md",
    "edge-node.md",
    "operator-http.md",
    "openai.md",
    "config.md",
    "metrics.md",
];

/// What stands at the head of each.
const HEAD: [&str; 7] =
    ["Id:", "Boundary:", "Status:", "Sources:", "Human documentation:", "Read when:", "Scope:"];

/// The sections of each.
const SECTIONS: [&str; 4] =
    ["## Flows", "## Meaning of fields", "## Forbidden", "## What to check when changing"];

fn read(document: &str) -> String {
    let path = root().join(document);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn each_document_has_its_parts() {
    for document in DOCUMENTS {
        let text = read(document);
        for part in HEAD {
            let line = text.lines().find(|line| line.starts_with(part));
            assert!(line.is_some_and(|line| line.len() > part.len() + 3), "{document}: no \"{part}\"");
        }
        for section in SECTIONS {
            assert!(text.lines().any(|line| line == section), "{document}: no \"{section}\"");
        }
    }
}

#[test]
fn the_files_that_a_document_names_exist() {
    for document in DOCUMENTS {
        for line in read(document).lines() {
            let Some(list) =
                line.strip_prefix("Sources:").or_else(|| line.strip_prefix("Human documentation:"))
            else {
                continue;
            };
            for path in list.split('`').skip(1).step_by(2) {
                let path: PathBuf = root().join("..").join(path);
                assert!(path.exists(), "{document} names {}, which does not exist", path.display());
            }
        }
    }
}

/// The text below a heading, up to the next one.
fn section<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let heading = format!("\n### {name}\n");
    let start = text.find(&heading)? + heading.len();
    let rest = &text[start..];
    Some(rest.find("\n#").map_or(rest, |end| &rest[..end]))
}

#[test]
fn each_message_has_its_entry_and_each_field_is_in_it() {
    for message in messages() {
        let document = OF_PACKAGE.iter().find(|(package, _)| *package == message.package_name()).unwrap().1;
        let text = read(document);
        let entry = section(&text, message.name());
        let entry = entry.unwrap_or_else(|| panic!("{document}: no entry \"### {}\"", message.name()));
        for field in message.fields() {
            let name = format!("`{}`", field.name());
            assert!(entry.contains(&name), "{document}: {} says nothing of {name}", message.name());
        }
    }
}

#[test]
fn each_word_of_an_enum_is_in_the_document() {
    for names in pool().all_enums() {
        let document = OF_PACKAGE.iter().find(|(package, _)| *package == names.package_name()).unwrap().1;
        let text = read(document);
        for value in names.values().filter(|value| value.number() != 0) {
            assert!(text.contains(value.name()), "{document}: nothing of {}", value.name());
        }
    }
}

#[test]
fn each_operation_is_in_the_document_with_its_class() {
    let text = read("control-edge.md");
    for spec in operations::ALL {
        let row = format!("| `{}` | {} |", spec.name, spec.class);
        assert!(text.contains(&row), "control-edge.md: no row \"{row}\"");
    }
}

/// The keys of the example files, dotted, with their values as text. Tables of an array count as one.
fn example(file: &str) -> BTreeMap<String, String> {
    let path = root().join("../deploy/examples").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut keys = BTreeMap::new();
    flatten("", &toml::from_str::<toml::Table>(&text).unwrap(), &mut keys);
    keys
}

/// Tables whose keys are the operator's own.
const NAMED_BY_HAND: [&str; 6] =
    ["node.labels", "node.fabric_labels", "artifacts.roots", "programs.cli", "endpoints", "engine.profile"];

fn flatten(path: &str, table: &toml::Table, keys: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match value {
            // Labels, roots and the like are named by whoever writes the file.
            toml::Value::Table(_) if NAMED_BY_HAND.contains(&path.as_str()) => {
                drop(keys.insert(path, String::new()))
            }
            toml::Value::Table(inner) => flatten(&path, inner, keys),
            toml::Value::Array(items) if items.iter().all(toml::Value::is_table) && !items.is_empty() => {
                items.iter().for_each(|item| flatten(&path, item.as_table().unwrap(), keys));
            }
            toml::Value::String(text) => drop(keys.insert(path, text.clone())),
            other => drop(keys.insert(path, other.to_string())),
        }
    }
}

#[test]
fn the_configuration_document_has_the_keys_and_defaults_of_the_examples() {
    let text = read("config.md");
    for file in ["control-plane.toml", "edge.toml", "node.toml"] {
        let mut keys = example(file);
        let section = section(&text, file).unwrap();
        for row in section.lines().filter(|line| line.starts_with("| `")) {
            let mut cells = row.split('|').skip(1);
            let named: Vec<_> = cells.next().unwrap().split('`').skip(1).step_by(2).collect();
            let defaults: Vec<_> = cells.next().unwrap().split(',').map(str::trim).collect();
            for (index, key) in named.iter().enumerate() {
                let shown = keys.remove(*key).unwrap_or_else(|| panic!("{file} has no {key}, config.md has"));
                let told = *defaults.get(index).unwrap_or(&"");
                // Only what is a value in itself can be compared; engines have examples, not defaults.
                let is_value = told.starts_with(|first: char| first.is_ascii_digit() || first == '/');
                assert!(
                    !is_value || key.starts_with("engine.") || told == shown,
                    "{file}: {key} is {shown}, not {told}"
                );
            }
        }
        assert_eq!(keys, BTreeMap::new(), "config.md says nothing of these keys of {file}");
    }
}
