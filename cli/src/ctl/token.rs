//! `ctl token`: single-use tokens with which a node joins a site.

mod many;

use std::{collections::BTreeMap, path::Path};

use umbel_contracts::{
    objects::{EnrollmentState, NodeObject},
    operations::EnrollmentObject,
};

use super::{Ctl, command, gather::gather, pick};
use crate::{
    args::TokenVerb,
    calls::Call,
    client::parse,
    exit::{Failure, Outcome},
    mint::{self, NodeTokenWish},
    output::{Column, Format, Table, ago, details, put, say, utc},
    secrets::Handover,
};

const LIST: &str = "umbel ctl token";

pub(crate) async fn run(ctl: &Ctl, id: Option<&str>, verb: Option<&TokenVerb>) -> Outcome {
    match (verb, id) {
        (None | Some(TokenVerb::List), None) => list(ctl).await,
        (None | Some(TokenVerb::List), Some(id)) => show(ctl, id).await,
        (Some(TokenVerb::Revoke { id }), _) => revoke(ctl, id).await,
        (Some(TokenVerb::Create { name, names_file, replace, label, expires, eligible, out }), _) => {
            let mut wish = NodeTokenWish {
                name: name.clone().unwrap_or_default(),
                labels: labels(label)?,
                expires: *expires,
                eligible: *eligible,
                replace: None,
            };
            let site = match replace {
                None => ctl.one_site().await?,
                Some(replaced) => {
                    let node = super::node::whole(ctl, replaced).await?;
                    (wish.name, wish.replace) = (node.node.name, Some(node.node.node_id));
                    node.edge_id
                }
            };
            match names_file {
                None => create(ctl, &site, &wish, out.as_deref()).await,
                Some(list) => many::create(ctl, &site, &wish, list, out.as_deref()).await,
            }
        }
    }
}

async fn create(ctl: &Ctl, site: &str, wish: &NodeTokenWish, out: Option<&Path>) -> Outcome {
    let name = &wish.name;
    let handover = Handover::open(out, ctl.global.dry_run)?;
    let Some(made) = mint::node_token(&ctl.client, site, wish, &ctl.manner()).await? else {
        say(&match wish.replace {
            None => format!("Would make a token with which {name} joins {site}."),
            Some(_) => format!("Would make a token with which a host becomes {name} at {site}."),
        });
        return Ok(());
    };
    if ctl.global.output.is_object() && out.is_none() {
        ctl.put_object(&made.with_secret("token")?);
        return Ok(());
    }
    handover.give(made.text.expose(), "enrollment token")?;
    let what = match (&wish.replace, wish.eligible) {
        (Some(_), _) => format!(
            "The host that uses it becomes {name}, with a new key; the old credential is revoked then, not before."
        ),
        (None, true) => "It gets requests as soon as it is ready.".to_owned(),
        (None, false) => format!("It gets requests after: umbel ctl node eligible {name}"),
    };
    say(&format!(
        "For the node {name} at {site}, once, until {}. Id {}.\nOn its host: umbel node enroll, and paste it. {what}\n\
         Undo: umbel ctl token revoke {} -m 'why'",
        utc(made.expires_at),
        made.id,
        made.id,
    ));
    if wish.replace.is_none() {
        namesakes(ctl, site, name, &made.id).await;
    }
    Ok(())
}

/// Two nodes of one name are told apart by their ids only: it is said while the token can still be revoked.
async fn namesakes(ctl: &Ctl, site: &str, name: &str, made: &str) {
    // The token is there; that its neighbours cannot be listed now changes nothing.
    if let Ok(gathered) = gather(ctl, "node.list", "nodes").await {
        let nodes = gathered.items.iter().filter(|(of, _)| of == site);
        let mut nodes = nodes.filter_map(|(_, raw)| parse::<NodeObject>(raw.get()).ok());
        if let Some(node) = nodes.find(|node| node.name == name) {
            say(&format!(
                "warning: a node at {site} is called {name} already ({}); two of one name are told apart by id only. To \
                 give that node a new key: umbel ctl token create --replace {name}",
                node.node_id
            ));
        }
    }
    if let Ok(gathered) = gather(ctl, "enrollment.list", "enrollments").await {
        let tokens = gathered.items.iter().filter(|(of, _)| of == site);
        let tokens = tokens.filter_map(|(_, raw)| parse::<EnrollmentObject>(raw.get()).ok());
        let same = tokens.filter(|token| token.name == name && token.token_id != made);
        let open: Vec<String> =
            same.filter(|token| token.state == EnrollmentState::Open).map(|token| token.token_id).collect();
        if !open.is_empty() {
            say(&format!(
                "warning: {name} has another open token at {site}: {}. Each host that uses one is a node of its own.",
                open.join(", ")
            ));
        }
    }
}

fn labels(words: &[String]) -> Outcome<BTreeMap<String, String>> {
    let pairs = words.iter().map(|word| {
        let pair = word.split_once('=').filter(|(key, _)| !key.is_empty());
        let wrong = || Failure::usage(format!("--label {word}: write it as KEY=VALUE"));
        pair.map(|(key, value)| (key.to_owned(), value.to_owned())).ok_or_else(wrong)
    });
    pairs.collect()
}

fn state(token: &EnrollmentObject) -> &'static str {
    match token.state {
        EnrollmentState::Open => "open",
        EnrollmentState::Used => "used",
        EnrollmentState::Revoked => "revoked",
        EnrollmentState::Expired => "expired",
    }
}

async fn list(ctl: &Ctl) -> Outcome {
    let gathered = gather(ctl, "enrollment.list", "enrollments").await?;
    if ctl.put_list(&gathered.raws()?) {
        return gathered.complete("tokens");
    }
    let mut table = Table::new(vec![
        Column::left("ID"),
        Column::left("SITE"),
        Column::left("NODE"),
        Column::state("STATE"),
        Column::left("EXPIRES"),
        Column::number("AGE"),
        Column::left("BY"),
        Column::state("ELIGIBLE"),
        Column::left("LABELS").wide(),
        Column::left("NODE ID").wide(),
        Column::left("REPLACES").wide(),
    ]);
    let mut names = Vec::new();
    for (site, raw) in &gathered.items {
        let token: EnrollmentObject = parse(raw.get())?;
        names.push(token.token_id.clone());
        table.row(vec![
            token.token_id.clone(),
            site.clone(),
            token.name.clone(),
            state(&token).to_owned(),
            utc(Some(token.expires_at)),
            ago(Some(token.created_at)),
            token.created_by.clone(),
            if token.eligible { "yes" } else { "no" }.to_owned(),
            super::node::labels(&token.labels),
            token.node_id.clone().unwrap_or_default(),
            token.replaces.clone().unwrap_or_default(),
        ]);
    }
    if ctl.global.output == Format::Name {
        ctl.put_names(names.iter().map(String::as_str));
    } else {
        ctl.put_table(&table, "No token. Make one: umbel ctl token create NODE");
    }
    gathered.complete("tokens")
}

async fn find(ctl: &Ctl, id: &str) -> Outcome<pick::Picked<(String, EnrollmentObject, String)>> {
    let gathered = gather(ctl, "enrollment.list", "enrollments").await?;
    let mut tokens = Vec::new();
    for (site, raw) in &gathered.items {
        tokens.push((
            site.clone(),
            parse::<EnrollmentObject>(raw.get())?,
            super::with_site(site, raw)?.get().to_owned(),
        ));
    }
    pick::one(tokens, id, "token", |(_, token, _)| vec![token.token_id.clone()], LIST)
}

async fn show(ctl: &Ctl, id: &str) -> Outcome {
    let (site, token, raw) = find(ctl, id).await?.item;
    if ctl.put_object(&raw) {
        return Ok(());
    }
    if ctl.global.output == Format::Name {
        put(&token.token_id);
        return Ok(());
    }
    let late = if token.not_durable { ", not on the edge's disk yet" } else { "" };
    put(&details(&[
        ("Id", token.token_id.clone()),
        ("Site", site),
        ("Node", token.name.clone()),
        ("State", format!("{}{late}", state(&token))),
        ("Expires", utc(Some(token.expires_at))),
        ("Made", format!("{} by {}", utc(Some(token.created_at)), token.created_by)),
        ("Eligible", if token.eligible { "yes" } else { "no" }.to_owned()),
        ("Labels", super::node::labels(&token.labels)),
        ("Used", token.used_at.map_or("no".to_owned(), |at| utc(Some(at)))),
        ("Node id", token.node_id.unwrap_or_else(|| "-".to_owned())),
        ("Replaces", token.replaces.unwrap_or_else(|| "-".to_owned())),
    ]));
    Ok(())
}

async fn revoke(ctl: &Ctl, id: &str) -> Outcome {
    let reason = ctl.reason_for("revoking a token")?;
    let picked = find(ctl, id).await?;
    let (site, token, _) = picked.item;
    if !picked.exact {
        ctl.confirm(&format!("Revoke the token {} for {} at {site}?", token.token_id, token.name))?;
    }
    let call = Call::new("enrollment.revoke")
        .args(&serde_json::json!({ "token_id": token.token_id }))?
        .reason(Some(reason))
        .dry_run(ctl.global.dry_run);
    let done = if ctl.global.dry_run { "would be" } else { "is" };
    command::send(
        ctl,
        &site,
        &call,
        &format!("The token {} for {} {done} revoked.", token.token_id, token.name),
    )
    .await
}
