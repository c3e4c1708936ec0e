//! What happened, so that a failure can be read and a seed compared with itself.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// The last steps before a failure that are shown.
const SHOWN: usize = 400;

/// The record of one world.
#[derive(Debug)]
pub(crate) struct History {
    seed: u64,
    loud: bool,
    steps: u64,
    digest: u64,
    last: VecDeque<String>,
}

/// An invariant does not hold, or somebody did not get on.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) seed: u64,
    pub(crate) invariant: &'static str,
    pub(crate) what: String,
    history: Vec<String>,
}

impl History {
    pub(crate) fn new(seed: u64, loud: bool) -> Self {
        Self { seed, loud, steps: 0, digest: 0xCBF2_9CE4_8422_2325, last: VecDeque::new() }
    }

    pub(crate) fn tell(&mut self, at: Duration, what: String) {
        self.steps += 1;
        for byte in what.bytes().chain(at.as_millis().to_be_bytes()) {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
        let line = format!("{:>9.3} {what}", at.as_secs_f64());
        if self.loud {
            println!("{line}");
        }
        if self.last.len() == SHOWN {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }

    /// Something happened that is too small to be told, and must be the same again.
    pub(crate) fn mix(&mut self, what: u64) {
        self.digest = (self.digest ^ what).wrapping_mul(0x0100_0000_01B3);
    }

    /// Of everything that happened.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    pub(crate) fn failure(&self, invariant: &'static str, what: String) -> Box<Failure> {
        Box::new(Failure { seed: self.seed, invariant, what, history: self.last.iter().cloned().collect() })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.history {
            writeln!(out, "{line}")?;
        }
        write!(out, "seed {}: {}: {}", self.seed, self.invariant, self.what)
    }
}
