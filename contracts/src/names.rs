//! What names may be made of that people read in lists, logs and labels.
//!
//! Owns the characters that no name has, and what a model may be called. Leaves further rules (a DNS label, a file's name)
//! to those who have such names. Invariant: two names that look alike in a terminal are not made different by what cannot
//! be seen.

/// Bytes of a model's name or alias.
pub const MODEL_MAX: usize = 200;
/// Stands in metrics for every name that no model has, so that none may be called so.
pub const UNKNOWN_MODEL: &str = "_unknown";
/// The rule of [`is_model`] in words.
pub const MODEL_IS: &str =
    "has 1 to 200 bytes, no spaces, no characters that cannot be seen, and is not `_unknown`";

/// A character that moves the cursor, ends the line or turns the direction of what stands behind it.
#[must_use]
pub fn moves_text(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{061C}' | '\u{200E}' | '\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}'
        )
}

/// A character that is not seen: those, and what has no width or no glyph.
#[must_use]
pub fn is_unseen(c: char) -> bool {
    moves_text(c)
        || matches!(
            c,
            '\u{00AD}' | '\u{034F}' | '\u{115F}' | '\u{1160}' | '\u{17B4}' | '\u{17B5}' | '\u{180B}'..='\u{180F}'
                | '\u{200B}'..='\u{200D}' | '\u{2060}'..='\u{206F}' | '\u{3164}' | '\u{FE00}'..='\u{FE0F}'
                | '\u{FEFF}' | '\u{FFA0}' | '\u{FFF0}'..='\u{FFFD}' | '\u{E0000}'..='\u{E0FFF}'
        )
}

/// Nothing in it is unseen.
#[must_use]
pub fn is_plain(name: &str) -> bool {
    !name.chars().any(is_unseen)
}

/// Whether a model may be called so, or have it as an alias.
#[must_use]
pub fn is_model(name: &str) -> bool {
    (1..=MODEL_MAX).contains(&name.len())
        && is_plain(name)
        && !name.contains(char::is_whitespace)
        && name != UNKNOWN_MODEL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_called_by_what_can_be_seen() {
        for name in ["m", "org/Model-7B", "modèle", "模型", "_unknowns", "a\"b"] {
            assert!(is_model(name), "{name}");
        }
        for name in
            ["", "a b", "a\u{a0}b", "_unknown", "a\u{202e}b", "a\u{2028}b", "a\nb", "a\u{200b}", "a\u{2067}b"]
        {
            assert!(!is_model(name), "{name:?}");
        }
        assert!(!is_model(&"x".repeat(MODEL_MAX + 1)));
        // In a sentence a joined emoji is no harm.
        assert!(!moves_text('\u{200d}') && moves_text('\u{202e}'));
    }
}
