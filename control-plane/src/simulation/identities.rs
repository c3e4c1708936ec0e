//! Identities at a simulated control plane: what admins change, an edge that enrolls, its renewal; and the places of its
//! audit.
//!
//! Owns the order that `http/identities.rs`, `shell/enrollment.rs`, `shell/rotation.rs` and `shell/witness.rs` have. Leaves
//! rows and verdicts to the cores. A signing request is the 32 bytes of the key's hash: nothing is signed here.

use std::time::Instant;

use prost::Message;
use umbel_contracts::bounds;
use umbel_contracts::objects::{EdgeEnrollmentRequest, OperatorRequest, Role};
use umbel_contracts::proto::control::{
    AuditPlace, EdgeCredentialRequest, EdgeCredentialResponse, EdgeEnrollRequest, EdgeEnrollResponse,
    EdgeSummary,
};
use umbel_store::simulation::Disk;
use umbel_store::{AuditRecord, Commit, CommitError, Owed, Position, Row};
use umbel_wire::clock::Wall;
use umbel_wire::io::accept::HelloIn;
use umbel_wire::secret::Secret;
use umbel_wire::{CloseReason, Code, EdgeId, Error, KeyHash};

use super::{LinkId, Plane};
use crate::core::edges::{EDGES, EdgeRow, Revoked};
use crate::core::enrollments::{self, ENROLLMENTS, EnrollmentRow, Judged, judge};
use crate::core::identities::{self, Signed};
use crate::core::operators::{self, OPERATORS, OperatorRow};
use crate::core::witness::{WITNESS, WitnessRow, answer, place, written};

/// What an admin wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A token for the edge.
    Mint {
        /// Names it.
        token_id: String,
        /// Its 32 bytes.
        secret: [u8; 32],
        /// Seconds until it expires.
        life: u64,
    },
    /// A token that nobody may use.
    RevokeToken(String),
    /// The edge's credential opens nothing any more.
    RevokeEdge,
    /// A token of an operator.
    AddOperator(String, [u8; 32]),
    /// One that opens nothing any more.
    RevokeOperator(String),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It is so, and on disk.
    Done,
    /// It is so until a restart, and written once that works.
    NotDurable,
    /// No, with this reason; nothing was changed.
    Refused(String),
}

/// What stands on a control plane's disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Edges' tokens: id, the key that used it, revoked.
    pub tokens: Vec<(String, Option<String>, bool)>,
    /// The edge is revoked.
    pub edge_revoked: bool,
    /// Operators: id, revoked.
    pub operators: Vec<(String, bool)>,
}

/// Looks at a disk, whoever runs on it.
#[must_use]
pub fn stored(disk: &mut Disk) -> Stored {
    let rows = |disk: &mut Disk, table| -> Vec<Row> { disk.load(table).unwrap_or_default() };
    let tokens = rows(disk, ENROLLMENTS).into_iter().filter_map(|row| {
        let token = row.json::<EnrollmentRow>().ok()?.token;
        Some((row.key, token.claim.map(|claim| claim.key_hash), token.revoked_at_unix_ms.is_some()))
    });
    let tokens = tokens.collect();
    let operators = rows(disk, OPERATORS).into_iter().filter_map(|row| {
        let operator = row.json::<OperatorRow>().ok()?;
        Some((row.key, operator.revoked_at_unix_ms.is_some()))
    });
    let operators = operators.collect();
    let edges = rows(disk, EDGES);
    let edge_revoked = edges.iter().any(|row| row.json::<EdgeRow>().is_ok_and(|edge| edge.revoked.is_some()));
    Stored { tokens, edge_revoked, operators }
}

fn refused(reason: &str) -> Changed {
    Changed::Refused(reason.to_owned())
}

impl Plane {
    /// An admin changes something; the answer, which is at once.
    pub fn change(&mut self, edge_id: &EdgeId, change: &Change, disk: &mut Disk, wall: Wall) -> Changed {
        let record = AuditRecord::new("admin.change", "subject", "succeeded").by("admin");
        if self.is("a control plane answers before it writes") && !matches!(change, Change::Mint { .. }) {
            return Changed::Done;
        }
        match change {
            Change::Mint { token_id, secret, life } => {
                self.mint(edge_id, token_id, secret, *life, record, disk, wall)
            }
            Change::RevokeToken(token_id) => self.revoke_token(token_id, record, disk, wall),
            Change::RevokeEdge => self.revoke_edge(edge_id, record, disk, wall),
            Change::AddOperator(id, secret) => self.add_operator(id, secret, record, disk, wall),
            Change::RevokeOperator(id) => self.revoke_operator(id, record, disk, wall),
        }
    }

    fn commit(&self, commit: &Commit, disk: &mut Disk, wall: Wall) -> Result<Position, Changed> {
        if !self.owed.is_empty() {
            // What is owed goes first.
            return Err(refused("AUDIT_UNAVAILABLE"));
        }
        disk.commit(commit, wall.unix_ms()).map_err(|error| match error {
            CommitError::Conflict(_) => refused("CHANGED_MEANWHILE"),
            _ => refused("AUDIT_UNAVAILABLE"),
        })
    }

    #[expect(clippy::too_many_arguments, reason = "a token and where it is kept")]
    fn mint(
        &mut self,
        edge_id: &EdgeId,
        token_id: &str,
        secret: &[u8; 32],
        life: u64,
        record: AuditRecord,
        disk: &mut Disk,
        wall: Wall,
    ) -> Changed {
        let Some(secret) = Secret::from_slice(secret) else { return refused("SECRET") };
        let request = EdgeEnrollmentRequest {
            edge_id: edge_id.to_string(),
            token_id: token_id.to_owned(),
            secret_sha256: secret.hash().to_hex(),
            expires_in_seconds: Some(life),
        };
        let Ok((_, row)) = enrollments::new_row(&request, "admin", wall) else { return refused("ARGS") };
        if self.fleet.edges.get(edge_id).is_some_and(|known| known.row.revoked.is_none()) {
            return refused("EDGE_ALREADY_ENROLLED");
        }
        let commit = Commit::new()
            .require_absent(ENROLLMENTS, token_id)
            .put_json(ENROLLMENTS, token_id, &row)
            .audit(record);
        self.commit(&commit, disk, wall).map_or_else(|error| error, |_| Changed::Done)
    }

    fn token(disk: &mut Disk, token_id: &str) -> Option<(EnrollmentRow, Position)> {
        let stored = disk.get(ENROLLMENTS, token_id).ok().flatten()?;
        Some((stored.json().ok()?, stored.position))
    }

    fn revoke_token(&mut self, token_id: &str, record: AuditRecord, disk: &mut Disk, wall: Wall) -> Changed {
        let Some((mut row, position)) = Self::token(disk, token_id) else { return refused("TOKEN_UNKNOWN") };
        if row.token.claim.is_some() {
            return refused("TOKEN_USED");
        }
        row.token.revoked_at_unix_ms.get_or_insert(wall.unix_ms());
        let commit = Commit::new()
            .require_at(ENROLLMENTS, token_id, position)
            .put_json(ENROLLMENTS, token_id, &row)
            .audit(record);
        self.commit(&commit, disk, wall).map_or_else(|error| error, |_| Changed::Done)
    }

    fn revoke_edge(&mut self, edge_id: &EdgeId, record: AuditRecord, disk: &mut Disk, wall: Wall) -> Changed {
        let Some(known) = self.fleet.edges.get(edge_id).cloned() else { return refused("EDGE_UNKNOWN") };
        if known.row.revoked.is_some() {
            return if self.owed.is_empty() { Changed::Done } else { Changed::NotDurable };
        }
        let token = Self::token(disk, &known.row.token_id);
        let revoked = Revoked { at_unix_ms: wall.unix_ms(), by: "admin".to_owned(), reason: String::new() };
        let (row, commit) = identities::revoked(&known, token, revoked, record.clone());
        match self.commit(&commit, disk, wall) {
            Ok(position) => {
                self.in_force(edge_id, row, position);
                Changed::Done
            }
            Err(Changed::Refused(reason)) if reason == "AUDIT_UNAVAILABLE" => {
                self.owed.push_back(identities::owed_revocation(&row, record));
                self.in_force(edge_id, row, known.position);
                Changed::NotDurable
            }
            Err(told) => told,
        }
    }

    fn in_force(&mut self, edge_id: &EdgeId, row: EdgeRow, position: Position) {
        if self.is("a revoked edge stays in") {
            return self.fleet.edges.apply(row, position);
        }
        let evicted = self.fleet.revoked(edge_id, row, position);
        if let Some(entry) = evicted.and_then(|owner| self.links.get_mut(&owner.handle)) {
            entry.end.close(CloseReason::Revoked);
        }
    }

    fn add_operator(
        &mut self,
        id: &str,
        secret: &[u8; 32],
        record: AuditRecord,
        disk: &mut Disk,
        wall: Wall,
    ) -> Changed {
        let Some(secret) = Secret::from_slice(secret) else { return refused("SECRET") };
        let request = OperatorRequest {
            operator_id: id.to_owned(),
            name: id.to_owned(),
            role: Role::Admin,
            secret_sha256: secret.hash().to_hex(),
        };
        let Ok(row) = operators::new_row(&request, "admin", wall.unix_ms()) else { return refused("ARGS") };
        let Ok(forgotten) = self.operators.room(wall.unix_ms()) else { return refused("TOO_MANY_OPERATORS") };
        match self.commit(&identities::operator_made(&row, &forgotten, record), disk, wall) {
            Ok(position) => {
                self.operators.forget(&forgotten);
                self.operators.apply(row, position);
                Changed::Done
            }
            Err(told) => told,
        }
    }

    fn revoke_operator(&mut self, id: &str, record: AuditRecord, disk: &mut Disk, wall: Wall) -> Changed {
        let Some((row, position)) = self.operators.get(id).cloned() else {
            return refused("OPERATOR_UNKNOWN");
        };
        if row.revoked_at_unix_ms.is_some() {
            return if self.owed.is_empty() { Changed::Done } else { Changed::NotDurable };
        }
        let row = OperatorRow { revoked_at_unix_ms: Some(wall.unix_ms()), ..row };
        match self.commit(&identities::operator_revoked(&row, position, record.clone()), disk, wall) {
            Ok(position) => {
                self.operators.apply(row, position);
                Changed::Done
            }
            Err(Changed::Refused(reason)) if reason == "AUDIT_UNAVAILABLE" => {
                self.owed.push_back(identities::owed_operator(&row, record));
                self.operators.apply(row, position);
                Changed::NotDurable
            }
            Err(told) => told,
        }
    }

    /// Whether this token opens the door.
    #[must_use]
    pub fn lets_in(&self, id: &str, secret: &[u8; 32]) -> bool {
        let Some(secret) = Secret::from_slice(secret) else { return false };
        self.is("a revoked operator is let in") || self.operators.authenticate(id, &secret).is_ok()
    }

    /// What is owed and what was told of audits goes to the disk.
    pub(super) fn write_owed(&mut self, disk: &mut Disk, now: Instant, wall: Wall) {
        while let Some(owed) = self.owed.front() {
            let Ok(changes) = disk.settle(None, owed, wall.unix_ms()) else { return };
            self.owed.pop_front();
            for change in changes {
                let Some(row) = change.row else { continue };
                if change.table == EDGES {
                    row.json().map(|edge| self.fleet.edges.apply(edge, row.position)).unwrap_or_default();
                } else if change.table == OPERATORS {
                    row.json().map(|one| self.operators.apply(one, row.position)).unwrap_or_default();
                }
            }
        }
        if self.places_at <= now {
            self.places_at = now + self.setup.heartbeat;
            self.write_places(Commit::new(), disk, wall);
        }
    }

    fn write_places(&mut self, commit: Commit, disk: &mut Disk, wall: Wall) {
        let rows = self.witness.take_unwritten(500);
        let commit = written(commit, &rows);
        if self.commit(&commit, disk, wall).is_err() {
            self.witness.keep(rows);
            let lost = Commit { preconditions: Vec::new(), ..commit };
            if !lost.audit.is_empty() {
                self.owed.push_back(Owed::new().with(lost));
            }
        }
    }

    /// Takes the place of an edge's audit out of its heartbeat.
    pub(super) fn witnessed(
        &mut self,
        edge_id: &EdgeId,
        said: &EdgeSummary,
        asked: Option<&AuditPlace>,
        disk: &mut Disk,
        wall: Wall,
    ) {
        let Some(place) = place(said) else { return };
        if self.is("a place is not compared") {
            self.witness.forget(edge_id);
        }
        let mut asked = asked.cloned();
        if let Some(said) = asked.as_mut().filter(|_| self.is("what a hello asked for is believed")) {
            said.aged = true;
        }
        if let Some(cut) = self.witness.told(edge_id, place, asked.as_ref().and_then(answer), wall.unix_ms())
        {
            self.write_places(Commit::new().audit(cut.deed(edge_id).record()), disk, wall);
        }
    }

    /// The place of the edge's audit that is known: its number and its hash.
    #[must_use]
    pub fn place(&self, edge_id: &EdgeId) -> Option<(u64, String)> {
        let last = &self.witness.row(edge_id)?.last;
        Some((last.sequence, last.hash.clone()))
    }

    /// The last cut of the edge's audit: where it was, and where it was found then.
    #[must_use]
    pub fn cut(&self, edge_id: &EdgeId) -> Option<(u64, u64)> {
        let cut = self.witness.row(edge_id)?.cut.as_ref()?;
        Some((cut.had.sequence, cut.found.sequence))
    }

    /// The entry of its audit that the edge was asked for and has not answered.
    #[must_use]
    pub fn asked(&self, edge_id: &EdgeId) -> Option<u64> {
        Some(self.witness.row(edge_id)?.asked.as_ref()?.sequence)
    }

    pub(super) fn load_identities(&mut self, disk: &mut Disk) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let forgets = usize::from(self.is("an operator is forgotten at a start"));
        for row in disk.load(OPERATORS).map_err(|error| text(&error))?.into_iter().skip(forgets) {
            self.operators.apply(row.json().map_err(|error| text(&error))?, row.position);
        }
        for row in disk.load(WITNESS).map_err(|error| text(&error))? {
            let edge_id = EdgeId::parse(&row.key).map_err(|error| text(&error))?;
            self.witness.restore(edge_id, row.json::<WitnessRow>().map_err(|error| text(&error))?);
        }
        Ok(())
    }

    /// A newcomer enrolls.
    pub(super) fn enroll(&mut self, link: LinkId, said: &HelloIn, disk: &mut Disk, wall: Wall) {
        let answer = self.enrolled(&said.payload, disk, wall);
        let Some(entry) = self.links.get_mut(&link) else { return };
        entry.state = super::sites::State::Over;
        match answer {
            Ok(answer) => entry.end.answer(answer.encode_to_vec()),
            Err(error) => {
                let (yours, mine) = (said.versions, umbel_contracts::CONTROL_PROTOCOL);
                entry.end.reject(&umbel_wire::Rejection { error, verdict: None, yours, mine });
            }
        }
    }

    fn enrolled(&mut self, payload: &[u8], disk: &mut Disk, wall: Wall) -> Result<EdgeEnrollResponse, Error> {
        let malformed = || Error::new(Code::InvalidArgument, "MALFORMED", "it does not decode");
        let asked = bounds::decode::<EdgeEnrollRequest>(payload)?;
        let secret = Secret::from_slice(&asked.token_secret).ok_or_else(malformed)?;
        let key = KeyHash(asked.signing_request.as_slice().try_into().map_err(|_| malformed())?);
        let edge_id = EdgeId::parse(&asked.edge_id).map_err(|_| malformed())?;
        let known = self.fleet.edges.get(&edge_id).cloned();
        let token = Self::token(disk, &asked.token_id);
        let row = token.as_ref().map(|(row, _)| row);
        let mut judged = judge(wall, row, &asked.edge_id, &secret, &key, known.as_ref());
        if self.is("an edge's token opens again") && row.is_some_and(|row| row.token.claim.is_some()) {
            judged = Judged::Sign;
        }
        let respond = |chain: Vec<Vec<u8>>, not_after: i64| EdgeEnrollResponse {
            edge_id: asked.edge_id.clone(),
            control_plane_id: "plane".to_owned(),
            not_after_unix_ms: not_after,
            certificate_chain: chain,
            ca_certificate: Vec::new(),
        };
        match (judged, token) {
            (Judged::Sign, Some(token)) => {
                let signed = Signed { key, chain: vec![key.0.to_vec()], not_after: wall + self.setup.life };
                let (edge, commit) = identities::claimed(token, known.as_ref(), "", &signed, wall);
                let position = self.commit(&commit, disk, wall).map_err(|_| {
                    Error::new(Code::InsufficientStorage, "STORE_READ_ONLY", "the token is still good")
                })?;
                let not_after = edge.not_after_unix_ms;
                self.fleet.edges.apply(edge, position);
                self.witness.forget(&edge_id);
                Ok(respond(signed.chain, not_after))
            }
            (Judged::Replay(claim), _) => {
                Ok(respond(claim.certificate_chain, known.map_or(0, |known| known.row.not_after_unix_ms)))
            }
            (Judged::Refused { error, .. }, _) => Err(error),
            (Judged::Sign, None) => Err(malformed()),
        }
    }

    /// A hello shows a key: if that is the pending one, the one before is retired.
    pub(super) fn shown_key(
        &mut self,
        edge_id: &str,
        key: Option<KeyHash>,
        disk: &mut Disk,
        wall: Wall,
    ) -> Result<(), Error> {
        let (Some(key), Ok(edge_id)) = (key, EdgeId::parse(edge_id)) else { return Ok(()) };
        let Some(known) = self.fleet.edges.get(&edge_id).cloned() else { return Ok(()) };
        let Some((row, commit)) = identities::shown(&known, &key) else { return Ok(()) };
        let unavailable = |_| Error::new(Code::Unavailable, "STORE_READ_ONLY", "it cannot be written");
        let position = self.commit(&commit, disk, wall).map_err(unavailable)?;
        self.fleet.edges.apply(row, position);
        Ok(())
    }

    /// An edge asks for a certificate for a new key.
    pub(super) fn give(
        &mut self,
        edge_id: &EdgeId,
        payload: &[u8],
        disk: &mut Disk,
        wall: Wall,
    ) -> Result<Vec<u8>, Error> {
        let asked = bounds::decode::<EdgeCredentialRequest>(payload)?;
        let malformed = || Error::new(Code::InvalidArgument, "SIGNING_REQUEST_REFUSED", "it is not usable");
        let key = KeyHash(asked.signing_request.as_slice().try_into().map_err(|_| malformed())?);
        let known = self.fleet.edges.get(edge_id).filter(|known| known.row.revoked.is_none()).cloned();
        let stale = || Error::new(Code::Conflict, "STALE_GENERATION", "it was replaced or revoked");
        let known = known.ok_or_else(stale)?;
        known.row.may_have(&key, self.fleet.edges.holder(&key))?;
        let signed = Signed { key, chain: vec![key.0.to_vec()], not_after: wall + self.setup.life };
        let (row, commit) = identities::given(&known, &signed, wall);
        let unavailable = |_| Error::new(Code::Unavailable, "STORE_READ_ONLY", "it cannot be written");
        let position = self.commit(&commit, disk, wall).map_err(unavailable)?;
        self.fleet.edges.apply(row, position);
        let not_after_unix_ms = signed.not_after.unix_ms();
        Ok(EdgeCredentialResponse { certificate_chain: signed.chain, not_after_unix_ms }.encode_to_vec())
    }
}
