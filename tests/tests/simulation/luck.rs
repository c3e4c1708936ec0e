//! All chance of a world, from its seed.

use umbel_wire::simulation::Chance;

/// A stream of numbers.
#[derive(Clone, Debug)]
pub(crate) struct Luck(Chance);

impl Luck {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Chance::new(seed.wrapping_mul(0xD129_0DD5_3E9B_A1F3) ^ 0x5851_F42D_4C95_7F2D))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.draw()
    }

    /// In `low..high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low).max(1)
    }

    /// One time in `of`.
    pub(crate) fn one_in(&mut self, of: u64) -> bool {
        self.next().is_multiple_of(of)
    }

    /// One of them.
    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.between(0, of.len() as u64) as usize]
    }
}
