//! One job in full: where it stands, what came of it, and what was seen of engines, layer upon layer.
//!
//! Owns those lines. Invariant: what is said of a failure is its code, its sentence, and all that its node told beside it.

use umbel_contracts::objects::{EvidenceObject, JobObject, JobReportObject, JobState};

use crate::output::{bytes, count, duration_ms, printable_lines, utc};

pub(super) fn lines(site: &str, job: &JobObject) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("Job", job.job_id.clone()),
        ("Site", site.to_owned()),
        ("State", job.state.as_str().to_owned()),
        ("Kind", format!("{} {}", job.kind, job.subject)),
        ("Node", super::node(job).to_owned()),
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
        lines.push(("Now", super::now(job)));
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

fn report_lines(report: &JobReportObject, lines: &mut Vec<(&'static str, String)>) {
    if let Some(took) = report.milliseconds {
        lines.push(("Took", duration_ms(took)));
    }
    if let Some(artifact) = &report.artifact {
        let files = count(usize::try_from(artifact.files).unwrap_or(usize::MAX), "file");
        let (all, fetched) = (bytes(artifact.bytes), bytes(artifact.fetched_bytes));
        let files = format!("{files}, {all}, {fetched} fetched");
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
