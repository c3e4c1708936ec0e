//! How many bytes of a prompt count for an estimate of its tokens.
//!
//! Invariant: images and sounds inside a message, which are long runs of base64, count little: engines make a few
//! hundred tokens of megabytes. Text counts as it is.

/// A run of base64 letters as long as this is no text.
const DATA_MIN: usize = 4 * 1024;
/// What such a run counts.
const DATA_COUNTS: usize = 4 * 1024;

/// Bytes of a raw JSON value as they count.
pub(super) fn counted(raw: &[u8]) -> u64 {
    let mut skipped = 0;
    let mut at = DATA_MIN;
    // A run of that length covers one of the places looked at, so that text costs a look every 4 KiB.
    while at < raw.len() {
        let before = raw.get(..at).unwrap_or_default().iter().rev().take_while(|byte| is_letter(**byte));
        let start = at - before.count();
        let behind = raw.get(at..).unwrap_or_default().iter().take_while(|byte| is_letter(**byte));
        let end = at + behind.count();
        if end - start >= DATA_MIN {
            skipped += (end - start).saturating_sub(DATA_COUNTS);
        }
        at = (at + DATA_MIN).max((end / DATA_MIN + 1) * DATA_MIN);
    }
    raw.len().saturating_sub(skipped) as u64
}

/// Of base64, also as URLs have it.
fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_' | b'=')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_counts_as_it_is_and_data_little() {
        let text = "{\"role\":\"user\",\"content\":\"some words, as people write them\"},".repeat(2_000);
        assert_eq!(counted(text.as_bytes()), text.len() as u64);
        let chinese = "你好，世界。".repeat(20_000);
        assert_eq!(counted(chinese.as_bytes()), chinese.len() as u64);
        for length in [DATA_MIN, 3 * DATA_MIN - 1, 20 << 20] {
            for before in ["", "x\"", &text] {
                let image = "iVBORw0KGgo/+AAA".repeat(length.div_ceil(16));
                let message = format!("{before}data:image/png;base64,{image}\",{text}");
                let rest = message.len() - image.len();
                let counts = counted(message.as_bytes());
                let most = (rest + DATA_COUNTS) as u64;
                assert!(counts >= rest as u64 && counts <= most, "{length} {}: {counts}", before.len());
            }
        }
    }
}
