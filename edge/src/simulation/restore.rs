//! A backup takes the place of a simulated edge's store, and what it does not know waits for people.
//!
//! Owns the steps of `backup.rs` and `shell/operations/approve.rs`. Leaves what is void, what is held and what an approval
//! writes to the cores.

use std::time::Instant;

use umbel_store::simulation::{Backup, Disk};
use umbel_store::{AuditRecord, Commit};
use umbel_wire::clock::Wall;
use umbel_wire::{Error, NodeId};

use super::operators::Change;
use super::{ENROLLMENTS, Edge, LinkId, REPORTS};
use crate::core::approval::{self, Past};
use crate::core::enrollment::EnrollmentRow;
use crate::core::registry::node::ReportRow;

/// A backup takes the store's place while no process runs; tokens that were open are void. False: it cannot be written.
pub fn restore(disk: &mut Disk, backup: &Backup, wall: Wall, mutation: Option<&'static str>) -> bool {
    if !disk.restore(backup, wall.unix_ms()) {
        return false;
    }
    if mutation == Some("open tokens survive a restore") {
        return true;
    }
    let rows = disk.load(ENROLLMENTS).unwrap_or_default();
    let open = rows.into_iter().filter_map(|stored| {
        let row = stored.json::<EnrollmentRow>().ok()?;
        Some((stored.key, row.voided(wall.unix_ms())?))
    });
    let commit = open.fold(Commit::new(), |commit, (key, row)| commit.put_json(ENROLLMENTS, key, &row));
    let rows = disk.load(REPORTS).unwrap_or_default();
    let said = rows.into_iter().filter_map(|stored| {
        let row = stored.json::<ReportRow>().ok()?;
        Some((stored.key, row.of_a_backup()?))
    });
    let commit = said.fold(commit, |commit, (key, row)| commit.put_json(REPORTS, key, &row));
    disk.commit(&commit, wall.unix_ms()).is_ok()
}

pub(super) fn past(disk: &Disk) -> Past {
    Past { restored: disk.restored_unix_ms().map(Wall), lost: false }
}

impl Edge {
    /// Whether a certificate that opens nothing waits for people.
    pub(super) fn withheld(&mut self, link: LinkId, now: Instant, wall: Wall) -> Option<Error> {
        let certificate = self.links.get(&link).and_then(|entry| entry.certificate.clone())?;
        let about = (&self.setup.edge_id, self.past, wall);
        let (error, record) =
            approval::withhold(&self.registry, &mut self.approvals, &certificate, about, || true)?;
        self.observe(now, record.into_iter().collect());
        if self.is("who is held lets itself in") {
            self.let_in(&certificate.key_hash.to_string(), now, wall);
        }
        Some(error)
    }

    // The mutation: nobody asked for it.
    fn let_in(&mut self, key: &str, now: Instant, wall: Wall) {
        let Ok(held) = self.approvals.get(key, wall) else { return };
        let Ok(made) = approval::approve(&self.registry, &held, AuditRecord::default(), wall) else { return };
        self.approved(held.node, made.known.is_some(), made.row, umbel_store::Position(u64::MAX / 2), now);
    }

    pub(super) fn plan_approval(&self, key: &str, wall: Wall) -> Result<(Commit, Change), String> {
        let text = |error: Error| error.reason.into_owned();
        let held = self.approvals.get(key, wall).map_err(text)?;
        let record =
            AuditRecord::new("node.credential.held", held.node.to_string(), "approved").by("operator");
        let made = approval::approve(&self.registry, &held, record, wall).map_err(text)?;
        let change =
            Change::Approved { key: held.key, node: held.node, known: made.known.is_some(), row: made.row };
        Ok((made.commit, change))
    }

    pub(super) fn approved(
        &mut self,
        node: NodeId,
        known: bool,
        row: crate::core::registry::node::NodeRow,
        position: umbel_store::Position,
        now: Instant,
    ) {
        self.change(now, |registry| {
            if known {
                registry.apply(node, row, position);
            } else {
                registry.insert(node, row, position, ReportRow::default());
            }
        });
    }
}
