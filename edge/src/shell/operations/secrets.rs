//! Operations on enrollment tokens.
//!
//! Owns their validation and commits. Invariant: a secret never comes here, only its SHA-256; the asker composes
//! the text that is shown once.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use umbel_contracts::objects::{EnrollmentState, timestamp};
use umbel_contracts::operations::{
    AnotherToken, EnrollmentCreate, EnrollmentCreateArgs, EnrollmentCreateResult, EnrollmentListResult,
    EnrollmentObject, EnrollmentRevoke, ListArgs, TOKENS_AT_ONCE,
};
use umbel_store::{Commit, CommitError, Position};
use umbel_wire::clock::Wall;
use umbel_wire::enroll::{LONGEST_LIFE, TokenRow};
use umbel_wire::secret::SecretHash;
use umbel_wire::token::is_token_id;
use umbel_wire::{Code, Error};

use super::nodes::{check_labels, check_name, check_node_name};
use super::reading::page;
use super::{invalid, result, stored};
use crate::core::commands::Request;
use crate::core::enrollment::EnrollmentRow;
use crate::shell::commands::{Commands, Context, store_error};
use crate::shell::site::ENROLLMENTS;

/// The rows of the tokens that are asked for, the first one first. One that is at fault refuses all.
pub(super) fn tokens(
    commands: &Commands,
    request: &Request,
    args: EnrollmentCreateArgs,
) -> Result<Vec<EnrollmentRow>, Error> {
    if args.more.len() >= TOKENS_AT_ONCE {
        return Err(invalid("ARGS", format!("a command makes at most {TOKENS_AT_ONCE} tokens")));
    }
    if args.replace.is_some() && !args.more.is_empty() {
        return Err(invalid("ARGS", "a token that replaces a node is made alone: leave out `more`"));
    }
    check_labels(&args.labels)?;
    if args.expires_in_seconds == 0 || args.expires_in_seconds > LONGEST_LIFE.as_secs() {
        return Err(invalid("ARGS", "expires_in_seconds must be 1 to 86400"));
    }
    if commands.site.advertise.is_empty() {
        let message = "this edge has no address that nodes could dial; set edge.advertise in its file";
        return Err(Error::new(Code::Unprocessable, "NO_ADDRESS", message));
    }
    let replaces = args.replace.as_deref().map(|asked| replaced(commands, asked)).transpose()?;
    let now = commands.site.wall();
    let life = std::time::Duration::from_secs(args.expires_in_seconds);
    let ca_sha256 = commands.site.authorities.held().sha256();
    let first = AnotherToken { token_id: args.token_id, secret_sha256: args.secret_sha256, name: args.name };
    let mut ids = BTreeSet::new();
    let row = |one: AnotherToken| {
        let secret_hash = checked(&one, replaces.is_some())
            .map_err(|why| invalid("ARGS", format!("the token for {:?}: {why}", one.name)))?;
        if !ids.insert(one.token_id.clone()) {
            return Err(invalid("ARGS", format!("two tokens have the token_id {}", one.token_id)));
        }
        let token = TokenRow {
            token_id: one.token_id,
            secret_hash,
            created_at_unix_ms: now.unix_ms(),
            expires_at_unix_ms: (now + life).unix_ms(),
            revoked_at_unix_ms: None,
            claim: None,
        };
        Ok(EnrollmentRow {
            token,
            name: one.name,
            labels: args.labels.clone(),
            eligible: args.eligible,
            created_by: request.actor.clone(),
            ca_sha256: ca_sha256.clone(),
            replaces: replaces.clone(),
        })
    };
    std::iter::once(first).chain(args.more).map(row).collect()
}

/// The hash of a token's secret, if all that is its own is as it should be.
fn checked(one: &AnotherToken, replaces: bool) -> Result<SecretHash, String> {
    if !is_token_id(&one.token_id) {
        return Err("token_id must have 8 to 36 characters of a-z, 0-9 and -".to_owned());
    }
    // Of a node that is replaced the name stays, which may be of an older kind.
    let named = if replaces { check_name("name", &one.name) } else { check_node_name(&one.name) };
    named.map_err(|error| error.message)?;
    let hash = SecretHash::from_hex(&one.secret_sha256);
    hash.ok_or_else(|| "secret_sha256 must have 64 hexadecimal digits".to_owned())
}

/// The node whose place a token gives away: by its id, or by a name that only one has.
fn replaced(commands: &Commands, asked: &str) -> Result<String, Error> {
    let (_, nodes) = commands.site.nodes();
    let named: Vec<_> =
        nodes.iter().filter(|node| node.id.to_string() == asked || node.row.name == asked).collect();
    let living: Vec<_> = named.iter().filter(|node| !node.is_tombstone()).collect();
    match living.as_slice() {
        [node] => Ok(node.id.to_string()),
        [] if named.is_empty() => {
            let message = format!("no node of this site has the id or name {asked}; list the nodes");
            Err(Error::new(Code::NotFound, "NO_MATCH", message))
        }
        [] => Err(Error::new(
            Code::Gone,
            "NODE_DECOMMISSIONED",
            "that node was decommissioned for good; mint a token without a node to replace",
        )),
        more => {
            let message = format!("{} nodes are called {asked}; say which by its id", more.len());
            Err(Error::new(Code::Conflict, "AMBIGUOUS", message))
        }
    }
}

/// What is told of new tokens: all but their ids is the same for all.
pub(super) fn tokens_result(
    commands: &Commands,
    rows: &[EnrollmentRow],
) -> Result<EnrollmentCreateResult, Error> {
    let row = rows.first().ok_or_else(|| Error::new(Code::Internal, "INTERNAL", "no token was made"))?;
    Ok(EnrollmentCreateResult {
        token_id: row.token.token_id.clone(),
        edge_id: commands.site.edge_id.to_string(),
        addresses: commands.site.advertise.clone(),
        ca_sha256: row.ca_sha256.clone(),
        expires_at: timestamp(row.token.expires_at_unix_ms),
    })
}

pub(super) async fn mint(context: &Context<'_>, args: EnrollmentCreateArgs) -> Result<(), Error> {
    let commands = context.commands;
    let rows = tokens(commands, context.request, args)?;
    let tokens = &commands.site.tokens;
    let wall = commands.site.wall();
    let room = tokens.lock().unwrap_or_else(PoisonError::into_inner).room(rows.len(), wall)?;
    let value = result::<EnrollmentCreate>(tokens_result(commands, &rows)?)?;
    // Their conditions come first: the number of the one that failed is that of its token.
    let mut commit = rows.iter().fold(Commit::new(), |commit, row| {
        let id = &row.token.token_id;
        let commit = commit.require_absent(ENROLLMENTS, id.clone()).put_json(ENROLLMENTS, id.clone(), row);
        commit.audit(context.audit(id.clone()))
    });
    commit = commit.and(context.outcome(&stored(&value)));
    for old in &room {
        commit = commit.remove(ENROLLMENTS, old.clone());
    }
    match commands.site.store.commit(commit).await {
        Ok(position) => {
            let mut tokens = tokens.lock().unwrap_or_else(PoisonError::into_inner);
            for old in room {
                tokens.remove(&old);
            }
            for row in rows {
                tokens.apply(row, position);
            }
        }
        Err(CommitError::Conflict(at)) if at < rows.len() => {
            let id = rows.get(at).map_or("", |row| row.token.token_id.as_str());
            let message = format!("a token of the id {id} exists; make a new one");
            return Err(Error::new(Code::Conflict, "TOKEN_EXISTS", message));
        }
        Err(error) => return Err(store_error(&error)),
    }
    context.done(value);
    Ok(())
}

fn token_object(row: &EnrollmentRow, now: Wall, not_durable: bool) -> EnrollmentObject {
    let claim = row.token.claim.as_ref();
    EnrollmentObject {
        token_id: row.token.token_id.clone(),
        name: row.name.clone(),
        labels: row.labels.clone(),
        eligible: row.eligible,
        state: match row.state(now) {
            "used" => EnrollmentState::Used,
            "revoked" => EnrollmentState::Revoked,
            "expired" => EnrollmentState::Expired,
            _ => EnrollmentState::Open,
        },
        created_at: timestamp(row.token.created_at_unix_ms),
        created_by: row.created_by.clone(),
        expires_at: timestamp(row.token.expires_at_unix_ms),
        used_at: claim.map(|claim| timestamp(claim.claimed_at_unix_ms)),
        node_id: claim.map(|claim| claim.subject.clone()),
        replaces: row.replaces.clone(),
        not_durable,
    }
}

pub(super) fn list_tokens(commands: &Commands, list: &ListArgs) -> Result<EnrollmentListResult, Error> {
    let now = commands.site.wall();
    let rows = commands.site.tokens.lock().unwrap_or_else(PoisonError::into_inner).all();
    // The newest first.
    let newest = |row: &EnrollmentRow| {
        format!("{:019} {}", i64::MAX.saturating_sub(row.token.created_at_unix_ms), row.token.token_id)
    };
    let (rows, next_cursor) = page(rows, list, newest)?;
    let tokens = commands.site.tokens.lock().unwrap_or_else(PoisonError::into_inner);
    let object = |row: &EnrollmentRow| token_object(row, now, tokens.is_unwritten(&row.token.token_id));
    Ok(EnrollmentListResult { enrollments: rows.iter().map(object).collect(), next_cursor })
}

fn open_token(commands: &Commands, id: &str) -> Result<(EnrollmentRow, Position), Error> {
    let tokens = commands.site.tokens.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((row, position)) = tokens.get(id).cloned() else {
        return Err(Error::new(
            Code::NotFound,
            "TOKEN_UNKNOWN",
            "no enrollment token of this id is kept here",
        ));
    };
    if row.token.claim.is_some() {
        let message = "it was used already; to shut the node out, revoke that node's credential";
        return Err(Error::new(Code::Conflict, "TOKEN_USED", message));
    }
    Ok((row, position))
}

/// What revoking a token would give.
pub(super) fn revocable(commands: &Commands, id: &str) -> Result<EnrollmentObject, Error> {
    let (mut row, _) = open_token(commands, id)?;
    let now = commands.site.wall();
    row.token.revoked_at_unix_ms.get_or_insert(now.unix_ms());
    Ok(token_object(&row, now, false))
}

pub(super) async fn revoke_token(context: &Context<'_>, id: &str) -> Result<(), Error> {
    let commands = context.commands;
    let site = &commands.site;
    let (mut row, position) = open_token(commands, id)?;
    let now = site.wall();
    row.token.revoked_at_unix_ms.get_or_insert(now.unix_ms());
    let mut value = result::<EnrollmentRevoke>(token_object(&row, now, false))?;
    let also = context.outcome(&stored(&value)).audit(context.audit(id));
    let commit =
        Commit::new().require_at(ENROLLMENTS, id, position).put_json(ENROLLMENTS, id, &row).and(also.clone());
    match site.store.commit(commit).await {
        Ok(position) => site.tokens.lock().unwrap_or_else(PoisonError::into_inner).apply(row, position),
        // Nobody can claim it while the store takes no writes; it is void here from now on.
        Err(CommitError::ReadOnly(_)) => {
            value = result::<EnrollmentRevoke>(token_object(&row, now, true))?;
            site.owe_token(row, also)?;
        }
        Err(error) => return Err(store_error(&error)),
    }
    context.done(value);
    Ok(())
}
