//! `ctl model apply|load|drain|unload|delete|restart|pause`: what an operator wants of deployments.
//!
//! Owns reading the document and following what becomes of a wish. Leaves what is legal to `umbel_contracts::deployment`.
//! Invariant: a document is checked here before anything is sent, with the place of each fault; Ctrl-C stops watching only.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use umbel_contracts::objects::{DeploymentObject, DeploymentState, ReplicaObject};
use umbel_contracts::operations::{DeploymentApplyArgs, DeploymentDrainArgs, DeploymentReplicaArgs};

use super::show::{Found, cause, find};
use crate::{
    args::ReplicaChoice,
    calls::{Call, new_command_id},
    client::parse,
    ctl::{
        Ctl,
        away::Away,
        progress::{Pace, Progress},
    },
    exit::{Exit, Failure, Outcome},
    output::{Live, Step, say},
};

/// How often it is looked at while it is followed.
const EVERY: Duration = Duration::from_millis(500);

pub(super) async fn apply(ctl: &Ctl, file: &Path, if_version: Option<u64>) -> Outcome {
    let (spec, document) = super::document(file)?;
    let site = ctl.one_site().await?;
    let call = Call::new("deployment.apply").args(&DeploymentApplyArgs { document, if_version })?;
    wish(ctl, &site, &spec.name, call, "is applied").await
}

pub(super) async fn load(ctl: &Ctl, name: &str) -> Outcome {
    let (site, found, _) = chosen(ctl, name, "Load").await?;
    let call = Call::new("deployment.load").args(&json!({ "name": found.name }))?;
    wish(ctl, &site, &found.name, call, "is wanted").await
}

pub(super) async fn pause(ctl: &Ctl, name: &str, paused: bool) -> Outcome {
    let (site, found, _) = chosen(ctl, name, if paused { "Pause" } else { "Resume" }).await?;
    let call = Call::new("deployment.pause").args(&json!({ "name": found.name, "paused": paused }))?;
    let done = if paused { "is paused" } else { "goes on" };
    crate::ctl::command::send(ctl, &site, &call_of(ctl, call), &format!("{} {done}.", found.name)).await
}

pub(super) async fn restart(ctl: &Ctl, name: &str, choice: &ReplicaChoice) -> Outcome {
    let (site, found, _) = chosen(ctl, name, "Restart").await?;
    let args = DeploymentReplicaArgs { name: found.name.clone(), replica: choice.replica };
    let call = Call::new("deployment.restart").args(&args)?;
    wish(ctl, &site, &found.name, call, "is restarted, one replica after the other").await
}

pub(super) async fn unload(ctl: &Ctl, name: &str, choice: &ReplicaChoice) -> Outcome {
    ctl.reason_for("unloading a model")?;
    let (site, found, _) = chosen(ctl, name, "Unload").await?;
    let args = DeploymentReplicaArgs { name: found.name.clone(), replica: choice.replica };
    let call = Call::new("deployment.unload").args(&args)?;
    wish(ctl, &site, &found.name, call, "is being unloaded").await
}

pub(super) async fn drain(
    ctl: &Ctl,
    name: &str,
    choice: &ReplicaChoice,
    deadline: Option<Duration>,
) -> Outcome {
    ctl.reason_for("draining a model")?;
    let (site, found, _) = chosen(ctl, name, "Drain").await?;
    let args = DeploymentDrainArgs {
        name: found.name.clone(),
        replica: choice.replica,
        deadline_seconds: deadline.map(|deadline| deadline.as_secs()),
    };
    let call = Call::new("deployment.drain").args(&args)?;
    wish(
        ctl,
        &site,
        &found.name,
        call,
        "takes no new requests, and is unloaded when those that run have ended",
    )
    .await
}

pub(super) async fn delete(ctl: &Ctl, name: &str, typed: Option<&str>) -> Outcome {
    ctl.reason_for("deleting a deployment")?;
    let (site, found, _) = find(ctl, name).await?.item;
    let what = format!("Deployment {} at {site} goes with its {} replicas", found.name, found.replicas.len());
    if !ctl.global.dry_run {
        ctl.confirm_name(typed, &found.name, &what)?;
    }
    let call = Call::new("deployment.delete").args(&json!({ "name": found.name }))?.confirm(&found.name);
    wish(ctl, &site, &found.name, call, "is being deleted").await
}

async fn chosen(ctl: &Ctl, name: &str, act: &str) -> Outcome<Found> {
    let picked = find(ctl, name).await?;
    if !picked.exact {
        let (site, found, _) = &picked.item;
        ctl.confirm_half(&format!("{act} {} at {site}?", found.name))?;
    }
    Ok(picked.item)
}

fn call_of(ctl: &Ctl, call: Call) -> Call {
    call.reason(ctl.global.reason.as_deref()).dry_run(ctl.global.dry_run)
}

/// Sends a wish and follows what becomes of it.
async fn wish(ctl: &Ctl, site: &str, name: &str, call: Call, done: &str) -> Outcome {
    let id = ctl.global.command_id.map_or_else(new_command_id, |id| id.to_string());
    let told = ctl.client.command(site, &id, &call_of(ctl, call), Duration::from_secs(5)).await?;
    told.check()?;
    let quiet = ctl.global.output.is_object() || ctl.global.dry_run || ctl.global.detach;
    if ctl.global.output.is_object() {
        ctl.put_object(&told.result_raw()?);
    } else if ctl.global.dry_run {
        say(&format!("{name} at {site} would be changed; where it would run: umbel ctl model why {name}"));
    } else {
        say(&format!("{name} at {site} {done}."));
    }
    if quiet {
        return Ok(());
    }
    tokio::select! {
        outcome = follow(ctl, site, name) => outcome,
        _ = tokio::signal::ctrl_c() => Err(Failure::new(Exit::Interrupted, "stopped watching; it goes on")
            .remedy(format!("umbel ctl model show {name} --site {site} -w"))),
    }
}

/// Tells the steps of a deployment until it is at rest.
async fn follow(ctl: &Ctl, site: &str, name: &str) -> Outcome {
    let mut live = Live::new(ctl.global.color);
    let mut paces: BTreeMap<String, Pace> = BTreeMap::new();
    let mut rested = 0;
    let mut away = Away::default();
    loop {
        let raw = match super::ask_show(ctl, site, name).await {
            Ok(raw) => {
                away.answers();
                raw
            }
            Err(failure) if failure.exit() == Exit::NotFound => {
                say(&format!("{name} is gone."));
                return Ok(());
            }
            Err(failure) => {
                let again = format!("it goes on: umbel ctl model show {name} --site {site} -w");
                let note = away.silent(failure, Instant::now()).map_err(|failure| failure.remedy(again))?;
                note.into_iter().for_each(|note| live.note(&note));
                tokio::time::sleep(EVERY).await;
                continue;
            }
        };
        let one: DeploymentObject = parse(&raw)?;
        let steps: Vec<Step> = one
            .replicas
            .iter()
            .map(|replica| step(replica, paces.entry(replica.engine.clone()).or_default()))
            .collect();
        live.tell(&steps);
        // Twice at rest: the edge has had its turn since the wish was stored.
        rested = if one.state.is_at_rest() || one.paused { rested + 1 } else { 0 };
        if rested >= 2 {
            return end(&one);
        }
        tokio::time::sleep(EVERY).await;
    }
}

fn step(replica: &ReplicaObject, pace: &mut Pace) -> Step {
    let progress = replica.job.as_ref().filter(|job| !job.phase.is_empty()).map(Progress::from);
    let left = progress.as_ref().and_then(|progress| pace.left(progress, Instant::now()));
    Step {
        of: replica.engine.clone(),
        state: replica.state.clone(),
        phase: replica.job.as_ref().map(|job| format!("{} {}", job.job_id, job.phase)).unwrap_or_default(),
        about: format!("on {}", replica.node),
        how: progress.as_ref().map_or_else(|| cause(replica), |progress| progress.words(left)),
        gauge: progress.and_then(|progress| progress.gauge(left)),
    }
}

fn end(one: &DeploymentObject) -> Outcome {
    let name = &one.name;
    match one.state {
        DeploymentState::Ready | DeploymentState::Unloaded => {
            say(&format!(
                "{name} is {}: {} of {} replicas are ready.",
                one.state.as_str(),
                one.ready,
                one.wanted
            ));
            Ok(())
        }
        _ if one.paused => {
            say(&format!(
                "{name} is paused: nothing is begun for it and nothing taken away until umbel ctl model pause {name} --off"
            ));
            Ok(())
        }
        state => {
            let sentence = format!("{name} is {}: {}", state.as_str(), one.message);
            let remedy = match state {
                // What has more of the cause stands in the message.
                DeploymentState::Failed => format!("mend that, then umbel ctl model load {name}"),
                _ => format!("umbel ctl model why {name}"),
            };
            Err(Failure::new(Exit::Condition, sentence).remedy(remedy))
        }
    }
}
