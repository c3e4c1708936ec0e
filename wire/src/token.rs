//! Printable credentials: enrollment tokens, API keys, operator tokens.
//!
//! Owns: their text forms and checksums. Leaves to others: whether one is valid ([`crate::enroll`], the registries).
//! Invariant: an error says what is wrong with a text and never repeats any of it; only an id is ever shown.
//!
//! An enrollment token is `umbel1_` and base64url of: kind, length of the whole, edge id, token id, CA digest,
//! addresses, secret, checksum. It is composed by whoever asks for it, so the issuer never sees the secret. Keys and
//! operator tokens are `umk_ID_SECRETCHECK` and `umo_ID_SECRETCHECK`.

use data_encoding::BASE64URL_NOPAD;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::clock::Wall;
use crate::ids::EdgeId;
use crate::secret::{Secret, SecretHash, SecretText, random_bytes};

mod bearer;

pub use bearer::{Bearer, BearerKind, mint_bearer, parse_bearer};

/// What every enrollment token begins with; the digit is the version of the layout.
pub const PREFIX: &str = "umbel1_";
/// More addresses than this make a token unwieldy and help nobody.
pub const MOST_ADDRESSES: usize = 16;
/// Longest `host:port` in a token: a DNS name of 253 characters, a colon, a port.
pub const LONGEST_ADDRESS: usize = 259;
/// Longest token text that is looked at; the largest real one is shorter.
const LONGEST_TEXT: usize = 8192;
const CHECKSUM_BYTES: usize = 4;

/// Which door a token opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// An edge joins a control plane.
    Edge,
    /// A node joins an edge.
    Node,
}

/// Everything one host needs to join: where, whom to trust, and the right to.
#[derive(Clone, Debug)]
pub struct EnrollmentToken {
    /// Which door it opens.
    pub kind: TokenKind,
    /// The edge that a node joins, or the id that an edge is to have.
    pub edge_id: EdgeId,
    /// Names the token; may be logged. See [`is_token_id`].
    pub token_id: String,
    /// SHA-256 of the issuer's CA certificate, DER: whom to trust before having any certificate.
    pub ca_digest: [u8; 32],
    /// Where to dial, `host:port` each, at most [`MOST_ADDRESSES`].
    pub addresses: Vec<String>,
    /// The right to join. Only its SHA-256 is known to the issuer.
    pub secret: Secret,
}

/// What is wrong with a credential's text. Never repeats any of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Nothing was given.
    #[error("the token is empty")]
    Empty,
    /// It has none of our prefixes.
    #[error("this is not a token of Umbel: it does not begin with {expected}")]
    NotOurs {
        /// What it should begin with.
        expected: &'static str,
    },
    /// It is another kind of credential.
    #[error("this is {found}, and {expected} is needed here")]
    OtherKind {
        /// What was given.
        found: &'static str,
        /// What is needed.
        expected: &'static str,
    },
    /// Its layout is of another version.
    #[error(
        "this token was made for another version of Umbel; upgrade this host, or mint the token with its version"
    )]
    OtherVersion,
    /// Characters are missing at its end.
    #[error("the token is truncated: {have} of its {want} characters are there; copy the whole line")]
    Truncated {
        /// Characters given.
        have: usize,
        /// Characters it says it has.
        want: usize,
    },
    /// Characters follow its end.
    #[error(
        "the token goes on after its end: it has {want} characters and {have} were given; copy only the token"
    )]
    TooLong {
        /// Characters given.
        have: usize,
        /// Characters it says it has.
        want: usize,
    },
    /// A character that no token has.
    #[error(
        "the token has a character that no token has, at position {position}; it may hold a space or a line break"
    )]
    Character {
        /// Counted from 1.
        position: usize,
    },
    /// The checksum does not fit: a character was changed.
    #[error("the token's checksum does not fit: a character was changed or lost in copying")]
    Checksum,
    /// A field breaks its rules although the checksum fits.
    #[error("the token's {field} is malformed")]
    Field {
        /// Which one.
        field: &'static str,
    },
}

impl EnrollmentToken {
    /// The printable form: one line without spaces.
    ///
    /// # Errors
    /// [`TokenError::Field`] if an id or address breaks its rules.
    pub fn to_text(&self) -> Result<SecretText, TokenError> {
        self.check()?;
        // Room for the largest token, so that no copy of the secret is left behind by growing.
        let mut bytes = Zeroizing::new(Vec::with_capacity(LONGEST_TEXT));
        bytes.push(match self.kind {
            TokenKind::Edge => b'E',
            TokenKind::Node => b'N',
        });
        bytes.extend_from_slice(&[0, 0]);
        put(&mut bytes, self.edge_id.as_str().as_bytes());
        put(&mut bytes, self.token_id.as_bytes());
        bytes.extend_from_slice(&self.ca_digest);
        bytes.push(u8::try_from(self.addresses.len()).unwrap_or(u8::MAX));
        for address in &self.addresses {
            put_long(&mut bytes, address.as_bytes());
        }
        bytes.extend_from_slice(self.secret.expose());
        let whole =
            u16::try_from(bytes.len() + CHECKSUM_BYTES).map_err(|_| TokenError::Field { field: "length" })?;
        if let Some(length) = bytes.get_mut(1..3) {
            length.copy_from_slice(&whole.to_be_bytes());
        }
        let check = checksum(&bytes);
        bytes.extend_from_slice(&check);
        let mut text = String::with_capacity(PREFIX.len() + BASE64URL_NOPAD.encode_len(bytes.len()));
        text.push_str(PREFIX);
        BASE64URL_NOPAD.encode_append(&bytes, &mut text);
        Ok(SecretText::new(text))
    }

    /// Reads a token's text; white space around it is ignored.
    ///
    /// # Errors
    /// What is wrong with it, without repeating it.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        let body = strip_prefix(text)?;
        let bytes = decode(text.len(), body)?;
        let fields =
            bytes.get(3..bytes.len() - CHECKSUM_BYTES).ok_or(TokenError::Field { field: "length" })?;
        let mut rest = Fields(fields);
        let kind = match bytes.first() {
            Some(b'E') => TokenKind::Edge,
            Some(b'N') => TokenKind::Node,
            _ => return Err(TokenError::Field { field: "kind" }),
        };
        let edge_id = rest.short("edge id")?;
        let token_id = rest.short("id")?;
        let ca_digest = rest.take(32, "CA digest")?;
        let count = usize::from(*rest.take(1, "addresses")?.first().unwrap_or(&0));
        if count > MOST_ADDRESSES {
            return Err(TokenError::Field { field: "addresses" });
        }
        let addresses = (0..count).map(|_| rest.long("addresses")).collect::<Result<Vec<_>, _>>()?;
        let secret =
            Secret::from_slice(rest.take(32, "secret")?).ok_or(TokenError::Field { field: "secret" })?;
        if !rest.0.is_empty() {
            return Err(TokenError::Field { field: "length" });
        }
        let token = Self {
            kind,
            edge_id: EdgeId::parse(&edge_id).map_err(|_| TokenError::Field { field: "edge id" })?,
            token_id,
            ca_digest: ca_digest.try_into().map_err(|_| TokenError::Field { field: "CA digest" })?,
            addresses,
            secret,
        };
        token.check()?;
        Ok(token)
    }

    /// What the issuer stores of the secret.
    #[must_use]
    pub fn secret_hash(&self) -> SecretHash {
        self.secret.hash()
    }

    fn check(&self) -> Result<(), TokenError> {
        if !is_token_id(&self.token_id) {
            return Err(TokenError::Field { field: "id" });
        }
        let sound = |address: &String| is_address(address);
        if self.addresses.is_empty()
            || self.addresses.len() > MOST_ADDRESSES
            || !self.addresses.iter().all(sound)
        {
            return Err(TokenError::Field { field: "addresses" });
        }
        Ok(())
    }
}

/// A new random id for a token or key: 16 hex digits. It names the credential in logs and lists, and is no secret.
///
/// The second of its making stands in front: tokens of one roll-out are written and used together, and stand side by side
/// in their issuer's store.
#[must_use]
pub fn new_id() -> String {
    let [.., high, middle, low] = (Wall::now().unix_ms() / 1_000).to_be_bytes();
    let mut bytes = [high, middle, low, 0, 0, 0, 0, 0];
    if let Some(random) = bytes.get_mut(3..) {
        random_bytes(random);
    }
    data_encoding::HEXLOWER.encode(&bytes)
}

/// Whether a text can name a token or key: 8 to 36 characters of `a-z`, `0-9` and `-`.
#[must_use]
pub fn is_token_id(text: &str) -> bool {
    (8..=36).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Whether a text can be dialed: `host:port` with a port of 1 to 65535; IPv6 in brackets.
#[must_use]
pub fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let host_is_sound = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
        }
    };
    let port_is_sound =
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
    text.len() <= LONGEST_ADDRESS && host_is_sound && port_is_sound
}

fn strip_prefix(text: &str) -> Result<&str, TokenError> {
    const EXPECTED: &str = "an enrollment token";
    if text.is_empty() {
        return Err(TokenError::Empty);
    }
    if let Some(body) = text.strip_prefix(PREFIX) {
        return Ok(body);
    }
    if let Some(kind) = BearerKind::of(text) {
        return Err(TokenError::OtherKind { found: kind.words(), expected: EXPECTED });
    }
    let is_ours = text
        .strip_prefix("umbel")
        .and_then(|rest| rest.split_once('_'))
        .is_some_and(|(version, _)| !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit()));
    Err(if is_ours { TokenError::OtherVersion } else { TokenError::NotOurs { expected: PREFIX } })
}

/// Decodes the body, and finds out in words what is wrong if it cannot be whole.
fn decode(have: usize, body: &str) -> Result<Zeroizing<Vec<u8>>, TokenError> {
    if have > LONGEST_TEXT {
        return Err(TokenError::TooLong { have, want: LONGEST_TEXT });
    }
    if let Some(at) =
        body.bytes().position(|byte| !byte.is_ascii_alphanumeric() && byte != b'-' && byte != b'_')
    {
        return Err(TokenError::Character { position: PREFIX.len() + at + 1 });
    }
    // The first four characters hold kind and length, so that a cut text is told from a changed one.
    let start = body.get(..4).and_then(|start| BASE64URL_NOPAD.decode(start.as_bytes()).ok());
    let whole = match start.as_deref() {
        Some([_, high, low]) => usize::from(u16::from_be_bytes([*high, *low])),
        _ => return Err(TokenError::Truncated { have, want: PREFIX.len() + 4 }),
    };
    let want = PREFIX.len() + BASE64URL_NOPAD.encode_len(whole);
    match have.cmp(&want) {
        std::cmp::Ordering::Less => return Err(TokenError::Truncated { have, want }),
        std::cmp::Ordering::Greater => return Err(TokenError::TooLong { have, want }),
        std::cmp::Ordering::Equal => {}
    }
    let bytes = Zeroizing::new(BASE64URL_NOPAD.decode(body.as_bytes()).map_err(|_| TokenError::Checksum)?);
    let cut = bytes.len().checked_sub(CHECKSUM_BYTES).filter(|cut| *cut >= 3).ok_or(TokenError::Checksum)?;
    match bytes.split_at_checked(cut) {
        Some((content, check)) if checksum(content) == check => Ok(bytes),
        _ => Err(TokenError::Checksum),
    }
}

/// Finds typing errors; secrecy and authenticity come from elsewhere.
fn checksum(content: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let digest: [u8; 32] = Sha256::digest(content).into();
    let [a, b, c, d, ..] = digest;
    [a, b, c, d]
}

fn put(bytes: &mut Vec<u8>, field: &[u8]) {
    bytes.push(u8::try_from(field.len()).unwrap_or(u8::MAX));
    bytes.extend_from_slice(field);
}

fn put_long(bytes: &mut Vec<u8>, field: &[u8]) {
    bytes.extend_from_slice(&u16::try_from(field.len()).unwrap_or(u16::MAX).to_be_bytes());
    bytes.extend_from_slice(field);
}

/// What of the token's bytes has not been read yet.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize, field: &'static str) -> Result<&'a [u8], TokenError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(TokenError::Field { field })?;
        self.0 = rest;
        Ok(taken)
    }

    fn text(&mut self, length: usize, field: &'static str) -> Result<String, TokenError> {
        let bytes = self.take(length, field)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| TokenError::Field { field })
    }

    fn short(&mut self, field: &'static str) -> Result<String, TokenError> {
        let length = self.take(1, field)?.first().copied().unwrap_or(0);
        self.text(length.into(), field)
    }

    fn long(&mut self, field: &'static str) -> Result<String, TokenError> {
        let length = self.take(2, field)?.iter().fold(0, |length, byte| (length << 8) | usize::from(*byte));
        self.text(length, field)
    }
}

#[cfg(test)]
mod tests;
