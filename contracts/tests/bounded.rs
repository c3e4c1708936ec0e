//! The table of bounds covers every field that can be long or many, by reflection.

use prost_reflect::{Kind, MessageDescriptor};
use umbel_contracts::bounds::{Shape, shapes};

use crate::descriptors::{messages, pool};

#[test]
fn every_message_of_a_peer_has_a_shape() {
    let mut shaped: Vec<_> = shapes().map(|(package, shape)| format!("{package}.{}", shape.name)).collect();
    let mut described: Vec<_> = messages()
        .filter(|message| message.package_name() != "umbel.wire.v1")
        .map(|message| message.full_name().to_owned())
        .collect();
    shaped.sort();
    described.sort();
    assert_eq!(shaped, described);
}

#[test]
fn every_field_that_can_be_long_or_many_has_its_bound() {
    for (package, shape) in shapes() {
        let message = pool().get_message_by_name(&format!("{package}.{}", shape.name)).unwrap();
        check(&message, shape);
    }
}

fn check(message: &MessageDescriptor, shape: &Shape) {
    let name = message.full_name();
    for bound in shape.fields {
        let field =
            message.get_field(bound.number).unwrap_or_else(|| panic!("{name}: no field {}", bound.number));
        assert_eq!(field.name(), bound.name, "{name}");
        assert!(bound.most == 1 || field.is_list() || field.is_map(), "{name}.{} occurs once", bound.name);
    }
    for field in message.fields() {
        let bound = shape.fields.iter().find(|bound| bound.number == field.number());
        match field.kind() {
            Kind::String | Kind::Bytes => {
                assert!(bound.is_some_and(|bound| bound.longest > 0), "{}", field.full_name())
            }
            Kind::Message(inner) => {
                let bound = bound.unwrap_or_else(|| panic!("{} has no bound", field.full_name()));
                let shape = bound.inside.unwrap_or_else(|| panic!("{} has no shape", field.full_name()));
                if inner.is_map_entry() { check(&inner, shape) } else { assert_eq!(inner.name(), shape.name) }
            }
            _ => assert!(!field.is_list() || bound.is_some(), "{}", field.full_name()),
        }
    }
}
