//! The verbs of `ctl key`, with their arguments.
//!
//! Owns parsing only: numbers, `none` for what is taken away, days.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use jiff::civil::Date;
use jiff::{Timestamp, tz::Offset};

use super::span::span;

#[derive(Debug, Subcommand)]
pub(crate) enum KeyVerb {
    /// Make a key for an application and print it once
    Create(KeyCreate),
    /// List the keys, when each was last used, and their limits
    #[command(alias = "ls")]
    List,
    /// Show one key
    Show {
        /// An id or name, or the start of one
        id: String,
    },
    /// Change what a key may do; its text stays as it is
    Update(KeyUpdate),
    /// Revoke a key: requests that have an engine go on, all others are refused
    Revoke {
        /// An id or name, or the start of one
        id: String,
    },
    /// Requests and tokens of each key and model
    #[command(after_help = USAGE_EXAMPLES)]
    Usage(KeyUsage),
}

const USAGE_EXAMPLES: &str = "Examples:
  umbel ctl key usage                             each key and model, since the key was made
  umbel ctl key usage webshop --by day --since 7d
  umbel ctl key usage --since 2026-11-01 -o json  what to write on the bill of a month
  umbel ctl key usage _loopback                   requests without a key

Days are UTC; the last 62 that were used are kept apart.";

#[derive(Debug, Args)]
pub(crate) struct KeyCreate {
    /// The application's name
    pub(crate) name: String,
    /// Only these models, by any of their names; may be repeated [default: all]
    #[arg(long = "model", value_name = "MODEL")]
    pub(crate) models: Vec<String>,
    /// 0 to 100: requests of higher ones go first, always [default: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) priority: Option<u8>,
    /// Requests a minute [default: no limit]
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) rpm: Option<u64>,
    /// Tokens a minute, of prompts and answers, such as 200k [default: no limit]
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) tpm: Option<u64>,
    /// Requests at once, waiting ones included [default: no limit]
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) at_once: Option<u64>,
    /// Write the key to this new file (mode 0600) instead of standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub(crate) struct KeyUpdate {
    /// An id or name, or the start of one
    pub(crate) id: String,
    /// Another name
    #[arg(long, value_name = "NAME", group = "what")]
    pub(crate) name: Option<String>,
    /// Only these models from now on; may be repeated
    #[arg(long = "model", value_name = "MODEL", group = "what", conflicts_with = "all_models")]
    pub(crate) models: Vec<String>,
    /// All models from now on
    #[arg(long, group = "what")]
    pub(crate) all_models: bool,
    /// 0 to 100
    #[arg(long, value_name = "N", group = "what", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) priority: Option<u8>,
    /// Requests a minute, or none
    #[arg(long, value_name = "N", group = "what", value_parser = limit)]
    pub(crate) rpm: Option<Limit>,
    /// Tokens a minute, or none
    #[arg(long, value_name = "N", group = "what", value_parser = limit)]
    pub(crate) tpm: Option<Limit>,
    /// Requests at once, or none
    #[arg(long, value_name = "N", group = "what", value_parser = limit)]
    pub(crate) at_once: Option<Limit>,
}

#[derive(Debug, Args)]
pub(crate) struct KeyUsage {
    /// Only this key: an id or name, or the start of one [default: all]
    pub(crate) id: Option<String>,
    /// Only this model, by its own name
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// What a row is
    #[arg(long, value_enum, default_value = "total")]
    pub(crate) by: By,
    /// From this day on: 2026-11-29, or a span such as 7d
    #[arg(long, value_name = "DAY", value_parser = day)]
    pub(crate) since: Option<Date>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// All that was ever used
    Total,
    /// One day
    Day,
}

/// A limit to set, or none from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit(pub(crate) Option<u64>);

/// `60`, `200k`, `2M`.
fn number(text: &str) -> Result<u64, String> {
    let (digits, times) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (text.get(..at), 1_000),
        Some((at, 'm' | 'M')) => (text.get(..at), 1_000_000),
        _ => (Some(text), 1),
    };
    let number = digits.and_then(|digits| digits.parse::<u64>().ok()).and_then(|n| n.checked_mul(times));
    match number {
        Some(0) => Err("0 would allow nothing: revoke the key instead".to_owned()),
        Some(number) => Ok(number),
        None => Err(format!("`{text}` is not a number (examples: 60, 200k, 2M)")),
    }
}

fn limit(text: &str) -> Result<Limit, String> {
    if text == "none" { Ok(Limit(None)) } else { number(text).map(|number| Limit(Some(number))) }
}

fn day(text: &str) -> Result<Date, String> {
    if let Ok(date) = text.parse::<Date>() {
        return Ok(date);
    }
    let wrong = || format!("`{text}` is neither a day nor a span of time (examples: 2026-11-29, 7d)");
    let span = span(text).map_err(|_| wrong())?;
    // Nothing was counted before.
    let at = Timestamp::now()
        .checked_sub(span)
        .ok()
        .filter(|at| *at >= Timestamp::UNIX_EPOCH)
        .ok_or_else(wrong)?;
    Ok(Offset::UTC.to_datetime(at).date())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_may_be_short_and_nothing_is_no_number() {
        assert_eq!((number("60"), number("200k"), number("2M")), (Ok(60), Ok(200_000), Ok(2_000_000)));
        for wrong in ["", "k", "0", "-1", "1.5k", "60rpm", "99999999999999999999", "18446744073709551615M"] {
            assert!(number(wrong).is_err(), "{wrong}");
        }
        assert_eq!((limit("none"), limit("5")), (Ok(Limit(None)), Ok(Limit(Some(5)))));
    }

    #[test]
    fn days_are_dates_or_spans() {
        assert_eq!(day("2026-11-29"), Ok(Date::constant(2026, 11, 29)));
        assert!(day("7d").is_ok());
        for wrong in ["", "yesterday", "2026-13-01", "7", "999999d"] {
            assert!(day(wrong).is_err_and(|error| error.contains("examples")), "{wrong}");
        }
    }
}
