//! Times, ages and sizes as people read them: `4m12s`, `1.2 GiB`, `09:41:07Z`.
//!
//! Invariant: ages are rounded down, absolute times are UTC and say so with a Z.

use jiff::Timestamp;
use umbel_contracts::config::ByteSize;

/// A span as `2s`, `4m12s`, `3h05m`, `12d`.
pub(crate) fn duration_ms(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0 if ms == 0 => "0s".to_owned(),
        0 => format!("{ms}ms"),
        1..60 => format!("{seconds}s"),
        60..3600 => {
            let (m, s) = (seconds / 60, seconds % 60);
            if s == 0 { format!("{m}m") } else { format!("{m}m{s:02}s") }
        }
        3600..172_800 => {
            let (h, m) = (seconds / 3600, seconds / 60 % 60);
            if m == 0 { format!("{h}h") } else { format!("{h}h{m:02}m") }
        }
        _ => format!("{}d", seconds / 86_400),
    }
}

/// An age that is already measured.
pub(crate) fn age_ms(ms: Option<u64>) -> String {
    ms.map_or_else(String::new, |ms| duration_ms(if ms < 1000 { 0 } else { ms }))
}

/// How long ago `at` was, by this host's clock.
pub(crate) fn ago(at: Option<Timestamp>) -> String {
    at.map_or_else(String::new, |at| {
        let ms = Timestamp::now().as_millisecond().saturating_sub(at.as_millisecond());
        age_ms(Some(u64::try_from(ms).unwrap_or(0)))
    })
}

/// How long until `at`, by this host's clock; nothing once it is over.
pub(crate) fn until(at: Timestamp) -> Option<String> {
    let ms = at.as_millisecond().saturating_sub(Timestamp::now().as_millisecond());
    u64::try_from(ms).ok().filter(|ms| *ms > 0).map(duration_ms)
}

/// An absolute time to the second, with date.
pub(crate) fn utc(at: Option<Timestamp>) -> String {
    at.map_or_else(String::new, |at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// The time of day.
pub(crate) fn clock(at: Timestamp) -> String {
    at.strftime("%H:%M:%SZ").to_string()
}

/// A size with one decimal in powers of 1024.
pub(crate) fn bytes(count: u64) -> String {
    ByteSize(count).rounded()
}

/// Digits of a digest or revision that tell it from others.
const DIGITS: usize = 12;

/// A digest, or the revision of a hub, in as many digits as people compare; anything else as it is.
pub(crate) fn short(digits: &str) -> String {
    let is_hex = digits.len() >= 40 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hex { digits.chars().take(DIGITS).collect() } else { digits.to_owned() }
}

/// What a job is about, where the whole of it would fill a line: `org/name@0123456789ab`.
pub(crate) fn short_subject(subject: &str) -> String {
    match subject.rsplit_once('@') {
        Some((repository, revision)) => format!("{repository}@{}", short(revision)),
        None => subject.to_owned(),
    }
}

/// `1 node`, `3 nodes`.
pub(crate) fn count(n: usize, thing: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{n} {thing}{plural}")
}
