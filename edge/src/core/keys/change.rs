//! A change of a key: what it is afterwards, and the sentence that the audit keeps.
//!
//! Pure. Leaves storing it to `shell::keys`. Invariant: what is absent in the change stays; the sentence names every
//! field that became another, before and after, and nothing secret.

use umbel_contracts::operations::ApiKeyUpdateArgs;

use super::KeyRow;

fn limit(value: Option<u64>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}

fn models(models: Option<&Vec<String>>) -> String {
    match models {
        None => "all".to_owned(),
        Some(models) if models.len() > 8 => format!("{} models", models.len()),
        Some(models) => models.join(" "),
    }
}

/// The row after a change.
pub(crate) fn changed(row: &KeyRow, args: &ApiKeyUpdateArgs) -> KeyRow {
    KeyRow {
        name: args.name.clone().unwrap_or_else(|| row.name.clone()),
        models: args.models.clone().unwrap_or_else(|| row.models.clone()),
        priority: args.priority.unwrap_or(row.priority),
        limits: args.limits.of(row.limits),
        ..row.clone()
    }
}

/// What is different, in words; empty if nothing is.
pub(crate) fn sentence(before: &KeyRow, after: &KeyRow) -> String {
    let (old, new) = (&before.limits, &after.limits);
    let fields = [
        ("name", before.name.clone(), after.name.clone()),
        ("models", models(before.models.as_ref()), models(after.models.as_ref())),
        ("priority", before.priority.to_string(), after.priority.to_string()),
        ("requests_per_minute", limit(old.requests_per_minute), limit(new.requests_per_minute)),
        ("tokens_per_minute", limit(old.tokens_per_minute), limit(new.tokens_per_minute)),
        ("requests_at_once", limit(old.requests_at_once), limit(new.requests_at_once)),
    ];
    let told: Vec<String> = fields
        .into_iter()
        .filter(|(name, old, new)| old != new || (*name == "models" && before.models != after.models))
        .map(|(name, old, new)| format!("{name} {old} -> {new}"))
        .collect();
    told.join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use umbel_contracts::operations::KeyLimits;

    use super::*;

    fn row() -> KeyRow {
        KeyRow {
            key_id: "k-00000001".to_owned(),
            name: "app".to_owned(),
            secret_sha256: "3c".repeat(32),
            models: None,
            priority: 50,
            limits: KeyLimits {
                requests_per_minute: Some(60),
                tokens_per_minute: Some(9),
                ..KeyLimits::default()
            },
            created_at_unix_ms: 1,
            created_by: "ada".to_owned(),
            revoked_at_unix_ms: None,
        }
    }

    #[test]
    fn what_is_absent_stays_and_null_takes_away() {
        let args = |text: &str| serde_json::from_str::<ApiKeyUpdateArgs>(text).unwrap();
        let before = row();
        let same = changed(&before, &args(r#"{"key_id":"k-00000001"}"#));
        assert_eq!((&same, sentence(&before, &same).as_str()), (&before, ""));
        let text = r#"{"key_id":"k-00000001","models":["a","b"],"priority":10,
            "limits":{"tokens_per_minute":null,"requests_at_once":4}}"#;
        let after = changed(&before, &args(text));
        assert_eq!(
            sentence(&before, &after),
            "models all -> a b, priority 50 -> 10, tokens_per_minute 9 -> none, requests_at_once none -> 4"
        );
        assert_eq!(after.limits.requests_per_minute, Some(60));
        assert!(!sentence(&before, &after).contains("3c3c"));
        let all = changed(&after, &args(r#"{"key_id":"k-00000001","models":null}"#));
        assert_eq!((all.models, all.priority), (None, 10));
    }
}
