//! Beginning jobs and following them to their ends, each on a line of its own with its bar.
//!
//! Owns what is told meanwhile and the exit code. Leaves one job's details to [`super::told`]. Invariants: Ctrl-C stops
//! watching, never a job; a server that restarts is part of what one follows; what a program reads is one object a job, whole.

use std::time::{Duration, Instant};

use serde_json::value::RawValue;
use umbel_contracts::objects::{JobObject, JobState};
use umbel_contracts::operations::JobsResult;

use super::{ask_one, node, told};
use crate::{
    calls::{Call, new_command_id},
    ctl::{
        Ctl,
        away::Away,
        progress::{Pace, Progress},
    },
    exit::{Exit, Failure, Outcome},
    output::{Format, Live, Step, details, line, printable, put, say, short_subject},
};

/// Between two looks at jobs that are followed: a node tells at most one step a second.
const LOOK: Duration = Duration::from_millis(500);

/// Sends an operation whose work is a job a node, and follows these; with `--detach` their ids are printed. Gives the jobs
/// that came to a good end.
pub(crate) async fn begin(ctl: &Ctl, site: &str, call: Call) -> Outcome<Vec<JobObject>> {
    let call = call.reason(ctl.global.reason.as_deref()).dry_run(ctl.global.dry_run);
    let id = ctl.global.command_id.map_or_else(new_command_id, |id| id.to_string());
    let told = ctl.client.command(site, &id, &call, Duration::from_secs(5)).await?;
    told.check()?;
    if ctl.global.dry_run {
        if !ctl.put_object(&told.result_raw()?) {
            say("Nothing stands against it; nothing was done.");
        }
        return Ok(Vec::new());
    }
    let begun: JobsResult = told.result()?;
    if ctl.global.detach {
        if !ctl.put_object(&told.result_raw()?) {
            begun.jobs.iter().for_each(|job| put(&job.job_id));
            say(&format!("It goes on at {site}. Follow: {}", again(&begun.jobs)));
        }
        return Ok(Vec::new());
    }
    if !ctl.global.output.is_object() {
        say(&format!("Ctrl-C stops watching only. Follow again: {}", again(&begun.jobs)));
    }
    watch(ctl, begun.jobs.into_iter().map(|job| (site.to_owned(), job.job_id)).collect()).await
}

/// What follows these jobs again.
fn again(jobs: &[JobObject]) -> String {
    let ids: Vec<&str> = jobs.iter().map(|job| job.job_id.as_str()).collect();
    format!("umbel ctl job watch {}", ids.join(" "))
}

/// One job that is followed.
struct Followed {
    site: String,
    id: String,
    /// As it was seen last, and its text.
    seen: Option<(JobObject, String)>,
    pace: Pace,
    away: Away,
}

impl Followed {
    fn ended(&self) -> Option<&JobObject> {
        self.seen.as_ref().map(|(job, _)| job).filter(|job| job.state.is_end())
    }

    fn step(&mut self, now: Instant) -> Step {
        let Some((job, _)) = &self.seen else {
            return Step { of: self.id.clone(), state: "-".to_owned(), ..Step::default() };
        };
        let progress = job.progress.as_ref().filter(|_| !job.state.is_end()).map(Progress::from);
        let left = progress.as_ref().and_then(|progress| self.pace.left(progress, now));
        let stops = job.cancel_requested && !job.state.is_end();
        let how = match &progress {
            Some(progress) if !stops => progress.words(left),
            _ => super::now(job),
        };
        Step {
            of: node(job).to_owned(),
            state: job.state.as_str().to_owned(),
            phase: format!("{} {}", job.job_id, job.progress.as_ref().map_or("", |said| &said.phase)),
            about: format!("{} {}", job.kind, short_subject(&job.subject)),
            how,
            gauge: progress.filter(|_| !stops).and_then(|progress| progress.gauge(left)),
        }
    }
}

/// Follows jobs to their ends, each with its site; Ctrl-C detaches. Gives them if all came to a good one.
///
/// # Errors
/// Of those that did not: what the first of them says.
pub(super) async fn watch(ctl: &Ctl, jobs: Vec<(String, String)>) -> Outcome<Vec<JobObject>> {
    let ids: Vec<String> = jobs.iter().map(|(_, id)| id.clone()).collect();
    let mut jobs: Vec<Followed> = jobs
        .into_iter()
        .map(|(site, id)| Followed { site, id, seen: None, pace: Pace::default(), away: Away::default() })
        .collect();
    let go_on = if ids.len() == 1 { "the job goes on" } else { "the jobs go on" };
    let again = format!("umbel ctl job watch {}", ids.join(" "));
    tokio::select! {
        outcome = follow(ctl, &mut jobs) => outcome.map_err(|failure| failure.remedy(format!("{go_on}: {again}")))?,
        _ = tokio::signal::ctrl_c() => {
            return Err(Failure::new(Exit::Interrupted, format!("stopped watching; {go_on}")).remedy(again));
        }
    }
    ended(ctl, jobs)
}

/// Until all have ended.
async fn follow(ctl: &Ctl, jobs: &mut [Followed]) -> Outcome {
    let mut live = (!ctl.global.output.is_object()).then(|| Live::new(ctl.global.color));
    loop {
        let mut note = None;
        for one in jobs.iter_mut().filter(|one| one.ended().is_none()) {
            match ask_one(ctl, &one.site, &one.id).await {
                Ok((job, raw)) => {
                    one.away.answers();
                    let is_news = one.seen.as_ref().is_none_or(|(_, seen)| *seen != raw);
                    if is_news && !job.state.is_end() && ctl.global.output == Format::Jsonl {
                        put(&line(&raw));
                    }
                    one.seen = Some((job, raw));
                }
                Err(failure) => note = note.or(one.away.silent(failure, Instant::now())?),
            }
        }
        let now = Instant::now();
        if let Some(live) = &mut live {
            let steps: Vec<Step> = jobs.iter_mut().map(|one| one.step(now)).collect();
            live.tell(&steps);
        }
        if let Some(note) = note {
            live.as_mut().map_or_else(|| say(&note), |live| live.note(&note));
        }
        if jobs.iter().all(|one| one.ended().is_some()) {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Prints what came of them.
fn ended(ctl: &Ctl, jobs: Vec<Followed>) -> Outcome<Vec<JobObject>> {
    let all: Vec<(String, JobObject, String)> =
        jobs.into_iter().filter_map(|one| one.seen.map(|(job, raw)| (one.site, job, raw))).collect();
    match all.as_slice() {
        [(_, _, raw)] if ctl.put_object(raw) => {}
        several if ctl.global.output.is_object() => {
            let raw = |(_, _, raw): &(String, JobObject, String)| RawValue::from_string(raw.clone());
            let raws: Result<Vec<_>, _> = several.iter().map(raw).collect();
            ctl.put_list(&raws.map_err(|error| Failure::failed(error.to_string()))?);
        }
        several => {
            for (at, (site, job, _)) in several.iter().enumerate() {
                if at > 0 {
                    put("");
                }
                put(&details(&told::lines(site, job)));
            }
        }
    }
    let jobs: Vec<JobObject> = all.into_iter().map(|(_, job, _)| job).collect();
    let not_done: Vec<&JobObject> = jobs.iter().filter(|job| job.state != JobState::Succeeded).collect();
    match not_done.as_slice() {
        [] => Ok(jobs),
        [one] => Err(Failure::failed(sentence(one))),
        [one, ..] => Err(Failure::failed(format!(
            "{} of {} jobs came to nothing; the first: {}",
            not_done.len(),
            jobs.len(),
            sentence(one)
        ))),
    }
}

fn sentence(job: &JobObject) -> String {
    let (id, node) = (&job.job_id, printable(node(job)));
    match (job.state, &job.failure) {
        (JobState::Cancelled, _) => format!("job {id} on {node} was cancelled"),
        (_, Some(failure)) => {
            format!("job {id} on {node} failed: {} ({})", printable(&failure.message), failure.code)
        }
        _ => format!("job {id} on {node} failed"),
    }
}
