//! Admins of the control plane: the edge's tokens and credential, and operators' tokens.
//!
//! They enroll the edge again whenever it is refused for good, and revoke what they please. Leaves the machine and its
//! faults to `plane`, and judgement to `invariants`.

use std::time::Duration;

use umbel_control_plane::simulation::{Change, Changed, stored};
use umbel_wire::EdgeId;

use super::world::World;

/// Whether a token of an operator opens the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opens {
    Yes,
    No,
    /// It was revoked in memory only, and the process died.
    Unknown,
}

#[derive(Clone, Debug)]
struct Operator {
    id: String,
    secret: [u8; 32],
    opens: Opens,
    durable: bool,
}

/// Who they are, and what they were told.
#[derive(Debug, Default)]
pub(crate) struct Admins {
    pub(crate) next: Duration,
    numbers: u64,
    operators: Vec<Operator>,
    tokens: Vec<(String, [u8; 32])>,
    /// The credential is to be revoked before another token can be made.
    revoke_first: bool,
    over: bool,
    /// Operators who got in although revoked, or were kept out although not.
    pub(crate) let_in: Vec<String>,
    pub(crate) kept_out: Vec<String>,
    /// What was told to be done and is not on the disk.
    pub(crate) not_there: Vec<String>,
}

fn site() -> EdgeId {
    EdgeId::parse("site").unwrap()
}

impl Admins {
    /// What was in memory only may be taken back.
    pub(crate) fn plane_died(&mut self) {
        for operator in self.operators.iter_mut().filter(|one| !one.durable) {
            operator.opens = Opens::Unknown;
        }
    }

    pub(crate) fn rest(&mut self) {
        self.over = true;
    }
}

impl World {
    pub(crate) fn admins_act(&mut self) {
        let wait = self.plane.between(2_000, 20_000);
        self.plane.admins.next = self.time + Duration::from_millis(wait);
        if self.plane.process.is_none() || self.plane.paused {
            return;
        }
        if !self.plane.admins.operators.iter().any(|one| one.opens == Opens::Yes) {
            return self.add_operator();
        }
        let Some(edge) = self.edge.process.as_ref().filter(|_| !self.edge.paused) else { return };
        let reason = edge.plane_refusal();
        let refused = matches!(
            reason,
            "CREDENTIAL_REVOKED" | "CERTIFICATE_UNKNOWN" | "CERTIFICATE_EXPIRED" | "EDGE_ALREADY_ENROLLED"
        ) || reason.starts_with("TOKEN_");
        if edge.membership().token_id().is_empty() || refused {
            return self.enroll_edge();
        }
        if self.plane.admins.over {
            return;
        }
        match self.plane.between(0, 12) {
            0 => drop(self.change_plane(Change::RevokeEdge)),
            1 => self.add_operator(),
            2 | 3 => {
                let open: Vec<_> = self
                    .plane
                    .admins
                    .operators
                    .iter()
                    .filter(|one| one.opens != Opens::No)
                    .cloned()
                    .collect();
                let number = self.plane.between(0, open.len() as u64) as usize;
                if let Some(one) = open.get(number) {
                    drop(self.change_plane(Change::RevokeOperator(one.id.clone())));
                }
            }
            4 => {
                if let Some((token, _)) = self.plane.admins.tokens.last().cloned() {
                    drop(self.change_plane(Change::RevokeToken(token)));
                }
            }
            _ => {}
        }
    }

    fn number(&mut self, what: &str) -> (String, [u8; 32]) {
        self.plane.admins.numbers += 1;
        let mut secret = [0; 32];
        for part in secret.chunks_mut(8) {
            part.copy_from_slice(&self.plane.between(0, u64::MAX).to_be_bytes());
        }
        (format!("{what}-{:06}", self.plane.admins.numbers), secret)
    }

    fn add_operator(&mut self) {
        let (id, secret) = self.number("operator");
        if self.change_plane(Change::AddOperator(id.clone(), secret)) == Some(Changed::Done) {
            self.plane.admins.operators.push(Operator { id, secret, opens: Opens::Yes, durable: true });
        }
    }

    // A new token; the credential is revoked first where the control plane thinks that it is good.
    fn enroll_edge(&mut self) {
        if std::mem::take(&mut self.plane.admins.revoke_first) {
            drop(self.change_plane(Change::RevokeEdge));
            return;
        }
        // Somebody finds an old one first.
        if let Some((token_id, secret)) = self.plane.admins.tokens.last().cloned()
            && self.plane.between(0, 3) == 0
        {
            return self.with_edge(|edge, now, _| edge.join_plane(&token_id, secret, now));
        }
        let (token_id, secret) = self.number("edgetoken");
        match self.change_plane(Change::Mint { token_id: token_id.clone(), secret, life: 600 }) {
            Some(Changed::Done) => {
                self.plane.admins.tokens.push((token_id.clone(), secret));
                self.with_edge(|edge, now, _| edge.join_plane(&token_id, secret, now));
            }
            Some(Changed::Refused(reason)) if reason == "EDGE_ALREADY_ENROLLED" => {
                self.plane.admins.revoke_first = true;
            }
            _ => {}
        }
    }

    fn change_plane(&mut self, change: Change) -> Option<Changed> {
        let wall = self.wall(self.plane.clocks);
        let host = &mut self.plane;
        let told = host.process.as_mut()?.change(&site(), &change, &mut host.disk, wall);
        let what = match &change {
            Change::Mint { token_id, .. } => format!("mint {token_id}"),
            Change::AddOperator(id, _) => format!("add {id}"),
            other => format!("{other:?}"),
        };
        self.tell(format!("control plane: {what}: {told:?}"));
        let admins = &mut self.plane.admins;
        if let Change::RevokeOperator(id) = &change
            && let Some(one) = admins.operators.iter_mut().find(|one| one.id == *id)
            && !matches!(told, Changed::Refused(_))
        {
            (one.opens, one.durable) = (Opens::No, told == Changed::Done);
        }
        if told == Changed::Done {
            self.is_on_disk(&change);
        }
        // What it closed goes out.
        self.with_plane(|_, _, _, _| ());
        Some(told)
    }

    fn is_on_disk(&mut self, change: &Change) {
        let disk = stored(&mut self.plane.disk);
        let there = match change {
            Change::Mint { token_id, .. } => disk.tokens.iter().any(|(id, ..)| id == token_id),
            Change::RevokeToken(token_id) => disk.tokens.iter().any(|(id, _, gone)| id == token_id && *gone),
            Change::RevokeEdge => disk.edge_revoked,
            Change::AddOperator(id, _) => disk.operators.iter().any(|(one, _)| one == id),
            Change::RevokeOperator(id) => disk.operators.iter().any(|(one, gone)| one == id && *gone),
        };
        if !there {
            self.plane.admins.not_there.push(format!("{change:?}"));
        }
    }

    /// Somebody shows a token of an operator, mostly a good one. False: there is none, or it does not open.
    pub(crate) fn shows_token(&mut self) -> bool {
        let of = |opens: Opens, operators: &[Operator]| -> Vec<Operator> {
            operators.iter().filter(|one| one.opens == opens).cloned().collect()
        };
        let (good, bad) =
            (of(Opens::Yes, &self.plane.admins.operators), of(Opens::No, &self.plane.admins.operators));
        let tries = !bad.is_empty() && self.plane.between(0, 8) == 0;
        let from = if tries || good.is_empty() { &bad } else { &good };
        let number = self.plane.between(0, from.len() as u64) as usize;
        let (Some(one), Some(plane)) = (from.get(number), &self.plane.process) else { return false };
        let opens = plane.lets_in(&one.id, &one.secret);
        match (one.opens, opens) {
            (Opens::No, true) => self.plane.admins.let_in.push(one.id.clone()),
            (Opens::Yes, false) => self.plane.admins.kept_out.push(one.id.clone()),
            _ => {}
        }
        opens
    }
}
