//! `ctl job`: work that nodes do for their edge; listing it, following one piece to its end, asking for its end.
//!
//! Owns following, with a bar. Leaves what a job does to the edge and its node. Invariant: Ctrl-C stops watching, never the job.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, value::RawValue};
use umbel_contracts::objects::{EvidenceObject, JobObject, JobProgressObject, JobState};
use umbel_contracts::operations::{JobArgs, JobsResult, RuntimeHealthArgs};

use super::{Ctl, command, pick, with_site};
use crate::{
    args::{JobFilter, JobVerb},
    calls::{Call, new_command_id},
    client::{interactive, parse},
    exit::{Exit, Failure, Outcome},
    output::{
        Column, Format, Table, ago, bytes, details, duration_ms, line, members, printable, printable_lines,
        put, say, utc,
    },
};

/// Between two looks at a job that is followed: its node tells at most one step a second.
const LOOK: Duration = Duration::from_millis(500);
/// Looks in a row without an answer.
const TRIES: u32 = 60;
const LIST: &str = "umbel ctl job";

pub(crate) async fn run(ctl: &Ctl, id: Option<&str>, filter: &JobFilter, verb: Option<&JobVerb>) -> Outcome {
    match (verb, id) {
        (Some(JobVerb::List { filter }), _) => list(ctl, filter).await,
        (Some(JobVerb::Show { id }), _) => show(ctl, id).await,
        (None, Some(id)) => show(ctl, id).await,
        (Some(JobVerb::Watch { id }), _) => {
            let (site, job) = find(ctl, id).await?;
            watch(ctl, &site, &job.job_id).await
        }
        (Some(JobVerb::Cancel { id }), _) => cancel(ctl, id).await,
        (Some(JobVerb::Health { node, engine }), _) => health(ctl, node, engine.as_deref()).await,
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
async fn ask(ctl: &Ctl, selector: &str, args: &Map<String, Value>) -> Outcome<(Vec<Listed>, Vec<String>)> {
    let sites = ctl.sites().await?;
    let only = sites.len() == 1;
    let (mut jobs, mut silent) = (Vec::new(), Vec::new());
    for site in sites.into_iter().map(|edge| edge.edge_id) {
        let call = Call { selector: selector.to_owned(), ..Call::new("job.list") }.args(args)?;
        match ctl.client.ask(&site, &call).await {
            Ok(told) => {
                for raw in members(&told.result_raw()?, "jobs") {
                    jobs.push((site.clone(), parse(raw.get())?, with_site(&site, &raw)?));
                }
            }
            Err(failure) if !only && matches!(failure.exit(), Exit::Unreachable | Exit::TimedOut) => {
                silent.push(site)
            }
            Err(failure) => return Err(failure.during(&site)),
        }
    }
    Ok((jobs, silent))
}

async fn list(ctl: &Ctl, filter: &JobFilter) -> Outcome {
    let selector = filter.node.as_deref().unwrap_or_default();
    let (jobs, silent) = ask(ctl, selector, &conditions(filter)).await?;
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
                job.subject.clone(),
                format!("{}/{}", job.attempt, job.attempts_max),
                now(job),
            ]);
        }
        ctl.put_table(&table, "No job fits.");
    }
    super::gather::silent(&silent, "jobs")
}

fn node(job: &JobObject) -> &str {
    job.node_name.as_deref().unwrap_or(&job.node_id)
}

/// How far it is, or what came of it.
/// What it does now, or why its last attempt came to nothing.
pub(super) fn now(job: &JobObject) -> String {
    if !job.state.is_end() && job.cancel_requested {
        return "is asked to stop".to_owned();
    }
    match (&job.progress, &job.failure) {
        (Some(progress), _) => step(progress, None),
        (None, Some(failure)) if job.state != JobState::Succeeded => failure.code.clone(),
        _ => String::new(),
    }
}

/// `downloading 204.0 MiB of 609.8 MiB`, with what it does in a second where that is known.
fn step(progress: &JobProgressObject, rate: Option<u64>) -> String {
    let is_bytes = progress.unit == "bytes";
    let figure = |value: u64| if is_bytes { bytes(value) } else { value.to_string() };
    let unit = if is_bytes { String::new() } else { format!(" {}", printable(&progress.unit)) };
    let mut text = printable(&progress.phase).into_owned();
    if progress.total > 0 {
        text.push_str(&format!(" {} of {}{unit}", figure(progress.done), figure(progress.total)));
    } else if progress.done > 0 {
        text.push_str(&format!(" {}{unit}", figure(progress.done)));
    }
    if let Some(rate) = rate.filter(|rate| is_bytes && *rate > 0) {
        text.push_str(&format!(", {}/s", bytes(rate)));
    } else if !progress.message.is_empty() {
        text.push_str(&format!(": {}", printable(&progress.message)));
    }
    text
}

/// The one job that an id, or the start of one, means.
async fn find(ctl: &Ctl, wanted: &str) -> Outcome<(String, JobObject)> {
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
        .candidates(silent)),
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
        put(&details(&lines(&site, &job)));
    }
    Ok(())
}

fn lines(site: &str, job: &JobObject) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("Job", job.job_id.clone()),
        ("Site", site.to_owned()),
        ("State", job.state.as_str().to_owned()),
        ("Kind", format!("{} {}", job.kind, job.subject)),
        ("Node", node(job).to_owned()),
        ("Attempt", format!("{} of {}", job.attempt, job.attempts_max)),
        ("Asked by", job.owner.clone().unwrap_or_else(|| job.actor.clone())),
        ("Asked at", utc(Some(job.submitted_at))),
    ];
    if let Some(reason) = &job.reason {
        lines.push(("Reason", reason.clone()));
    }
    if let Some(ended) = job.ended_at {
        lines.push(("Ended", utc(Some(ended))));
    }
    if !job.state.is_end() {
        lines.push(("Now", now(job)));
    }
    if let Some(failure) = job.failure.as_ref().filter(|_| job.state != JobState::Succeeded) {
        let at = failure.path.as_ref().map(|path| format!(" ({path})")).unwrap_or_default();
        lines.push(("Failure", format!("{}{at}: {}", failure.code, failure.message)));
        lines.extend(failure.layers.iter().map(|layer| ("Layer", evidence(layer))));
        if let Some(tail) = &failure.output_tail {
            lines.push(("Output", printable_lines(tail)));
        }
    }
    if let Some(report) = &job.report {
        report_lines(report, &mut lines);
    }
    lines
}

fn report_lines(report: &umbel_contracts::objects::JobReportObject, lines: &mut Vec<(&'static str, String)>) {
    if let Some(took) = report.milliseconds {
        lines.push(("Took", duration_ms(took)));
    }
    if let Some(artifact) = &report.artifact {
        let files = format!(
            "{} files, {}, {} fetched",
            artifact.files,
            bytes(artifact.bytes),
            bytes(artifact.fetched_bytes)
        );
        lines.push(("Files", files));
        lines.push(("Digest", artifact.digest.clone()));
        lines.push(("Folder", format!("{} in {}", artifact.folder, artifact.root)));
    }
    if let Some(freed) = report.freed_bytes {
        lines.push(("Freed", bytes(freed)));
    }
    if let Some(measured) = &report.measured {
        let rate = measured.tokens_per_second_milli / 1000;
        let text = format!(
            "ready after {}, first answer after {}, {rate} tokens/s, {} of memory",
            duration_ms(measured.start_ms),
            duration_ms(measured.first_piece_ms),
            bytes(measured.peak_memory_bytes)
        );
        lines.push(("Measured", text));
    }
    lines.extend(report.layers.iter().map(|layer| ("Layer", evidence(layer))));
    for engine in &report.engines {
        let text = format!("{}: {}, {} requests run", engine.engine, engine.state.as_str(), engine.in_flight);
        lines.push(("Engine", text));
        lines.extend(engine.layers.iter().map(|layer| ("Layer", evidence(layer))));
    }
    if let Some(left) = report.requests_left {
        lines.push(("Left", format!("{left} requests still ran")));
    }
    if report.stopped == Some(false) {
        lines.push(("Stopped", "nothing: there was no such engine".to_owned()));
    }
}

fn evidence(layer: &EvidenceObject) -> String {
    let word = if layer.ok { "ok" } else { "not well" };
    format!("{} {word}: {} ({})", layer.layer, layer.detail, duration_ms(layer.milliseconds))
}

async fn cancel(ctl: &Ctl, wanted: &str) -> Outcome {
    let (site, job) = find(ctl, wanted).await?;
    let call = Call::new("job.cancel")
        .args(&JobArgs { job_id: job.job_id.clone() })?
        .reason(ctl.global.reason.as_deref())
        .dry_run(ctl.global.dry_run);
    let done = format!(
        "{} is asked to end job {}. Follow: umbel ctl job watch {}",
        node(&job),
        job.job_id,
        job.job_id
    );
    command::send(ctl, &site, &call, &done).await
}

async fn health(ctl: &Ctl, selector: &str, engine: Option<&str>) -> Outcome {
    let site = ctl.one_site().await?;
    let args = RuntimeHealthArgs { engine: engine.map(str::to_owned) };
    let call = Call { selector: selector.to_owned(), ..Call::new("runtime.health") }
        .args(&args)?
        .reason(ctl.global.reason.as_deref())
        .dry_run(ctl.global.dry_run);
    let id = ctl.global.command_id.map_or_else(new_command_id, |id| id.to_string());
    let told = ctl.client.command(&site, &id, &call, Duration::from_secs(5)).await?;
    told.check()?;
    let begun: JobsResult = told.result()?;
    for job in begun.jobs {
        if ctl.global.detach {
            put(&job.job_id);
        } else {
            watch(ctl, &site, &job.job_id).await?;
        }
    }
    Ok(())
}

/// Follows a job to its end; Ctrl-C detaches.
pub(crate) async fn watch(ctl: &Ctl, site: &str, id: &str) -> Outcome {
    tokio::select! {
        outcome = follow(ctl, site, id) => outcome,
        _ = tokio::signal::ctrl_c() => Err(Failure::new(Exit::Interrupted, "stopped watching; the job goes on")
            .remedy(format!("umbel ctl job watch {id} --site {site}"))),
    }
}

async fn follow(ctl: &Ctl, site: &str, id: &str) -> Outcome {
    let mut pace = Pace::default();
    let (mut last, mut tries) = (String::new(), 0);
    loop {
        match ask_one(ctl, site, id).await {
            Ok((job, raw)) => {
                tries = 0;
                if job.state.is_end() {
                    return ended(ctl, site, &job, &raw, &last);
                }
                tell(ctl, &job, &raw, &mut pace, &mut last);
            }
            Err(failure) if matches!(failure.exit(), Exit::Unreachable | Exit::TimedOut) && tries < TRIES => {
                tries += 1;
            }
            Err(failure) => {
                return Err(
                    failure.remedy(format!("the job goes on: umbel ctl job watch {id} --site {site}"))
                );
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// How fast it goes, by the first step that was seen of its phase.
#[derive(Default)]
struct Pace {
    first: Option<(String, u64, Instant)>,
}

impl Pace {
    fn rate(&mut self, progress: &JobProgressObject, at: Instant) -> Option<u64> {
        let of_phase =
            self.first.as_ref().filter(|(phase, done, _)| *phase == progress.phase && *done <= progress.done);
        let Some((_, done, since)) = of_phase else {
            self.first = Some((progress.phase.clone(), progress.done, at));
            return None;
        };
        let took =
            u64::try_from(at.saturating_duration_since(*since).as_millis()).ok().filter(|took| *took > 0)?;
        Some((progress.done - done).saturating_mul(1000) / took)
    }
}

/// One line a step; on a terminal the same line again.
fn tell(ctl: &Ctl, job: &JobObject, raw: &str, pace: &mut Pace, last: &mut String) {
    let rate = job.progress.as_ref().and_then(|progress| pace.rate(progress, Instant::now()));
    let how = match &job.progress {
        Some(progress) => step(progress, rate),
        None if job.cancel_requested => "is asked to stop".to_owned(),
        None => String::new(),
    };
    let text =
        format!("{:<9} {} {}  {}{how}", job.state.as_str(), job.kind, printable(&job.subject), bar(job));
    if *last == text {
        return;
    }
    match ctl.global.output {
        Format::Jsonl => put(&line(raw)),
        format if format.is_object() => {}
        _ if interactive() => {
            use std::io::Write as _;
            let mut err = std::io::stderr().lock();
            // Nobody is left to tell when standard error is gone.
            let _ = write!(err, "\r\u{1b}[K{text}").and_then(|()| err.flush());
        }
        _ => say(&text),
    }
    *last = text;
}

fn bar(job: &JobObject) -> String {
    const WIDTH: u64 = 20;
    let Some(progress) = job.progress.as_ref().filter(|progress| progress.total > 0 && interactive()) else {
        return String::new();
    };
    let (done, total) = (progress.done.min(progress.total), progress.total);
    let filled = u128::from(done) * u128::from(WIDTH) / u128::from(total);
    let filled = usize::try_from(filled).unwrap_or(0).min(WIDTH as usize);
    format!("{}{}  ", "█".repeat(filled), "░".repeat(WIDTH as usize - filled))
}

fn ended(ctl: &Ctl, site: &str, job: &JobObject, raw: &str, last: &str) -> Outcome {
    if !last.is_empty() && interactive() && !ctl.global.output.is_object() {
        say("");
    }
    if !ctl.put_object(raw) {
        put(&details(&lines(site, job)));
    }
    let id = &job.job_id;
    match (job.state, &job.failure) {
        (JobState::Succeeded, _) => Ok(()),
        (JobState::Cancelled, _) => Err(Failure::failed(format!("job {id} was cancelled"))),
        (_, Some(failure)) => Err(Failure::failed(format!(
            "job {id} failed: {} ({})",
            printable(&failure.message),
            failure.code
        ))),
        _ => Err(Failure::failed(format!("job {id} failed"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_told_with_its_figures() {
        let progress = JobProgressObject {
            phase: "fetching".into(),
            done: 1 << 20,
            total: 4 << 20,
            unit: "bytes".into(),
            message: "1 of 2 files".into(),
        };
        assert!(step(&progress, None).ends_with(": 1 of 2 files"));
        let mut pace = Pace::default();
        let start = Instant::now();
        assert_eq!(pace.rate(&progress, start), None);
        let later = JobProgressObject { done: 3 << 20, ..progress.clone() };
        assert_eq!(pace.rate(&later, start + Duration::from_secs(2)), Some(1 << 20));
        let next = JobProgressObject { phase: "verifying".into(), done: 0, ..progress };
        assert_eq!(pace.rate(&next, start + Duration::from_secs(3)), None);
        let layers =
            JobProgressObject { phase: "loading".into(), total: 5, done: 2, unit: "layers".into(), ..next };
        assert!(step(&layers, None).starts_with("loading 2 of 5 layers"));
    }
}
