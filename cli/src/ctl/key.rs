//! `ctl key`: API keys with which applications call a site's edge.
//!
//! Owns listing, showing and finding one. Leaves what changes a key to [`change`], what was used to [`usage`].

mod change;
mod usage;

use umbel_contracts::operations::{ApiKeyObject, KeyLimits};

use super::{Ctl, command, gather::gather, pick};
use crate::{
    args::KeyVerb,
    client::parse,
    exit::Outcome,
    output::{Column, Format, Table, ago, details, put, utc},
};

const LIST: &str = "umbel ctl key";

pub(crate) async fn run(ctl: &Ctl, id: Option<&str>, verb: Option<&KeyVerb>) -> Outcome {
    match (verb, id) {
        (None | Some(KeyVerb::List), None) => list(ctl).await,
        (None | Some(KeyVerb::List), Some(id)) => show(ctl, id).await,
        (Some(KeyVerb::Show { id }), _) => show(ctl, id).await,
        (Some(KeyVerb::Create(wish)), _) => change::create(ctl, wish).await,
        (Some(KeyVerb::Update(wish)), _) => change::update(ctl, wish).await,
        (Some(KeyVerb::Revoke { id }), _) => change::revoke(ctl, id).await,
        (Some(KeyVerb::Usage(asked)), _) => usage::run(ctl, asked).await,
    }
}

fn state(key: &ApiKeyObject) -> &'static str {
    if key.revoked_at.is_some() { "revoked" } else { "ok" }
}

fn models(key: &ApiKeyObject) -> String {
    key.models.as_ref().map_or("all".to_owned(), |models| models.join(","))
}

/// `600 rpm, 200000 tpm, 8 at once`.
fn limits(limits: &KeyLimits) -> String {
    let parts = [
        (limits.requests_per_minute, "rpm"),
        (limits.tokens_per_minute, "tpm"),
        (limits.requests_at_once, "at once"),
    ];
    let parts: Vec<String> =
        parts.iter().filter_map(|(value, unit)| value.map(|value| format!("{value} {unit}"))).collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

async fn list(ctl: &Ctl) -> Outcome {
    let gathered = gather(ctl, "apikey.list", "apikeys").await?;
    if ctl.put_list(&gathered.raws()?) {
        return gathered.complete("keys");
    }
    let mut table = Table::new(vec![
        Column::left("ID"),
        Column::left("SITE"),
        Column::left("NAME"),
        Column::state("STATE"),
        Column::number("USED"),
        Column::number("AGE"),
        Column::left("BY").wide(),
        Column::number("PRIORITY"),
        Column::left("LIMITS"),
        Column::text("MODELS"),
    ]);
    let mut names = Vec::new();
    for (site, raw) in &gathered.items {
        let key: ApiKeyObject = parse(raw.get())?;
        names.push(key.key_id.clone());
        table.row(vec![
            key.key_id.clone(),
            site.clone(),
            key.name.clone(),
            state(&key).to_owned(),
            ago(key.last_used_at),
            ago(Some(key.created_at)),
            key.created_by.clone(),
            key.priority.to_string(),
            limits(&key.limits),
            models(&key),
        ]);
    }
    if ctl.global.output == Format::Name {
        ctl.put_names(names.iter().map(String::as_str));
    } else {
        ctl.put_table(
            &table,
            "No key: the edge answers on loopback only. Make one: umbel ctl key create NAME",
        );
    }
    gathered.complete("keys")
}

/// All keys, with their sites and as they came.
async fn all(ctl: &Ctl) -> Outcome<Vec<(String, ApiKeyObject, String)>> {
    let gathered = gather(ctl, "apikey.list", "apikeys").await?;
    let mut keys = Vec::new();
    for (site, raw) in &gathered.items {
        keys.push((
            site.clone(),
            parse::<ApiKeyObject>(raw.get())?,
            super::with_site(site, raw)?.get().to_owned(),
        ));
    }
    Ok(keys)
}

async fn find(ctl: &Ctl, id: &str) -> Outcome<pick::Picked<(String, ApiKeyObject, String)>> {
    chosen(all(ctl).await?, id)
}

fn chosen<T>(
    mut keys: Vec<(String, ApiKeyObject, T)>,
    id: &str,
) -> Outcome<pick::Picked<(String, ApiKeyObject, T)>> {
    // Of a name that was used again the one that opens something is meant; the others have their ids.
    let named = |key: &ApiKeyObject| key.name == id;
    if keys.iter().any(|(_, key, _)| named(key) && key.revoked_at.is_none()) {
        keys.retain(|(_, key, _)| !named(key) || key.revoked_at.is_none());
    }
    pick::placed(
        keys,
        id,
        "key",
        |(_, key, _)| vec![key.name.clone(), key.key_id.clone()],
        |(site, ..)| site.clone(),
        LIST,
    )
}

async fn show(ctl: &Ctl, id: &str) -> Outcome {
    let (site, key, raw) = find(ctl, id).await?.item;
    if ctl.put_object(&raw) {
        return Ok(());
    }
    if ctl.global.output == Format::Name {
        put(&key.key_id);
        return Ok(());
    }
    let mut lines = vec![
        ("Id", key.key_id.clone()),
        ("Name", key.name.clone()),
        ("Site", site),
        ("State", state(&key).to_owned()),
        ("Models", models(&key)),
        ("Priority", key.priority.to_string()),
        ("Limits", limits(&key.limits)),
        ("Last used", key.last_used_at.map_or_else(|| "never".to_owned(), |at| utc(Some(at)))),
        ("Made", format!("{} by {}", utc(Some(key.created_at)), key.created_by)),
    ];
    if key.revoked_at.is_some() {
        let late = if key.not_durable { ", not on the edge's disk yet" } else { "" };
        lines.push(("Revoked", format!("{}{late}", utc(key.revoked_at))));
    }
    put(&details(&lines));
    Ok(())
}
