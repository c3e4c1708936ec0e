//! Operators' commands, as the shell carries them out: begun once, stored with their effect, answered once.
//!
//! Owns the steps around the command core. What cannot be written and ends harm takes force in memory, as on the real
//! edge, and is told as not durable. Invariant: an outcome is told only after its commit was answered.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use umbel_contracts::objects::CommandPhase;
use umbel_contracts::operations::CaStep;
use umbel_store::simulation::Disk;
use umbel_store::{AuditRecord, Commit, CommitError, Owed, Position};
use umbel_wire::clock::Wall;
use umbel_wire::enroll::TokenRow;
use umbel_wire::secret::Secret;
use umbel_wire::{KeyHash, NodeId};

use super::deployments::Wish;
use super::disk::Then;
use super::{COMMANDS, ENROLLMENTS, Edge, NODES};
use crate::core::authority::AuthorityRow;
use crate::core::commands::{Begin, CommandRow, Request};
use crate::core::deployments::change::Change as DeploymentChange;
use crate::core::enrollment::EnrollmentRow;
use crate::core::registry::node::{Decision, NodeRow, Wanted};
use crate::core::settings::Proposal;

/// What an operator wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// A token for one node.
    Mint {
        /// Names it.
        token_id: String,
        /// Its 32 bytes.
        secret: [u8; 32],
        /// Name of the node that it makes.
        name: String,
        /// Seconds until it expires.
        life: u64,
        /// The node whose place its host takes.
        replaces: Option<String>,
    },
    /// A token that nobody may use.
    RevokeToken(String),
    /// Whether a node gets application traffic.
    Eligible(String, bool),
    /// Whether a node takes new work.
    Drain(String, bool),
    /// Whether a node is kept out.
    Disable(String, bool),
    /// A credential that opens nothing any more.
    Revoke(String),
    /// A new certificate is wanted.
    Rotate(String),
    /// Retired for good.
    Decommission(String),
    /// A host whose certificate a restored edge does not know is let in, by its key.
    Approve(String),
    /// A step of a change of authority, and whether it goes on although nodes lack the new one.
    Authority(CaStep, bool),
    /// Another value of a field of the settings, by its path.
    Settings(String, String),
    /// A deployment's document.
    Apply(String),
    /// What is asked of a deployment.
    Deployment(String, Wish),
    /// A job's end is wanted.
    CancelJob(String),
}

/// A change of deployments that waits for its turn.
pub(super) struct Waiting {
    id: String,
    operation: Operation,
    row: CommandRow,
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It is so, and on disk.
    Done,
    /// It is so until a restart, and written once that works.
    NotDurable,
    /// No; nothing was changed.
    Refused(String),
}

pub(super) struct Running {
    operation: Operation,
    tries: u32,
    row: CommandRow,
    change: Change,
}

#[derive(Clone)]
pub(super) enum Change {
    Approved { key: KeyHash, node: NodeId, known: bool, row: NodeRow },
    Node(NodeId, NodeRow),
    Token(EnrollmentRow),
    Settings(Box<Proposal>),
    Authority(AuthorityRow),
    Deployment(Box<DeploymentChange>),
    Nothing,
}

impl Operation {
    // Rounds and these stand in a row.
    fn takes_turn(&self) -> bool {
        matches!(self, Self::Apply(_) | Self::Deployment(..))
    }

    /// As the contract names it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Mint { .. } => "enrollment.create",
            Self::RevokeToken(_) => "enrollment.revoke",
            Self::Eligible(..) => "node.eligible",
            Self::Drain(_, true) => "node.drain",
            Self::Drain(_, false) => "node.undrain",
            Self::Disable(_, true) => "node.disable",
            Self::Disable(_, false) => "node.enable",
            Self::Revoke(_) => "node.credential.revoke",
            Self::Rotate(_) => "node.credential.rotate",
            Self::Decommission(_) => "node.decommission",
            Self::Approve(_) => "node.credential.approve",
            Self::Settings(..) => "settings.set",
            Self::Authority(..) => "ca.rotate",
            Self::Apply(_) => "deployment.apply",
            Self::Deployment(_, Wish::Load) => "deployment.load",
            Self::Deployment(_, Wish::Unload | Wish::Leave(_)) => "deployment.unload",
            Self::Deployment(_, Wish::Pause(_)) => "deployment.pause",
            Self::Deployment(_, Wish::Restart | Wish::Renew(_)) => "deployment.restart",
            Self::Deployment(_, Wish::Delete) => "deployment.delete",
            Self::CancelJob(_) => "job.cancel",
        }
    }

    /// The node that it is about.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        match self {
            Self::Mint { .. }
            | Self::RevokeToken(_)
            | Self::Approve(_)
            | Self::Settings(..)
            | Self::Apply(_)
            | Self::Deployment(..)
            | Self::CancelJob(_)
            | Self::Authority(..) => None,
            Self::Eligible(node, _)
            | Self::Drain(node, _)
            | Self::Disable(node, _)
            | Self::Revoke(node)
            | Self::Rotate(node)
            | Self::Decommission(node) => Some(node),
        }
    }

    fn set(&self, row: &mut NodeRow, at: i64) {
        let by = "operator".to_owned();
        let decision = || Decision { at_unix_ms: at, by: by.clone(), reason: String::new() };
        match self {
            Self::Eligible(_, on) => row.eligible = *on,
            Self::Drain(_, on) => row.draining = *on,
            Self::Disable(_, true) => row.disable(decision()),
            Self::Disable(_, false) => row.enable(),
            Self::Revoke(_) => row.revoke(at),
            Self::Rotate(_) if row.admits() => row.rotate = Some(Wanted { at_unix_ms: at, by: by.clone() }),
            Self::Decommission(_) => row.decommission(decision()),
            Self::Rotate(_)
            | Self::Mint { .. }
            | Self::RevokeToken(_)
            | Self::Approve(_)
            | Self::Authority(..)
            | Self::Apply(_)
            | Self::Deployment(..)
            | Self::CancelJob(_)
            | Self::Settings(..) => {}
        }
    }

    // What ends harm takes force even if it cannot be written.
    fn ends_harm(&self) -> bool {
        matches!(self, Self::RevokeToken(_) | Self::Drain(_, true) | Self::Disable(_, true) | Self::Revoke(_))
    }
}

impl Edge {
    pub(super) fn load_commands(&mut self, disk: &mut Disk) -> Result<(), String> {
        for row in disk.load(COMMANDS).map_err(|error| error.to_string())? {
            let stored: CommandRow = row.json().map_err(|error| error.to_string())?;
            self.commands.apply(&row.key, &stored);
        }
        Ok(())
    }

    /// A command that an operator sent, or sent again. Its outcome comes with [`Edge::outcomes`].
    pub fn operate(&mut self, id: &str, operation: &Operation, now: Instant, wall: Wall) {
        let wall = self.wall(wall);
        self.uplink.at_socket.insert(id.to_owned());
        self.begin_command(id, operation, now, wall);
    }

    pub(super) fn begin_command(&mut self, id: &str, operation: &Operation, now: Instant, wall: Wall) {
        let args = serde_json::to_value(operation).unwrap_or_default();
        let args = serde_json::Map::from_iter([("operation".to_owned(), args)]);
        let request = Request {
            command_id: id.to_owned(),
            operation: operation.name().to_owned(),
            args,
            ..Request::default()
        };
        match self.commands.begin(&request, wall) {
            Err(error) => self.outcome(id, Outcome::Refused(error.reason.into_owned())),
            Ok(Begin::Join) => {}
            Ok(Begin::Replay) => {
                if self.is("a repeated command is refused") {
                    return self.outcome(id, Outcome::Refused("REPEATED".to_owned()));
                }
                let owed = self.disk.owes() && self.not_durable.contains(id);
                self.outcome(id, if owed { Outcome::NotDurable } else { Outcome::Done });
            }
            Ok(Begin::New { .. }) => {
                let row = CommandRow {
                    operation: request.operation.clone(),
                    digest: request.digest(),
                    actor: "operator".to_owned(),
                    reason: String::new(),
                    selector: String::new(),
                    phase: CommandPhase::Succeeded,
                    message: String::new(),
                    error: None,
                    result: None,
                    accepted_at_unix_ms: wall.unix_ms(),
                    ended_at_unix_ms: Some(wall.unix_ms()),
                    nodes: Vec::new(),
                    until_unix_ms: None,
                };
                self.carry_out(id, operation.clone(), row, 0, (now, wall));
            }
        }
        self.open_granted(now);
    }

    fn carry_out(
        &mut self,
        id: &str,
        operation: Operation,
        row: CommandRow,
        tries: u32,
        (now, wall): (Instant, Wall),
    ) {
        if operation.takes_turn() {
            if self.deployments.turn {
                return self.deployments.queue.push_back(Waiting { id: id.to_owned(), operation, row });
            }
            self.deployments.turn = true;
        }
        let planned = match &operation {
            Operation::Authority(step, leave) => self.plan_authority(id, (*step, *leave), now, wall),
            _ => self.plan(&operation, wall),
        };
        match planned {
            Err(reason) => {
                self.commands.forget(id);
                self.outcome(id, Outcome::Refused(reason));
                if operation.takes_turn() {
                    self.turn_is_over(now, wall);
                }
            }
            Ok((commit, change)) => {
                if let Change::Settings(proposal) = &change
                    && self.is("settings are in force before they are stored")
                {
                    self.settings_stored((**proposal).clone(), Position(u64::MAX), self.flushed);
                }
                let commit = commit.and(self.told(id, &operation, &row));
                self.running.insert(id.to_owned(), Running { operation, tries, row, change });
                self.disk.propose(commit, Then::Command(id.to_owned()));
            }
        }
    }

    pub(super) fn carry_out_waiting(&mut self, waiting: Waiting, now: Instant, wall: Wall) {
        let Waiting { id, operation, row } = waiting;
        self.carry_out(&id, operation, row, 0, (now, wall));
    }

    fn told(&self, id: &str, operation: &Operation, row: &CommandRow) -> Commit {
        if self.is("a command is not audited") {
            return Commit::new().put_json(COMMANDS, id, row);
        }
        let record = AuditRecord::new(operation.name(), "subject", "succeeded").by("operator").of(id, "");
        if self.is("a command is not stored with its effect") {
            return Commit::new().audit(record);
        }
        Commit::new().put_json(COMMANDS, id, row).audit(record)
    }

    fn plan(&self, operation: &Operation, wall: Wall) -> Result<(Commit, Change), String> {
        match operation {
            Operation::Mint { token_id, secret, name, life, replaces } => {
                let secret = Secret::from_slice(secret).ok_or("ARGS")?;
                let token = TokenRow {
                    token_id: token_id.clone(),
                    secret_hash: secret.hash(),
                    created_at_unix_ms: wall.unix_ms(),
                    expires_at_unix_ms: (wall + std::time::Duration::from_secs(*life)).unix_ms(),
                    revoked_at_unix_ms: None,
                    claim: None,
                };
                let row: EnrollmentRow = serde_json::from_value(serde_json::json!({
                    "token": token, "name": name, "eligible": true, "created_by": "operator",
                    "replaces": replaces, "ca_sha256": self.held.row.signing,
                }))
                .map_err(|error| error.to_string())?;
                let commit = Commit::new().require_absent(ENROLLMENTS, token_id.clone()).put_json(
                    ENROLLMENTS,
                    token_id.clone(),
                    &row,
                );
                Ok((commit, Change::Token(row)))
            }
            Operation::RevokeToken(token_id) => {
                let (mut row, position) = self.tokens.get(token_id).cloned().ok_or("TOKEN_UNKNOWN")?;
                if row.token.claim.is_some() {
                    return Err("TOKEN_USED".to_owned());
                }
                row.token.revoked_at_unix_ms.get_or_insert(wall.unix_ms());
                let commit = Commit::new().require_at(ENROLLMENTS, token_id.clone(), position).put_json(
                    ENROLLMENTS,
                    token_id.clone(),
                    &row,
                );
                Ok((commit, Change::Token(row)))
            }
            Operation::Approve(key) => self.plan_approval(key, wall),
            Operation::Apply(_) | Operation::Deployment(..) => {
                let change = self.wished(operation, wall)?;
                Ok((change.commit(), Change::Deployment(Box::new(change))))
            }
            Operation::CancelJob(job) => {
                let known = self.jobs.table.view(job).is_some();
                if known { Ok((Commit::new(), Change::Nothing)) } else { Err("UNKNOWN_JOB".to_owned()) }
            }
            Operation::Settings(path, value) => {
                let (commit, proposal) = self.plan_settings(path, value, wall)?;
                Ok((commit, Change::Settings(Box::new(proposal))))
            }
            _ => {
                let node = operation.node().unwrap_or_default();
                let id = NodeId::parse(node).map_err(|error| error.to_string())?;
                let known = self.registry.node(&id).filter(|node| !node.is_tombstone()).ok_or("NOT_FOUND")?;
                let mut row = known.row.clone();
                operation.set(&mut row, wall.unix_ms());
                let commit =
                    Commit::new().require_at(NODES, node, known.position).put_json(NODES, node, &row);
                Ok((commit, Change::Node(id, row)))
            }
        }
    }

    pub(super) fn command_written(
        &mut self,
        id: &str,
        result: Result<Position, CommitError>,
        now: Instant,
        wall: Wall,
    ) {
        let Some(Running { operation, tries, row, change }) = self.running.remove(id) else { return };
        self.step_is_over(id);
        let (turn, cancels) = (operation.takes_turn(), operation.clone());
        let outcome = match result {
            Ok(position) => {
                match change {
                    Change::Node(node, stored) => {
                        self.change(now, |registry| registry.apply(node, stored, position));
                    }
                    Change::Approved { key, node, known, row } => {
                        self.approvals.remove(&key);
                        self.approved(node, known, row, position, now);
                    }
                    Change::Token(stored) => self.tokens.apply(stored, position),
                    Change::Settings(proposal) => self.settings_stored(*proposal, position, now),
                    Change::Authority(row) => self.authority_stored(row, now),
                    Change::Deployment(change) => self.wish_written(&change, now),
                    Change::Nothing => {}
                }
                if let Operation::CancelJob(job) = cancels {
                    self.act(super::jobs::Act::Cancel(job), now, wall);
                }
                self.commands.apply(id, &row);
                Outcome::Done
            }
            Err(CommitError::Conflict(_)) if tries < 3 => {
                self.deployments.turn &= !turn;
                return self.carry_out(id, operation, row, tries + 1, (now, wall));
            }
            Err(CommitError::ReadOnly(_)) if operation.ends_harm() => {
                self.in_memory(id, &operation, &row, change, now);
                self.not_durable.insert(id.to_owned());
                self.commands.apply(id, &row);
                Outcome::NotDurable
            }
            Err(error) => {
                self.commands.forget(id);
                let reason =
                    if matches!(error, CommitError::Conflict(_)) { "CONFLICT" } else { "STORE_READ_ONLY" };
                Outcome::Refused(reason.to_owned())
            }
        };
        self.outcome(id, outcome);
        if turn {
            self.turn_is_over(now, wall);
        }
    }

    fn in_memory(&mut self, id: &str, operation: &Operation, row: &CommandRow, change: Change, now: Instant) {
        let owed = Owed::new().with(self.told(id, operation, row));
        let owed = match change {
            Change::Node(node, _) => {
                let (own, later, at) = (operation.clone(), operation.clone(), row.accepted_at_unix_ms);
                if !self.change(now, |registry| registry.apply_in_memory(node, |row| own.set(row, at))) {
                    owed
                } else {
                    owed.amend(NODES, node.to_string(), move |old| {
                        let mut row: NodeRow = serde_json::from_slice(old).ok()?;
                        later.set(&mut row, at);
                        serde_json::to_vec(&row).ok()
                    })
                }
            }
            Change::Settings(_)
            | Change::Authority(_)
            | Change::Approved { .. }
            | Change::Deployment(_)
            | Change::Nothing => owed,
            Change::Token(stored) => {
                let revoked = stored.token.revoked_at_unix_ms;
                let token_id = stored.token.token_id.clone();
                self.tokens.apply_in_memory(stored);
                owed.amend(ENROLLMENTS, token_id, move |old| {
                    let mut row: EnrollmentRow = serde_json::from_slice(old).ok()?;
                    if row.token.claim.is_none() {
                        row.token.revoked_at_unix_ms = revoked;
                    }
                    serde_json::to_vec(&row).ok()
                })
            }
        };
        self.disk.owe(owed);
    }

    /// Outcomes that became known, oldest first.
    pub fn outcomes(&mut self) -> Vec<(String, Outcome)> {
        std::mem::take(&mut self.outcomes)
    }
}
