//! Frozen descriptor sets: within a protocol version nothing that was on the wire is removed, renumbered, retyped or
//! renamed. Adding is allowed.
//!
//! A descriptor set is flattened into facts, a line each; a fact of the frozen set that is gone or different is a break.

use std::collections::BTreeMap;

use prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
use prost_reflect::prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
};

use prost::Message;

use crate::descriptors::{PACKAGES, messages, pool, root};

/// What is said about one thing, by its address.
type Facts = BTreeMap<String, String>;

fn facts(set: &FileDescriptorSet) -> Facts {
    let mut facts = Facts::new();
    for file in &set.file {
        for message in &file.message_type {
            message_facts(&mut facts, file.package(), message);
        }
        for names in &file.enum_type {
            enum_facts(&mut facts, file.package(), names);
        }
    }
    facts
}

fn message_facts(facts: &mut Facts, scope: &str, message: &DescriptorProto) {
    let name = format!("{scope}.{}", message.name());
    facts.insert(format!("message {name}"), "exists".to_owned());
    for field in &message.field {
        facts.insert(format!("field {name} #{}", field.number()), field_facts(message, field));
    }
    for range in &message.reserved_range {
        for number in range.start()..range.end().min(range.start() + 1000) {
            facts.insert(format!("field {name} #{number}"), "reserved".to_owned());
        }
    }
    for reserved in &message.reserved_name {
        facts.insert(format!("field {name} \"{reserved}\""), "reserved".to_owned());
    }
    for inner in &message.nested_type {
        message_facts(facts, &name, inner);
    }
    for inner in &message.enum_type {
        enum_facts(facts, &name, inner);
    }
}

fn field_facts(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let oneof = match (field.oneof_index, field.proto3_optional()) {
        (Some(index), false) => message.oneof_decl[usize::try_from(index).unwrap()].name().to_owned(),
        _ => "none".to_owned(),
    };
    format!(
        "name {}, json {}, type {:?} {}, {:?}, presence {}, oneof {oneof}, packed {:?}",
        field.name(),
        field.json_name(),
        field.r#type(),
        field.type_name(),
        field.label(),
        field.proto3_optional(),
        field.options.as_ref().and_then(|options| options.packed)
    )
}

fn enum_facts(facts: &mut Facts, scope: &str, names: &EnumDescriptorProto) {
    let name = format!("{scope}.{}", names.name());
    facts.insert(format!("enum {name}"), "exists".to_owned());
    for value in &names.value {
        facts.insert(format!("value {name} #{}", value.number()), value.name().to_owned());
    }
}

/// Every fact of `old` that does not hold in `new`.
fn breaks(old: &FileDescriptorSet, new: &FileDescriptorSet) -> Vec<String> {
    let new = facts(new);
    facts(old)
        .into_iter()
        .filter_map(|(what, was)| match new.get(&what) {
            Some(is) if *is == was => None,
            Some(is) => Some(format!("{what}: was {was}, is {is}")),
            None => Some(format!("{what}: was {was}, is gone")),
        })
        .collect()
}

/// The set of one package as it is now, without comments, so that rewording one is no change.
fn current(package: &str) -> FileDescriptorSet {
    let file = pool().files().find(|file| file.package_name() == package).unwrap();
    let proto = FileDescriptorProto { source_code_info: None, ..file.file_descriptor_proto().clone() };
    FileDescriptorSet { file: vec![proto] }
}

fn frozen_path(package: &str) -> std::path::PathBuf {
    root().join(format!("frozen/{package}.bin"))
}

#[test]
fn nothing_that_was_on_the_wire_has_changed() {
    for (package, _) in PACKAGES {
        let path = frozen_path(package);
        if std::env::var_os("UMBEL_FREEZE").is_some() {
            std::fs::write(&path, current(package).encode_to_vec()).unwrap();
        }
        let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let frozen = FileDescriptorSet::decode(bytes.as_slice()).unwrap();
        assert!(facts(&frozen).len() > 20, "{} is empty", path.display());
        let found = breaks(&frozen, &current(package));
        assert!(
            found.is_empty(),
            "this breaks peers of the same protocol version; add instead of changing, or raise the version:\n{}",
            found.join("\n")
        );
    }
}

/// Changes the set and tells how many breaks are found.
fn after(change: impl Fn(&mut FileDescriptorProto)) -> usize {
    let old = current("umbel.control.v1");
    let mut new = old.clone();
    change(&mut new.file[0]);
    assert_ne!(old, new, "the change changed nothing");
    breaks(&old, &new).len()
}

fn message<'a>(file: &'a mut FileDescriptorProto, name: &str) -> &'a mut DescriptorProto {
    file.message_type.iter_mut().find(|message| message.name() == name).unwrap()
}

#[test]
fn each_kind_of_break_is_found_and_an_addition_is_none() {
    let command = |change: &dyn Fn(&mut FieldDescriptorProto)| {
        after(|file| change(&mut message(file, "EdgeCommandRequest").field[1]))
    };
    assert_eq!(command(&|field| field.name = Some("verb".to_owned())), 1, "renamed");
    assert_eq!(command(&|field| field.json_name = Some("verb".to_owned())), 1, "JSON name");
    assert_eq!(command(&|field| field.number = Some(90)), 1, "renumbered");
    assert_eq!(command(&|field| field.set_type(Type::Bytes)), 1, "retyped");
    assert_eq!(command(&|field| field.set_label(Label::Repeated)), 1, "cardinality");
    assert_eq!(command(&|field| field.proto3_optional = Some(true)), 1, "presence");
    assert_eq!(after(|file| drop(message(file, "EdgeCommandRequest").field.remove(1))), 1, "field removed");
    assert!(after(|file| drop(file.message_type.remove(0))) > 1, "message removed");
    assert!(after(|file| file.message_type[0].name = Some("Renamed".to_owned())) > 1, "message renamed");
    assert_eq!(after(|file| drop(file.enum_type[0].value.remove(1))), 1, "value removed");
    assert_eq!(after(|file| file.enum_type[0].value[1].number = Some(90)), 1, "value renumbered");
    assert_eq!(after(|file| file.enum_type[0].value[1].name = Some("OTHER".to_owned())), 1, "value renamed");
    let added =
        FieldDescriptorProto { name: Some("added".to_owned()), number: Some(90), ..Default::default() };
    assert_eq!(after(|file| message(file, "EdgeCommandRequest").field.push(added.clone())), 0, "field added");
    assert_eq!(after(|file| file.message_type.push(DescriptorProto::default())), 0, "message added");
}

#[test]
fn moving_a_field_into_or_out_of_a_oneof_is_a_break() {
    let old = current("umbel.wire.v1");
    let mut new = old.clone();
    let frame = message(&mut new.file[0], "Frame");
    let field = frame.field.iter_mut().find(|field| field.name() == "hello").unwrap();
    field.oneof_index = None;
    assert_eq!(breaks(&old, &new).len(), 1);
}

#[test]
fn a_reserved_number_or_name_cannot_be_used_again() {
    let mut old = current("umbel.control.v1");
    let reserved = message(&mut old.file[0], "EdgeFacts");
    reserved.reserved_name.push("gone".to_owned());
    reserved
        .reserved_range
        .push(prost_reflect::prost_types::descriptor_proto::ReservedRange { start: Some(50), end: Some(51) });
    assert_eq!(breaks(&old, &current("umbel.control.v1")).len(), 2);
}

#[test]
fn the_frame_header_is_frozen_for_good() {
    let frame = pool().get_message_by_name("umbel.wire.v1.Frame").unwrap();
    let header: Vec<_> = frame.fields().filter(|field| field.containing_oneof().is_none()).collect();
    let said: Vec<_> = header.iter().map(|field| (field.number(), field.name())).collect();
    assert_eq!(said, [(1, "kind"), (2, "id"), (3, "flags"), (4, "payload"), (5, "limit")]);
}

#[test]
fn every_enum_begins_with_unspecified() {
    for names in pool().all_enums() {
        let zero = names.get_value(0).unwrap();
        assert!(zero.name().ends_with("_UNSPECIFIED"), "{}", zero.full_name());
    }
}

#[test]
fn no_message_schedules_work_at_a_node() {
    for message in messages() {
        let name = message.name().to_ascii_lowercase();
        assert!(!name.contains("schedule"), "{} is a reserved name", message.full_name());
    }
    // What a control plane sends names no node outside the selector of an operation or question.
    let sent = [
        "EdgeEnrollResponse",
        "EdgeHelloResponse",
        "EdgeHeartbeatAck",
        "EdgeCredentialResponse",
        "EdgeStatusRequest",
        "EdgeCommandRequest",
    ];
    for name in sent {
        let message = pool().get_message_by_name(&format!("umbel.control.v1.{name}")).unwrap();
        for field in message.fields() {
            let named = field.name();
            assert!(
                !named.contains("node") || named == "node_selector",
                "{}: a control plane gives no work to a named node",
                field.full_name()
            );
            for work in ["provider", "job", "lease", "engine", "replica", "deployment"] {
                assert!(
                    !named.contains(work),
                    "{}: a control plane only relays operations",
                    field.full_name()
                );
            }
        }
    }
}

#[test]
fn whoever_sends_a_message_is_known() {
    // The list above is complete: each method, event and handshake has its two messages, and nothing else is sent.
    let methods: Vec<_> = pool()
        .get_enum_by_name("umbel.control.v1.Method")
        .unwrap()
        .values()
        .map(|value| value.number())
        .collect();
    let events: Vec<_> = pool()
        .get_enum_by_name("umbel.control.v1.Event")
        .unwrap()
        .values()
        .map(|value| value.number())
        .collect();
    assert_eq!(methods, [0, 1, 2, 3, 4], "a new method: say above what the control plane sends with it");
    assert_eq!(events, [0, 1, 2], "a new event: say above who sends it");
}
