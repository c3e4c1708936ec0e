//! API keys (`umk_`) and operator tokens (`umo_`): an id, 256 bits, and a check against typing errors.
//!
//! The form makes a leaked one findable by a scanner, refuses a mistyped one before any look-up, and puts the
//! one part that may be logged, the id, where it can be read.

use data_encoding::BASE64URL_NOPAD;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::{TokenError, is_token_id, new_id};
use crate::secret::{Secret, SecretText};

/// 32 bytes in base64url.
const SECRET_CHARACTERS: usize = 43;
/// 3 bytes in base64url.
const CHECK_CHARACTERS: usize = 4;

/// Which door a bearer credential opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BearerKind {
    /// `umk_`: the edge's `/v1` surface, and nothing else.
    ApiKey,
    /// `umo_`: the operator API, and nothing else.
    OperatorToken,
}

impl BearerKind {
    /// What its texts begin with.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::ApiKey => "umk_",
            Self::OperatorToken => "umo_",
        }
    }

    pub(super) fn of(text: &str) -> Option<Self> {
        [Self::ApiKey, Self::OperatorToken].into_iter().find(|kind| text.starts_with(kind.prefix()))
    }

    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::ApiKey => "an API key",
            Self::OperatorToken => "an operator token",
        }
    }
}

/// A bearer credential, taken apart.
#[derive(Clone, Debug)]
pub struct Bearer {
    /// Which door it opens.
    pub kind: BearerKind,
    /// Names it; may be logged.
    pub id: String,
    /// Proves it.
    pub secret: Secret,
}

impl Bearer {
    /// A new one with a random id and secret.
    #[must_use]
    pub fn generate(kind: BearerKind) -> Self {
        Self { kind, id: new_id(), secret: Secret::generate() }
    }

    /// The printable form, shown once to whoever asked for it.
    #[must_use]
    pub fn to_text(&self) -> SecretText {
        let secret = Zeroizing::new(BASE64URL_NOPAD.encode(self.secret.expose()));
        let text = Zeroizing::new(format!("{}{}_{}", self.kind.prefix(), self.id, *secret));
        SecretText::new(format!("{}{}", *text, check(&text)))
    }
}

/// Makes a credential: its id, its text, and the hash that the verifier stores.
#[must_use]
pub fn mint_bearer(kind: BearerKind) -> (String, SecretText, crate::secret::SecretHash) {
    let bearer = Bearer::generate(kind);
    let text = bearer.to_text();
    (bearer.id, text, bearer.secret.hash())
}

/// Takes a credential apart. `expected` is the door it was shown at: the other kind is refused by name.
///
/// # Errors
/// What is wrong with it, without repeating it.
pub fn parse_bearer(text: &str, expected: BearerKind) -> Result<Bearer, TokenError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(TokenError::Empty);
    }
    let kind = BearerKind::of(text);
    if kind != Some(expected) {
        let found = match kind {
            Some(kind) => kind.words(),
            None if text.starts_with(super::PREFIX) => "an enrollment token",
            None => return Err(TokenError::NotOurs { expected: expected.prefix() }),
        };
        return Err(TokenError::OtherKind { found, expected: expected.words() });
    }
    let rest = text.get(expected.prefix().len()..).unwrap_or_default();
    let (id, rest) = rest.split_once('_').ok_or(TokenError::Field { field: "id" })?;
    if !is_token_id(id) {
        return Err(TokenError::Field { field: "id" });
    }
    let wanted = SECRET_CHARACTERS + CHECK_CHARACTERS;
    let want = text.len() - rest.len() + wanted;
    match rest.len().cmp(&wanted) {
        std::cmp::Ordering::Less => return Err(TokenError::Truncated { have: text.len(), want }),
        std::cmp::Ordering::Greater => return Err(TokenError::TooLong { have: text.len(), want }),
        std::cmp::Ordering::Equal => {}
    }
    let (content, given) =
        text.split_at_checked(text.len() - CHECK_CHARACTERS).ok_or(TokenError::Checksum)?;
    if check(content) != given {
        return Err(TokenError::Checksum);
    }
    let secret = rest.get(..SECRET_CHARACTERS).ok_or(TokenError::Checksum)?;
    let bytes = Zeroizing::new(BASE64URL_NOPAD.decode(secret.as_bytes()).map_err(|_| TokenError::Checksum)?);
    let secret = Secret::from_slice(&bytes).ok_or(TokenError::Field { field: "secret" })?;
    Ok(Bearer { kind: expected, id: id.to_owned(), secret })
}

fn check(content: &str) -> String {
    let digest: [u8; 32] = Sha256::digest(content.as_bytes()).into();
    let [a, b, c, ..] = digest;
    BASE64URL_NOPAD.encode(&[a, b, c])
}
