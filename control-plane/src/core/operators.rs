//! Operators: who may ask what. Only the SHA-256 of a token's secret is held.
//!
//! Invariant: without a row there is no way in over the network; a revoked row opens nothing; unknown ids cost the
//! same as known ones; a row that is active is never forgotten.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use umbel_contracts::objects::{OperatorObject, OperatorRequest, Role};
use umbel_store::Position;
use umbel_wire::error::{Code, Error};
use umbel_wire::secret::{Secret, SecretHash};
use umbel_wire::token::is_token_id;

/// Table of [`OperatorRow`]s, keyed by operator id.
pub(crate) const OPERATORS: &str = "operators";
/// Operators kept, revoked ones included.
pub(crate) const OPERATORS_MAX: usize = 1_000;
/// A revoked operator is listed for a year; what he did stays in the audit.
pub(crate) const KEPT_MS: i64 = 365 * 24 * 60 * 60 * 1000;
/// Rows that one commit forgets at most.
const FORGET_MAX: usize = 500;

/// An operator, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OperatorRow {
    pub(crate) operator_id: String,
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) secret_sha256: String,
    pub(crate) created_at_unix_ms: i64,
    pub(crate) created_by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) revoked_at_unix_ms: Option<i64>,
}

impl OperatorRow {
    pub(crate) fn object(&self) -> OperatorObject {
        OperatorObject {
            operator_id: self.operator_id.clone(),
            name: self.name.clone(),
            role: self.role,
            created_at: super::audit::timestamp(self.created_at_unix_ms),
            created_by: self.created_by.clone(),
            revoked_at: self.revoked_at_unix_ms.map(super::audit::timestamp),
        }
    }
}

/// Every operator.
#[derive(Debug, Default)]
pub(crate) struct Operators {
    rows: HashMap<String, (OperatorRow, Position)>,
}

impl Operators {
    pub(crate) fn apply(&mut self, row: OperatorRow, position: Position) {
        self.rows.insert(row.operator_id.clone(), (row, position));
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Room for one more: the rows to forget with it, those revoked a year ago and, if all places are taken, the one
    /// that was revoked first. RESOURCE_EXHAUSTED if all of them are active.
    pub(crate) fn room(&self, now_unix_ms: i64) -> Result<Vec<(String, Position)>, Error> {
        let mut revoked: Vec<_> = self
            .rows
            .values()
            .filter_map(|(row, position)| Some((row.revoked_at_unix_ms?, &row.operator_id, *position)))
            .collect();
        revoked.sort_unstable();
        let over = revoked.partition_point(|(at, ..)| at.saturating_add(KEPT_MS) < now_unix_ms);
        let needed = (self.rows.len() + 1).saturating_sub(OPERATORS_MAX);
        if needed > revoked.len() {
            return Err(Error::new(
                Code::ResourceExhausted,
                "TOO_MANY_OPERATORS",
                format!("{OPERATORS_MAX} operators are active, which is the most. Revoke one first."),
            ));
        }
        let forgotten = revoked.iter().take(over.min(FORGET_MAX).max(needed));
        Ok(forgotten.map(|(_, operator_id, position)| ((*operator_id).clone(), *position)).collect())
    }

    /// Rows that are stored no more.
    pub(crate) fn forget(&mut self, forgotten: &[(String, Position)]) {
        for (operator_id, _) in forgotten {
            self.rows.remove(operator_id);
        }
    }

    /// Whether this operator's token opens the door.
    pub(crate) fn is_active(&self, operator_id: &str) -> bool {
        self.rows.get(operator_id).is_some_and(|(row, _)| row.revoked_at_unix_ms.is_none())
    }

    pub(crate) fn get(&self, operator_id: &str) -> Option<&(OperatorRow, Position)> {
        self.rows.get(operator_id)
    }

    /// All of them, by name.
    pub(crate) fn objects(&self) -> Vec<OperatorObject> {
        let mut all: Vec<_> = self.rows.values().map(|(row, _)| row.object()).collect();
        all.sort_by(|one, other| (&one.name, &one.operator_id).cmp(&(&other.name, &other.operator_id)));
        all
    }

    /// How many open the door.
    pub(crate) fn active(&self) -> usize {
        self.rows.values().filter(|(row, _)| row.revoked_at_unix_ms.is_none()).count()
    }

    /// The name and role behind an id and secret. One answer for everything that opens nothing.
    pub(crate) fn authenticate(&self, operator_id: &str, secret: &Secret) -> Result<(String, Role), Error> {
        let row = self.rows.get(operator_id).map(|(row, _)| row);
        let stored = row.and_then(|row| SecretHash::from_hex(&row.secret_sha256));
        let same = SecretHash::check(stored.as_ref(), secret);
        match row {
            Some(row) if same && row.revoked_at_unix_ms.is_none() => Ok((row.name.clone(), row.role)),
            _ => Err(unknown_token()),
        }
    }
}

/// What every token that opens nothing is told.
pub(crate) fn unknown_token() -> Error {
    Error::new(
        Code::Unauthenticated,
        "TOKEN_UNKNOWN",
        "This is not a valid operator token of this control plane. An admin makes one with \
         `umbel ctl operator create`, or whoever owns the host through the local socket.",
    )
}

/// Checks what an admin sent and makes the row.
pub(crate) fn new_row(
    request: &OperatorRequest,
    created_by: &str,
    now_unix_ms: i64,
) -> Result<OperatorRow, Error> {
    let wrong = |reason: &'static str, message: &str| Err(Error::new(Code::InvalidArgument, reason, message));
    if !is_token_id(&request.operator_id) {
        return wrong("OPERATOR_ID_MALFORMED", "`operator_id` is 8 to 36 characters of a-z, 0-9 and `-`.");
    }
    if SecretHash::from_hex(&request.secret_sha256).is_none() {
        return wrong("SECRET_HASH_MALFORMED", "`secret_sha256` is 64 hexadecimal digits.");
    }
    let name = super::views::clip(request.name.trim());
    if name.is_empty() || name.chars().count() > 64 || name != request.name.trim() {
        return wrong("NAME_MALFORMED", "`name` is 1 to 64 printable characters.");
    }
    Ok(OperatorRow {
        operator_id: request.operator_id.clone(),
        name,
        role: request.role,
        secret_sha256: request.secret_sha256.clone(),
        created_at_unix_ms: now_unix_ms,
        created_by: created_by.to_owned(),
        revoked_at_unix_ms: None,
    })
}

#[cfg(test)]
mod tests;
