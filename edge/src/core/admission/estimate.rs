//! How many tokens a prompt has, from its bytes.
//!
//! Owns one ratio a model, corrected by what engines report. Leaves what counts as bytes of a prompt to the HTTP
//! surface. Invariants: no single report moves the ratio by more than a fortieth, and no engine that reports nonsense
//! moves it out of its bounds.

/// Thousandths of a byte a token, before anything was reported: English text has about four bytes a token.
const START: u64 = 4_000;
/// Below this no text is; it bounds what a lying engine can do.
const LEAST: u64 = 1_000;
/// Escaped text of other scripts has eight to twelve bytes a token.
const MOST: u64 = 16_000;
/// From so many tokens a report has its full weight: of a short prompt most is the chat template's.
const FULL: u64 = 1_024;
/// The part of the way towards a report of full weight.
const WAY: u64 = 4;
/// A report counts as at most this part of the ratio away from it: one that is far off says "more" or "less", no more.
const FAR: u64 = 10;
/// Reports that the mean error looks back on.
const ERROR_OVER: u64 = 16;
/// Thousandths. An estimate that is ten times off is as bad as one can be.
const ERROR_MAX: u64 = 10_000;

/// Bytes a token of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ratio {
    thousandths: u64,
    /// Mean distance of estimates from reports, in thousandths of the report.
    error: Option<u64>,
}

impl Default for Ratio {
    fn default() -> Self {
        Self { thousandths: START, error: None }
    }
}

impl Ratio {
    /// Tokens of a prompt of so many bytes.
    pub(super) fn tokens(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(1_000).div_ceil(self.thousandths)
    }

    /// An engine reported the tokens of a prompt of so many bytes.
    pub(super) fn correct(&mut self, bytes: u64, tokens: u64) {
        if bytes == 0 || tokens == 0 {
            return;
        }
        let estimate = self.tokens(bytes);
        let error = (estimate.abs_diff(tokens).saturating_mul(1_000) / tokens).min(ERROR_MAX);
        let mean = self.error.unwrap_or(error);
        self.error = Some((mean * (ERROR_OVER - 1) + error) / ERROR_OVER);
        let far = self.thousandths / FAR;
        let said =
            (bytes.saturating_mul(1_000) / tokens).clamp(self.thousandths - far, self.thousandths + far);
        let step = |distance: u64| distance * estimate.min(FULL) / (FULL * WAY);
        let moved = if said >= self.thousandths {
            self.thousandths + step(said - self.thousandths)
        } else {
            self.thousandths - step(self.thousandths - said)
        };
        self.thousandths = moved.clamp(LEAST, MOST);
    }

    /// Thousandths of a byte a token.
    pub(super) fn thousandths(&self) -> u64 {
        self.thousandths
    }

    /// Mean distance of estimates from what engines reported, in thousandths of it; `None` before the first report.
    pub(super) fn error(&self) -> Option<u64> {
        self.error
    }
}

#[cfg(test)]
mod tests {
    use quickcheck::quickcheck;

    use super::*;

    #[test]
    fn it_follows_the_reports_and_its_error_shrinks() {
        let mut ratio = Ratio::default();
        assert_eq!((ratio.tokens(0), ratio.tokens(1), ratio.tokens(400_000)), (0, 1, 100_000));
        ratio.correct(80_000, 10_000);
        assert_eq!(ratio.error(), Some(1_000), "twice as many as there were");
        for _ in 0..60 {
            ratio.correct(80_000, 10_000);
        }
        assert!((7_900..=8_100).contains(&ratio.thousandths()), "{ratio:?}");
        assert!(ratio.error().is_some_and(|error| error < 100), "{ratio:?}");
    }

    #[test]
    fn neither_one_report_nor_a_liar_among_three_throws_it() {
        let mut ratio = Ratio::default();
        for (bytes, tokens) in [(1, u64::MAX), (u64::MAX, 1), (1_000_000, 1), (1, 1_000_000)] {
            let before = ratio.thousandths();
            ratio.correct(bytes, tokens);
            assert!(ratio.thousandths().abs_diff(before) <= before / 40, "{ratio:?}");
        }
        let mut ratio = Ratio::default();
        for turn in 0..3_000u64 {
            let said = if turn % 3 == 0 { 1 } else { 10_000 };
            ratio.correct(40_000, said);
        }
        assert!((3_800..=4_300).contains(&ratio.thousandths()), "{ratio:?}");
    }

    quickcheck! {
        fn it_stays_in_its_bounds(reports: Vec<(u64, u64)>) -> bool {
            let mut ratio = Ratio::default();
            for (bytes, tokens) in reports {
                ratio.correct(bytes, tokens);
            }
            (LEAST..=MOST).contains(&ratio.thousandths()) && ratio.error().is_none_or(|error| error <= ERROR_MAX)
        }
    }
}
