//! Operations on the site's settings.
//!
//! Owns reading versions and making new ones. Leaves what is valid to `core::settings` and putting a version in force
//! to `shell::settings`. Invariant: a change is judged whole, against the edge's own file too, before it is stored.

use std::sync::Arc;

use serde_json::Value;
use umbel_contracts::objects::timestamp;
use umbel_contracts::operations::{
    ListArgs, Operation, SettingsChangedResult, SettingsDiff, SettingsDiffArgs, SettingsDiffResult,
    SettingsGet, SettingsGetArgs, SettingsGetResult, SettingsHistory, SettingsHistoryResult, SettingsRefusal,
    SettingsRollback, SettingsRollout, SettingsSet, SettingsVersion,
};
use umbel_contracts::settings::{diff, effective};
use umbel_store::ReadError;
use umbel_wire::{Code, Error};

use super::reading::PAGE_MAX;
use super::{args, invalid, result, stored, unknown};
use crate::core::commands::Request;
use crate::core::registry::node::Lifecycle;
use crate::core::settings::{
    Author, DocumentRow, Proposal, Targets, VersionRow, document_of, propose, wanted,
};
use crate::shell::commands::{Commands, Context, store_error};
use crate::shell::site::Site;

/// Versions a page unless said.
const PAGE: u32 = 50;
/// A page ends at this size, whatever its last version adds.
const PAGE_BYTES: usize = 256 * 1024;
/// Names of nodes in one answer.
const NAMES: usize = 100;

pub(super) async fn read(commands: &Arc<Commands>, request: &Request) -> Result<Value, Error> {
    let site = &commands.site;
    match request.operation.as_str() {
        SettingsGet::NAME => result::<SettingsGet>(get(site, args::<SettingsGet>(request)?).await?),
        SettingsHistory::NAME => {
            result::<SettingsHistory>(history(site, &args::<SettingsHistory>(request)?).await?)
        }
        SettingsDiff::NAME => result::<SettingsDiff>(compare(site, &args::<SettingsDiff>(request)?).await?),
        other => Err(unknown(other)),
    }
}

/// What a change would do.
pub(super) async fn dry_run(commands: &Arc<Commands>, request: &Request) -> Result<Value, Error> {
    let site = &commands.site;
    let proposal = proposed(site, request).await?;
    // Both operations give the same.
    result::<SettingsSet>(changed(site, &proposal))
}

pub(super) async fn start(context: &Context<'_>) -> Result<(), Error> {
    let site = &context.commands.site;
    let _turn = site.settings.turn().await;
    let proposal = proposed(site, context.request).await.inspect_err(|_| site.settings.refused())?;
    let value = result::<SettingsSet>(changed(site, &proposal))?;
    let subject = format!("version {}", proposal.version.version);
    let also = context.outcome(&stored(&value)).audit(context.audit(subject));
    let committed = if proposal.is_empty() {
        site.store.commit(also).await.map(drop)
    } else {
        site.set_settings(proposal, also).await
    };
    committed.map_err(|error| store_error(&error))?;
    context.done(value);
    Ok(())
}

async fn proposed(site: &Site, request: &Request) -> Result<Proposal, Error> {
    let row = site.settings.document();
    let (document, rolled_back_to) = if request.operation == SettingsRollback::NAME {
        let version = args::<SettingsRollback>(request)?.version;
        (version_of(site, &row, version).await?, Some(version))
    } else {
        let find = |name: &str| find(site, name);
        (wanted(&row, &args::<SettingsSet>(request)?, &find)?, None)
    };
    let author = Author {
        name: request.actor.clone(),
        reason: request.reason.clone(),
        at_unix_ms: site.wall().unix_ms(),
    };
    let proposal = propose(&row, document, rolled_back_to, author)?;
    site.settings.fits(&proposal.row.document).map_err(|fault| invalid("SETTINGS", fault.to_string()))?;
    Ok(proposal)
}

/// A node by its id or name.
fn find(site: &Site, name: &str) -> Option<String> {
    let (_, nodes) = site.nodes();
    let known = nodes.iter().filter(|node| node.row.lifecycle != Lifecycle::Decommissioned);
    let mut known = known.filter(|node| node.row.name == name || node.id.to_string() == name);
    known.next().map(|node| node.id.to_string())
}

fn changed(site: &Site, proposal: &Proposal) -> SettingsChangedResult {
    let targets = Targets::new(&proposal.row);
    let (_, nodes) = site.nodes();
    let moved = nodes.iter().filter(|node| {
        node.row.lifecycle != Lifecycle::Decommissioned
            && targets.of(&node.id).digest != node.settings.desired.digest
    });
    SettingsChangedResult {
        version: proposal.row.version,
        changed: !proposal.is_empty(),
        diff: proposal.version.diff.clone(),
        nodes: moved.count() as u64,
    }
}

fn unreadable(error: &ReadError) -> Error {
    Error::new(Code::Unavailable, "STORE_UNREADABLE", error.to_string())
}

async fn version_of(site: &Site, row: &DocumentRow, version: u64) -> Result<Value, Error> {
    if version == row.version {
        return Ok(row.document.clone());
    }
    let newer = site.settings.history().await.map_err(|error| unreadable(&error))?;
    document_of(row, &newer, version)
}

async fn get(site: &Site, args: SettingsGetArgs) -> Result<SettingsGetResult, Error> {
    let row = site.settings.document();
    let version = args.version.unwrap_or(row.version);
    let document = version_of(site, &row, version).await?;
    let effective = match args.node {
        None => None,
        Some(name) => {
            let id = find(site, &name).ok_or_else(|| {
                Error::new(Code::NotFound, "NODE_UNKNOWN", format!("this site has no node `{name}`"))
            })?;
            Some(effective(&document, &id))
        }
    };
    Ok(SettingsGetResult { version, document, effective, rollout: rollout(site) })
}

fn rollout(site: &Site) -> SettingsRollout {
    let standings = site.read(crate::core::registry::Registry::settings_standings);
    let refused = standings.refused.into_iter().take(NAMES);
    SettingsRollout {
        applied: standings.applied,
        confirming: standings.confirming,
        pending: standings.pending.into_iter().take(NAMES).collect(),
        refused: refused
            .map(|(id, name, version, reason)| SettingsRefusal {
                node_id: id.to_string(),
                name,
                version,
                reason,
            })
            .collect(),
    }
}

async fn history(site: &Site, list: &ListArgs) -> Result<SettingsHistoryResult, Error> {
    let limit = list.limit.unwrap_or(PAGE);
    if limit == 0 || limit > PAGE_MAX {
        return Err(invalid("ARGS", format!("limit must be 1 to {PAGE_MAX}")));
    }
    let below = match &list.cursor {
        None => u64::MAX,
        Some(cursor) => cursor
            .parse()
            .map_err(|_| invalid("ARGS", "cursor must be the next_cursor of the page before"))?,
    };
    let rows = site.settings.history().await.map_err(|error| unreadable(&error))?;
    let mut left = rows.into_iter().filter(|row| row.version < below).peekable();
    let (mut versions, mut bytes) = (Vec::new(), 0);
    while versions.len() < limit as usize && bytes < PAGE_BYTES {
        let Some(row) = left.next() else { break };
        bytes += serde_json::to_vec(&row).map_or(0, |json| json.len());
        versions.push(version_object(row));
    }
    let more = left.peek().is_some();
    let next_cursor = versions.last().filter(|_| more).map(|last| last.version.to_string());
    Ok(SettingsHistoryResult { versions, next_cursor })
}

fn version_object(row: VersionRow) -> SettingsVersion {
    SettingsVersion {
        version: row.version,
        at: timestamp(row.at_unix_ms),
        author: row.author,
        reason: Some(row.reason).filter(|reason| !reason.is_empty()),
        rolled_back_to: row.rolled_back_to,
        diff: row.diff,
    }
}

async fn compare(site: &Site, args: &SettingsDiffArgs) -> Result<SettingsDiffResult, Error> {
    let row = site.settings.document();
    let to = args.to.unwrap_or(row.version);
    let from = args.from.unwrap_or(to.saturating_sub(1));
    let (old, new) = (version_of(site, &row, from).await?, version_of(site, &row, to).await?);
    Ok(SettingsDiffResult { from, to, diff: diff(&old, &new) })
}
