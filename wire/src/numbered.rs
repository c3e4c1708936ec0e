//! Maps by numbers that this process gives: ids on a wire, leases, places in a table.
//!
//! The standard hash keeps a stranger from choosing keys that meet; of own numbers, which grow by one or two, a
//! multiplication spreads as well, at an eighth of the time. Invariant: no key of such a map is a stranger's choice, but for
//! ids on a connection, where they slow only that connection.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by numbers of this process.
pub type Numbered<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// See [`Numbered`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        // The golden ratio; the rotation brings well-mixed high bits to where the map looks.
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}
