//! `node.credential.approve`: lets in a host whose certificate is newer than the backup that this edge came from.
//!
//! Leaves what waits and what an approval makes of it to `core/approval.rs`. Invariant: one transaction with the
//! command's outcome; a node that the backup did not know gets no application traffic until people say so.

use std::sync::PoisonError;

use serde_json::Value;
use umbel_contracts::objects::timestamp;
use umbel_contracts::operations::{
    CredentialApprove, CredentialApproveArgs, CredentialOutcome, CredentialsResult,
};
use umbel_store::{AuditRecord, CommitError};
use umbel_wire::Error;

use super::{result, stored};
use crate::core::approval::{Approved, Held, approve};
use crate::core::registry::node::{Lifecycle, ReportRow};
use crate::shell::commands::{Commands, Context, store_error};
use crate::shell::events::Happened;
use crate::shell::site::Site;

/// How often it is proposed again when the node changed in the same moment.
const TRIES: usize = 8;

fn held(site: &Site, args: &CredentialApproveArgs) -> Result<Held, Error> {
    site.approvals.lock().unwrap_or_else(PoisonError::into_inner).get(&args.key_sha256, site.wall())
}

/// What it would do.
pub(super) fn preview(commands: &Commands, args: &CredentialApproveArgs) -> Result<Value, Error> {
    let site = &commands.site;
    let held = held(site, args)?;
    let record = AuditRecord::default();
    let approved = site.read(|registry| approve(registry, &held, record, site.wall()))?;
    told(&held, &approved)
}

fn told(held: &Held, approved: &Approved) -> Result<Value, Error> {
    let outcome = CredentialOutcome {
        node_id: held.node.to_string(),
        name: approved.row.name.clone(),
        changed: true,
        disabled: approved.row.lifecycle == Lifecycle::Disabled,
        rotating: false,
        revoked_at: None,
        not_after: timestamp(approved.row.credential.not_after_unix_ms),
        not_durable: false,
    };
    result::<CredentialApprove>(CredentialsResult { nodes: vec![outcome] })
}

pub(super) async fn start(context: &Context<'_>, args: &CredentialApproveArgs) -> Result<(), Error> {
    let site = &context.commands.site;
    let held = held(site, args)?;
    for _ in 0..TRIES {
        let audit = context.audit(held.node.to_string());
        let approved = site.read(|registry| approve(registry, &held, audit, site.wall()))?;
        let value = told(&held, &approved)?;
        let Approved { row, known, commit } = approved;
        let position = match site.store.commit(commit.and(context.outcome(&stored(&value)))).await {
            Ok(position) => position,
            Err(CommitError::Conflict(0)) => continue,
            Err(error) => return Err(store_error(&error)),
        };
        site.approvals.lock().unwrap_or_else(PoisonError::into_inner).remove(&held.key);
        let message = if row.lifecycle == Lifecycle::Disabled {
            format!("{}: its host is known again, and disabled until people enable it", row.name)
        } else {
            format!("{}: its host is let in by an operator", row.name)
        };
        site.change(|registry| match known {
            Some(_) => registry.apply(held.node, row, position),
            None => registry.insert(held.node, row, position, ReportRow::default()),
        });
        site.events.tell(Happened {
            kind: "credential_approved",
            node_id: held.node.to_string(),
            message,
            ..Happened::default()
        });
        context.done(value);
        return Ok(());
    }
    Err(store_error(&CommitError::Conflict(0)))
}
