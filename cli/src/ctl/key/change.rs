//! `ctl key create|update|revoke`.

use umbel_contracts::operations::{ApiKeyObject, ApiKeyUpdateArgs, KeyLimitsArgs};

use super::{Ctl, command, find, gather};
use crate::{
    args::{KeyCreate, KeyUpdate},
    calls::Call,
    client::parse,
    exit::Outcome,
    mint::{self, KeyWish},
    output::say,
    secrets::Handover,
};

pub(super) async fn create(ctl: &Ctl, wish: &KeyCreate) -> Outcome {
    let site = ctl.one_site().await?;
    let handover = Handover::open(wish.out.as_deref(), ctl.global.dry_run)?;
    let name = &wish.name;
    let asked = KeyWish {
        name: name.clone(),
        models: wish.models.clone(),
        priority: wish.priority,
        limits: KeyLimitsArgs {
            requests_per_minute: wish.rpm.map(Some),
            tokens_per_minute: wish.tpm.map(Some),
            requests_at_once: wish.at_once.map(Some),
        },
    };
    let Some(made) = mint::api_key(&ctl.client, &site, asked, &ctl.manner()).await? else {
        say(&format!("Would make a key for {name} at {site}."));
        return Ok(());
    };
    if ctl.global.output.is_object() && wish.out.is_none() {
        ctl.put_object(&made.with_secret("key")?);
        return Ok(());
    }
    handover.give(made.text.expose(), "API key")?;
    say(&format!("For {name} at {site}. Id {}. Undo: umbel ctl key revoke {} -m 'why'", made.id, made.id));
    namesakes(ctl, &site, name, &made.id).await;
    Ok(())
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

pub(super) async fn update(ctl: &Ctl, wish: &KeyUpdate) -> Outcome {
    let picked = find(ctl, &wish.id).await?;
    let (site, key, _) = picked.item;
    if !picked.exact {
        ctl.confirm_half(&format!("Change the key of {} ({}) at {site}?", key.name, key.key_id))?;
    }
    let models = if wish.all_models {
        Some(None)
    } else {
        Some(wish.models.clone()).filter(|m| !m.is_empty()).map(Some)
    };
    let args = ApiKeyUpdateArgs {
        key_id: key.key_id.clone(),
        name: wish.name.clone(),
        models,
        priority: wish.priority,
        limits: KeyLimitsArgs {
            requests_per_minute: wish.rpm.map(|limit| limit.0),
            tokens_per_minute: wish.tpm.map(|limit| limit.0),
            requests_at_once: wish.at_once.map(|limit| limit.0),
        },
    };
    let call = Call::new("apikey.update")
        .args(&args)?
        .reason(ctl.global.reason.as_deref())
        .dry_run(ctl.global.dry_run);
    let done = if ctl.global.dry_run { "would be" } else { "is" };
    let told = format!("The key of {} ({}) {done} changed, for requests from now on.", key.name, key.key_id);
    command::send(ctl, &site, &call, &told).await
}

pub(super) async fn revoke(ctl: &Ctl, id: &str) -> Outcome {
    let reason = ctl.reason_for("revoking a key")?;
    let picked = find(ctl, id).await?;
    let (site, key, _) = picked.item;
    if !picked.exact {
        ctl.confirm_half(&format!("Revoke the key of {} ({}) at {site}?", key.name, key.key_id))?;
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
