//! `ctl model list` and `ctl model show`: deployments, their replicas, and how far these are.
//!
//! Owns their tables. Invariants: what is wrong stands in the last column, in the edge's own sentence; what a silent site last
//! said carries a `?` and its age.

use umbel_contracts::objects::{DeploymentObject, ReplicaObject};

use super::last;
use crate::{
    client::parse,
    ctl::{
        Ctl,
        gather::{Gathered, gather},
        pick,
        progress::Progress,
        with_site,
    },
    exit::{Exit, Outcome},
    output::{Column, Format, Table, ago, details, put, state_tone, utc},
};

const LIST: &str = "umbel ctl model";

/// A deployment with its site, as it came.
pub(super) type Found = (String, DeploymentObject, String);

/// Of all sites; the only one may be silent as well: what it last said is more than nothing.
async fn all(ctl: &Ctl) -> Outcome<Gathered> {
    match gather(ctl, "deployment.list", "deployments").await {
        Err(failure) if matches!(failure.exit(), Exit::Unreachable | Exit::TimedOut) => {
            let silent: Vec<String> = ctl.sites().await?.into_iter().map(|edge| edge.edge_id).collect();
            Ok(Gathered { silent, ..Gathered::default() })
        }
        gathered => gathered,
    }
}

pub(super) async fn list(ctl: &Ctl) -> Outcome {
    let gathered = all(ctl).await?;
    let lasts = last::said(ctl, &gathered.silent).await?;
    let mut raws = gathered.raws()?;
    for last in &lasts {
        raws.push(last.raw()?);
    }
    if ctl.put_list(&raws) {
        return gathered.complete("deployments");
    }
    let mut table = Table::new(vec![
        Column::left("NAME"),
        Column::left("SITE"),
        Column::left("MODEL"),
        Column::left("ENGINE"),
        Column::state("STATE"),
        Column::number("READY"),
        Column::left("NODES").wide(),
        Column::number("VERSION").wide(),
        Column::number("AGE"),
        Column::text("MESSAGE"),
    ]);
    let mut names = Vec::new();
    for (site, raw) in &gathered.items {
        let one: DeploymentObject = parse(raw.get())?;
        names.push(one.name.clone());
        let nodes: Vec<&str> = one.replicas.iter().map(|replica| replica.node.as_str()).collect();
        table.row(vec![
            one.name.clone(),
            site.clone(),
            one.model.clone(),
            one.engine_kind.clone(),
            word(&one),
            format!("{}/{}", one.ready, one.wanted),
            nodes.join(","),
            one.version.to_string(),
            ago(Some(one.created_at)),
            one.message.clone(),
        ]);
    }
    lasts.iter().for_each(|last| table.row(last.row()));
    if ctl.global.output == Format::Name {
        ctl.put_names(names.iter().map(String::as_str));
    } else {
        ctl.put_table(&table, "No deployment. Apply one: umbel ctl model apply FILE");
    }
    gathered.complete("deployments")
}

fn word(one: &DeploymentObject) -> String {
    let state = one.state.as_str();
    if one.paused { format!("{state} (paused)") } else { state.to_owned() }
}

/// The one deployment of a name or the start of one.
pub(super) async fn find(ctl: &Ctl, name: &str) -> Outcome<pick::Picked<Found>> {
    let gathered = gather(ctl, "deployment.list", "deployments").await?;
    pick(&gathered, name).map_err(|failure| gathered.or_silent(failure, name, "deployment"))
}

fn pick(gathered: &Gathered, name: &str) -> Outcome<pick::Picked<Found>> {
    let mut all: Vec<Found> = Vec::new();
    for (site, raw) in &gathered.items {
        all.push((site.clone(), parse(raw.get())?, with_site(site, raw)?.get().to_owned()));
    }
    pick::placed(
        all,
        name,
        "deployment",
        |(_, one, _)| vec![one.name.clone()],
        |(site, ..)| site.clone(),
        LIST,
    )
}

pub(super) async fn show(ctl: &Ctl, name: &str) -> Outcome {
    let gathered = all(ctl).await?;
    let (site, found, _) = match pick(&gathered, name) {
        Ok(picked) => picked.item,
        Err(failure) if gathered.silent.is_empty() || failure.is_ambiguous() => return Err(failure),
        Err(_) => return last::show(ctl, &gathered.silent, name).await,
    };
    let raw = super::ask_show(ctl, &site, &found.name).await?;
    if ctl.put_object(&raw) {
        return Ok(());
    }
    let one: DeploymentObject = parse(&raw)?;
    if ctl.global.output == Format::Name {
        put(&one.name);
        return Ok(());
    }
    let state = word(&one);
    let mut lines = vec![
        ("Name", one.name.clone()),
        ("Site", site),
        ("Model", std::iter::once(&one.model).chain(&one.aliases).cloned().collect::<Vec<_>>().join(", ")),
        ("Engine", one.engine_kind.clone()),
        ("State", ctl.style.paint(state_tone(one.state.as_str()), &state)),
        ("Ready", format!("{} of {}", one.ready, one.wanted)),
        ("Version", format!("{}, applied {} by {}", one.version, utc(Some(one.applied_at)), one.applied_by)),
    ];
    if !one.message.is_empty() {
        lines.push(("Message", one.message.clone()));
    }
    if let Some(since) = one.unplaced_since {
        lines.push(("Unplaced", format!("since {}; umbel ctl model why {}", utc(Some(since)), one.name)));
    }
    put(&details(&lines));
    if !one.replicas.is_empty() {
        put("");
        put(&replicas(&one).render(ctl.global.output == Format::Wide, crate::output::width(), ctl.style));
    }
    Ok(())
}

fn replicas(one: &DeploymentObject) -> Table {
    let mut table = Table::new(vec![
        Column::left("REPLICA"),
        Column::left("NODE"),
        Column::number("GPUS"),
        Column::state("STATE"),
        Column::number("SINCE"),
        Column::number("FAILED"),
        Column::number("VERSION").wide(),
        Column::text("CAUSE"),
    ]);
    for replica in &one.replicas {
        table.row(vec![
            replica.engine.clone(),
            replica.node.clone(),
            replica.gpus.len().to_string(),
            replica.state.clone(),
            ago(Some(replica.since)),
            replica.failures.to_string(),
            replica.version.to_string(),
            cause(replica),
        ]);
    }
    table
}

/// What is done for a replica, or why it is as it is.
pub(super) fn cause(replica: &ReplicaObject) -> String {
    let Some(job) = replica.job.as_ref().filter(|job| !job.phase.is_empty()) else {
        let again = match replica.retry_at {
            Some(at) => format!("; tried again {}", utc(Some(at))),
            None if replica.state == "failed" => "; given up".to_owned(),
            None => String::new(),
        };
        return format!("{}{again}", replica.cause);
    };
    Progress::from(job).words(None)
}
