//! How set-up commands print what they found: the steps of a doctor, and a daemon's own state.
//!
//! Leaves finding out to the tiers. Invariant: a failed step is exit code 3, in every format.

use serde::Serialize;
use serde_json::Value;
use umbel_contracts::daemon::Check;

use crate::{
    args::DoctorFlags,
    exit::{Exit, Failure, Outcome},
    output::{ColorChoice, Column, Format, Style, Table, Tone, details, put, width},
};

/// Prints the steps of a doctor; a failed one is exit code 3.
pub(super) fn checks(flags: &DoctorFlags, checks: &[Check]) -> Outcome {
    if flags.output.is_object() {
        print_object(checks, flags.output)?;
    } else {
        let style = Style::stdout(ColorChoice::Auto);
        let width = checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        for check in checks {
            let mark =
                if check.passed { style.paint(Tone::Good, "ok  ") } else { style.paint(Tone::Bad, "fail") };
            text.push_str(&format!(
                "{mark}  {:<width$}  {}\n",
                check.name,
                crate::output::printable(&check.message)
            ));
            if !check.passed && !check.next_step.is_empty() {
                text.push_str(&format!(
                    "      {:<width$}  try: {}\n",
                    "",
                    crate::output::printable(&check.next_step)
                ));
            }
        }
        put(&text);
    }
    let failed = checks.iter().filter(|check| !check.passed).count();
    if failed == 0 {
        return Ok(());
    }
    Err(Failure::new(Exit::Condition, format!("{failed} of {} checks failed", checks.len())))
}

pub(super) fn print_object<T: Serialize + ?Sized>(object: &T, format: Format) -> Outcome {
    let raw = serde_json::to_string(object).map_err(|error| Failure::failed(error.to_string()))?;
    format.object(&raw).iter().for_each(|text| put(text));
    Ok(())
}

/// An object of a daemon for people: its plain members as lines, its lists of objects as tables.
pub(super) fn plain(object: &Value) -> String {
    let Some(members) = object.as_object() else { return object.to_string() };
    let (mut lines, mut tables) = (Vec::new(), String::new());
    for (key, value) in members {
        match value {
            Value::Object(inner) => {
                lines.extend(inner.iter().map(|(name, value)| (format!("{key}.{name}"), words(value))));
            }
            Value::Array(items) if items.first().is_some_and(Value::is_object) => {
                tables.push_str(&format!("\n{key}\n{}", rows(items)));
            }
            value => lines.push((key.clone(), words(value))),
        }
    }
    let lines: Vec<(&str, String)> = lines.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    format!("{}{tables}", details(&lines))
}

fn rows(items: &[Value]) -> String {
    let mut keys: Vec<String> =
        items.first().and_then(Value::as_object).into_iter().flatten().map(|(key, _)| key.clone()).collect();
    // Objects come with their keys by the alphabet; people look for the name first.
    keys.sort_by_key(|key| key != "name");
    let mut table = Table::new(keys.iter().map(|key| Column::text(key.to_ascii_uppercase())).collect());
    for item in items {
        table.row(keys.iter().map(|key| item.get(key).map_or_else(String::new, words)).collect());
    }
    table.render(false, width(), Style::stdout(ColorChoice::Auto))
}

fn words(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Array(items) => items.iter().map(words).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}
