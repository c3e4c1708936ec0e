//! Leases of jobs at a simulated edge, as `shell/jobs/give` has them.
//!
//! Owns sending a lease and hearing its answer. Invariants: at most one lease is under way to a node; it is on the disk before its
//! node hears of it.

use std::time::Instant;

use prost::Message;
use umbel_contracts::objects::JobState;
use umbel_contracts::proto::node::{JobLease, JobLeaseAck};
use umbel_contracts::{bounds, method};
use umbel_wire::clock::Wall;
use umbel_wire::simulation::Call;
use umbel_wire::{Error, NodeId};

use super::{Act, After, PATIENCE, PAUSE};
use crate::core::jobs::{JobRow, LEASE, LeaseRow, capability};
use crate::simulation::{Edge, LinkId};

/// A lease that is to be sent.
pub(in crate::simulation) struct Gift {
    pub(super) node: NodeId,
    link: LinkId,
    ran: bool,
    message: JobLease,
}

impl Edge {
    pub(in crate::simulation) fn give_jobs(&mut self, now: Instant, wall: Wall) {
        let mut wanting = self.jobs.table.wanting();
        wanting.sort_unstable();
        for node in
            wanting.into_iter().filter(|node| !self.jobs.giving.contains_key(node)).collect::<Vec<_>>()
        {
            let generation = self.registry.slots.owner(&node).map(|owner| owner.generation);
            let next = generation.and_then(|generation| self.jobs.table.next(node, generation));
            match next.map(str::to_owned) {
                Some(id) => {
                    self.jobs.giving.insert(node, None);
                    self.act(Act::Give(node, id), now, wall);
                }
                None => drop(self.jobs.giving.insert(node, Some(now + PAUSE))),
            }
        }
    }

    // A fault that only the world switches on: what is done is given once more, with the next word of its node.
    pub(super) fn give_again(&mut self, id: &str, row: &JobRow) {
        let node = NodeId::parse(&row.node).ok().filter(|_| row.state == JobState::Succeeded);
        let Some(node) = node.filter(|_| self.is("a job that is done is given again")) else { return };
        let message = JobLease {
            job_id: id.to_owned(),
            lease_id: row.ended_lease.clone(),
            attempt: row.attempt(),
            lease_ms: 60_000,
            body: row.work(),
        };
        self.jobs.again.insert(node, message);
    }

    pub(super) fn lease_job(&mut self, gift: Gift, now: Instant) {
        let Gift { node, link, ran, message } = gift;
        let (id, lease) = (message.job_id.clone(), message.lease_id.clone());
        self.jobs.table.leased(&id, ran);
        let sent = self.links.get_mut(&link).and_then(|entry| {
            entry.end.request(now, method::NODE_JOB_LEASE, message.encode_to_vec(), PATIENCE).ok()
        });
        match sent {
            Some(call) => drop(self.jobs.asked.insert((link, call), (node, id, lease))),
            None => drop(self.jobs.giving.insert(node, Some(now + PAUSE))),
        }
    }

    /// Whether this was a node's answer to a lease.
    pub(in crate::simulation) fn lease_answered(
        &mut self,
        link: LinkId,
        call: Call,
        answer: &Result<bytes::Bytes, Error>,
        now: Instant,
        wall: Wall,
    ) -> bool {
        let Some((node, id, lease)) = self.jobs.asked.remove(&(link, call)) else { return false };
        let ack = answer.clone().and_then(|bytes| bounds::decode::<JobLeaseAck>(&bytes));
        match ack {
            Ok(ack) if ack.claimed => {
                self.jobs.table.claimed(&id, &lease);
                self.jobs.giving.remove(&node);
            }
            Ok(ack) => {
                self.jobs.giving.remove(&node);
                self.act(Act::Refused(id, lease, ack), now, wall);
            }
            // Whether it took the job is said by its next word, or by none until the lease ends.
            Err(_) => drop(self.jobs.giving.insert(node, Some(now + PAUSE))),
        }
        self.give_jobs(now, wall);
        true
    }

    pub(super) fn give_job(&mut self, node: NodeId, id: &str, now: Instant, wall: Wall) {
        let owner = self.registry.slots.owner(&node).cloned();
        let (Some(view), Some(owner)) = (self.jobs.table.view(id), owner) else {
            self.jobs.giving.insert(node, Some(now + PAUSE));
            return;
        };
        let needs = capability(&view.row.kind);
        let able = self.registry.node(&node).is_some_and(|node| node.capabilities.contains(&needs));
        let Some(body) = view.row.work().filter(|_| able) else {
            self.jobs.giving.remove(&node);
            if let Some(row) = self.jobs.table.unable(id, wall) {
                self.change_job(id, row, After::Nothing);
            }
            return;
        };
        let lease = LeaseRow {
            id: self.job_id(),
            instance: owner.instance.to_string(),
            generation: owner.generation.0,
        };
        let lease_id = lease.id.clone();
        let ran = self.jobs.table.is_held(id);
        let Some(row) = self.jobs.table.lease(id, lease, wall) else {
            self.jobs.giving.remove(&node);
            return;
        };
        let message = JobLease {
            job_id: id.to_owned(),
            lease_id,
            attempt: row.attempt(),
            lease_ms: u32::try_from(LEASE.as_millis()).unwrap_or(u32::MAX),
            body: Some(body),
        };
        let mut link = owner.handle;
        if self.is("a job is given to another node") {
            let mut others = self.links.keys().copied().filter(|other| *other != link);
            link = others.rfind(|other| self.serving(*other).is_some()).unwrap_or(link);
        }
        self.change_job(id, row, After::Give(Box::new(Gift { node, link, ran, message })));
    }
}
