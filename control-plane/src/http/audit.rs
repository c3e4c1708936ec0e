//! The control plane's own audit and store as operators see them: search, follow, chain, check, backup.
//!
//! Leaves reading to the store and what an entry says to `core/audit`.

use umbel_contracts::objects::{AuditObject, Page, timestamp};
use umbel_contracts::operations::{
    AuditExportArgs, AuditExportResult, AuditLine, AuditVerifyResult, EdgeBackupResult,
};
use umbel_contracts::serve::{AuditQuestion, Caller};
use umbel_store::{AuditEntry, BackupError};
use umbel_wire::error::{Code, Error};

use crate::core::audit::{self, Deed};
use crate::shell::plane::{Plane, unreadable};

pub(super) async fn page(plane: &Plane, question: AuditQuestion) -> Result<Page<AuditObject>, Error> {
    let (limit, before, after) = (question.limit.clamp(1, 1_000), question.before, question.after);
    let wanted = move |entry: &AuditEntry| question.matches(&audit::object(entry));
    let store = plane.store();
    if let Some(after) = after {
        let (found, looked) = store.audit_follow(after, limit, wanted).await.map_err(unreadable)?;
        let items = found.iter().map(audit::object).collect();
        return Ok(Page { items, next_cursor: Some(looked.to_string()) });
    }
    let (found, next) = store.audit_search(before, limit, wanted).await.map_err(unreadable)?;
    let items = found.iter().map(audit::object).collect();
    Ok(Page { items, next_cursor: next.map(|before| before.to_string()) })
}

pub(super) async fn export(plane: &Plane, args: AuditExportArgs) -> Result<AuditExportResult, Error> {
    let limit = args.page().map_err(|error| Error::new(Code::InvalidArgument, "QUERY", error))?;
    let store = plane.store();
    let read = store.audit_lines(args.after.unwrap_or(0), limit).await.map_err(unreadable)?;
    let last = read.last().map(|line| line.sequence);
    let hex = |hash: &[u8; 32]| data_encoding::HEXLOWER.encode(hash);
    let lines = read.into_iter().map(|line| AuditLine {
        sequence: line.sequence,
        previous: hex(&line.previous),
        entry: line.entry,
        hash: hex(&line.hash),
    });
    let lines = lines.collect();
    Ok(AuditExportResult { lines, next_after: last.filter(|last| *last < store.audit_head().sequence) })
}

pub(super) async fn verify(plane: &Plane) -> Result<AuditVerifyResult, Error> {
    let check = plane.store().audit_check().await.map_err(unreadable)?;
    Ok(AuditVerifyResult {
        message: check.sentence(),
        whole: check.is_whole(),
        entries: check.entries,
        first_sequence: check.first,
        last_sequence: check.last.sequence,
        last_hash: data_encoding::HEXLOWER.encode(&check.last.hash),
        broken_at: check.broken.map(|(at, _)| at),
    })
}

/// Copies the store into the directory that the file names. Audited before it begins: a copy of everything.
pub(super) async fn backup(plane: &Plane, caller: &Caller) -> Result<EdgeBackupResult, Error> {
    let deed = Deed {
        actor: caller.actor.clone(),
        action: "control_plane.backup",
        subject: "store".into(),
        outcome: "requested".into(),
        correlation_id: caller.correlation_id.clone(),
        ..Deed::default()
    };
    plane.audit(&deed).await?;
    let made = made(plane).await;
    let outcome = match &made {
        Ok(_) => "succeeded".to_owned(),
        Err(error) => format!("failed: {}", error.code.name()),
    };
    plane.audit_soon(&Deed { outcome, ..deed });
    made
}

async fn made(plane: &Plane) -> Result<EdgeBackupResult, Error> {
    let name = &plane.settings.name;
    let folder = crate::backup::folder(&plane.settings.backup, name);
    folder.ready().await.map_err(|error| refused(&error))?;
    let (file, made) = folder.make(plane.store(), name).await.map_err(|error| match error {
        BackupError::Running => {
            Error::new(Code::Conflict, "BACKUP_RUNNING", "Another backup is being made. Wait for its end.")
        }
        error => refused(&error),
    })?;
    Ok(EdgeBackupResult {
        file,
        bytes: made.bytes,
        sha256: data_encoding::HEXLOWER.encode(&made.sha256),
        position: made.position.0,
        at: timestamp(made.at_unix_ms),
    })
}

// The path stays on this host.
fn refused(error: &dyn std::fmt::Display) -> Error {
    tracing::error!(%error, "no backup was made");
    Error::new(
        Code::InsufficientStorage,
        "BACKUP_NOT_WRITTEN",
        "The backup cannot be written; the control plane's log says why. Free space where its backups go.",
    )
}
