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

/// All deployments of one moment, each looked at once.
#[derive(Debug)]
pub(crate) struct Summary {
    /// Deployments that do not come right by themselves, and the guard while it holds.
    pub(crate) problems: Vec<Problem>,
    figures: DeploymentFigures,
    /// Those that are short come first.
    lines: Vec<DeploymentSummary>,
}

impl Summary {
    pub(crate) fn of(site: &Site) -> Self {
        site.deployments.read(Self::of_table)
    }

    fn of_table(table: &Deployments) -> Self {
        let held = table.held().map(|held| Problem {
            code: "DEPLOYMENTS_HELD".to_owned(),
            message: held.sentence(),
            since_unix_ms: held.since_unix_ms,
            subject: String::new(),
        });
        let mut problems: Vec<Problem> = held.into_iter().collect();
        let (mut short, mut whole) = (Vec::new(), Vec::new());
        for row in table.rows.values() {
            let stands = table.stands(row);
            let line = line(row, &stands);
            if line.ready < line.wanted {
                short.push(line)
            } else {
                whole.push(line)
            }
            problems.extend(problem(table, row, stands));
        }
        let failed = table.replicas.values().filter(|one| one.state == ReplicaState::Failed);
        let figures = DeploymentFigures {
            total: count(table.rows.len()),
            short: count(short.len()),
            replicas_wanted: table.rows.values().map(DeploymentRow::wanted).sum(),
            replicas_ready: count(table.replicas.values().filter(|one| table.serves(one)).count()),
            replicas_failed: count(failed.count()),
            held: table
                .held()
                .map(|held| beginning(&held.sentence(), SENTENCE).to_owned())
                .unwrap_or_default(),
            ..DeploymentFigures::default()
        };
        short.append(&mut whole);
        Self { problems, figures, lines: short }
    }

    /// All deployments in figures, with as many lines as fit in `room` bytes.
    pub(crate) fn figures(self, room: usize) -> DeploymentFigures {
        let Self { mut figures, lines, .. } = self;
        // Each entry has its length and the field's number before it.
        let mut left = room.saturating_sub(figures.encoded_len());
        for one in lines {
            let bytes = one.encoded_len() + 3;
            let Some(rest) = left.checked_sub(bytes) else { break };
            left = rest;
            figures.listed.push(one);
        }
        figures
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn line(row: &DeploymentRow, stands: &Stands) -> DeploymentSummary {
    DeploymentSummary {
        name: row.spec.name.clone(),
        model: row.spec.model().to_owned(),
        state: number(stands.state).into(),
        wanted: row.wanted(),
        ready: count(stands.ready),
    }
}

fn problem(table: &Deployments, row: &DeploymentRow, stands: Stands) -> Option<Problem> {
    let Stands { state, message, .. } = stands;
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
