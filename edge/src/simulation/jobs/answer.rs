//! What nodes say of their jobs to a simulated edge, as `shell/jobs/answer` takes it.
//!
//! Owns the answers, and what each word changed. Leaves who is heard to `core/jobs`. Invariant: an end is answered only once it
//! is on the disk.

use std::time::Instant;

use prost::Message;
use umbel_contracts::proto::node::{
    JobComplete, JobEndAck, JobFail, JobProgress, JobProgressAck, JobReady, JobReadyAck,
};
use umbel_contracts::{bounds, method};
use umbel_wire::Error;
use umbel_wire::clock::Wall;
use umbel_wire::simulation::Asked;

use super::{Act, After, JobHeard, PATIENCE};
use crate::core::jobs::{JobRow, LEASE, Speaker};
use crate::simulation::{Edge, LinkId};

impl Edge {
    /// What a node says of its jobs, over the connection that owns it.
    pub(in crate::simulation) fn job_said(
        &mut self,
        link: LinkId,
        asked: Asked,
        (number, payload): (u32, &[u8]),
        now: Instant,
        wall: Wall,
    ) {
        let owner = self.serving(link).and_then(|serving| {
            let owner = self.registry.slots.owner(&serving.own.id)?;
            let current = owner.generation == serving.own.generation;
            current.then(|| Speaker {
                node: serving.own.id,
                instance: owner.instance.to_string(),
                generation: owner.generation,
            })
        });
        let Some(speaker) = owner else {
            return self.answer(link, asked, Err(crate::core::registry::reports::stale_error()));
        };
        let done = match number {
            method::NODE_JOB_READY => bounds::decode::<JobReady>(payload).map(|said| {
                self.jobs_named(link, asked, &speaker, &said, now, wall);
            }),
            method::NODE_JOB_PROGRESS => bounds::decode::<JobProgress>(payload).map(|said| {
                let answer = self.job_progress(&speaker, said, now);
                self.answer(link, asked, answer);
            }),
            method::NODE_JOB_COMPLETE => bounds::decode::<JobComplete>(payload)
                .map(|said| self.act(Act::Complete(link, asked, speaker, said), now, wall)),
            _ => bounds::decode::<JobFail>(payload)
                .map(|said| self.act(Act::Fail(link, asked, speaker, said), now, wall)),
        };
        if let Err(error) = done {
            self.answer(link, asked, Err(error));
        }
    }

    fn jobs_named(
        &mut self,
        link: LinkId,
        asked: Asked,
        speaker: &Speaker,
        said: &JobReady,
        now: Instant,
        wall: Wall,
    ) {
        if let Some(again) = self.jobs.again.remove(&speaker.node)
            && let Some(entry) = self.links.get_mut(&link)
        {
            drop(entry.end.request(now, method::NODE_JOB_LEASE, again.encode_to_vec(), PATIENCE));
        }
        let named = self.jobs.table.ready(speaker, said);
        for id in named.lost {
            self.act(Act::Lost(id, speaker.clone()), now, wall);
        }
        self.answer(link, asked, Ok(JobReadyAck { cancel_job_ids: named.cancel }.encode_to_vec()));
        self.give_jobs(now, wall);
    }

    fn job_progress(
        &mut self,
        speaker: &Speaker,
        mut said: JobProgress,
        now: Instant,
    ) -> Result<Vec<u8>, Error> {
        let (job, lease) = (said.job_id.clone(), said.lease_id.clone());
        let before = self.jobs.table.view(&job);
        let in_force = before.as_ref().and_then(|view| view.row.lease.as_ref().map(|lease| lease.id.clone()));
        if self.is("an old lease is heard") {
            said.lease_id = in_force.clone().unwrap_or_default();
        }
        let taken = self.jobs.table.progress(speaker.node, said, now);
        self.jobs.heard.push(JobHeard { job, lease, in_force, changed: taken.is_ok() });
        let lease_ms = u32::try_from(LEASE.as_millis()).unwrap_or(u32::MAX);
        taken.map(|cancel_requested| JobProgressAck { cancel_requested, lease_ms }.encode_to_vec())
    }

    fn lease_in_force(&self, job: &str) -> Option<String> {
        self.jobs.table.view(job)?.row.lease.as_ref().map(|lease| lease.id.clone())
    }

    pub(super) fn end_heard(
        &mut self,
        (link, asked): (LinkId, Asked),
        job: &str,
        lease: &str,
        row: Result<Option<JobRow>, Error>,
    ) {
        let in_force = self.lease_in_force(job);
        let changed = matches!(row, Ok(Some(_)));
        self.jobs.heard.push(JobHeard { job: job.to_owned(), lease: lease.to_owned(), in_force, changed });
        match row {
            Ok(Some(row)) => {
                self.change_job(job, row, After::Answer(link, asked, JobEndAck {}.encode_to_vec()))
            }
            Ok(None) => self.answer(link, asked, Ok(JobEndAck {}.encode_to_vec())),
            Err(error) => self.answer(link, asked, Err(error)),
        }
    }

    pub(super) fn spoken(&self, job: &str, lease: &str) -> String {
        let in_force = self.lease_in_force(job).filter(|_| self.is("an old lease is heard"));
        in_force.unwrap_or_else(|| lease.to_owned())
    }
}
