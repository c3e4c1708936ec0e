//! What is wrong with a value of a file, in words: the field, what is legal, what stands there.
//!
//! Owns turning what serde says of a type into them; leaves rules that types cannot say to each tier. Invariant: a text of the file
//! is never shown, since it may be a secret; only a word where one of a few is wanted is.

/// The words for a field of this path; as it was said, where it was said in words already.
pub(super) fn told(path: &str, message: &str) -> String {
    let at = |says: String| if path.is_empty() { says } else { format!("{path}: {says}") };
    if let Some(field) = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return if path.is_empty() {
            format!("{field}: is missing")
        } else {
            format!("{path}.{field}: is missing")
        };
    }
    if let Some((word, legal)) =
        message.strip_prefix("unknown variant `").and_then(|rest| rest.split_once('`'))
    {
        let words: Vec<&str> = legal.split('`').skip(1).step_by(2).collect();
        return at(format!("must be one of {}, not \"{word}\"", words.join(", ")));
    }
    let of_type = ["invalid type: ", "invalid value: "].iter().find_map(|start| message.strip_prefix(start));
    match of_type.and_then(divided) {
        Some((said, wanted)) => at(format!("must be {}, not {}", legal(wanted), shown(said))),
        None => at(message.to_owned()),
    }
}

/// What stands there, and what is wanted: a text that stands there may hold any words.
fn divided(says: &str) -> Option<(&str, &str)> {
    if says.starts_with("string ") { says.rsplit_once(", expected ") } else { says.split_once(", expected ") }
}

fn legal(wanted: &str) -> String {
    match wanted {
        "a string" | "string" => "a text, in quotes".to_owned(),
        "path string" => "a path, in quotes".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "a list, in [ ]".to_owned(),
        "a map" => "a table".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "u8" => whole(u8::MAX.into()),
        "u16" => whole(u16::MAX.into()),
        "u32" => whole(u32::MAX.into()),
        "u64" | "usize" => "a whole number, not below 0".to_owned(),
        _ if wanted.starts_with("struct ") => "a table".to_owned(),
        _ => wanted.to_owned(),
    }
}

fn whole(most: u64) -> String {
    format!("a whole number from 0 to {most}")
}

/// What stands there: numbers and yes or no as they are, of all else only what it is.
fn shown(said: &str) -> String {
    let quoted = || said.split('`').nth(1).unwrap_or(said).to_owned();
    match said.split_once(' ').map_or(said, |(kind, _)| kind) {
        "integer" | "boolean" | "floating" => quoted(),
        "string" => "a text".to_owned(),
        "sequence" => "a list".to_owned(),
        "map" => "a table".to_owned(),
        _ => said.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_serde_says_is_said_in_words() {
        for (said, words) in [
            ("missing field `name`", "engine[0].name: is missing"),
            (
                "unknown variant `tpu`, expected one of `auto`, `nvidia`, `cpu`",
                "engine[0]: must be one of auto, nvidia, cpu, not \"tpu\"",
            ),
            ("unknown variant `x`, expected `a` or `b`", "engine[0]: must be one of a, b, not \"x\""),
            (
                "invalid type: string \"secret, expected it\", expected u16",
                "engine[0]: must be a whole number from 0 to 65535, not a text",
            ),
            ("invalid type: integer `5`, expected a string", "engine[0]: must be a text, in quotes, not 5"),
            (
                "invalid value: integer `-1`, expected u32",
                "engine[0]: must be a whole number from 0 to 4294967295, not -1",
            ),
            (
                "invalid type: boolean `true`, expected a sequence",
                "engine[0]: must be a list, in [ ], not true",
            ),
            ("invalid type: map, expected a boolean", "engine[0]: must be true or false, not a table"),
            (
                "invalid type: integer `30`, expected a duration in quotes, such as \"30s\"",
                "engine[0]: must be a duration in quotes, such as \"30s\", not 30",
            ),
            ("write \"30s\"", "engine[0]: write \"30s\""),
        ] {
            assert_eq!(told("engine[0]", said), words);
        }
        assert_eq!(told("", "missing field `node`"), "node: is missing");
        assert_eq!(told("", "key with no value, expected `=`"), "key with no value, expected `=`");
    }
}
