//! Operations on API keys: what a key may do, and what was used with it.
//!
//! Owns their arguments and results. Leaves carrying them out to the edge. Invariant: no secret is in any of them,
//! only its SHA-256, and only on the way in.

use jiff::Timestamp;
use jiff::civil::Date;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// Most requests a minute that a limit can say.
pub const MOST_REQUESTS_PER_MINUTE: u64 = 1_000_000;
/// Most tokens a minute that a limit can say.
pub const MOST_TOKENS_PER_MINUTE: u64 = 1_000_000_000;
/// Most requests at once that a limit can say.
pub const MOST_REQUESTS_AT_ONCE: u64 = 100_000;

/// How much a key may use. What is not said is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyLimits {
    /// So many at once after a quiet minute, and so many a minute in the long run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub requests_per_minute: Option<u64>,
    /// Tokens of prompts and answers, in the same way: a prompt's estimate when it comes, the rest when it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub tokens_per_minute: Option<u64>,
    /// Waiting ones included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub requests_at_once: Option<u64>,
}

impl KeyLimits {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The name of a limit that is out of its range, with the largest that it can be.
    #[must_use]
    pub fn out_of_range(&self) -> Option<(&'static str, u64)> {
        [
            ("requests_per_minute", self.requests_per_minute, MOST_REQUESTS_PER_MINUTE),
            ("tokens_per_minute", self.tokens_per_minute, MOST_TOKENS_PER_MINUTE),
            ("requests_at_once", self.requests_at_once, MOST_REQUESTS_AT_ONCE),
        ]
        .into_iter()
        .find(|(_, value, most)| value.is_some_and(|value| value == 0 || value > *most))
        .map(|(name, _, most)| (name, most))
    }
}

/// `apikey.create`: the secret stays with the asker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKeyCreateArgs {
    /// Made by the asker: 8 to 36 characters of `a-z`, `0-9`, `-`.
    #[schemars(length(min = 8, max = 36))]
    pub key_id: String,
    /// SHA-256 of the secret, 64 hexadecimal digits.
    #[schemars(length(equal = 64))]
    pub secret_sha256: String,
    /// For people.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Models (or aliases) it may use, at most 256; all unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// The higher is served first, strictly; 50 unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub priority: Option<u8>,
    /// How much it may use; not limited unless said.
    #[serde(default, skip_serializing_if = "KeyLimitsArgs::is_none")]
    pub limits: KeyLimitsArgs,
}

/// `apikey.revoke`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKeyRevokeArgs {
    /// Which.
    #[schemars(length(min = 8, max = 36))]
    pub key_id: String,
}

/// `apikey.update`: what is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKeyUpdateArgs {
    /// Which.
    #[schemars(length(min = 8, max = 36))]
    pub key_id: String,
    /// Another name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// Other models, all of them anew; `null` for all.
    #[serde(default, deserialize_with = "said", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<String>>")]
    pub models: Option<Option<Vec<String>>>,
    /// Another priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub priority: Option<u8>,
    /// Other limits; each that is absent stays.
    #[serde(default, skip_serializing_if = "KeyLimitsArgs::is_none")]
    pub limits: KeyLimitsArgs,
}

/// Limits to set: what is absent stays as it is (no limit, for a new key), `null` takes a limit away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyLimitsArgs {
    /// As in the limits of a key.
    #[serde(default, deserialize_with = "said", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u64>", range(min = 1, max = 1_000_000))]
    pub requests_per_minute: Option<Option<u64>>,
    /// As in the limits of a key.
    #[serde(default, deserialize_with = "said", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u64>", range(min = 1, max = 1_000_000_000))]
    pub tokens_per_minute: Option<Option<u64>>,
    /// As in the limits of a key.
    #[serde(default, deserialize_with = "said", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u64>", range(min = 1, max = 100_000))]
    pub requests_at_once: Option<Option<u64>>,
}

impl KeyLimitsArgs {
    /// Whether nothing is changed.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// What the limits are after it.
    #[must_use]
    pub fn of(&self, before: KeyLimits) -> KeyLimits {
        KeyLimits {
            requests_per_minute: self.requests_per_minute.unwrap_or(before.requests_per_minute),
            tokens_per_minute: self.tokens_per_minute.unwrap_or(before.tokens_per_minute),
            requests_at_once: self.requests_at_once.unwrap_or(before.requests_at_once),
        }
    }
}

/// Tells `null` from what is absent.
fn said<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// An API key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ApiKeyObject {
    /// The id inside the key's text.
    pub key_id: String,
    /// For people.
    pub name: String,
    /// Models it may use; `null` for all.
    pub models: Option<Vec<String>>,
    /// The higher is served first.
    pub priority: u8,
    /// When it was made.
    #[schemars(with = "String")]
    pub created_at: Timestamp,
    /// Who made it.
    pub created_by: String,
    /// When it was revoked; it opens nothing since.
    #[schemars(with = "Option<String>")]
    pub revoked_at: Option<Timestamp>,
    /// How much it may use; absent if nothing is limited.
    #[serde(default, skip_serializing_if = "KeyLimits::is_none")]
    pub limits: KeyLimits,
    /// When a request last came with it; absent if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub last_used_at: Option<Timestamp>,
    /// It is in force and not on disk, which takes no writes: it is written as soon as that works again, and lost if
    /// the edge restarts before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_durable: bool,
}

/// `apikey.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ApiKeyListResult {
    /// The keys of this page, by name; revoked ones too.
    pub apikeys: Vec<ApiKeyObject>,
    /// For the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// What rows of usage are made by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UsageBy {
    /// One a key and model.
    #[default]
    Total,
    /// One a day (UTC), key and model.
    Day,
}

/// `apikey.usage`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKeyUsageArgs {
    /// Only this key's; `_loopback` for requests without a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 36))]
    pub key_id: Option<String>,
    /// Only of this model, by its own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub model: Option<String>,
    /// `total` unless said.
    #[serde(default)]
    pub by: UsageBy,
    /// Only from this day (UTC) on: `2026-11-29`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub since: Option<Date>,
    /// Rows a page, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub cursor: Option<String>,
}

/// What was used with one key of one model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyUsageObject {
    /// Which key; `_loopback` for requests without one.
    pub key_id: String,
    /// Its name, empty for none.
    pub name: String,
    /// The model's own name; empty for requests that came to none.
    pub model: String,
    /// The day (UTC); absent in totals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub day: Option<Date>,
    /// Requests that ended, refused ones included.
    pub requests: u64,
    /// Those of them that the edge refused: no engine worked on them.
    pub refused: u64,
    /// Tokens of prompts, those that the engine had kept included.
    pub prompt_tokens: u64,
    /// Tokens of answers.
    pub completion_tokens: u64,
    /// Tokens of prompts that the engine had kept from earlier ones.
    pub cached_tokens: u64,
    /// When the last of them ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub last_used_at: Option<Timestamp>,
}

/// `apikey.usage`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ApiKeyUsageResult {
    /// The rows of this page: newest day first, then by key and model.
    pub usage: Vec<KeyUsageObject>,
    /// For the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
