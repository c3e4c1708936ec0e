//! Texts that have to be short: cut between characters, never within one.

/// The longest beginning of at most so many bytes.
#[must_use]
pub fn beginning(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// Keeps the longest beginning of at most so many bytes.
pub fn shorten(text: &mut String, bytes: usize) {
    text.truncate(beginning(text, bytes).len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_is_kept_whole_or_not() {
        assert_eq!(beginning("aé", 2), "a");
        assert_eq!(beginning("aé", 3), "aé");
        assert_eq!((beginning("é", 0), beginning("", 7)), ("", ""));
        let mut text = "éé".to_owned();
        shorten(&mut text, 3);
        assert_eq!(text, "é");
    }
}
