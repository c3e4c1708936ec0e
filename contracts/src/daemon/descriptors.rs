//! How many files and connections a daemon may have open.
//!
//! Shells and containers allow 1,024 unless asked for more, which a crowd of idle connections uses up; a daemon asks for
//! all that it may have. Invariant: what it is not given is not an error, and its bounds follow what it got.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Where the system sets no limit: more than any daemon uses.
const UNLIMITED: u64 = 1 << 20;

/// Raises the limit of open descriptors as far as this process may; what it is now. Call it once, at the start.
pub fn raise_descriptors() -> usize {
    let had = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: had.maximum.or(Some(UNLIMITED)), maximum: had.maximum };
    let now = match setrlimit(Resource::Nofile, wanted) {
        Ok(()) => getrlimit(Resource::Nofile),
        Err(_) => had,
    };
    usize::try_from(now.current.unwrap_or(UNLIMITED)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_may_be_had_is_taken() {
        let now = raise_descriptors();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum.or(Some(UNLIMITED)));
        assert_eq!(limit.current, Some(now as u64));
        assert_eq!(raise_descriptors(), now);
    }
}
