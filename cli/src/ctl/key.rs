//! `ctl key`: API keys with which applications call a site's edge.

use umbel_contracts::operations::ApiKeyObject;

use super::{Ctl, command, gather::gather, pick};
use crate::{
    args::KeyVerb,
    calls::Call,
    client::parse,
    exit::Outcome,
    mint,
    output::{Column, Format, Table, ago, details, put, say, utc},
    secrets::Handover,
};

const LIST: &str = "umbel ctl key";

pub(crate) async fn run(ctl: &Ctl, id: Option<&str>, verb: Option<&KeyVerb>) -> Outcome {
    match (verb, id) {
        (None | Some(KeyVerb::List), None) => list(ctl).await,
        (None | Some(KeyVerb::List), Some(id)) => show(ctl, id).await,
        (Some(KeyVerb::Revoke { id }), _) => revoke(ctl, id).await,
        (Some(KeyVerb::Create { name, models, out }), _) => {
            let site = ctl.one_site().await?;
            let handover = Handover::open(out.as_deref(), ctl.global.dry_run)?;
            let Some(made) = mint::api_key(&ctl.client, &site, name, models, &ctl.manner()).await? else {
                say(&format!("Would make a key for {name} at {site}."));
                return Ok(());
            };
            if ctl.global.output.is_object() && out.is_none() {
                ctl.put_object(&made.with_secret("key")?);
                return Ok(());
            }
            handover.give(made.text.expose(), "API key")?;
            say(&format!(
                "For {name} at {site}. Id {}. Undo: umbel ctl key revoke {} -m 'why'",
                made.id, made.id
            ));
            namesakes(ctl, &site, name, &made.id).await;
            Ok(())
        }
    }
}

/// Two keys of one name are what a rotation needs, and else a surprise at the next `revoke`: it is said.
async fn namesakes(ctl: &Ctl, site: &str, name: &str, made: &str) {
    // The key is there; that its neighbours cannot be listed now changes nothing.
    let Ok(gathered) = gather(ctl, "apikey.list", "apikeys").await else { return };
    let keys = gathered.items.iter().filter(|(of, _)| of == site);
    let keys = keys.filter_map(|(_, raw)| parse::<ApiKeyObject>(raw.get()).ok());
    let same = keys.filter(|key| key.name == name && key.key_id != made && key.revoked_at.is_none());
    let ids: Vec<String> = same.map(|key| key.key_id).collect();
    if !ids.is_empty() {
        say(&format!(
            "note: {name} has another key at {site}: {}. Name keys by id to revoke one.",
            ids.join(", ")
        ));
    }
}

fn state(key: &ApiKeyObject) -> &'static str {
    if key.revoked_at.is_some() { "revoked" } else { "ok" }
}

fn models(key: &ApiKeyObject) -> String {
    key.models.as_ref().map_or("all".to_owned(), |models| models.join(","))
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
        Column::number("AGE"),
        Column::left("BY"),
        Column::number("PRIORITY"),
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
            ago(Some(key.created_at)),
            key.created_by.clone(),
            key.priority.to_string(),
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

async fn find(ctl: &Ctl, id: &str) -> Outcome<pick::Picked<(String, ApiKeyObject, String)>> {
    let gathered = gather(ctl, "apikey.list", "apikeys").await?;
    let mut keys = Vec::new();
    for (site, raw) in &gathered.items {
        keys.push((
            site.clone(),
            parse::<ApiKeyObject>(raw.get())?,
            super::with_site(site, raw)?.get().to_owned(),
        ));
    }
    pick::one(
        keys,
        id,
        "key",
        |(site, key, _)| vec![key.name.clone(), key.key_id.clone(), site.clone()],
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
        ("Made", format!("{} by {}", utc(Some(key.created_at)), key.created_by)),
    ];
    if key.revoked_at.is_some() {
        let late = if key.not_durable { ", not on the edge's disk yet" } else { "" };
        lines.push(("Revoked", format!("{}{late}", utc(key.revoked_at))));
    }
    put(&details(&lines));
    Ok(())
}

async fn revoke(ctl: &Ctl, id: &str) -> Outcome {
    let reason = ctl.reason_for("revoking a key")?;
    let picked = find(ctl, id).await?;
    let (site, key, _) = picked.item;
    if !picked.exact {
        ctl.confirm(&format!("Revoke the key of {} ({}) at {site}?", key.name, key.key_id))?;
    }
    let call = Call::new("apikey.revoke")
        .args(&serde_json::json!({ "key_id": key.key_id }))?
        .reason(Some(reason))
        .dry_run(ctl.global.dry_run);
    let done = if ctl.global.dry_run { "would open" } else { "opens" };
    command::send(
        ctl,
        &site,
        &call,
        &format!("The key of {} ({}) {done} nothing any more.", key.name, key.key_id),
    )
    .await
}
