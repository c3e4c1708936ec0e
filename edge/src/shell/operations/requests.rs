//! Operations on queues and requests: `queue.show`, `request.list`, `request.show`, `request.release`.
//!
//! Owns their pages and the joining of records, leases, keys and nodes by name. Leaves figures to admission and records
//! to [`crate::shell::requests`]. Invariant: one answer is one reading; what cannot be released has changed nothing.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use umbel_contracts::objects::{
    LeaseObject, QueueObject, QueueProviderObject, RequestObject, RequestUsageObject, TryObject,
    WaitingKeyObject, timestamp,
};
use umbel_contracts::operations::{
    LARGEST_RESULT, Operation, QueueShow, QueueShowResult, RequestList, RequestListArgs, RequestListResult,
    RequestRelease, RequestReleaseResult, RequestShow, RequestShowResult,
};
use umbel_wire::{Code, Error, NodeId};

use super::reading::PAGE_MAX;
use super::{args, invalid, result, stored, unknown};
use crate::core::admission::LeasePhase;
use crate::core::commands::Request;
use crate::core::keys::{NORMAL_PRIORITY, class_of};
use crate::core::usage::UsageSource;
use crate::shell::commands::{Commands, Context, store_error};
use crate::shell::dispatch::{Dispatch, LeaseId, LeaseReading, QueueReading, Reading, Released};
use crate::shell::requests::{Filter, Phase, RequestRecord};
use crate::shell::status;

/// A page is closed at this size: its last entry and the braces stay below the bound of a result.
const PAGE_BYTES: usize = LARGEST_RESULT - 96 * 1024;
/// Requests a page unless said.
const REQUESTS: u32 = 100;
/// Keys and providers of one queue among many.
const FEW: usize = 32;
/// Providers of the one queue that was asked for.
const MANY: usize = 1_000;
/// Requests of one correlation id.
const OF_ONE_ID: usize = 100;
/// Unconfirmed leases in a list.
const UNCONFIRMED: usize = 256;

/// Operations of class read.
pub(super) fn read(commands: &Commands, request: &Request) -> Result<Value, Error> {
    match request.operation.as_str() {
        QueueShow::NAME => result::<QueueShow>(queues(commands, request)?),
        RequestList::NAME => result::<RequestList>(list(commands, &args::<RequestList>(request)?)?),
        RequestShow::NAME => {
            let request_id = args::<RequestShow>(request)?.request_id;
            let filter = Filter { request_id: Some(request_id), ..Filter::default() };
            let requests = Records::read(commands).objects(&filter, OF_ONE_ID);
            if requests.is_empty() {
                let message = "no request of this id runs, and none is among the last ones that ended; it may be \
                               older, or have been refused for its key";
                return Err(Error::new(Code::NotFound, "REQUEST_UNKNOWN", message));
            }
            result::<RequestShow>(RequestShowResult { requests })
        }
        other => Err(unknown(other)),
    }
}

fn limit_of(limit: Option<u32>, unsaid: u32) -> Result<usize, Error> {
    let limit = limit.unwrap_or(unsaid);
    if limit == 0 || limit > PAGE_MAX {
        return Err(invalid("ARGS", format!("limit must be 1 to {PAGE_MAX}")));
    }
    Ok(usize::try_from(limit).unwrap_or(usize::MAX))
}

/// As many of `items` as fit in a page, and whether there are more.
fn page<T: Serialize>(items: impl Iterator<Item = T>, limit: usize) -> (Vec<T>, bool) {
    let (mut page, mut bytes) = (Vec::new(), 0);
    for item in items {
        if page.len() >= limit || bytes >= PAGE_BYTES {
            return (page, true);
        }
        bytes += serde_json::to_vec(&item).map_or(0, |text| text.len());
        page.push(item);
    }
    (page, false)
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The model that an alias means; another name stays.
fn canonical(dispatch: &Dispatch, name: String) -> String {
    dispatch.resolve(&name).map_or(name, |known| known.name.to_string())
}

fn queues(commands: &Commands, request: &Request) -> Result<QueueShowResult, Error> {
    let asked = args::<QueueShow>(request)?;
    let limit = limit_of(asked.limit, PAGE_MAX)?;
    let dispatch = &commands.site.dispatch;
    let reading = dispatch.reading();
    let model = asked.model.map(|name| canonical(dispatch, name));
    let mut queues: Vec<&QueueReading> = reading
        .queues
        .iter()
        .filter(|queue| model.as_ref().is_none_or(|model| *queue.figures.model == **model))
        .collect();
    if let (Some(model), true) = (&model, queues.is_empty()) {
        let message = format!("no node of this site serves a model called `{model}`");
        return Err(Error::new(Code::NotFound, "MODEL_UNKNOWN", message));
    }
    queues.sort_by(|a, b| a.figures.model.cmp(&b.figures.model));
    let after = queues
        .into_iter()
        .filter(|queue| asked.cursor.as_ref().is_none_or(|cursor| *queue.figures.model > **cursor));
    let most = if model.is_some() { MANY } else { FEW };
    let (queues, more) = page(after.map(|queue| queue_object(commands, queue, most)), limit);
    let next_cursor = queues.last().filter(|_| more).map(|queue| queue.model.clone());
    Ok(QueueShowResult { queues, next_cursor })
}

fn queue_object(commands: &Commands, queue: &QueueReading, most: usize) -> QueueObject {
    let waiting_keys = queue.keys.iter().take(FEW).map(|waiting| {
        let key = commands.keys.numbered(waiting.key);
        // The class is the one it waits in, whatever the key's priority is by now.
        let priority =
            NORMAL_PRIORITY.saturating_add(class_of(NORMAL_PRIORITY).0).saturating_sub(waiting.class.0);
        WaitingKeyObject {
            key_id: key.as_ref().map(|key| key.row.key_id.clone()),
            key_name: key.map(|key| key.row.name.clone()),
            priority,
            waiting: waiting.waiting,
            long_waiting: waiting.long,
            oldest_age_ms: milliseconds(waiting.oldest),
        }
    });
    let providers = queue.providers.iter().take(most).map(|(provider_id, node_id, figures)| {
        let node = commands.site.read(|registry| registry.node(node_id).cloned());
        let told = node.as_ref().and_then(|node| status::provider(&commands.site, node, provider_id));
        let told = told.unwrap_or_default();
        QueueProviderObject {
            provider_id: provider_id.to_string(),
            node: node.map(|node| node.row.name.clone()).unwrap_or_default(),
            status: umbel_contracts::objects::ProviderState::from_number(told.status),
            open: figures.open,
            ejected: figures.ejected,
            capacity: figures.capacity,
            in_flight: figures.in_flight,
            long_context_capacity: figures.long_capacity,
            long_context_in_flight: figures.long_in_flight,
            unconfirmed: figures.unconfirmed,
            queued: figures.queued,
        }
    });
    let (waiting_keys, providers) = (waiting_keys.collect(), providers.collect());
    let told = QueueObject::from_proto(status::queue(&commands.site, queue));
    QueueObject { waiting_keys: Some(waiting_keys), providers: Some(providers), ..told }
}

/// The records and what admission holds of them, read together.
struct Records<'a> {
    commands: &'a Commands,
    reading: Reading,
    /// The lease that each request was given last and that is still held.
    leases: HashMap<u64, usize>,
    now: Instant,
}

impl<'a> Records<'a> {
    fn read(commands: &'a Commands) -> Self {
        let reading = commands.site.dispatch.reading();
        let leases = reading.leases.iter().enumerate();
        let leases = leases.filter(|(_, lease)| lease.request != 0).map(|(at, lease)| (lease.request, at));
        Self { commands, leases: leases.collect(), reading, now: Instant::now() }
    }

    fn objects(&self, filter: &Filter, limit: usize) -> Vec<RequestObject> {
        let records = self.commands.site.dispatch.requests().list(filter, limit);
        records.iter().map(|record| self.object(record)).collect()
    }

    fn object(&self, record: &RequestRecord) -> RequestObject {
        let lease = self.leases.get(&record.number).and_then(|at| self.reading.leases.get(*at));
        // Admission's word is the newer one: the request's own task may not have run since.
        let phase = match lease.map(|lease| lease.phase) {
            Some(LeasePhase::Granted) if record.ended.is_none() => Phase::Prefill,
            Some(LeasePhase::Streaming) if record.ended.is_none() => Phase::Streaming,
            _ => record.phase,
        };
        let spent = |phase| milliseconds(record.spent(phase, self.now));
        let took = record.took(self.now);
        let started = &record.started;
        let end = record.ended.map(|(_, end)| end);
        let ended_at = end.map(|_| {
            timestamp(started.at_unix_ms.saturating_add(i64::try_from(took.as_millis()).unwrap_or(i64::MAX)))
        });
        RequestObject {
            request_id: started.request_id.to_string(),
            number: record.number,
            key_id: started.key_id.as_ref().map(ToString::to_string),
            key_name: started.key_id.as_ref().and_then(|key_id| self.commands.keys.name_of(key_id)),
            model: started.model.as_ref().map(ToString::to_string),
            route: started.route.to_owned(),
            stream: started.stream,
            phase: phase.word().to_owned(),
            started_at: timestamp(started.at_unix_ms),
            ended_at,
            took_ms: milliseconds(took),
            queued_ms: spent(Phase::Queued),
            prefill_ms: spent(Phase::Prefill),
            streaming_ms: spent(Phase::Streaming),
            body_bytes: started.body_bytes,
            prompt_bytes: started.prompt_bytes,
            answer_bytes: end.map_or(0, |end| end.answer_bytes),
            estimated_tokens: record.estimated_tokens,
            long: record.long,
            tries: record.tries.iter().map(|one| self.try_object(one)).collect(),
            status: end.map(|end| end.status),
            reason: end.and_then(|end| end.reason).map(str::to_owned),
            usage: end.map(|end| end.usage).filter(|usage| usage.source != UsageSource::None).map(|usage| {
                RequestUsageObject {
                    prompt_tokens: usage.prompt_tokens,
                    completion_tokens: usage.completion_tokens,
                    cached_tokens: usage.cached_tokens,
                    reported: usage.source == UsageSource::Reported,
                }
            }),
            lease: lease.map(lease_object),
        }
    }

    fn try_object(&self, one: &crate::core::requests::Try) -> TryObject {
        TryObject {
            provider_id: one.provider_id.to_string(),
            node: node_name(self.commands, &one.provider_id),
            affinity: one.affinity,
            failed: one.miss.map(str::to_owned),
        }
    }
}

/// The name of a provider's node; empty if it is not known any more.
fn node_name(commands: &Commands, provider_id: &str) -> String {
    let node_id = provider_id.split_once('/').and_then(|(node, _)| NodeId::parse(node).ok());
    let name = |id| commands.site.read(|registry| registry.node(&id).map(|node| node.row.name.clone()));
    node_id.and_then(name).unwrap_or_default()
}

fn lease_object(lease: &LeaseReading) -> LeaseObject {
    let phase = match lease.phase {
        LeasePhase::Granted => "prefill",
        LeasePhase::Streaming => "streaming",
        LeasePhase::Resetting(_) => "ending",
        LeasePhase::Unconfirmed => "unconfirmed",
    };
    LeaseObject {
        lease_id: lease.lease.0.to_string(),
        provider_id: lease.provider_id.to_string(),
        phase: phase.to_owned(),
    }
}

/// `429` is that status, `5xx` all of a hundred.
fn status_range(text: &str) -> Option<(u16, u16)> {
    if let Some(hundred) = text.strip_suffix("xx") {
        let hundred: u16 = hundred.parse().ok().filter(|hundred| (1..=9).contains(hundred))?;
        return Some((hundred * 100, hundred * 100 + 99));
    }
    let status = text.parse().ok().filter(|status| (100..=999).contains(status))?;
    Some((status, status))
}

fn list(commands: &Commands, asked: &RequestListArgs) -> Result<RequestListResult, Error> {
    let limit = limit_of(asked.limit, REQUESTS)?;
    let status = asked.status.as_deref().map(|text| {
        status_range(text)
            .ok_or_else(|| invalid("ARGS", "status is a number such as 429, or a hundred such as 5xx"))
    });
    let before = asked.cursor.as_deref().map(|cursor| {
        cursor.parse().map_err(|_| invalid("CURSOR", "the cursor is `next_cursor` of the page before"))
    });
    let filter = Filter {
        model: asked.model.clone().map(|name| canonical(&commands.site.dispatch, name)),
        key_id: asked.key_id.clone(),
        request_id: None,
        running: asked.running,
        status: status.transpose()?,
        slower_than: asked.slow_ms.map(Duration::from_millis),
        before: before.transpose()?,
    };
    let records = Records::read(commands);
    let (requests, more) = page(records.objects(&filter, limit + 1).into_iter(), limit);
    let unconfirmed = records.reading.leases.iter().filter(|lease| lease.phase == LeasePhase::Unconfirmed);
    let unconfirmed = if asked.cursor.is_none() {
        unconfirmed.take(UNCONFIRMED).map(lease_object).collect()
    } else {
        Vec::new()
    };
    let next_cursor = requests.last().filter(|_| more).map(|last| last.number.to_string());
    Ok(RequestListResult { requests, unconfirmed, next_cursor })
}

/// The lease that is to be released, if it can be.
fn releasable(commands: &Commands, lease_id: &str) -> Result<(LeaseId, RequestReleaseResult), Error> {
    let id = lease_id.parse().map(LeaseId).map_err(|_| invalid("ARGS", "lease_id is a number"))?;
    let dispatch = &commands.site.dispatch;
    let reading = dispatch.reading();
    let Some(lease) = reading.leases.iter().find(|lease| lease.lease == id) else {
        let message = "no such lease is held; it may have ended by itself. See the list of requests";
        return Err(Error::new(Code::NotFound, "LEASE_UNKNOWN", message));
    };
    if lease.phase != LeasePhase::Unconfirmed {
        let message = "this lease is in use or being ended: only an unconfirmed one can be released. Drain its node, \
                       or wait for its end";
        return Err(Error::new(Code::Conflict, "LEASE_IN_USE", message));
    }
    let request_id = dispatch.requests().of_lease(id.0).map(|record| record.started.request_id.to_string());
    Ok((id, RequestReleaseResult { lease: lease_object(lease), request_id }))
}

pub(super) fn dry_run(commands: &Commands, request: &Request) -> Result<Value, Error> {
    match request.operation.as_str() {
        RequestRelease::NAME => {
            let lease_id = args::<RequestRelease>(request)?.lease_id;
            result::<RequestRelease>(releasable(commands, &lease_id)?.1)
        }
        other => Err(unknown(other)),
    }
}

pub(super) async fn start(context: &Context<'_>) -> Result<(), Error> {
    if context.request.operation != RequestRelease::NAME {
        return Err(unknown(&context.request.operation));
    }
    let commands = context.commands;
    let (id, released) = releasable(commands, &args::<RequestRelease>(context.request)?.lease_id)?;
    let subject = format!("{} {}", released.lease.provider_id, released.lease.lease_id);
    let value = result::<RequestRelease>(released)?;
    let commit = context.outcome(&stored(&value)).audit(context.audit(subject));
    commands.site.store.commit(commit).await.map_err(|error| store_error(&error))?;
    if commands.site.dispatch.release(id) == Released::Free {
        tracing::warn!(lease = id.0, "a lease was released by hand; its engine may work above its capacity");
    }
    context.done(value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::status_range;

    #[test]
    fn a_status_is_a_number_or_a_hundred() {
        assert_eq!(status_range("429"), Some((429, 429)));
        assert_eq!(status_range("5xx"), Some((500, 599)));
        for bad in ["", "xx", "0xx", "12", "1000", "axx", "4x4"] {
            assert_eq!(status_range(bad), None, "{bad}");
        }
    }
}
