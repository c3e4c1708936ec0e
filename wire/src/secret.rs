//! 256-bit secrets and what may be kept of them.
//!
//! Owns: [`Secret`] (never printed, wiped when dropped), [`SecretHash`] (what a verifier stores), [`SecretText`]
//! (a credential's printable form). Leaves to others: the printable forms themselves ([`crate::token`]).
//! Invariant: no `Debug` or error of this module contains a byte of a secret, and comparing costs the same
//! whether or not there is anything to compare with.

use std::fmt;

use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// 256 random bits that prove a right. Made by whoever asks for the right; only its hash travels and is stored.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Draws a new secret from the operating system.
    ///
    /// # Panics
    /// If the operating system has no source of random bytes; nothing secure can be done then.
    #[must_use]
    pub fn generate() -> Self {
        let mut bytes = [0; 32];
        random_bytes(&mut bytes);
        Self(bytes)
    }

    /// Takes a secret as it came over the wire. `None` unless it has exactly 32 bytes.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The bytes, for the one place that sends or prints them.
    #[must_use]
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// What a verifier may store. Plain SHA-256: with 256 random bits a slow derivation only adds latency.
    #[must_use]
    pub fn hash(&self) -> SecretHash {
        SecretHash(Sha256::digest(self.0).into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// SHA-256 of a [`Secret`]: enough to check one, useless to make one.
#[derive(Clone, Copy, serde::Serialize, serde::Deserialize)]
pub struct SecretHash([u8; 32]);

impl SecretHash {
    /// Takes a stored or received hash. `None` unless it has exactly 32 bytes.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The 32 bytes, to store or to send.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// In lower-case hex, as the operator API carries it.
    #[must_use]
    pub fn to_hex(&self) -> String {
        data_encoding::HEXLOWER.encode(&self.0)
    }

    /// From 64 hex digits of either case.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        let bytes = data_encoding::HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?;
        Self::from_slice(&bytes)
    }

    /// Whether `secret` is the one this hash was made of, in constant time. `stored` is `None` for an unknown id,
    /// which then costs as much as a wrong secret and is never right.
    #[must_use]
    pub fn check(stored: Option<&Self>, secret: &Secret) -> bool {
        const NOBODY: [u8; 32] = [0; 32];
        let reference = stored.map_or(&NOBODY, |hash| &hash.0);
        let equal = secret.hash().0.ct_eq(reference);
        bool::from(equal) && stored.is_some()
    }
}

impl PartialEq for SecretHash {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for SecretHash {}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash(..)")
    }
}

/// A credential in its printable form (a token's or key's text). Wiped when dropped, never printed by accident.
#[derive(Clone)]
pub struct SecretText(Zeroizing<String>);

impl SecretText {
    /// Takes over a text that holds a secret.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The text, for the one place that shows or stores it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether these bytes are the same text, in constant time for texts of one length.
    #[must_use]
    pub fn is(&self, bytes: &[u8]) -> bool {
        let own = self.0.as_bytes();
        // By words: comparing each byte for itself takes several times as long.
        let ((words, rest), (others, other_rest)) = (own.as_chunks::<8>(), bytes.as_chunks::<8>());
        let words = words.iter().zip(others).fold(Choice::from(1), |same, (own, other)| {
            same & u64::from_ne_bytes(*own).ct_eq(&u64::from_ne_bytes(*other))
        });
        own.len() == bytes.len() && bool::from(words & rest.ct_eq(other_rest))
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(..)")
    }
}

/// Fills `bytes` from the operating system's random source.
///
/// # Panics
/// If there is no such source; nothing secure can be done then.
pub fn random_bytes(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system has a source of random bytes");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test stops at the first surprise")]
    use super::*;

    #[test]
    fn nothing_prints_a_secret() {
        let secret = Secret::from_slice(&[0xab; 32]).unwrap();
        let text = SecretText::new("canary-text".to_owned());
        let printed = format!("{secret:?} {:?} {text:?}", secret.hash());
        assert!(
            !printed.contains("ab") && !printed.contains("171") && !printed.contains("canary"),
            "{printed}"
        );
    }

    #[test]
    fn only_the_same_secret_passes_and_an_unknown_id_never() {
        let secret = Secret::generate();
        let hash = secret.hash();
        assert!(SecretHash::check(Some(&hash), &secret));
        assert!(!SecretHash::check(Some(&hash), &Secret::generate()));
        assert!(!SecretHash::check(None, &secret));
    }

    #[test]
    fn a_text_is_only_itself() {
        for length in [0, 1, 7, 8, 9, 80] {
            let text = "x".repeat(length);
            let secret = SecretText::new(text.clone());
            assert!(secret.is(text.as_bytes()) && !secret.is(format!("{text}x").as_bytes()));
            for at in 0..length {
                let mut other = text.clone().into_bytes();
                other[at] ^= 1;
                assert!(!secret.is(&other) && !secret.is(&text.as_bytes()[..at]), "{length} {at}");
            }
        }
    }

    #[test]
    fn hex_goes_both_ways() {
        let hash = Secret::generate().hash();
        assert_eq!(SecretHash::from_hex(&hash.to_hex()).unwrap(), hash);
        assert!(SecretHash::from_hex("ab").is_none());
        assert!(SecretHash::from_hex(&"zz".repeat(32)).is_none());
    }
}
