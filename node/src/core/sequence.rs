//! A number that only grows, over restarts and crashes.
//!
//! Owns the counting; leaves the file to `shell/state`. Invariant: no number is given out that is not below one
//! that already stands on the disk as reserved.

/// Numbers reserved at a time: one write of the file for this many reports. Gaps after a crash are fine.
pub(crate) const BLOCK: u64 = 1024;

/// One report stream's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sequence {
    /// The last one given out, or known to the edge.
    last: u64,
    /// The highest that may be given out: the disk says so.
    reserved: u64,
}

impl Sequence {
    /// After a start: everything up to `on_disk` may have been used.
    pub(crate) fn after_start(on_disk: u64) -> Self {
        Self { last: on_disk, reserved: on_disk }
    }

    /// The last number given out.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// The next number; nothing when the reserve is used up.
    pub(crate) fn next(&mut self) -> Option<u64> {
        if self.last >= self.reserved {
            return None;
        }
        self.last += 1;
        Some(self.last)
    }

    /// The edge has seen `cursor`: what comes is above it.
    pub(crate) fn raise(&mut self, cursor: u64) {
        self.last = self.last.max(cursor);
    }

    /// What to write to the disk now, if the reserve is low; say [`Sequence::reserved`] when it is there.
    pub(crate) fn wanted(&self) -> Option<u64> {
        let left = self.reserved.saturating_sub(self.last);
        let up_to = self.last.saturating_add(BLOCK);
        // At the end of all numbers there is nothing to write.
        (left < BLOCK / 4 && up_to > self.reserved).then_some(up_to)
    }

    /// `up_to` stands on the disk.
    pub(crate) fn reserved(&mut self, up_to: u64) {
        self.reserved = self.reserved.max(up_to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of a life: take a number, write the reserve, crash, hear of a cursor.
    #[derive(Debug, Clone)]
    enum Step {
        Next,
        Reserve,
        Crash,
        Raise(u16),
    }

    impl quickcheck::Arbitrary for Step {
        fn arbitrary(g: &mut quickcheck::Gen) -> Self {
            match u8::arbitrary(g) % 8 {
                0..4 => Self::Next,
                4..6 => Self::Reserve,
                6 => Self::Crash,
                _ => Self::Raise(u16::arbitrary(g)),
            }
        }
    }

    #[test]
    fn there_is_an_end_to_numbers() {
        let mut sequence = Sequence::after_start(0);
        sequence.raise(u64::MAX);
        assert_eq!(sequence.wanted(), Some(u64::MAX));
        sequence.reserved(u64::MAX);
        assert_eq!((sequence.next(), sequence.wanted()), (None, None));
    }

    quickcheck::quickcheck! {
        fn only_grows(steps: Vec<Step>) -> bool {
            let mut disk = 0;
            let mut sequence = Sequence::after_start(disk);
            let mut highest = 0;
            steps.into_iter().all(|step| {
                match step {
                    Step::Next => {
                        if let Some(number) = sequence.next() {
                            let grew = number > highest && number <= disk;
                            highest = number;
                            return grew;
                        }
                    }
                    Step::Reserve => {
                        if let Some(up_to) = sequence.wanted() {
                            disk = up_to;
                            sequence.reserved(up_to);
                        }
                    }
                    Step::Crash => sequence = Sequence::after_start(disk),
                    Step::Raise(cursor) => sequence.raise(u64::from(cursor)),
                }
                true
            })
        }
    }
}
