//! Spans of time on the command line: `90s`, `10m`, `1h30m`, `2d`.

use std::time::Duration;

/// Reads `90s`, `10m`, `1h30m`, `2d`.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a span of time (examples: 90s, 10m, 1h30m, 1d)");
    let mut total = Duration::ZERO;
    let mut rest = text;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let ms: u64 = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        let part = number.checked_mul(ms).map(Duration::from_millis).ok_or_else(wrong)?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = tail;
    }
    Ok(total)
}

/// As [`span`], for a limit that has to leave some time.
pub(super) fn some(text: &str) -> Result<Duration, String> {
    match span(text)? {
        Duration::ZERO => Err(format!("`{text}` leaves no time at all")),
        some => Ok(some),
    }
}

#[cfg(test)]
mod tests {
    use super::{some, span};

    #[test]
    fn a_limit_leaves_some_time() {
        assert!(some("0s").is_err() && some("0h0m").is_err() && some("1ms").is_ok());
    }

    #[test]
    fn spans_are_read_or_refused_with_examples() {
        for (text, ms) in
            [("90s", 90_000), ("10m", 600_000), ("1h30m", 5_400_000), ("1d", 86_400_000), ("5ms", 5)]
        {
            assert_eq!(span(text).map(|span| span.as_millis()), Ok(ms), "{text}");
        }
        for text in
            ["", "5", "s", "5 s", "-5s", "1.5h", "5y", "99999999999999999999s", "18446744073709551615d"]
        {
            assert!(span(text).is_err_and(|error| error.contains("examples")), "{text}");
        }
    }
}
