//! `ctl settings`: a site's settings, how far they have got, and changing them.
//!
//! Leaves the words of a change to `change` and a whole document to `document`. Invariant: what is in force at a node is shown with where it comes from.

mod change;
mod document;

use serde_json::{Map, Value};
use umbel_contracts::operations::{
    SettingsDiffArgs, SettingsDiffResult, SettingsDifference, SettingsGetArgs, SettingsGetResult,
    SettingsHistoryResult, SettingsRollout,
};
use umbel_contracts::settings::{self, rows};

use super::Ctl;
use crate::{
    args::SettingsVerb,
    calls::Call,
    exit::{Exit, Failure, Outcome},
    output::{Column, Format, Table, count, put, say, utc},
};

pub(crate) async fn run(ctl: &Ctl, verb: Option<&SettingsVerb>) -> Outcome {
    match verb {
        None => show(ctl, None, None).await,
        Some(SettingsVerb::Show { version, node }) => show(ctl, *version, node.clone()).await,
        Some(SettingsVerb::Status { check }) => status(ctl, *check).await,
        Some(SettingsVerb::History { limit }) => history(ctl, *limit).await,
        Some(SettingsVerb::Diff { from, to }) => diff(ctl, *from, *to).await,
        Some(SettingsVerb::Keys { prefix }) => keys(ctl, prefix.as_deref()),
        Some(
            verb @ (SettingsVerb::Set { .. }
            | SettingsVerb::Unset { .. }
            | SettingsVerb::Edit
            | SettingsVerb::Rollback { .. }),
        ) => change::run(ctl, verb).await,
    }
}

/// Asks one site for its settings, with the text of its answer.
async fn get(ctl: &Ctl, site: &str, args: &SettingsGetArgs) -> Outcome<(SettingsGetResult, String)> {
    let told = ctl.client.ask(site, &Call::new("settings.get").args(args)?).await?;
    Ok((told.result()?, told.result_raw()?))
}

async fn show(ctl: &Ctl, version: Option<u64>, node: Option<String>) -> Outcome {
    let site = ctl.one_site().await?;
    let args = SettingsGetArgs { version, node: node.clone() };
    let (got, raw) = get(ctl, &site, &args).await?;
    if ctl.put_object(&raw) {
        return Ok(());
    }
    let (table, empty) = match (&node, &got.effective) {
        (Some(node), Some(effective)) => (
            in_force(&got.document, effective),
            format!("Nothing is set for {node}: its own file decides alone."),
        ),
        _ => (
            said(&got.document),
            "Nothing is set: the hosts' own files decide alone. What can be: umbel ctl settings keys"
                .to_owned(),
        ),
    };
    if ctl.global.output == Format::Name {
        ctl.put_names(fields(&got.document).iter().map(|(path, _)| path.as_str()));
        return Ok(());
    }
    ctl.put_table(&table, &empty);
    let more = if got.rollout.refused.is_empty() { "" } else { " Which and why: umbel ctl settings status" };
    say(&format!("Version {} at {site}. {}{more}", got.version, rollout_words(&got.rollout)));
    Ok(())
}

/// What a document says.
fn said(document: &Value) -> Table {
    let mut table = Table::new(vec![Column::left("PATH"), Column::text("VALUE")]);
    for (path, value) in fields(document) {
        table.row(vec![path, value.to_string()]);
    }
    table
}

/// What is in force at a node, and where each value comes from.
fn in_force(document: &Value, effective: &Value) -> Table {
    let default = settings::default_of(document);
    let mut table = Table::new(vec![Column::left("PATH"), Column::left("FROM"), Column::text("VALUE")]);
    for (path, value) in fields(effective) {
        let of_default = path.parse().ok().and_then(|path: settings::Path| path.of(&default).cloned());
        let from = if of_default.as_ref() == Some(&value) { "agents.default" } else { "its own" };
        table.row(vec![path, from.to_owned(), value.to_string()]);
    }
    table
}

/// Every field of a document with its path, in the order of the paths.
fn fields(document: &Value) -> Vec<(String, Value)> {
    let nothing = Value::Object(Map::new());
    settings::diff(&nothing, document).into_iter().map(|field| (field.path, field.to)).collect()
}

/// `3 nodes have it, 1 is to get it, 1 refused it.`
fn rollout_words(rollout: &SettingsRollout) -> String {
    let many = |n: usize| count(n, "node");
    let applied = usize::try_from(rollout.applied).unwrap_or(usize::MAX);
    let mut parts = vec![format!("{} in force", many(applied))];
    if rollout.confirming > 0 {
        parts.push(format!("{} on trial", rollout.confirming));
    }
    if !rollout.pending.is_empty() {
        parts.push(format!("{} not reached yet", rollout.pending.len()));
    }
    if !rollout.refused.is_empty() {
        parts.push(format!("{} refused", rollout.refused.len()));
    }
    format!("{}.", parts.join(", "))
}

async fn status(ctl: &Ctl, check: bool) -> Outcome {
    let site = ctl.one_site().await?;
    let (got, _) = get(ctl, &site, &SettingsGetArgs::default()).await?;
    let rollout = &got.rollout;
    let complete = rollout.confirming == 0 && rollout.pending.is_empty() && rollout.refused.is_empty();
    let raw = serde_json::json!({ "edge_id": site, "version": got.version, "rollout": rollout }).to_string();
    if !ctl.put_object(&raw) {
        put(&format!("{site}: version {}, {}\n", got.version, rollout_words(rollout)));
        let mut table =
            Table::new(vec![Column::left("NODE"), Column::state("SETTINGS"), Column::text("WHY")]);
        for node in &rollout.pending {
            table.row(vec![node.clone(), "pending".to_owned(), "it was not reached yet".to_owned()]);
        }
        for node in &rollout.refused {
            let why = format!("version {}: {}", node.version, node.reason);
            table.row(vec![node.name.clone(), "refused".to_owned(), why]);
        }
        if !table.is_empty() {
            ctl.put_table(&table, "");
        }
    }
    if check && !complete {
        return Err(Failure::new(
            Exit::Condition,
            format!("not every node of {site} has version {}", got.version),
        ));
    }
    Ok(())
}

async fn history(ctl: &Ctl, limit: u32) -> Outcome {
    let site = ctl.one_site().await?;
    let most = limit.clamp(1, 1000);
    let told = ctl
        .client
        .ask(&site, &Call::new("settings.history").args(&serde_json::json!({ "limit": most }))?)
        .await?;
    if ctl.put_list(&crate::output::members(&told.result_raw()?, "versions")) {
        return Ok(());
    }
    let result: SettingsHistoryResult = told.result()?;
    if ctl.global.output == Format::Name {
        let versions: Vec<String> =
            result.versions.iter().map(|version| version.version.to_string()).collect();
        ctl.put_names(versions.iter().map(String::as_str));
        return Ok(());
    }
    let mut table = Table::new(vec![
        Column::number("VERSION"),
        Column::left("WHEN"),
        Column::left("WHO"),
        Column::left("CHANGE"),
        Column::text("REASON"),
    ]);
    for version in result.versions {
        let back = version.rolled_back_to.map_or_else(String::new, |to| format!("as {to}: "));
        table.row(vec![
            version.version.to_string(),
            utc(Some(version.at)),
            version.author,
            format!("{back}{}", summary(&version.diff)),
            version.reason.unwrap_or_default(),
        ]);
    }
    ctl.put_table(&table, "Nothing was ever set. What can be: umbel ctl settings keys");
    Ok(())
}

/// The first change in full, and how many more there are.
fn summary(diff: &[SettingsDifference]) -> String {
    let Some(first) = diff.first() else { return "nothing".to_owned() };
    let more = match diff.len() - 1 {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!("{} {}{more}", first.path, arrow(first))
}

fn arrow(field: &SettingsDifference) -> String {
    let word = |value: &Value| if value.is_null() { "not set".to_owned() } else { value.to_string() };
    format!("{} → {}", word(&field.from), word(&field.to))
}

/// Lines of what is different.
fn difference(diff: &[SettingsDifference]) -> String {
    diff.iter().map(|field| format!("  {}  {}\n", field.path, arrow(field))).collect()
}

async fn diff(ctl: &Ctl, from: Option<u64>, to: Option<u64>) -> Outcome {
    let site = ctl.one_site().await?;
    let told =
        ctl.client.ask(&site, &Call::new("settings.diff").args(&SettingsDiffArgs { from, to })?).await?;
    if ctl.put_object(&told.result_raw()?) {
        return Ok(());
    }
    let result: SettingsDiffResult = told.result()?;
    if result.diff.is_empty() {
        say(&format!("Versions {} and {} say the same.", result.from, result.to));
        return Ok(());
    }
    put(&format!("{} to {} at {site}\n{}", result.from, result.to, difference(&result.diff)));
    Ok(())
}

fn keys(ctl: &Ctl, prefix: Option<&str>) -> Outcome {
    let prefix = prefix.unwrap_or_default();
    let rows: Vec<_> = rows().into_iter().filter(|row| row.path.starts_with(prefix)).collect();
    if rows.is_empty() {
        return Err(Failure::new(Exit::NotFound, format!("no key begins with `{prefix}`"))
            .remedy("umbel ctl settings keys"));
    }
    if ctl.global.output.is_object() {
        let list: Vec<Value> = rows
            .iter()
            .map(|row| serde_json::json!({ "path": row.path, "holds": row.holds, "settable": row.settable }))
            .collect();
        ctl.put_object(&Value::Array(list).to_string());
        return Ok(());
    }
    let mut table = Table::new(vec![Column::left("KEY"), Column::state("SET"), Column::text("HOLDS")]);
    for row in &rows {
        let set = if row.settable { "yes" } else { "no" };
        table.row(vec![row.path.clone(), set.to_owned(), row.holds.clone()]);
    }
    if ctl.global.output == Format::Name {
        ctl.put_names(rows.iter().filter(|row| row.settable).map(|row| row.path.as_str()));
        return Ok(());
    }
    ctl.put_table(&table, "");
    say("agents.… stands for agents.default.… and agents.nodes.NODE.…");
    Ok(())
}
