//! What nodes say of their jobs: each request is read, judged, stored and answered.
//!
//! Owns the reading and the answers. Leaves who is heard to `core/jobs`. Invariant: an end is answered only once it is on
//! disk, so that a node keeps it until then.

use prost::Message;
use umbel_contracts::proto::node::{
    JobComplete, JobEndAck, JobFail, JobProgress, JobProgressAck, JobReady, JobReadyAck,
};
use umbel_contracts::{bounds, method};
use umbel_store::Commit;
use umbel_wire::{Code, Error, clock};

use super::change;
use crate::core::jobs::{LEASE, Speaker};
use crate::shell::site::Site;

/// Whether a method is one of jobs.
pub(crate) const fn is_ours(number: u32) -> bool {
    matches!(
        number,
        method::NODE_JOB_READY
            | method::NODE_JOB_PROGRESS
            | method::NODE_JOB_COMPLETE
            | method::NODE_JOB_FAIL
    )
}

/// Takes what a node says, over the connection that owns it; the answer's bytes.
///
/// # Errors
/// What is not within its bounds, or not this node's to say: nothing changes.
pub(crate) async fn taken(
    site: &Site,
    speaker: Speaker,
    number: u32,
    payload: &[u8],
) -> Result<Vec<u8>, Error> {
    match number {
        method::NODE_JOB_READY => ready(site, speaker, bounds::decode(payload)?).await,
        method::NODE_JOB_PROGRESS => progress(site, &speaker, bounds::decode(payload)?),
        method::NODE_JOB_COMPLETE => complete(site, &speaker, bounds::decode(payload)?).await,
        _ => fail(site, &speaker, bounds::decode(payload)?).await,
    }
}

async fn ready(site: &Site, speaker: Speaker, said: JobReady) -> Result<Vec<u8>, Error> {
    let named = site.jobs.table().ready(&speaker, &said);
    for id in named.lost {
        let _turn = site.jobs.turns.take(id.clone()).await;
        let row = site.jobs.table().lost(&id, &speaker, site.wall());
        if let Some(row) = row {
            change(site, &id, row, Commit::new(), clock::now()).await?;
        }
    }
    site.jobs.wake.notify_one();
    Ok(JobReadyAck { cancel_job_ids: named.cancel }.encode_to_vec())
}

fn progress(site: &Site, speaker: &Speaker, said: JobProgress) -> Result<Vec<u8>, Error> {
    let cancel_requested = site.jobs.table().progress(speaker.node, said, clock::now())?;
    let lease_ms = u32::try_from(LEASE.as_millis()).unwrap_or(u32::MAX);
    Ok(JobProgressAck { cancel_requested, lease_ms }.encode_to_vec())
}

async fn complete(site: &Site, speaker: &Speaker, said: JobComplete) -> Result<Vec<u8>, Error> {
    let JobComplete { job_id, lease_id, report } = said;
    let report = report.ok_or_else(|| {
        Error::new(Code::InvalidArgument, "JOB_REPORT_MISSING", "the report is empty, or of a newer agent")
    })?;
    let _turn = site.jobs.turns.take(job_id.clone()).await;
    let row = site.jobs.table().complete(speaker.node, &job_id, &lease_id, report, site.wall())?;
    if let Some(row) = row {
        change(site, &job_id, row, Commit::new(), clock::now()).await?;
    }
    Ok(JobEndAck {}.encode_to_vec())
}

async fn fail(site: &Site, speaker: &Speaker, said: JobFail) -> Result<Vec<u8>, Error> {
    let JobFail { job_id, lease_id, failure } = said;
    let failure = failure.unwrap_or_default();
    let _turn = site.jobs.turns.take(job_id.clone()).await;
    let row = site.jobs.table().fail(speaker.node, &job_id, &lease_id, &failure, site.wall())?;
    if let Some(row) = row {
        change(site, &job_id, row, Commit::new(), clock::now()).await?;
    }
    Ok(JobEndAck {}.encode_to_vec())
}
