//! How a dialer comes to a new key and certificate without a moment in which none of its own is accepted.
//!
//! Owns the order of the steps, and which of two certificates a dial shows. Leaves doing the steps to whoever has the
//! files (a node towards its edge, an edge towards a control plane): each is one write, one request or one dial, and
//! after any of them the process may be killed; and to [`acceptor`] the other side's rules. Invariant: what comes next follows from what stands in the state
//! directory and what the acceptor has said to this process, so that one that starts anew goes on where the last one
//! was; the old key is dropped only after the acceptor has taken the new one.
//!
//! ```text
//!   MakeKey -> Ask -> Show --accepted--> Adopt -> DropKey -> DropPending
//!                ^     `--refused, and the old one accepted--.
//!                `-------------------------------------------'   (the same key is asked for again)
//! ```

pub mod acceptor;

/// One step of a rotation. After each the process may end; the next one goes on from the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Make a key in the file that the identity does not name.
    MakeKey,
    /// Ask the acceptor for a certificate for it, over a connection that shows the active one, and keep the answer.
    Ask,
    /// Dial with it.
    Show,
    /// Make it the identity's.
    Adopt,
    /// Remove the key that was the identity's before.
    DropKey,
    /// Remove what was pending: the rotation is over.
    DropPending,
}

/// What stands in the state directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// There is a key in the file that the identity does not name.
    pub spare_key: bool,
    /// A certificate is kept that is not the identity's.
    pub pending: Option<Pending>,
}

/// A kept certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// Of the spare key.
    OfSpare,
    /// Of the identity's own key: it was adopted, and what is left of the one before has to go.
    Adopted,
}

/// What the acceptor has said to the pending certificate since this process started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// Nothing yet.
    Nothing,
    /// It was accepted.
    Accepted,
    /// It was refused, and the active one accepted after it.
    Refused,
}

/// The next step. `wanted`: a new certificate, where none is under way. `None` when there is nothing to do.
#[must_use]
pub fn next(held: Held, wanted: bool, said: Said) -> Option<Step> {
    match (held.pending, said) {
        (Some(Pending::Adopted), _) if held.spare_key => Some(Step::DropKey),
        (Some(Pending::Adopted), _) => Some(Step::DropPending),
        // Without its key a certificate opens nothing.
        (Some(Pending::OfSpare), _) if !held.spare_key => Some(Step::DropPending),
        (Some(Pending::OfSpare), Said::Accepted) => Some(Step::Adopt),
        (Some(Pending::OfSpare), Said::Refused) => Some(Step::Ask),
        (Some(Pending::OfSpare), Said::Nothing) => Some(Step::Show),
        // A key that nothing was kept for: its answer was lost, or it was never asked for. It may still be used.
        (None, _) if wanted && held.spare_key => Some(Step::Ask),
        (None, _) if wanted => Some(Step::MakeKey),
        (None, _) => None,
    }
}

/// Which certificate a dial shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shows {
    /// The one in use.
    Active,
    /// The one that was given and not yet accepted.
    Pending,
}

/// Which certificate each dial shows: the pending one first, and the one in use where that opens nothing.
#[derive(Clone, Copy, Debug)]
pub struct Dials {
    shows: Shows,
    /// There was a pending one to choose from.
    both: bool,
    said: Said,
    /// The pending one opened nothing in this round: the active one is next.
    fall_back: bool,
    /// It was the acceptor that said no to it.
    refused: bool,
}

impl Default for Dials {
    fn default() -> Self {
        Self { shows: Shows::Active, both: false, said: Said::Nothing, fall_back: false, refused: false }
    }
}

impl Dials {
    /// What the next dial shows.
    pub fn next(&mut self, pending: bool) -> Shows {
        self.both = pending;
        self.shows = if pending && !self.fall_back { Shows::Pending } else { Shows::Active };
        self.shows
    }

    /// A dial failed; `rejected`: the acceptor said why. True if the other certificate is to be tried at once.
    pub fn failed(&mut self, rejected: bool) -> bool {
        if self.shows == Shows::Pending {
            // A pause later where nobody said anything: it may be this certificate that is in the way.
            (self.fall_back, self.refused) = (true, rejected);
            return rejected;
        }
        // An acceptor that ended while it took the pending one refuses the other from then on; its hint of minutes
        // is for one that has refused both.
        let again = rejected && self.both && !self.refused;
        (self.fall_back, self.refused) = (false, false);
        again
    }

    /// The acceptor has taken the connection.
    pub fn accepted(&mut self) {
        self.said = match self.shows {
            Shows::Pending => Said::Accepted,
            Shows::Active if self.refused => Said::Refused,
            Shows::Active => Said::Nothing,
        };
        (self.fall_back, self.refused) = (false, false);
    }

    /// Another certificate is pending, or none any more: nothing was said to it.
    pub fn renewed(&mut self) {
        self.said = Said::Nothing;
    }

    /// What was said to the pending one.
    #[must_use]
    pub fn said(&self) -> Said {
        self.said
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use quickcheck::quickcheck;

    use super::*;

    // Files: the active key, the spare one, and what is kept of which key.
    #[derive(Debug, Default)]
    struct Disk {
        active: u32,
        spare: Option<u32>,
        pending: Option<u32>,
    }

    // The edge: one active key, at most one pending.
    #[derive(Debug, Default)]
    struct Edge {
        active: u32,
        pending: Option<u32>,
    }

    #[derive(Debug, Default)]
    struct World {
        disk: Disk,
        edge: Edge,
        keys: u32,
        // Of this process only.
        said: Option<Said>,
        answer: Option<u32>,
        rotations: u32,
    }

    impl World {
        fn held(&self) -> Held {
            let pending = self.disk.pending.map(|key| match key == self.disk.active {
                true => Pending::Adopted,
                false => Pending::OfSpare,
            });
            Held { spare_key: self.disk.spare.is_some(), pending }
        }

        // A hello with this key: the pending one retires the active one.
        fn hello(&mut self, key: u32) -> bool {
            if self.edge.pending == Some(key) {
                self.edge.active = key;
                self.edge.pending = None;
                self.rotations += 1;
            }
            self.edge.active == key
        }

        fn step(&mut self, wanted: bool, lost: bool) -> Option<Step> {
            if self.answer.is_some() {
                self.disk.pending = self.answer.take();
                self.said = None;
                return Some(Step::Ask);
            }
            let step = next(self.held(), wanted, self.said.unwrap_or(Said::Nothing))?;
            match step {
                Step::MakeKey => {
                    self.keys += 1;
                    self.disk.spare = Some(self.keys);
                }
                Step::Ask => {
                    assert!(self.hello(self.disk.active), "the active one is accepted when it is asked with");
                    self.edge.pending = self.disk.spare;
                    self.answer = self.disk.spare.filter(|_| !lost);
                }
                Step::Show => {
                    let pending = self.disk.pending.unwrap();
                    // Lost: the edge has accepted it, and the node never hears so.
                    self.said = match (self.hello(pending), lost) {
                        (_, true) => None,
                        (true, false) => Some(Said::Accepted),
                        (false, false) => Some(Said::Refused),
                    };
                }
                Step::Adopt => {
                    let old = self.disk.active;
                    self.disk.active = self.disk.pending.unwrap();
                    self.disk.spare = Some(old);
                }
                Step::DropKey => self.disk.spare = None,
                Step::DropPending => self.disk.pending = None,
            }
            Some(step)
        }

        fn check(&self) {
            let shown = [Some(self.disk.active), self.disk.pending.filter(|_| self.disk.spare.is_some())];
            let accepted = shown
                .into_iter()
                .flatten()
                .any(|key| self.edge.active == key || self.edge.pending == Some(key));
            assert!(accepted, "nothing on the disk is accepted: {self:?}");
        }

        fn crash(&mut self) {
            self.said = None;
            self.answer = None;
        }
    }

    #[test]
    fn a_rotation_killed_after_any_step_comes_to_its_end() {
        for killed in 0..12 {
            let mut world = World::default();
            let mut steps = Vec::new();
            for at in 0..60 {
                let wanted = world.rotations == 0;
                match world.step(wanted, false) {
                    Some(step) => steps.push(step),
                    None => break,
                }
                world.check();
                if at == killed {
                    world.crash();
                }
            }
            assert_eq!(
                (world.rotations, world.held()),
                (1, Held::default()),
                "killed after {killed}: {steps:?}"
            );
            assert_eq!(world.edge.active, world.disk.active);
            assert_eq!(world.edge.pending, None);
        }
    }

    #[test]
    fn the_pending_one_is_shown_first_and_a_refusal_leads_to_the_other_at_once() {
        let mut dials = Dials::default();
        assert_eq!(dials.next(false), Shows::Active);
        assert!(!dials.failed(true), "there is no other");
        assert_eq!(dials.next(true), Shows::Pending);
        assert!(dials.failed(true));
        assert_eq!(dials.next(true), Shows::Active);
        assert!(!dials.failed(true), "not for ever");
        assert_eq!(dials.next(true), Shows::Pending);
        assert!(!dials.failed(false), "nobody said anything: after the pause");
        assert_eq!(dials.next(true), Shows::Active);
        dials.accepted();
        assert_eq!(dials.said(), Said::Nothing, "nobody refused it: it is shown again");
        for (rejected, said) in [(true, Said::Refused), (false, Said::Nothing)] {
            assert_eq!(dials.next(true), Shows::Pending);
            dials.failed(rejected);
            assert_eq!(dials.next(true), Shows::Active);
            dials.accepted();
            assert_eq!(dials.said(), said);
        }
        dials.next(true);
        dials.accepted();
        assert_eq!(dials.said(), Said::Accepted);
        // The acceptor was killed while it took the pending one: the other is refused now, and not waited for.
        assert_eq!(dials.next(true), Shows::Pending);
        assert!(!dials.failed(false));
        assert_eq!(dials.next(true), Shows::Active);
        assert!(dials.failed(true));
        assert_eq!(dials.next(true), Shows::Pending);
        // Both are refused: that is waited for.
        assert!(dials.failed(true));
        assert_eq!(dials.next(true), Shows::Active);
        assert!(!dials.failed(true));
    }

    quickcheck! {
        // Every choice: whether it crashes after the step, whether the answer is lost, and whether a rotation is wanted.
        fn whatever_is_lost_one_credential_is_always_accepted(choices: Vec<(bool, bool, bool)>) -> bool {
            let mut world = World::default();
            for (crash, lost, wanted) in choices {
                world.step(wanted, lost);
                world.check();
                if crash {
                    world.crash();
                }
            }
            for _ in 0..40 {
                let wanted = world.rotations == 0;
                world.step(wanted, false);
                world.check();
            }
            // A key that was made and not asked for may stay: the next rotation takes it.
            world.disk.pending.is_none() && world.edge.active == world.disk.active && world.rotations > 0
        }
    }
}
