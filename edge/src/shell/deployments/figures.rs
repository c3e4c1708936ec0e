//! Deployments in figures, and those that want a person: what fits in a heartbeat.
//!
//! Invariant: they follow from the same rows, in the same words, as what [`super::view`] says of each.

use prost::Message;
use umbel_contracts::objects::DeploymentState;
use umbel_contracts::proto::control::{DeploymentFigures, DeploymentSummary, Problem};
use umbel_wire::text::beginning;

use super::view::number;
use crate::core::deployments::{DeploymentRow, Deployments, ReplicaState, Stands};
use crate::shell::site::Site;

/// A sentence in them, in bytes.
const SENTENCE: usize = 256;

/// All deployments in figures; those that are short come first among the listed ones, of which there are as many as fit in
/// `room` bytes.
pub(crate) fn figures(site: &Site, room: usize) -> DeploymentFigures {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    site.deployments.read(|table| {
        let in_state = |state| table.replicas.values().filter(|one| one.state == state).count();
        let mut figures = DeploymentFigures {
            total: count(table.rows.len()),
            replicas_wanted: table.rows.values().map(DeploymentRow::wanted).sum(),
            replicas_ready: count(table.replicas.values().filter(|one| table.serves(one)).count()),
            replicas_failed: count(in_state(ReplicaState::Failed)),
            held: table
                .held()
                .map(|held| beginning(&held.sentence(), SENTENCE).to_owned())
                .unwrap_or_default(),
            ..DeploymentFigures::default()
        };
        let (short, whole): (Vec<_>, Vec<_>) =
            table.rows.values().map(|row| line(table, row)).partition(|one| one.ready < one.wanted);
        figures.short = count(short.len());
        // Each entry has its length and the field's number before it.
        let mut left = room.saturating_sub(figures.encoded_len());
        for one in short.into_iter().chain(whole) {
            let bytes = one.encoded_len() + 3;
            let Some(rest) = left.checked_sub(bytes) else { break };
            left = rest;
            figures.listed.push(one);
        }
        figures
    })
}

fn line(table: &Deployments, row: &DeploymentRow) -> DeploymentSummary {
    let Stands { state, ready, .. } = table.stands(row);
    DeploymentSummary {
        name: row.spec.name.clone(),
        model: row.spec.model().to_owned(),
        state: number(state).into(),
        wanted: row.wanted(),
        ready: u32::try_from(ready).unwrap_or(u32::MAX),
    }
}

/// Deployments that do not come right by themselves, and the guard while it holds.
pub(crate) fn problems(site: &Site) -> Vec<Problem> {
    site.deployments.read(|table| {
        let held = table.held().map(|held| Problem {
            code: "DEPLOYMENTS_HELD".to_owned(),
            message: held.sentence(),
            since_unix_ms: held.since_unix_ms,
            subject: String::new(),
        });
        held.into_iter().chain(table.rows.values().filter_map(|row| problem(table, row))).collect()
    })
}

fn problem(table: &Deployments, row: &DeploymentRow) -> Option<Problem> {
    let Stands { state, message, .. } = table.stands(row);
    let (code, word) = match state {
        DeploymentState::Degraded => ("DEPLOYMENT_DEGRADED", "has fewer replicas than it wants"),
        DeploymentState::Failed => ("DEPLOYMENT_FAILED", "has failed"),
        DeploymentState::Unplaced => ("DEPLOYMENT_UNPLACED", "fits nowhere"),
        _ => return None,
    };
    let name = &row.spec.name;
    let broken = table.replicas_of(name).filter(|one| one.state != ReplicaState::Ready);
    let since = table.unplaced(name).map(|unplaced| unplaced.since_unix_ms);
    let since = since.or_else(|| broken.map(|one| one.since_unix_ms).max());
    Some(Problem {
        code: code.to_owned(),
        message: format!("{name} {word}: {message}; umbel ctl model why {name}"),
        since_unix_ms: since.unwrap_or(row.applied_at_unix_ms),
        subject: name.clone(),
    })
}
