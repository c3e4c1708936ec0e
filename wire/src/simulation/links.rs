//! The connections of one simulated process, by the number that the world gave each.

use std::collections::BTreeMap;
use std::time::Instant;

use super::End;

/// Names a connection in the world.
pub type LinkId = u64;

/// What a process keeps of a connection.
pub trait Linked {
    /// Its own end.
    fn end(&mut self) -> &mut End;
}

/// Bytes to send, and whether the connection is to be closed behind them.
pub fn take_bytes<L: Linked>(links: &mut BTreeMap<LinkId, L>, link: LinkId, now: Instant) -> (Vec<u8>, bool) {
    let Some(end) = links.get_mut(&link).map(Linked::end) else { return (Vec::new(), true) };
    let bytes = end.take_bytes(now);
    (bytes, end.is_over())
}
