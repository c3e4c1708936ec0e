//! What changes of identities write: an edge's enrollment, its credential given, shown and revoked; an operator's token
//! made and revoked.
//!
//! Owns the rows and preconditions of each change as one commit, and what is owed where that cannot be written. Leaves
//! who may ask, and applying it, to the callers. Invariant: a revocation also voids the token that the credential came of.

use umbel_store::{AuditRecord, Commit, Owed, Position};
use umbel_wire::clock::Wall;
use umbel_wire::enroll::ClaimRow;
use umbel_wire::ids::KeyHash;

use super::audit::{Deed, Detail};
use super::edges::{EDGES, EdgeRow, Known, Pending, Revoked};
use super::enrollments::{ENROLLMENTS, EnrollmentRow};
use super::operators::{OPERATORS, OperatorRow};
use super::witness::WITNESS;

/// A certificate that was signed just now.
#[derive(Clone, Debug)]
pub(crate) struct Signed {
    pub(crate) key: KeyHash,
    pub(crate) chain: Vec<Vec<u8>>,
    pub(crate) not_after: Wall,
}

/// What an edge did by itself, for the audit.
pub(crate) fn by_edge(edge_id: &str, action: &'static str) -> Deed {
    Deed {
        actor: format!("edge:{edge_id}"),
        action,
        subject: edge_id.to_owned(),
        outcome: "succeeded".to_owned(),
        detail: Detail { edge: edge_id.to_owned(), ..Detail::default() },
        ..Deed::default()
    }
}

/// An edge's use of its token, for the audit.
pub(crate) fn by_token(token_id: &str, edge_id: &str, outcome: impl Into<String>) -> Deed {
    Deed {
        actor: format!("token:{token_id}"),
        action: "edge.enroll",
        subject: edge_id.to_owned(),
        outcome: outcome.into(),
        detail: Detail { edge: edge_id.to_owned(), ..Detail::default() },
        ..Deed::default()
    }
}

/// A token is claimed. `enrolled`: the edge's row, whose credential was revoked; `token`: as it stands.
pub(crate) fn claimed(
    (mut token, position): (EnrollmentRow, Position),
    enrolled: Option<&Known>,
    display_name: &str,
    signed: &Signed,
    now: Wall,
) -> (EdgeRow, Commit) {
    let (token_id, edge_id) = (token.token.token_id.clone(), token.edge_id.clone());
    let edge = EdgeRow {
        edge_id: edge_id.clone(),
        display_name: display_name.to_owned(),
        key_sha256: signed.key.to_string(),
        not_after_unix_ms: signed.not_after.unix_ms(),
        enrolled_at_unix_ms: now.unix_ms(),
        token_id: token_id.clone(),
        issued_at_unix_ms: now.unix_ms(),
        pending: None,
        revoked: None,
    };
    token.token.claim = Some(ClaimRow {
        key_hash: signed.key.to_string(),
        claimed_at_unix_ms: now.unix_ms(),
        subject: edge_id.clone(),
        certificate_chain: signed.chain.clone(),
        void: false,
    });
    let commit = Commit::new().require_at(ENROLLMENTS, token_id.as_str(), position);
    let commit = match enrolled {
        Some(known) => commit.require_at(EDGES, edge_id.as_str(), known.position),
        None => commit.require_absent(EDGES, edge_id.as_str()),
    };
    let commit = commit
        .put_json(ENROLLMENTS, token_id.as_str(), &token)
        .put_json(EDGES, edge_id.as_str(), &edge)
        // Its audit may be another one.
        .remove(WITNESS, edge_id.as_str())
        .audit(by_token(&token_id, &edge_id, "succeeded").record());
    (edge, commit)
}

/// An edge is given a credential for a new key.
pub(crate) fn given(known: &Known, signed: &Signed, now: Wall) -> (EdgeRow, Commit) {
    let pending = Pending {
        key_sha256: signed.key.to_string(),
        not_after_unix_ms: signed.not_after.unix_ms(),
        issued_at_unix_ms: now.unix_ms(),
    };
    let row = EdgeRow { pending: Some(pending), ..known.row.clone() };
    let commit = replaced(known.position, &row, "edge.credential.issued");
    (row, commit)
}

/// A hello shows `key`. `None`: that is the one in use, nothing changes.
pub(crate) fn shown(known: &Known, key: &KeyHash) -> Option<(EdgeRow, Commit)> {
    let row = known.row.shown(key)?;
    let commit = replaced(known.position, &row, "edge.credential.rotated");
    Some((row, commit))
}

fn replaced(position: Position, row: &EdgeRow, action: &'static str) -> Commit {
    let edge_id = row.edge_id.as_str();
    Commit::new()
        .require_at(EDGES, edge_id, position)
        .put_json(EDGES, edge_id, row)
        .audit(by_edge(edge_id, action).record())
}

/// An edge's credential opens nothing any more. `token`: the one that it came of, if it is still there.
pub(crate) fn revoked(
    known: &Known,
    token: Option<(EnrollmentRow, Position)>,
    revoked: Revoked,
    record: AuditRecord,
) -> (EdgeRow, Commit) {
    let row = EdgeRow { revoked: Some(revoked), ..known.row.clone() };
    let commit = Commit::new()
        .require_at(EDGES, row.edge_id.as_str(), known.position)
        .put_json(EDGES, row.edge_id.as_str(), &row)
        .audit(record);
    let commit = match token {
        Some((mut token, at)) if token.token.claim.is_some() => {
            void(&mut token);
            commit.require_at(ENROLLMENTS, row.token_id.as_str(), at).put_json(
                ENROLLMENTS,
                row.token_id.as_str(),
                &token,
            )
        }
        _ => commit,
    };
    (row, commit)
}

/// The same where it could not be written.
pub(crate) fn owed_revocation(row: &EdgeRow, record: AuditRecord) -> Owed {
    let revoked = row.revoked.clone();
    Owed::new()
        .with(Commit::new().audit(record))
        .amend_json(EDGES, row.edge_id.as_str(), move |row: &mut EdgeRow| row.revoked.clone_from(&revoked))
        .amend_json(ENROLLMENTS, row.token_id.as_str(), void)
}

/// The token that a revoked credential came of gives it to nobody any more.
fn void(row: &mut EnrollmentRow) {
    if let Some(claim) = &mut row.token.claim {
        claim.void = true;
    }
}

/// An operator's token is made. `forgotten`: the revoked ones that make room for it.
pub(crate) fn operator_made(
    row: &OperatorRow,
    forgotten: &[(String, Position)],
    record: AuditRecord,
) -> Commit {
    let made = Commit::new()
        .require_absent(OPERATORS, row.operator_id.as_str())
        .put_json(OPERATORS, row.operator_id.as_str(), row)
        .audit(record);
    forgotten.iter().fold(made, |commit, (operator_id, position)| {
        commit.require_at(OPERATORS, operator_id.as_str(), *position).remove(OPERATORS, operator_id.as_str())
    })
}

/// An operator's token opens nothing any more.
pub(crate) fn operator_revoked(row: &OperatorRow, position: Position, record: AuditRecord) -> Commit {
    Commit::new()
        .require_at(OPERATORS, row.operator_id.as_str(), position)
        .put_json(OPERATORS, row.operator_id.as_str(), row)
        .audit(record)
}

/// The same where it could not be written.
pub(crate) fn owed_operator(row: &OperatorRow, record: AuditRecord) -> Owed {
    let revoked_at = row.revoked_at_unix_ms;
    Owed::new().with(Commit::new().audit(record)).amend_json(
        OPERATORS,
        row.operator_id.as_str(),
        move |row: &mut OperatorRow| row.revoked_at_unix_ms = revoked_at,
    )
}
