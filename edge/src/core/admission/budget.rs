//! How many second tries the edge may make.
//!
//! Owns the one number that keeps a brown-out from being multiplied: tries at engines stay at or below 1.2
//! times the clients' requests, plus a small stock. Leaves whether a try is allowed at all to the caller.

/// Hundredths of a try that each request earns.
const EARNED: u64 = 20;
/// One try.
const TRY: u64 = 100;
/// The stock: enough for the requests that one lost node may hold without a head, not for a storm.
const STOCK: u64 = 64 * TRY;

/// A stock of tries that requests fill and second tries use up.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    stock: u64,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self { stock: STOCK / 2 }
    }
}

impl RetryBudget {
    /// A client's request arrived.
    pub(crate) fn earn(&mut self) {
        self.stock = self.stock.saturating_add(EARNED).min(STOCK);
    }

    /// Takes one try; false if none is left.
    pub(crate) fn spend(&mut self) -> bool {
        match self.stock.checked_sub(TRY) {
            Some(left) => {
                self.stock = left;
                true
            }
            None => false,
        }
    }
}
