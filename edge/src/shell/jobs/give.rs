//! Giving nodes their jobs, and taking back what nothing was heard of.
//!
//! A reconciler: woken by a new job, a node's room or the end of a lease it gives each node that has room its next job, the
//! same way each time. Invariants: at most one lease request is under way to a node and [`AT_ONCE`] in all; the lease is on
//! disk before its node hears of it; one that breaks off frees its node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::task::JoinSet;
use umbel_contracts::proto::node::{JobLease, JobLeaseAck, JobRefusal};
use umbel_contracts::{bounds, method};
use umbel_store::Commit;
use umbel_wire::{Code, Connection, Error, Generation, NodeId, clock};

use super::{change, tell};
use crate::core::jobs::{LEASE, LeaseRow, capability};
use crate::shell::site::Site;

/// Nodes that are given a job at the same time.
const AT_ONCE: usize = 64;
/// A node's answer: it looks whether it has room, and begins nothing before it answers.
const PATIENCE: Duration = Duration::from_secs(10);
/// Everybody is looked at again, whatever was missed.
const LOOK: Duration = Duration::from_secs(30);
/// After something could not be given or written.
const PAUSE: Duration = Duration::from_secs(1);

/// Gives for ever.
pub(crate) async fn keep(site: Arc<Site>) {
    // By task, so that one that breaks off is known by it.
    let mut giving: BTreeMap<tokio::task::Id, NodeId> = BTreeMap::new();
    let mut gifts: JoinSet<()> = JoinSet::new();
    loop {
        let wanting = {
            let mut table = site.jobs.table();
            table.end_pauses(clock::now());
            table.wanting()
        };
        for node in wanting {
            if gifts.len() < AT_ONCE && !giving.values().any(|one| *one == node) {
                let own = Arc::clone(&site);
                let task = gifts.spawn(async move { next(&own, node).await });
                giving.insert(task.id(), node);
            }
        }
        let (lease, pause) = {
            let table = site.jobs.table();
            (table.first_end(), table.first_pause_end())
        };
        let look = clock::now() + LOOK;
        let pause = async move {
            match pause {
                Some(end) => tokio::time::sleep_until(end.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = site.jobs.wake.notified() => abandon(&site).await,
            () = tokio::time::sleep_until(lease.map_or(look, |end| end.min(look)).into()) => tidy(&site).await,
            () = pause => {}
            Some(given) = gifts.join_next_with_id(), if !gifts.is_empty() => {
                let id = given.map_or_else(|broken| broken.id(), |(id, ())| id);
                giving.remove(&id);
            }
        }
    }
}

/// Takes back what nothing was heard of.
async fn tidy(site: &Site) {
    let now = clock::now();
    let silent = site.jobs.table().silent(now);
    let mut written = true;
    for id in silent {
        let _turn = site.jobs.turns.take(id.clone()).await;
        let row = site.jobs.table().expire(&id, now, site.wall());
        if let Some(row) = row {
            written &= change(site, &id, row, Commit::new(), now).await.is_ok();
        }
    }
    if !written {
        // The store says what is wrong with it; what is due stays due.
        tokio::time::sleep(PAUSE).await;
    }
    abandon(site).await;
}

/// Ends what is bound to nodes that are gone for good.
async fn abandon(site: &Site) {
    let nodes = site.jobs.table().nodes();
    let gone =
        |node: &NodeId| site.read(|registry| registry.node(node).is_none_or(|node| node.is_tombstone()));
    for node in nodes.into_iter().filter(gone) {
        let ids = site.jobs.table().of_node(node);
        for id in ids {
            let _turn = site.jobs.turns.take(id.clone()).await;
            let row = site.jobs.table().abandon(&id, site.wall());
            if let Some(row) = row
                && let Err(error) = change(site, &id, row, Commit::new(), clock::now()).await
            {
                // It is looked at again.
                tracing::debug!(%node, job = %id, %error, "a job of a node that is gone could not be ended");
            }
        }
    }
}

/// Who owns a node now.
struct Given {
    generation: Generation,
    instance: String,
    connection: Connection,
    able: bool,
}

async fn next(site: &Site, node: NodeId) {
    let generation = site.read(|registry| registry.slots.owner(&node).map(|owner| owner.generation));
    let next = |generation| site.jobs.table().next(node, generation).map(str::to_owned);
    let id = generation.and_then(next);
    // Its connection has just ended: the next one says what there is room for.
    let Some(id) = id else { return tokio::time::sleep(PAUSE).await };
    let given = give(site, node, &id).await;
    if let Err(error) = given {
        tracing::debug!(%node, job = %id, code = error.code.name(), reason = %error.reason, "NodeJobLease");
        tokio::time::sleep(PAUSE).await;
    }
}

fn owner_of(site: &Site, node: NodeId, kind: &str) -> Option<Given> {
    let needs = capability(kind);
    site.read(|registry| {
        let owner = registry.slots.owner(&node)?;
        let able = registry.node(&node)?.capabilities.contains(&needs);
        Some(Given {
            generation: owner.generation,
            instance: owner.instance.to_string(),
            connection: owner.handle.clone(),
            able,
        })
    })
}

async fn give(site: &Site, node: NodeId, id: &str) -> Result<(), Error> {
    site.trip("job");
    let turn = site.jobs.turns.take(id.to_owned()).await;
    let Some(view) = site.jobs.view(id) else { return Ok(()) };
    let Some(owner) = owner_of(site, node, &view.row.kind) else { return Ok(()) };
    let Some(body) = view.row.work().filter(|_| owner.able) else {
        let row = site.jobs.table().unable(id, site.wall());
        return match row {
            Some(row) => change(site, id, row, Commit::new(), clock::now()).await,
            None => Ok(()),
        };
    };
    let lease = LeaseRow { id: super::new_id(), instance: owner.instance, generation: owner.generation.0 };
    let lease_id = lease.id.clone();
    let (row, ran) = {
        let table = site.jobs.table();
        (table.lease(id, lease, site.wall()), table.is_held(id))
    };
    let Some(row) = row else { return Ok(()) };
    let message = JobLease {
        job_id: id.to_owned(),
        lease_id: lease_id.clone(),
        attempt: row.attempt(),
        lease_ms: u32::try_from(LEASE.as_millis()).unwrap_or(u32::MAX),
        body: Some(body),
    };
    change(site, id, row, Commit::new(), clock::now()).await?;
    site.jobs.table().leased(id, ran);
    drop(turn);
    let answer = owner.connection.request(method::NODE_JOB_LEASE, message.encode_to_vec(), PATIENCE).await;
    let ack = match answer {
        Ok(bytes) => bounds::decode::<JobLeaseAck>(&bytes)?,
        // An agent that does not know jobs at all.
        Err(error) if error.code == Code::Unimplemented => JobLeaseAck {
            refusal: JobRefusal::UnknownBody.into(),
            message: "this node's agent does not know jobs; upgrade it".to_owned(),
            ..JobLeaseAck::default()
        },
        // Whether it took the job is said by its next word, or by none until the lease ends.
        Err(error) => return Err(error),
    };
    if ack.claimed {
        site.jobs.table().claimed(id, &lease_id);
        tell(site, id, "job_started");
        return Ok(());
    }
    let _turn = site.jobs.turns.take(id.to_owned()).await;
    let (refusal, wall) = (ack.refusal(), site.wall());
    let row = site.jobs.table().refused(id, &lease_id, refusal, ack.message, wall);
    match row {
        Some(row) => change(site, id, row, Commit::new(), clock::now()).await,
        None => Ok(()),
    }
}
