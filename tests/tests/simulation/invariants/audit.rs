//! What must be true of the edge's audit: its chain, what it tells of, and that a cut is noticed.

use std::collections::BTreeSet;

use umbel_edge::simulation::OBSERVER;
use umbel_store::AuditRecord;
use umbel_store::simulation::{Disk, weight};

use super::super::world::World;
use super::{Found, must};

// The last entry, and every command that one tells of.
pub(super) fn commands_in_audit(disk: &mut Disk) -> (u64, BTreeSet<String>) {
    let (mut last, mut commands) = (0, BTreeSet::new());
    while let Some(page) = disk.audit_after(last, 1_000).ok().filter(|page| !page.is_empty()) {
        last = page.last().map_or(last, |entry| entry.sequence);
        commands.extend(page.into_iter().map(|entry| entry.record.command_id).filter(|id| !id.is_empty()));
    }
    (last, commands)
}

impl World {
    // Every entry follows from the one before, and none is taken back.
    pub(super) fn audit_goes_on(&mut self) -> Found {
        let (commits, mut last) = self.judge.audited;
        if commits != self.edge.disk.commits() {
            let head = self.edge.disk.audit_head().unwrap_or_default();
            must(head.sequence >= last, "the audit only grows", || {
                format!("it ended at {last} and ends at {} now", head.sequence)
            })?;
            let broken = self.edge.disk.follow_audit();
            must(broken.is_none(), "the audit's chain holds", || format!("{broken:?}"))?;
            for entry in self.edge.disk.audit_after(last, 10_000).unwrap_or_default() {
                last = entry.sequence;
                self.entry(&entry.record)?;
            }
            self.judge.audited = (self.edge.disk.commits(), last);
        }
        if std::mem::take(&mut self.judge.counts_anew) {
            (self.judge.observed, self.judge.gaps) = (0, 0);
        }
        Ok(())
    }

    fn entry(&mut self, record: &AuditRecord) -> Found {
        if record.actor == OBSERVER {
            self.judge.observed += weight(record);
        }
        if record.action == "audit.gap" {
            let said =
                record.detail.split(" were refused").next().and_then(|before| before.rsplit(' ').next());
            self.judge.gaps += said.and_then(|number| number.parse::<u64>().ok()).unwrap_or_default();
        }
        let id = &record.command_id;
        if id.is_empty() {
            return Ok(());
        }
        must(!self.people.never.contains(id), "what was unavailable never runs", || format!("{id} ran"))?;
        must(!self.judge.ran.contains(id), "a command runs once", || format!("{id} ran again"))?;
        self.judge.ran.insert(id.clone());
        Ok(())
    }

    // An audit that does not go on from where it was told to be is a cut, and told.
    pub(super) fn audit_is_witnessed(&mut self) -> Found {
        let edge_id = umbel_wire::EdgeId::parse("site").unwrap();
        let known = self.plane.process.as_ref().is_some_and(|plane| plane.place(&edge_id).is_some());
        if !known {
            // An edge that enrolled anew has another audit, and what was not written is forgotten with the process.
            self.judge.outgrown = None;
        }
        let Some(plane) = &self.plane.process else { return Ok(()) };
        let (place, cut) = (plane.place(&edge_id), plane.cut(&edge_id));
        // A question for no entry is none, and would never be answered.
        let asked = plane.asked(&edge_id).is_some_and(|sequence| sequence > 0);
        self.judge.outgrown = match self.judge.outgrown {
            // It asked at the edge's hello, and judges by the answer.
            Some((had, before)) if !asked || cut != before => {
                must(cut != before, "a cut audit that has grown again is noticed", || {
                    format!("it was told {had}, which is another now; its last cut is {cut:?}")
                })?;
                None
            }
            waits => waits,
        };
        let before = std::mem::replace(&mut self.plane.place, place.clone());
        let (Some((sequence, hash)), Some(now)) = (before, place) else { return Ok(()) };
        if (sequence, &hash) == (now.0, &now.1) || sequence == 0 {
            return Ok(());
        }
        let entry = self.edge.disk.audit_after(sequence - 1, 1).unwrap_or_default();
        let same = entry.first().is_some_and(|entry| data_encoding::HEXLOWER.encode(&entry.hash) == hash);
        let told = cut.is_some_and(|(had, found)| had == sequence && found == now.0);
        if !same && !told && now.0 > sequence {
            // It has grown beyond it again, and looks as if it went on.
            let answered = cut == Some((sequence, sequence));
            // What a paused control plane hears late is of before the hello that asks.
            self.judge.outgrown = (asked && !answered).then_some((sequence, cut));
            return Ok(());
        }
        must(same || told, "a cut audit is noticed", || {
            format!("it was told {sequence} and then {}, its last cut is {cut:?}", now.0)
        })
    }
}
