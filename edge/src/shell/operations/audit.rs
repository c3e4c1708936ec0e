//! Operations that read the site's audit: the latest, a search, the chain as it is stored, and its check.
//!
//! The local socket's routes are the same functions. Invariant: an answer fits the bound of a result, so that a page
//! may be shorter than asked for; it then says where the next one begins.

use std::sync::Arc;

use serde_json::Value;
use umbel_contracts::objects::{AuditObject, Page, timestamp};
use umbel_contracts::operations::{
    AuditExport, AuditExportArgs, AuditExportResult, AuditLine, AuditQuery, AuditQueryArgs, AuditQueryResult,
    AuditTail, AuditTailArgs, AuditTailResult, AuditVerify, AuditVerifyResult, LARGEST_RESULT, NoArgs,
    Operation,
};
use umbel_contracts::serve::AuditQuestion;
use umbel_store::{AuditCheck, AuditEntry, ReadError, Store};
use umbel_wire::{Code, Error};

use super::reading::PAGE_MAX;
use super::{args, invalid, result, unknown};
use crate::core::commands::Request;
use crate::shell::commands::Commands;
use crate::shell::site::Site;

/// Entries a page unless said.
const PAGE: u32 = 100;
/// Bytes of a page's entries: below the bound of a result with room for what is around them.
const PAGE_BYTES: usize = LARGEST_RESULT - LARGEST_RESULT / 8;

pub(super) async fn read(commands: &Arc<Commands>, request: &Request) -> Result<Value, Error> {
    let site = &commands.site;
    match request.operation.as_str() {
        AuditExport::NAME => result::<AuditExport>(export(&site.store, args::<AuditExport>(request)?).await?),
        AuditQuery::NAME => result::<AuditQuery>(query(site, args::<AuditQuery>(request)?).await?),
        AuditTail::NAME => result::<AuditTail>(tail(site, args::<AuditTail>(request)?).await?),
        AuditVerify::NAME => {
            let NoArgs {} = args::<AuditVerify>(request)?;
            result::<AuditVerify>(verify(&site.store).await?)
        }
        other => Err(unknown(other)),
    }
}

/// An entry as operators see it.
pub(crate) fn audit_object(edge_id: &str, entry: AuditEntry) -> AuditObject {
    let some = |text: String| (!text.is_empty()).then_some(text);
    let record = entry.record;
    AuditObject {
        sequence: entry.sequence,
        at: timestamp(record.at_unix_ms),
        actor: record.actor,
        action: record.action,
        edge_id: Some(edge_id.to_owned()),
        subject: some(record.subject),
        command_id: some(record.command_id),
        selector: None,
        argument_names: Vec::new(),
        reason: some(record.detail),
        outcome: record.outcome,
        took_ms: None,
        correlation_id: some(record.correlation_id),
    }
}

fn unreadable(error: ReadError) -> Error {
    Error::new(Code::Unavailable, "STORE_UNREADABLE", error.to_string())
}

/// The first items that fit a result.
fn fitting<T: serde::Serialize>(items: Vec<T>) -> Vec<T> {
    let mut bytes = 0;
    let fits = |item: &T| {
        bytes += serde_json::to_vec(item).map_or(0, |json| json.len() + 1);
        bytes <= PAGE_BYTES
    };
    items.into_iter().take_while(fits).collect()
}

async fn tail(site: &Site, args: AuditTailArgs) -> Result<AuditTailResult, Error> {
    let limit = args.limit.unwrap_or(PAGE);
    if limit == 0 || limit > PAGE_MAX {
        return Err(invalid("ARGS", format!("limit must be 1 to {PAGE_MAX}")));
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let edge = site.edge_id.as_str();
    let object = |entry| audit_object(edge, entry);
    let entries = match args.after {
        Some(after) => {
            let read = site.store.audit_after(after, limit).await.map_err(unreadable)?;
            fitting(read.into_iter().map(object).collect())
        }
        None => {
            let read = site.store.audit_tail(limit).await.map_err(unreadable)?;
            // The newest are wanted most.
            let mut entries = fitting(read.into_iter().rev().map(object).collect());
            entries.reverse();
            entries
        }
    };
    Ok(AuditTailResult { entries })
}

/// A page of the entries that are asked for, newest first.
pub(crate) async fn query(site: &Site, args: AuditQueryArgs) -> Result<AuditQueryResult, Error> {
    let limit = args.page().map_err(|error| invalid("ARGS", error))?;
    let edge = site.edge_id.to_string();
    let before = args.before;
    let wanted = move |entry: &AuditEntry| args.matches(&audit_object(&edge, entry.clone()));
    let (found, next) = site.store.audit_search(before, limit, wanted).await.map_err(unreadable)?;
    let count = found.len();
    let edge = site.edge_id.as_str();
    let entries = fitting(found.into_iter().map(|entry| audit_object(edge, entry)).collect());
    let cut = entries.last().filter(|_| entries.len() < count).map(|entry| entry.sequence);
    Ok(AuditQueryResult { next_before: cut.or(next), entries })
}

/// A page as the operator API has it: of what is asked for, backwards or forwards.
pub(crate) async fn page(site: &Site, question: AuditQuestion) -> Result<Page<AuditObject>, Error> {
    let AuditQuestion { limit, before, after, filter, .. } = question;
    let limit = u32::try_from(limit.clamp(1, 1_000)).ok();
    if let Some(after) = after {
        let edge = site.edge_id.as_str();
        let wanted = |entry: &AuditEntry| filter.matches(&audit_object(edge, entry.clone()));
        let most = filter.page().map_or(1, |page| limit.map_or(page, |limit| limit as usize));
        let (found, looked) = site.store.audit_follow(after, most, wanted).await.map_err(unreadable)?;
        let count = found.len();
        let items = fitting(found.into_iter().map(|entry| audit_object(edge, entry)).collect());
        let cut = items.last().filter(|_| items.len() < count).map(|entry| entry.sequence);
        return Ok(Page { items, next_cursor: Some(cut.unwrap_or(looked).to_string()) });
    }
    let AuditQueryResult { entries, next_before } =
        query(site, AuditQueryArgs { limit, before, ..filter }).await?;
    Ok(Page { items: entries, next_cursor: next_before.map(|before| before.to_string()) })
}

/// A page of the chain as it is stored, oldest first.
pub(crate) async fn export(store: &Store, args: AuditExportArgs) -> Result<AuditExportResult, Error> {
    let limit = args.page().map_err(|error| invalid("ARGS", error))?;
    let read = store.audit_lines(args.after.unwrap_or(0), limit).await.map_err(unreadable)?;
    let hex = |hash: &[u8; 32]| data_encoding::HEXLOWER.encode(hash);
    let lines = read.into_iter().map(|line| AuditLine {
        sequence: line.sequence,
        previous: hex(&line.previous),
        entry: line.entry,
        hash: hex(&line.hash),
    });
    let lines = fitting(lines.collect());
    let last = lines.last().map(|line| line.sequence);
    let next_after = last.filter(|last| *last < store.audit_head().sequence);
    Ok(AuditExportResult { lines, next_after })
}

/// Checks the chain from the oldest kept entry to the newest.
pub(crate) async fn verify(store: &Store) -> Result<AuditVerifyResult, Error> {
    Ok(verified(store.audit_check().await.map_err(unreadable)?))
}

fn verified(check: AuditCheck) -> AuditVerifyResult {
    let (whole, message) = (check.is_whole(), check.sentence());
    let AuditCheck { entries, first, last, broken, .. } = check;
    AuditVerifyResult {
        whole,
        entries,
        first_sequence: first,
        last_sequence: last.sequence,
        last_hash: data_encoding::HEXLOWER.encode(&last.hash),
        broken_at: broken.map(|(at, _)| at),
        message,
    }
}
