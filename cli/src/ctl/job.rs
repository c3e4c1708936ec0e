//! `ctl job`: work that nodes do for their edge; listing it, following one piece to its end, asking for its end.
//!
//! Owns listing, finding and cancelling. Leaves following to [`follow`], one job's details to [`told`], and what a job does to
//! the edge and its node. Invariant: an id, or the start of one, means one job of all sites that answer.

mod follow;
mod told;

use serde_json::{Map, Value, value::RawValue};
use umbel_contracts::objects::{EdgeObject, JobFiguresObject, JobObject, JobState};
use umbel_contracts::operations::JobArgs;

pub(crate) use follow::begin;

use super::{Ctl, command, nodes, pick, progress::Progress, with_site};
use crate::{
    args::{JobFilter, JobVerb},
    calls::Call,
    client::parse,
    exit::{Exit, Failure, Outcome},
    output::{Column, Format, Table, age_ms, ago, details, members, put, short_subject},
};

const LIST: &str = "umbel ctl job";

pub(crate) async fn run(ctl: &Ctl, id: Option<&str>, filter: &JobFilter, verb: Option<&JobVerb>) -> Outcome {
    match (verb, id) {
        (Some(JobVerb::List { filter }), _) => list(ctl, filter).await,
        (Some(JobVerb::Show { id }), _) => show(ctl, id).await,
        (None, Some(id)) => show(ctl, id).await,
        (Some(JobVerb::Watch { ids }), _) => {
            let mut found = Vec::with_capacity(ids.len());
            for id in ids {
                let (site, job) = find(ctl, id).await?;
                found.push((site, job.job_id));
            }
            follow::watch(ctl, found).await.map(drop)
        }
        (Some(JobVerb::Cancel { id }), _) => cancel(ctl, id).await,
        (None, None) => list(ctl, filter).await,
    }
}

fn conditions(filter: &JobFilter) -> Map<String, Value> {
    let mut args = Map::new();
    if filter.running || filter.ended {
        args.insert("running".to_owned(), filter.running.into());
    }
    if let Some(kind) = &filter.kind {
        args.insert("kind".to_owned(), kind.as_str().into());
    }
    if let Some(model) = &filter.model {
        args.insert("owner".to_owned(), format!("deployment/{model}").into());
    }
    args.insert("limit".to_owned(), filter.limit.into());
    args
}

type Listed = (String, JobObject, Box<RawValue>);

/// The newest jobs of each selected site, and the sites that did not answer.
async fn ask(
    ctl: &Ctl,
    selector: &str,
    args: &Map<String, Value>,
) -> Outcome<(Vec<Listed>, Vec<EdgeObject>)> {
    let (mut jobs, mut silent) = (Vec::new(), Vec::new());
    for edge in ctl.sites().await? {
        let site = edge.edge_id.clone();
        let call = Call { selector: selector.to_owned(), ..Call::new("job.list") }.args(args)?;
        match ctl.client.ask(&site, &call).await {
            Ok(told) => {
                for raw in members(&told.result_raw()?, "jobs") {
                    jobs.push((site.clone(), parse(raw.get())?, with_site(&site, &raw)?));
                }
            }
            Err(failure) if matches!(failure.exit(), Exit::Unreachable | Exit::TimedOut) => silent.push(edge),
            Err(failure) => return Err(failure.during(&site)),
        }
    }
    Ok((jobs, silent))
}

async fn list(ctl: &Ctl, filter: &JobFilter) -> Outcome {
    let selector = nodes(filter.node.as_deref().unwrap_or_default());
    let (jobs, silent) = ask(ctl, &selector, &conditions(filter)).await?;
    if jobs.is_empty() && !silent.is_empty() {
        return Err(unknown(&silent));
    }
    let raws: Vec<_> = jobs.iter().map(|(_, _, raw)| raw.clone()).collect();
    if ctl.global.output == Format::Name {
        ctl.put_names(jobs.iter().map(|(_, job, _)| job.job_id.as_str()));
    } else if !ctl.put_list(&raws) {
        let mut table = Table::new(vec![
            Column::left("JOB"),
            Column::left("SITE"),
            Column::number("AGE"),
            Column::state("STATE"),
            Column::left("KIND"),
            Column::left("NODE"),
            Column::text("SUBJECT"),
            Column::number("ATTEMPT"),
            Column::text("NOW"),
        ]);
        for (site, job, _) in &jobs {
            table.row(vec![
                job.job_id.clone(),
                site.clone(),
                ago(Some(job.submitted_at)),
                job.state.as_str().to_owned(),
                job.kind.clone(),
                node(job).to_owned(),
                short_subject(&job.subject),
                format!("{}/{}", job.attempt, job.attempts_max),
                now(job),
            ]);
        }
        ctl.put_table(&table, "No job fits.");
    }
    if silent.is_empty() { Ok(()) } else { Err(unknown(&silent)) }
}

/// Jobs are kept at their site alone: of one that does not answer there are the figures that it gave last.
fn unknown(silent: &[EdgeObject]) -> Failure {
    let figures = |edge: &EdgeObject| match edge.last_summary.as_ref().and_then(|summary| summary.jobs) {
        Some(JobFiguresObject { running, queued }) => {
            let age = age_ms(edge.last_summary_age_ms);
            format!("{}, which said {age} ago: {running} running, {queued} waiting", edge.edge_id)
        }
        None => edge.edge_id.clone(),
    };
    let what = "jobs are known to their site alone; without an answer are";
    Failure::new(Exit::Unreachable, what)
        .candidates(silent.iter().map(figures).collect())
        .remedy("umbel ctl status; at the site itself: umbel ctl --socket FILE job")
}

pub(crate) fn node(job: &JobObject) -> &str {
    job.node_name.as_deref().unwrap_or(&job.node_id)
}

/// What it does now, or why its last attempt came to nothing.
pub(super) fn now(job: &JobObject) -> String {
    if !job.state.is_end() && job.cancel_requested {
        return "is asked to stop".to_owned();
    }
    match (&job.progress, &job.failure) {
        (Some(progress), _) => Progress::from(progress).words(None),
        (None, Some(failure)) if job.state != JobState::Succeeded => failure.code.clone(),
        _ => String::new(),
    }
}

/// The one job that an id, or the start of one, means. The start is looked for among the newest ones.
async fn find(ctl: &Ctl, wanted: &str) -> Outcome<(String, JobObject)> {
    if let Ok(id) = uuid::Uuid::parse_str(wanted) {
        for site in ctl.sites().await? {
            match ask_one(ctl, &site.edge_id, &id.to_string()).await {
                Ok((job, _)) => return Ok((site.edge_id, job)),
                // Elsewhere, perhaps; below it is said which sites are silent.
                Err(failure)
                    if matches!(failure.exit(), Exit::NotFound | Exit::Unreachable | Exit::TimedOut) => {}
                Err(failure) => return Err(failure),
            }
        }
    }
    let args = Map::from_iter([("limit".to_owned(), Value::from(1000))]);
    let (jobs, silent) = ask(ctl, "", &args).await?;
    let found = pick::one(jobs, wanted, "job", |(_, job, _)| vec![job.job_id.clone()], LIST);
    match found {
        Ok(found) => Ok((found.item.0, found.item.1)),
        Err(failure) if silent.is_empty() => Err(failure),
        Err(_) => Err(Failure::new(
            Exit::Unreachable,
            format!("no site that answers has the job {wanted}; silent are"),
        )
        .candidates(silent.into_iter().map(|edge| edge.edge_id).collect())),
    }
}

async fn ask_one(ctl: &Ctl, site: &str, id: &str) -> Outcome<(JobObject, String)> {
    let call = Call::new("job.show").args(&JobArgs { job_id: id.to_owned() })?;
    let told = ctl.client.ask(site, &call).await?;
    Ok((told.result()?, told.result_raw()?))
}

async fn show(ctl: &Ctl, wanted: &str) -> Outcome {
    let (site, job) = find(ctl, wanted).await?;
    let (job, raw) = ask_one(ctl, &site, &job.job_id).await?;
    if ctl.global.output == Format::Name {
        put(&job.job_id);
    } else if !ctl.put_object(&raw) {
        put(&details(&told::lines(&site, &job)));
    }
    Ok(())
}

async fn cancel(ctl: &Ctl, wanted: &str) -> Outcome {
    let (site, job) = find(ctl, wanted).await?;
    let call = Call::new("job.cancel")
        .args(&JobArgs { job_id: job.job_id.clone() })?
        .reason(ctl.global.reason.as_deref())
        .dry_run(ctl.global.dry_run);
    let mut done = format!(
        "{} is asked to end job {}. Follow: umbel ctl job watch {}",
        node(&job),
        job.job_id,
        job.job_id
    );
    if let Some(name) = job.owner.as_deref().and_then(|owner| owner.strip_prefix("deployment/")) {
        done.push_str(&format!(
            " (the deployment {name} wants it: it is not begun again until umbel ctl model load {name})"
        ));
    }
    command::send(ctl, &site, &call, &done).await
}
