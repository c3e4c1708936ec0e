//! What an admin changes: edges' enrollments and credentials, and operators. Each change is one commit with its
//! audit entry, and is applied only once it is stored.
//!
//! Each is called in a task of its own ([`to_the_end`](crate::shell::plane::to_the_end)): what was stored is applied
//! whether or not its caller still waits. Invariant: a revocation takes force even when the store cannot be written; the
//! answer says that it is not durable, and it is written once there is room.

use std::sync::Arc;

use umbel_contracts::objects::{
    EdgeEnrollmentObject, EdgeEnrollmentRequest, EdgeObject, OperatorObject, OperatorRequest,
};
use umbel_contracts::serve::Caller;
use umbel_store::{Commit, Position, Row};
use umbel_wire::CloseReason;
use umbel_wire::error::{Code, Error};
use umbel_wire::ids::EdgeId;

use crate::core::audit::{Deed, Detail};
use crate::core::edges::{EDGES, EdgeRow, Revoked};
use crate::core::enrollments::{self, ENROLLMENTS, ENROLLMENTS_MAX, EnrollmentRow, KEPT_MS};
use crate::core::identities;
use crate::core::operators::{self, OPERATORS, OperatorRow};
use crate::shell::plane::{Plane, unreadable};

/// Rows that one commit forgets at most.
const FORGET_MAX: usize = 500;

fn deed(caller: &Caller, action: &'static str, subject: &str, edge: &str, reason: &str) -> Deed {
    Deed {
        actor: caller.actor.clone(),
        action,
        subject: subject.to_owned(),
        outcome: "succeeded".into(),
        command_id: String::new(),
        correlation_id: caller.correlation_id.clone(),
        detail: Detail { edge: edge.to_owned(), reason: reason.to_owned(), ..Detail::default() },
    }
}

pub(super) async fn enrollment_create(
    plane: &Plane,
    caller: &Caller,
    request: EdgeEnrollmentRequest,
) -> Result<EdgeEnrollmentObject, Error> {
    let now = plane.clock.now();
    let (edge_id, row) = enrollments::new_row(&request, &caller.actor, now)?;
    if plane.fleet().edges.get(&edge_id).is_some_and(|known| known.row.revoked.is_none()) {
        return Err(Error::new(
            Code::Conflict,
            "EDGE_ALREADY_ENROLLED",
            format!(
                "Edge `{edge_id}` is enrolled. If its credential is lost, revoke it first; another site needs another name."
            ),
        ));
    }
    let stored = plane.store().load(ENROLLMENTS).await.map_err(unreadable)?;
    let mut commit = Commit::new()
        .require_absent(ENROLLMENTS, row.token.token_id.as_str())
        .put_json(ENROLLMENTS, row.token.token_id.as_str(), &row)
        .audit(deed(caller, "enrollment.create", &row.token.token_id, edge_id.as_str(), "").record());
    let mut kept = stored.len();
    for old in stored.iter().filter(|old| over(old, now.unix_ms())).take(FORGET_MAX) {
        commit = commit
            .require_at(ENROLLMENTS, old.key.as_str(), old.position)
            .remove(ENROLLMENTS, old.key.as_str());
        kept -= 1;
    }
    if kept >= ENROLLMENTS_MAX {
        return Err(Error::new(
            Code::ResourceExhausted,
            "TOO_MANY_ENROLLMENTS",
            format!(
                "{ENROLLMENTS_MAX} enrollment tokens are kept, which is the most. They are forgotten a week after their end."
            ),
        ));
    }
    plane.metrics.audited.inc();
    plane.commit(commit).await.map_err(|error| match error.code {
        Code::Conflict => {
            Error::new(Code::Conflict, "TOKEN_ID_TAKEN", "There is a token with this id. Draw another one.")
        }
        _ => error,
    })?;
    let mut object = enrollments::object(&row, now);
    object.addresses = plane.settings.advertise.clone();
    object.ca_sha256 = Some(data_encoding::HEXLOWER.encode(&plane.keys.authority.digest()));
    Ok(object)
}

/// Whether a stored token was over long ago.
fn over(row: &Row, now_unix_ms: i64) -> bool {
    row.json::<EnrollmentRow>()
        .is_ok_and(|row| row.token.expires_at_unix_ms.saturating_add(KEPT_MS) < now_unix_ms)
}

pub(super) async fn enrollments(plane: &Plane) -> Result<Vec<EdgeEnrollmentObject>, Error> {
    let now = plane.clock.now();
    let mut objects = Vec::new();
    for row in plane.store().load(ENROLLMENTS).await.map_err(unreadable)? {
        objects.push(enrollments::object(&row.json::<EnrollmentRow>().map_err(unreadable)?, now));
    }
    objects.sort_by(|one, other| (other.created_at, &other.token_id).cmp(&(one.created_at, &one.token_id)));
    Ok(objects)
}

async fn stored_enrollment(plane: &Plane, token_id: &str) -> Result<(EnrollmentRow, Position), Error> {
    let unknown = || Error::new(Code::NotFound, "TOKEN_UNKNOWN", "There is no such enrollment token.");
    if !umbel_wire::token::is_token_id(token_id) {
        return Err(unknown());
    }
    let stored = plane.store().get(ENROLLMENTS, token_id).await.map_err(unreadable)?.ok_or_else(unknown)?;
    Ok((stored.json().map_err(unreadable)?, stored.position))
}

pub(super) async fn enrollment(plane: &Plane, token_id: &str) -> Result<EdgeEnrollmentObject, Error> {
    let (row, _) = stored_enrollment(plane, token_id).await?;
    Ok(enrollments::object(&row, plane.clock.now()))
}

pub(super) async fn enrollment_revoke(
    plane: &Plane,
    caller: &Caller,
    token_id: &str,
    reason: &str,
) -> Result<EdgeEnrollmentObject, Error> {
    let (mut row, position) = stored_enrollment(plane, token_id).await?;
    let now = plane.clock.now();
    if row.token.claim.is_some() {
        return Err(Error::new(
            Code::Conflict,
            "TOKEN_USED",
            format!("This token was used by edge `{}`. Revoke that edge's credential instead.", row.edge_id),
        ));
    }
    if row.token.revoked_at_unix_ms.is_none() {
        row.token.revoked_at_unix_ms = Some(now.unix_ms());
        let commit = Commit::new()
            .require_at(ENROLLMENTS, token_id, position)
            .put_json(ENROLLMENTS, token_id, &row)
            .audit(deed(caller, "enrollment.revoke", token_id, &row.edge_id, reason).record());
        plane.metrics.audited.inc();
        plane.commit(commit).await?;
    }
    Ok(enrollments::object(&row, now))
}

pub(super) async fn credential_revoke(
    plane: &Arc<Plane>,
    caller: &Caller,
    edge_id: &EdgeId,
    reason: &str,
) -> Result<EdgeObject, Error> {
    let unknown = || Error::new(Code::NotFound, "EDGE_UNKNOWN", "No such edge is enrolled here.");
    let known = plane.fleet().edges.get(edge_id).cloned().ok_or_else(unknown)?;
    if known.row.revoked.is_none() {
        let revoked = Revoked {
            at_unix_ms: plane.clock.now().unix_ms(),
            by: caller.actor.clone(),
            reason: reason.to_owned(),
        };
        let entry = deed(caller, "credential.revoke", edge_id.as_str(), edge_id.as_str(), reason).record();
        let token = stored_enrollment(plane, &known.row.token_id).await.ok();
        let (row, commit) = identities::revoked(&known, token, revoked, entry.clone());
        plane.metrics.audited.inc();
        match plane.commit(commit).await {
            Ok(position) => in_force(plane, edge_id, row, position),
            // In force all the same: the operator is told.
            Err(error) if error.code == Code::InsufficientStorage => {
                let owed = identities::owed_revocation(&row, entry);
                in_force(plane, edge_id, row, known.position);
                return Err(plane.owe("The credential", owed));
            }
            Err(error) => return Err(error),
        }
    } else {
        still_owed(plane, EDGES, edge_id.as_str(), "The credential", |row: EdgeRow| row.revoked.is_some())
            .await?;
    }
    super::edges::one(plane, edge_id).ok_or_else(unknown)
}

/// One that was revoked before may not be on disk yet: then it is told once more.
async fn still_owed<T: serde::de::DeserializeOwned>(
    plane: &Plane,
    table: &'static str,
    key: &str,
    what: &str,
    is_revoked: impl FnOnce(T) -> bool,
) -> Result<(), Error> {
    // One that cannot be read now is not known to be there.
    let stored = plane.store().get(table, key).await.ok().flatten();
    if stored.and_then(|row| row.json().ok()).is_some_and(is_revoked) {
        return Ok(());
    }
    let message =
        format!("{what} is revoked, and waits to be written until this control plane's store can be.");
    Err(Error::new(Code::InsufficientStorage, "NOT_DURABLE", message))
}

fn in_force(plane: &Plane, edge_id: &EdgeId, row: EdgeRow, position: Position) {
    let evicted = plane.fleet().revoked(edge_id, row, position);
    tracing::warn!(edge = %edge_id, "credential revoked");
    plane.tell(edge_id, "credential_revoked", None, "The edge's credential was revoked.");
    if let Some(owner) = evicted {
        owner.handle.close(CloseReason::Revoked);
        let message = "The edge's connection ended (revoked).";
        plane.tell(edge_id, "edge_disconnected", Some(owner.generation), message);
    }
}

pub(super) async fn operator_create(
    plane: &Plane,
    caller: &Caller,
    request: OperatorRequest,
) -> Result<OperatorObject, Error> {
    let now = plane.clock.now().unix_ms();
    let row = operators::new_row(&request, &caller.actor, now)?;
    let taken = || {
        let message = "There is an operator with this id. Draw another one.";
        Error::new(Code::Conflict, "OPERATOR_ID_TAKEN", message)
    };
    let is_taken = || plane.operators().get(&row.operator_id).is_some();
    if is_taken() {
        return Err(taken());
    }
    let forgotten = plane.operators().room(now)?;
    let made = deed(caller, "operator.create", &format!("{} ({})", row.name, row.role.as_str()), "", "");
    let commit = identities::operator_made(&row, &forgotten, made.record());
    plane.metrics.audited.inc();
    let position = plane.commit(commit).await.map_err(|error| match error.code {
        Code::Conflict if is_taken() => taken(),
        _ => error,
    })?;
    let object = row.object();
    let mut operators = plane.operators();
    operators.forget(&forgotten);
    operators.apply(row, position);
    Ok(object)
}

pub(super) async fn operator_revoke(
    plane: &Arc<Plane>,
    caller: &Caller,
    operator_id: &str,
    reason: &str,
) -> Result<OperatorObject, Error> {
    let known = plane.operators().get(operator_id).cloned();
    let (row, position) =
        known.ok_or_else(|| Error::new(Code::NotFound, "OPERATOR_UNKNOWN", "There is no such operator."))?;
    if row.revoked_at_unix_ms.is_some() {
        let is_revoked = |row: OperatorRow| row.revoked_at_unix_ms.is_some();
        still_owed(plane, OPERATORS, operator_id, "The token", is_revoked).await?;
        return Ok(row.object());
    }
    let revoked_at = Some(plane.clock.now().unix_ms());
    let row = OperatorRow { revoked_at_unix_ms: revoked_at, ..row };
    let entry = deed(caller, "operator.revoke", &row.name, "", reason).record();
    let commit = identities::operator_revoked(&row, position, entry.clone());
    plane.metrics.audited.inc();
    let object = row.object();
    match plane.commit(commit).await {
        Ok(position) => plane.shut_out(row, position),
        Err(error) if error.code == Code::InsufficientStorage => {
            let owed = identities::owed_operator(&row, entry);
            plane.shut_out(row, position);
            return Err(plane.owe("The token", owed));
        }
        Err(error) => return Err(error),
    }
    Ok(object)
}
