//! `ctl status`: every site at a glance, problems first to find.
//!
//! Invariant: figures that are not fresh carry a `?` and their age; a silent site hides nothing of the others.

use umbel_contracts::objects::{FleetStatus, Freshness, SiteStatus, SummaryObject};

use super::{Ctl, pick};
use crate::{
    exit::{Exit, Failure, Outcome},
    output::{Column, Format, Table, Tone, age_ms, count, members, printable, put, say, utc, width},
};

pub(crate) async fn run(ctl: &Ctl, check: bool) -> Outcome {
    let answer = ctl.client.get("/api/v1/status").await?;
    let mut status: FleetStatus = answer.parse()?;
    if let Some(wanted) = &ctl.global.site {
        let names: Vec<String> = status.sites.iter().map(|site| site.edge_id.clone()).collect();
        let meant = pick::sites(&names, wanted)?;
        status.sites.retain(|site| meant.contains(&site.edge_id));
    }
    match ctl.global.output {
        Format::Json | Format::Yaml => drop(ctl.put_object(answer.raw()?)),
        Format::Jsonl => drop(ctl.put_list(&members(answer.raw()?, "sites"))),
        Format::Name => ctl.put_names(status.sites.iter().map(|site| site.edge_id.as_str())),
        Format::Table | Format::Wide => table(ctl, &status),
    }
    let problems = problems(&status).len();
    if check && problems > 0 {
        return Err(Failure::new(Exit::Condition, count(problems, "problem")));
    }
    Ok(())
}

fn freshness(site: &SiteStatus) -> &'static str {
    match site.freshness {
        Freshness::Fresh => "fresh",
        Freshness::Cached => "cached",
        Freshness::TimedOut => "timed_out",
        Freshness::Disconnected => "disconnected",
    }
}

fn table(ctl: &Ctl, status: &FleetStatus) {
    let (fleet, who) = (printable(&status.fleet_name), printable(&status.answered_by));
    let heading = format!("{fleet} · answered by {who} · {}", utc(Some(status.observed_at)));
    put(&format!("{}\n\n", ctl.style.paint(Tone::Strong, &heading)));
    let mut table = Table::new(vec![
        Column::left("SITE"),
        Column::state("STATE"),
        Column::number("AGE"),
        Column::number("NODES"),
        Column::number("ENGINES"),
        Column::number("MODELS"),
        Column::number("RUN"),
        Column::number("QUEUE"),
        Column::number("PROBLEMS"),
        Column::left("VERSION"),
        Column::number("JOBS").wide(),
        Column::left("UP").wide(),
        Column::left("REVISION").wide(),
        Column::text("NOTE"),
    ]);
    let mut sites: Vec<&SiteStatus> = status.sites.iter().collect();
    // Problems first; within that by name, as the server gives them.
    sites.sort_by_key(|site| match (site.freshness, &site.summary) {
        (Freshness::Disconnected, _) => 0,
        (Freshness::TimedOut, _) => 1,
        (_, Some(summary)) if summary.problems_total == 0 => 3,
        _ => 2,
    });
    for site in sites {
        let mark = if site.freshness == Freshness::Fresh { "" } else { " ?" };
        let mut row = vec![site.edge_id.clone(), freshness(site).to_owned(), age_ms(site.age_ms)];
        match &site.summary {
            Some(summary) => row.extend([
                format!("{}/{}{mark}", summary.nodes_online, summary.nodes_total),
                format!("{}/{}{mark}", summary.providers_available, summary.providers_total),
                models(summary).map_or_else(|| "?".to_owned(), |figures| format!("{figures}{mark}")),
                format!("{}{mark}", summary.requests_in_flight),
                format!("{}{mark}", summary.requests_queued),
                format!("{}{mark}", summary.problems_total),
                summary.software_version.clone(),
                summary
                    .jobs
                    .map_or_else(|| "?".to_owned(), |jobs| format!("{}{mark}", jobs.running + jobs.queued)),
                age_ms(Some(summary.uptime_ms)),
                summary.revision.as_ref().map_or_else(String::new, |revision| revision.number.to_string()),
            ]),
            None => row.extend(["?"; 10].map(str::to_owned)),
        }
        row.push(site.note.clone().unwrap_or_default());
        table.row(row);
    }
    ctl.put_table(&table, "No site yet. Make a token for one: umbel ctl edge token create SITE");
    let problems = problems(status);
    if problems.is_empty() {
        return;
    }
    let mut list = Table::new(vec![
        Column::left("SINCE"),
        Column::left("SITE"),
        Column::left("PROBLEM"),
        Column::left("ABOUT"),
        Column::text("WHAT"),
    ]);
    for problem in &problems {
        list.row(problem.to_vec());
    }
    put(&format!("\n{}\n", ctl.style.paint(Tone::Strong, &format!("Problems ({})", problems.len()))));
    put(&list.render(ctl.global.output == Format::Wide, width(), ctl.style));
    let beyond = status.sites.iter().filter_map(|site| site.summary.as_ref());
    let beyond: usize =
        beyond.map(|s| usize::try_from(s.problems_total).unwrap_or(0).saturating_sub(s.problems.len())).sum();
    if beyond > 0 {
        say(&format!("and {beyond} more: umbel ctl node"));
    }
}

/// Deployments that have all they want, of all; nothing from an edge that does not tell.
fn models(summary: &SummaryObject) -> Option<String> {
    let figures = summary.deployments.as_ref()?;
    Some(format!("{}/{}", figures.total.saturating_sub(figures.short), figures.total))
}

/// By the answering host's clock, which is nearer to the edges' than this one's.
fn since(since: jiff::Timestamp, now: jiff::Timestamp) -> String {
    age_ms(u64::try_from(now.as_millisecond() - since.as_millisecond()).ok())
}

/// A problem's cells. A site that is not connected is the first of its problems.
fn problems(status: &FleetStatus) -> Vec<[String; 5]> {
    let mut rows = Vec::new();
    for site in &status.sites {
        if matches!(site.freshness, Freshness::TimedOut | Freshness::Disconnected) {
            rows.push([
                age_ms(site.age_ms),
                site.edge_id.clone(),
                freshness(site).to_ascii_uppercase(),
                "edge".to_owned(),
                "the site cannot be asked; it serves on its own".to_owned(),
            ]);
        }
        for problem in site.summary.iter().flat_map(|summary| &summary.problems) {
            rows.push([
                since(problem.since, status.observed_at),
                site.edge_id.clone(),
                problem.code.clone(),
                problem.subject.clone().unwrap_or_else(|| "site".to_owned()),
                problem.message.clone(),
            ]);
        }
    }
    rows
}
