//! Operations on API keys.
//!
//! Owns their objects and which commits they are. Leaves keys themselves to `shell::keys`. Invariants: a secret never
//! comes here, only its SHA-256; the audit says what a change changed.

use std::sync::Arc;

use jiff::civil::Date;
use jiff::{Span, ToSpan};
use serde_json::Value;
use umbel_contracts::objects::timestamp;
use umbel_contracts::operations::{
    ApiKeyCreate, ApiKeyList, ApiKeyListResult, ApiKeyObject, ApiKeyRevoke, ApiKeyUpdate, ApiKeyUpdateArgs,
    ApiKeyUsage, ApiKeyUsageArgs, ApiKeyUsageResult, KeyLimits, KeyUsageObject, ListArgs, Operation, UsageBy,
};
use umbel_wire::{Code, Error};

use super::nodes::check_name;
use super::reading::{PAGE_MAX, page, place};
use super::{args, invalid, result, stored, unknown};
use crate::core::commands::Request;
use crate::core::keys::LOOPBACK;
use crate::core::keys::change::{changed, sentence};
use crate::core::keys::ledger::Day;
use crate::shell::commands::{Commands, Context};
use crate::shell::keys::usage::{Asked, Used};
use crate::shell::keys::{Actor, KeyRow, Revoked};

pub(super) async fn read(commands: &Arc<Commands>, request: &Request) -> Result<Value, Error> {
    match request.operation.as_str() {
        ApiKeyList::NAME => result::<ApiKeyList>(list(commands, &args::<ApiKeyList>(request)?)?),
        ApiKeyUsage::NAME => result::<ApiKeyUsage>(usage(commands, args::<ApiKeyUsage>(request)?).await?),
        other => Err(unknown(other)),
    }
}

pub(super) fn dry_run(commands: &Arc<Commands>, request: &Request) -> Result<Value, Error> {
    let object = match request.operation.as_str() {
        ApiKeyCreate::NAME => object(commands, &new(commands, request)?),
        ApiKeyUpdate::NAME => object(commands, &wanted(commands, request)?.1),
        ApiKeyRevoke::NAME => object(commands, &commands.keys.row(&args::<ApiKeyRevoke>(request)?.key_id)?),
        other => return Err(unknown(other)),
    };
    // All of them give the same.
    result::<ApiKeyCreate>(object)
}

pub(super) async fn start(context: &Context<'_>) -> Result<(), Error> {
    match context.request.operation.as_str() {
        ApiKeyCreate::NAME => create(context).await,
        ApiKeyUpdate::NAME => update(context).await,
        ApiKeyRevoke::NAME => revoke(context).await,
        other => Err(unknown(other)),
    }
}

/// The row of a key that is asked for.
fn new(commands: &Commands, request: &Request) -> Result<KeyRow, Error> {
    let args = args::<ApiKeyCreate>(request)?;
    check_name("name", &args.name)?;
    let row = KeyRow {
        key_id: args.key_id,
        name: args.name,
        secret_sha256: args.secret_sha256,
        models: args.models,
        priority: args.priority.unwrap_or(50),
        limits: args.limits.of(KeyLimits::default()),
        created_at_unix_ms: commands.site.wall().unix_ms(),
        created_by: request.actor.clone(),
        revoked_at_unix_ms: None,
    };
    crate::shell::keys::validate(&row)?;
    Ok(row)
}

/// A key's row before and after the change that is asked for.
fn wanted(commands: &Commands, request: &Request) -> Result<(KeyRow, KeyRow), Error> {
    let args: ApiKeyUpdateArgs = args::<ApiKeyUpdate>(request)?;
    if let Some(name) = &args.name {
        check_name("name", name)?;
    }
    let before = commands.keys.row(&args.key_id)?;
    if before.revoked_at_unix_ms.is_some() {
        let message = "this key was revoked and opens nothing any more; make a new one";
        return Err(Error::new(Code::Conflict, "KEY_REVOKED", message));
    }
    let after = changed(&before, &args);
    crate::shell::keys::validate(&after)?;
    Ok((before, after))
}

fn object(commands: &Commands, row: &KeyRow) -> ApiKeyObject {
    ApiKeyObject {
        key_id: row.key_id.clone(),
        name: row.name.clone(),
        models: row.models.clone(),
        priority: row.priority,
        created_at: timestamp(row.created_at_unix_ms),
        created_by: row.created_by.clone(),
        revoked_at: row.revoked_at_unix_ms.map(timestamp),
        limits: row.limits,
        last_used_at: commands.keys.last_used(&row.key_id).map(timestamp),
        not_durable: commands.keys.is_unwritten(&row.key_id),
    }
}

fn list(commands: &Commands, list: &ListArgs) -> Result<ApiKeyListResult, Error> {
    let (rows, next_cursor) = page(commands.keys.list(), list, |row| place(&row.name, &row.key_id))?;
    Ok(ApiKeyListResult { apikeys: rows.iter().map(|row| object(commands, row)).collect(), next_cursor })
}

fn actor(context: &Context<'_>) -> Actor {
    Actor {
        name: context.request.actor.clone(),
        command_id: context.request.command_id.clone(),
        correlation_id: context.request.correlation_id.clone(),
        reason: context.request.reason.clone(),
    }
}

async fn create(context: &Context<'_>) -> Result<(), Error> {
    let row = new(context.commands, context.request)?;
    let value = result::<ApiKeyCreate>(object(context.commands, &row))?;
    let also = context.outcome(&stored(&value));
    context.commands.keys.create(row, &actor(context), also).await?;
    context.done(value);
    Ok(())
}

async fn update(context: &Context<'_>) -> Result<(), Error> {
    let commands = context.commands;
    let (before, after) = wanted(commands, context.request)?;
    let value = result::<ApiKeyUpdate>(object(commands, &after))?;
    let told = sentence(&before, &after);
    let told = if told.is_empty() { "nothing is different".to_owned() } else { told };
    let audit = context.audit_of(before.key_id.clone(), &told);
    commands.keys.change(&before, after, context.outcome(&stored(&value)).audit(audit)).await?;
    context.done(value);
    Ok(())
}

async fn revoke(context: &Context<'_>) -> Result<(), Error> {
    let commands = context.commands;
    let key_id = args::<ApiKeyRevoke>(context.request)?.key_id;
    let now = commands.site.wall().unix_ms();
    let mut object = ApiKeyObject { not_durable: false, ..object(commands, &commands.keys.row(&key_id)?) };
    object.revoked_at.get_or_insert(timestamp(now));
    let value = result::<ApiKeyRevoke>(object.clone())?;
    let also = context.outcome(&stored(&value));
    // Its requests that wait get no engine any more.
    let in_force = |number| commands.site.dispatch.refuse_key(number);
    let revoked = commands.keys.revoke(&key_id, now, &actor(context), also, in_force).await?;
    object.not_durable = revoked == Revoked::NotDurable;
    context.done(result::<ApiKeyRevoke>(object)?);
    Ok(())
}

const EPOCH: Date = Date::constant(1970, 1, 1);

fn date(day: Day) -> Date {
    EPOCH.saturating_add(i64::from(day.0).clamp(-2_000_000, 2_000_000).days())
}

fn day(date: Date) -> Day {
    let days = EPOCH.until(date).map(|span: Span| span.get_days());
    Day(days.unwrap_or(0))
}

fn cursor(used: &Used) -> String {
    let day = used.day.map(|day| format!("{}/", date(day))).unwrap_or_default();
    format!("{day}{}/{}", used.key_id, used.model)
}

fn after(by: UsageBy, cursor: &str) -> Option<(Option<Day>, String, String)> {
    let (of, rest) = match by {
        UsageBy::Total => (None, cursor),
        UsageBy::Day => {
            let (date, rest) = cursor.split_once('/')?;
            (Some(day(date.parse().ok()?)), rest)
        }
    };
    let (key_id, model) = rest.split_once('/')?;
    Some((of, key_id.to_owned(), model.to_owned()))
}

async fn usage(commands: &Commands, args: ApiKeyUsageArgs) -> Result<ApiKeyUsageResult, Error> {
    let limit = args.limit.unwrap_or(PAGE_MAX);
    if limit == 0 || limit > PAGE_MAX {
        return Err(invalid("ARGS", format!("limit must be 1 to {PAGE_MAX}")));
    }
    let after = match &args.cursor {
        None => None,
        Some(cursor) => Some(after(args.by, cursor).ok_or_else(|| {
            invalid("ARGS", "cursor is not the next_cursor of a page that was asked for in the same way")
        })?),
    };
    if let Some(key_id) = args.key_id.as_deref().filter(|key_id| *key_id != LOOPBACK) {
        commands.keys.row(key_id)?;
    }
    let asked = Asked {
        key_id: args.key_id,
        model: args.model,
        by_day: args.by == UsageBy::Day,
        since: args.since.map(day),
    };
    let most = usize::try_from(limit).unwrap_or(usize::MAX);
    let found = commands.keys.usage(&asked, after.as_ref(), most).await;
    let (found, more) =
        found.map_err(|error| Error::new(Code::Unavailable, "STORE_UNREADABLE", error.to_string()))?;
    let next_cursor = if more { found.last().map(cursor) } else { None };
    Ok(ApiKeyUsageResult {
        usage: found.into_iter().map(|used| usage_object(commands, used)).collect(),
        next_cursor,
    })
}

fn usage_object(commands: &Commands, used: Used) -> KeyUsageObject {
    let counts = used.counts;
    KeyUsageObject {
        name: commands.keys.row(&used.key_id).map(|row| row.name).unwrap_or_default(),
        key_id: used.key_id.to_string(),
        model: used.model.to_string(),
        day: used.day.map(date),
        requests: counts.requests,
        refused: counts.refused,
        prompt_tokens: counts.prompt_tokens,
        completion_tokens: counts.completion_tokens,
        cached_tokens: counts.cached_tokens,
        last_used_at: (counts.last_used_unix_ms > 0).then(|| timestamp(counts.last_used_unix_ms)),
    }
}
