//! What operators see of an edge: its identity, which the control plane owns, beside its view, with its age.

use std::sync::Arc;
use std::time::Instant;

use umbel_contracts::objects::{
    CredentialObject, CredentialState, EdgeObject, OperationObject, ProblemObject, SummaryObject, timestamp,
};
use umbel_wire::clock;
use umbel_wire::ids::EdgeId;

use crate::core::edges::Known;
use crate::core::views::age_ms;
use crate::shell::plane::{FleetState, Plane};

/// Every enrolled edge, by name.
pub(super) fn all(plane: &Plane) -> Vec<EdgeObject> {
    let fleet = plane.fleet();
    let now = clock::now();
    fleet
        .edges
        .sorted()
        .into_iter()
        .map(|(edge_id, known)| object(plane, &fleet, edge_id, known, now))
        .collect()
}

/// One edge; `None` if it is not enrolled.
pub(super) fn one(plane: &Plane, edge_id: &EdgeId) -> Option<EdgeObject> {
    let fleet = plane.fleet();
    let known = fleet.edges.get(edge_id)?;
    Some(object(plane, &fleet, edge_id, known, clock::now()))
}

fn object(plane: &Plane, fleet: &FleetState, edge_id: &EdgeId, known: &Known, now: Instant) -> EdgeObject {
    let row = &known.row;
    let view = fleet.views.get(edge_id);
    let owner = fleet.slots.owner(edge_id);
    let round_trip = owner.and_then(|owner| owner.handle.stats().round_trip);
    let revoked = row.revoked.as_ref();
    let some = |text: &String| (!text.is_empty()).then(|| text.clone());
    let named = view.and_then(|view| some(&view.display_name)).or_else(|| some(&row.display_name));
    let operations = view.map(|view| Arc::clone(&view.operations)).unwrap_or_default();
    let summary = view.and_then(|view| view.summary.as_ref());
    let duplicate = view.and_then(|view| view.duplicate_since(now)).map(|since| ProblemObject {
        code: "DUPLICATE_IDENTITY".into(),
        message:
            "Another process showed this edge's credential while it was connected: was its state directory \
                  copied? Remove the copy, or revoke the credential and enroll anew."
                .into(),
        since: timestamp(since),
        subject: None,
    });
    let witness = plane.witness();
    let cut = witness.cut(edge_id, plane.clock.now().unix_ms()).map(|cut| ProblemObject {
        code: "AUDIT_CUT".into(),
        message: cut.sentence(),
        since: timestamp(cut.at_unix_ms),
        subject: None,
    });
    EdgeObject {
        edge_id: row.edge_id.clone(),
        display_name: named.unwrap_or_else(|| row.edge_id.clone()),
        connection: fleet.views.connection(edge_id),
        last_heard_ms: view.and_then(|view| view.heard_ms(now)),
        generation: view.and_then(|view| view.last_generation).map(|generation| generation.0),
        round_trip_us: round_trip.and_then(|time| u64::try_from(time.as_micros()).ok()),
        software_version: view.and_then(|view| some(&view.software_version)),
        protocol: view.map(|view| view.protocol),
        operations: operations
            .iter()
            .map(|(name, class)| OperationObject { name: name.clone(), class: class.as_str().into() })
            .collect(),
        events_lost: view.map_or(0, |view| view.events_lost),
        credential: CredentialObject {
            state: if revoked.is_some() { CredentialState::Revoked } else { CredentialState::Active },
            key_sha256: row.key_sha256.clone(),
            not_after: timestamp(row.not_after_unix_ms),
            revoked_at: revoked.map(|revoked| timestamp(revoked.at_unix_ms)),
            revoked_reason: revoked.map(|revoked| revoked.reason.clone()),
        },
        enrolled_at: timestamp(row.enrolled_at_unix_ms),
        last_summary: summary.map(|summary| SummaryObject::from_proto((*summary.said).clone())),
        last_summary_age_ms: summary.map(|summary| age_ms(now, summary.received)),
        problems: duplicate.into_iter().chain(cut).collect(),
    }
}
