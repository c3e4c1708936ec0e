//! What two prompts have in common at their beginning, as far as a provider's prefix cache is concerned.
//!
//! Owns the chained hashes of a prompt's blocks. Leaves where a prefix was seen to [`super::affinity`].
//! Invariant: two prompts share the n-th hash only if their first n blocks are equal (but for one chance in 2^64).

use std::sync::Arc;

/// Bytes of a block: about 250 tokens, a few blocks of an engine's own cache.
pub(crate) const BLOCK: usize = 1_024;
/// Blocks of a prompt that are looked at.
pub(crate) const BLOCKS_MAX: usize = 64;

/// The beginning of a prompt: the hash of each of its first blocks, and of some of the further ones, each chained to all
/// blocks before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prefix(Option<Arc<[u64]>>);

impl Prefix {
    /// Of the raw bytes of a prompt. A prompt shorter than one block has none. `seed` is the process's own, so
    /// that nobody outside can make prompts that look alike.
    pub(crate) fn of(seed: u64, prompt: &[u8]) -> Self {
        let mut chain = seed;
        let hashes: Vec<u64> = prompt
            .chunks_exact(BLOCK)
            .take(BLOCKS_MAX)
            .zip(1usize..)
            .filter_map(|(block, number)| {
                chain = hash(chain, block);
                is_kept(number).then_some(chain)
            })
            .collect();
        Self((!hashes.is_empty()).then(|| Arc::from(hashes)))
    }

    /// The chained hashes, of the first block first.
    pub(crate) fn hashes(&self) -> &[u64] {
        self.0.as_deref().unwrap_or_default()
    }
}

/// All of the first eight, then about every eighth part more: 20 of 64 are enough to tell where a prompt was seen, and
/// each is a place in memory to be read and written.
fn is_kept(number: usize) -> bool {
    let step = (number.next_power_of_two() / 8).max(1);
    number.is_multiple_of(step)
}

/// Four lanes of folded multiplication: a block takes about a tenth of a microsecond.
fn hash(seed: u64, block: &[u8]) -> u64 {
    const ODD: [u64; 4] =
        [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9, 0x2545_f491_4f6c_dd1d];
    let mut lanes = ODD.map(|odd| seed ^ odd);
    let (parts, _) = block.as_chunks::<32>();
    for part in parts {
        let (words, _) = part.as_chunks::<8>();
        for ((lane, word), odd) in lanes.iter_mut().zip(words).zip(ODD) {
            *lane = folded(*lane ^ u64::from_le_bytes(*word), odd);
        }
    }
    lanes.iter().fold(seed, |all, lane| folded(all.rotate_left(23) ^ lane, ODD[0]))
}

fn folded(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    let bytes = product.to_le_bytes();
    let (halves, _) = bytes.as_chunks::<8>();
    halves.iter().fold(0, |all, half| all ^ u64::from_le_bytes(*half))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_beginning_shares_its_hashes_and_nothing_after_it() {
        let one = vec![7u8; 3 * BLOCK + 5];
        let mut other = one.clone();
        other[BLOCK + 1] = 8;
        let (a, b) = (Prefix::of(1, &one), Prefix::of(1, &other));
        assert_eq!((a.hashes().len(), b.hashes().len()), (3, 3));
        assert_eq!(a.hashes()[0], b.hashes()[0]);
        assert!(a.hashes()[1] != b.hashes()[1] && a.hashes()[2] != b.hashes()[2]);
        // Equal blocks at different places are different prefixes; another process sees other hashes.
        assert_ne!(a.hashes()[0], a.hashes()[1]);
        assert_ne!(a.hashes()[0], Prefix::of(2, &one).hashes()[0]);
        assert_eq!(Prefix::of(1, &one[..BLOCK - 1]), Prefix::default());
        let kept: Vec<usize> = (1..=BLOCKS_MAX).filter(|number| is_kept(*number)).collect();
        assert_eq!(kept, [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64]);
        let long = Prefix::of(1, &vec![0; 100 * BLOCK]);
        assert_eq!(long.hashes().len(), kept.len());
        // A longer prompt has all that a shorter one has.
        assert!(long.hashes().starts_with(Prefix::of(1, &vec![0; 30 * BLOCK]).hashes()));
    }
}
