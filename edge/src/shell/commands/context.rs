//! What an operation gets of the command that asked for it: its audit entry and its place in the store.
//!
//! Invariant: whatever an operation commits, it joins with [`Context::outcome`] or [`Context::storing`], so that
//! effect, audit and command are one transaction.

use std::sync::Arc;

use serde_json::Value;
use umbel_contracts::objects::CommandPhase;
use umbel_store::limits::AUDIT_FIELD;
use umbel_store::{AuditRecord, Commit};
use umbel_wire::text::beginning;

use super::{COMMANDS, Commands, close, lock};
use crate::core::commands::{CommandRow, Request};

/// What an operation needs of the command that asked for it.
pub(crate) struct Context<'a> {
    pub(crate) commands: &'a Arc<Commands>,
    pub(crate) request: &'a Request,
    pub(super) forget: Vec<String>,
}

impl Context<'_> {
    /// The audit's entry of this command.
    pub(crate) fn audit(&self, subject: impl Into<String>) -> AuditRecord {
        AuditRecord::new(&self.request.operation, subject, "succeeded")
            .by(&self.request.actor)
            .of(&self.request.command_id, &self.request.correlation_id)
            .because(self.request.reason.clone())
    }

    /// The audit's entry of this command, with what it changed in front of the reason: what was, and what is now.
    pub(crate) fn audit_of(&self, subject: impl Into<String>, what: &str) -> AuditRecord {
        let reason = self.request.reason.trim();
        if reason.is_empty() {
            return self.audit(subject).because(what);
        }
        // An entry's text is cut at its end; the reason is the one thing that nobody can find out later.
        let room = AUDIT_FIELD.saturating_sub(reason.len() + 2).max(AUDIT_FIELD / 2);
        self.audit(subject).because(format!("{}: {reason}", beginning(what, room)))
    }

    fn row(&self) -> Option<CommandRow> {
        let running = self.commands.running(&self.request.command_id)?;
        let row = lock(&running.row).clone();
        Some(row)
    }

    /// What stores this command with its outcome, to be joined with its effect; [`Context::done`] follows.
    pub(crate) fn outcome(&self, result: &Value) -> Commit {
        let Some(mut row) = self.row() else { return Commit::new() };
        close(&mut row, Ok(result.clone()), self.commands.site.wall().unix_ms());
        self.storing(&row)
    }

    /// What stores this command as running, to be joined with its effect.
    pub(crate) fn storing(&self, row: &CommandRow) -> Commit {
        let id = &self.request.command_id;
        let mut commit =
            Commit::new().require_absent(COMMANDS, id.clone()).put_json(COMMANDS, id.clone(), row);
        for old in &self.forget {
            commit = commit.remove(COMMANDS, old.clone());
        }
        commit
    }

    /// After the commit: the old ones are forgotten here too.
    pub(crate) fn stored(&self, row: &CommandRow) {
        let mut table = lock(&self.commands.table);
        for old in &self.forget {
            table.forget(old);
        }
        table.apply(&self.request.command_id, row);
        if let Some(running) = self.commands.running(&self.request.command_id) {
            *lock(&running.row) = row.clone();
        }
    }

    /// The effect and the outcome are committed.
    pub(crate) fn done(&self, result: Value) {
        self.commands.site.trip("command is stored");
        let Some(mut row) = self.row() else { return };
        close(&mut row, Ok(result), self.commands.site.wall().unix_ms());
        self.stored(&row);
        self.commands.finish(&self.request.command_id, row);
    }

    /// This command's row as it runs.
    pub(crate) fn begun(&self) -> CommandRow {
        // It was put there before the operation began.
        self.row().unwrap_or_else(|| CommandRow {
            operation: self.request.operation.clone(),
            digest: self.request.digest(),
            actor: self.request.actor.clone(),
            reason: self.request.reason.clone(),
            selector: self.request.selector.clone(),
            phase: CommandPhase::Accepted,
            message: String::new(),
            error: None,
            result: None,
            accepted_at_unix_ms: self.commands.site.wall().unix_ms(),
            ended_at_unix_ms: None,
            nodes: Vec::new(),
            until_unix_ms: None,
        })
    }
}
