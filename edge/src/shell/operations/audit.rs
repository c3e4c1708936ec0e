//! Operations that read the site's audit.

use std::sync::Arc;

use serde_json::Value;
use umbel_contracts::objects::{AuditObject, timestamp};
use umbel_contracts::operations::{AuditTail, AuditTailArgs, AuditTailResult, Operation};
use umbel_store::AuditEntry;
use umbel_wire::{Code, Error};

use super::reading::PAGE_MAX;
use super::{args, invalid, result, unknown};
use crate::core::commands::Request;
use crate::shell::commands::Commands;

/// Entries a page unless said.
const PAGE: u32 = 100;

pub(super) async fn read(commands: &Arc<Commands>, request: &Request) -> Result<Value, Error> {
    match request.operation.as_str() {
        AuditTail::NAME => result::<AuditTail>(tail(commands, args::<AuditTail>(request)?).await?),
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

async fn tail(commands: &Commands, args: AuditTailArgs) -> Result<AuditTailResult, Error> {
    let limit = args.limit.unwrap_or(PAGE);
    if limit == 0 || limit > PAGE_MAX {
        return Err(invalid("ARGS", format!("limit must be 1 to {PAGE_MAX}")));
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let store = &commands.site.store;
    let read = match args.after {
        Some(after) => store.audit_after(after, limit).await,
        None => store.audit_tail(limit).await,
    };
    let entries =
        read.map_err(|error| Error::new(Code::Unavailable, "STORE_UNREADABLE", error.to_string()))?;
    let edge = commands.site.edge_id.as_str();
    Ok(AuditTailResult { entries: entries.into_iter().map(|entry| audit_object(edge, entry)).collect() })
}
