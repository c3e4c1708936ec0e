//! The site's authorities and their change, as `shell/authority` and `shell/operations/ca.rs` have it, in steps.
//!
//! Owns the directory of keys, which outlives the process and is in no backup, and the moment between a stored step and its
//! being in force. Leaves every step, and who is told and left behind, to `core/authority`. A certificate is its digest.

use std::time::Instant;

use data_encoding::HEXLOWER;
use umbel_contracts::operations::{CaRotateArgs, CaStep};
use umbel_store::Commit;
use umbel_store::simulation::Disk;
use umbel_wire::clock::Wall;

use super::operators::Change;
use super::{Edge, SELF};
use crate::core::authority::{self, AuthorityRow};

const AUTHORITY: &str = "authority";

/// The directory: what a crash leaves.
#[derive(Clone, Debug)]
pub struct Authorities {
    /// The directory's own.
    own: Option<String>,
    /// The others, newest first.
    others: Vec<String>,
    made: u64,
    unusable: bool,
}

impl Default for Authorities {
    fn default() -> Self {
        Self { own: Some(digest(0)), others: Vec::new(), made: 0, unusable: false }
    }
}

fn digest(number: u64) -> String {
    let mut bytes = [0xCA; 32];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    HEXLOWER.encode(&bytes)
}

impl Authorities {
    fn found(&self) -> authority::Keys {
        authority::Keys { own: self.own.clone(), others: self.others.clone() }
    }

    fn make(&mut self, listed: &[String]) -> Option<String> {
        if self.unusable {
            return None;
        }
        self.others.retain(|one| listed.contains(one));
        self.made += 1;
        self.others.insert(0, digest(self.made));
        Some(digest(self.made))
    }

    fn discard(&mut self, sha256: &str) {
        self.own = self.own.take().filter(|own| own != sha256);
        self.others.retain(|one| one != sha256);
    }

    /// From now on its files cannot be read or written, or they can again.
    pub fn unusable(&mut self, unusable: bool) {
        self.unusable = unusable;
    }
}

/// What this process holds of it.
pub(super) struct Held {
    pub(super) row: AuthorityRow,
    /// What the store has and this has not.
    not_in_force: Option<AuthorityRow>,
    /// The command whose step it is.
    turn: Option<String>,
}

/// What is to be seen of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityView {
    /// `settled`, `begun` or `switched`.
    pub phase: &'static str,
    /// The one that signs.
    pub signing: String,
    /// The one that is to sign.
    pub next: Option<String>,
    /// The one that signed.
    pub previous: Option<String>,
    /// Whom nodes are told to trust.
    pub trusted: Vec<String>,
    /// Who vouches for the nodes' port.
    pub vouching: Vec<String>,
}

impl Held {
    pub(super) fn load(disk: &mut Disk, files: &Authorities) -> Result<Self, String> {
        let stored = disk.get(SELF, AUTHORITY).map_err(|error| error.to_string())?;
        let stored = stored.map(|row| row.json::<AuthorityRow>()).transpose();
        let stored = stored.map_err(|error| error.to_string())?;
        if files.unusable {
            return Err("the authorities' files cannot be read".to_owned());
        }
        let taken = authority::taken_up(stored, &files.found());
        let (row, _) = taken.ok_or("no authority of this site can be used")?;
        Ok(Self { row, not_in_force: None, turn: None })
    }
}

/// A digest as the bytes of a certificate.
pub(super) fn certificate(digest: &str) -> Vec<u8> {
    HEXLOWER.decode(digest.as_bytes()).unwrap_or_default()
}

impl Edge {
    /// The directory of its authorities.
    pub fn authorities(&mut self) -> &mut Authorities {
        &mut self.authorities
    }

    /// The certificates that nodes are told to trust.
    pub(super) fn bundle(&self) -> Vec<Vec<u8>> {
        self.held.row.trusted().map(|one| certificate(one)).collect()
    }

    /// What a newcomer at the nodes' port is shown: it goes on if it trusts one of them.
    #[must_use]
    pub fn vouching(&self) -> Vec<String> {
        let most = if self.is("an old authority does not vouch") { 1 } else { 2 };
        self.held.row.vouching().take(most).cloned().collect()
    }

    /// What is in force.
    #[must_use]
    pub fn authority(&self) -> AuthorityView {
        let row = &self.held.row;
        AuthorityView {
            phase: row.phase().name(),
            signing: row.signing.clone(),
            next: row.next.clone(),
            previous: row.previous.clone(),
            trusted: row.trusted().cloned().collect(),
            vouching: self.vouching(),
        }
    }

    /// Nodes that the end of a change would cut off, as operators are told.
    #[must_use]
    pub fn lacks_authority(&self) -> Vec<String> {
        let lacking = authority::lacking(&self.held.row, self.registry.all());
        lacking.iter().map(|node| node.id.to_string()).collect()
    }

    /// Of those that nothing lets in, the nodes that lack the one that signs: a change does not wait for them, and an older store may
    /// let them in again.
    #[must_use]
    pub fn kept_out_lacks_authority(&self) -> Vec<String> {
        let waited_for = self.lacks_authority();
        let nodes = self.registry.all();
        let lacks = nodes.iter().filter(|node| self.held.row.lacks(&node.report.trusts));
        lacks.map(|node| node.id.to_string()).filter(|id| !waited_for.contains(id)).collect()
    }

    pub(super) fn plan_authority(
        &mut self,
        id: &str,
        (step, leave_behind): (CaStep, bool),
        now: Instant,
        wall: Wall,
    ) -> Result<(Commit, Change), String> {
        let reason = |error: umbel_wire::Error| error.reason.into_owned();
        if self.held.turn.is_some() {
            return Err("ANOTHER_STEP".to_owned());
        }
        self.catch_up(now);
        if self.held.not_in_force.is_some() {
            return Err("CA_FILES".to_owned());
        }
        let before = self.held.row.clone();
        let mut made = None;
        if step == CaStep::Begin {
            before.begin(String::new()).map_err(reason)?;
            let listed: Vec<_> = before.trusted().cloned().collect();
            made = Some(self.authorities.make(&listed).ok_or("CA_FILES")?);
        }
        let leave_behind = leave_behind || self.is("a change ends whoever lacks the new authority");
        let left = || (self.registry.all(), self.tokens.all());
        let args = CaRotateArgs { step, leave_behind };
        let mut row = authority::after(&before, &args, made, left, wall).map_err(reason)?;
        if step == CaStep::Begin && self.is("an authority signs before it is told") {
            row = row.switch().map_err(reason)?;
        }
        if step == CaStep::Abort && self.is("an aborted authority stays") {
            row = before.switch().and_then(|row| row.finish()).map_err(reason)?;
        }
        if self.authorities.unusable {
            return Err("CA_FILES".to_owned());
        }
        self.held.turn = Some(id.to_owned());
        Ok((Commit::new().put_json(SELF, AUTHORITY, &row), Change::Authority(row)))
    }

    /// The command's commit is answered, whatever came of it.
    pub(super) fn step_is_over(&mut self, id: &str) {
        self.held.turn.take_if(|turn| turn == id);
    }

    pub(super) fn authority_stored(&mut self, row: AuthorityRow, now: Instant) {
        self.held.not_in_force = Some(row);
        self.catch_up(now);
    }

    /// Puts the stored row in force, now or later.
    pub(super) fn catch_up(&mut self, now: Instant) {
        let Some(row) = self.held.not_in_force.clone().filter(|_| !self.authorities.unusable) else { return };
        let Some((row, _)) = authority::taken_up(Some(row), &self.authorities.found()) else { return };
        if self.is("a stored step is not taken up") {
            return;
        }
        self.held.not_in_force = None;
        let before = std::mem::replace(&mut self.held.row, row.clone());
        for over in before.trusted().filter(|one| !row.trusted().any(|left| left == *one)) {
            self.authorities.discard(over);
        }
        self.change(now, |registry| registry.set_authority(row));
    }
}
