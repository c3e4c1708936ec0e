//! `ctl audit`: who did what. Without `--site` the server's own record, with it the record that the site keeps.
//!
//! Owns queries and following; leaves the chain itself to `chain`. Invariant: people read downwards in time, whatever
//! order the pages come in.

mod chain;

use std::time::Duration;

use serde_json::value::RawValue;
use umbel_contracts::{
    objects::{AuditObject, Page},
    operations::{AuditQueryArgs, AuditQueryResult, AuditTailArgs, AuditTailResult},
};

use super::Ctl;
use crate::{
    args::{AuditFilter, AuditVerb},
    calls::{Call, segment},
    exit::{Exit, Failure, Outcome},
    output::{Column, Format, Table, duration_ms, line, members, put, say, utc, width},
};

/// Entries on one page of a server or a site.
const PAGE: u32 = 1000;
/// Between two looks at what has come since.
const AGAIN: Duration = Duration::from_secs(1);

pub(crate) async fn run(ctl: &Ctl, filter: &AuditFilter, limit: u32, verb: Option<&AuditVerb>) -> Outcome {
    match verb {
        None => {
            let entries = match &ctl.global.site {
                Some(_) => of_site(ctl, filter, limit).await?,
                None => of_server(ctl, filter, limit).await?,
            };
            list(ctl, entries)
        }
        Some(AuditVerb::Tail { follow, recent }) => tail(ctl, *recent, *follow).await,
        Some(AuditVerb::Verify { file: Some(file) }) => chain::verify_file(ctl, file),
        Some(AuditVerb::Verify { file: None }) => chain::verify(ctl).await,
        Some(AuditVerb::Export { after, out }) => chain::export(ctl, *after, out.as_deref()).await,
    }
}

/// Entries with their text, oldest first.
type Entries = (Vec<Box<RawValue>>, Vec<AuditObject>);

fn list(ctl: &Ctl, (raws, entries): Entries) -> Outcome {
    if ctl.put_list(&raws) {
        return Ok(());
    }
    if ctl.global.output == Format::Name {
        let sequences: Vec<String> = entries.iter().map(|entry| entry.sequence.to_string()).collect();
        ctl.put_names(sequences.iter().map(String::as_str));
        return Ok(());
    }
    ctl.put_table(&table(entries), "Nothing was recorded.");
    Ok(())
}

fn table(entries: Vec<AuditObject>) -> Table {
    let mut table = Table::new(vec![
        Column::left("TIME"),
        Column::left("WHO"),
        Column::left("ACTION"),
        Column::left("ABOUT"),
        Column::left("RESULT"),
        Column::left("SITE"),
        Column::number("NUMBER").wide(),
        Column::left("ARGS").wide(),
        Column::number("TOOK").wide(),
        Column::left("COMMAND").wide(),
        Column::left("REQUEST").wide(),
        Column::text("REASON"),
    ]);
    for entry in entries {
        table.row(vec![
            utc(Some(entry.at)),
            entry.actor,
            entry.action,
            entry.subject.or(entry.selector).unwrap_or_default(),
            entry.outcome,
            entry.edge_id.unwrap_or_default(),
            entry.sequence.to_string(),
            entry.argument_names.join(","),
            entry.took_ms.map_or_else(String::new, duration_ms),
            entry.command_id.unwrap_or_default(),
            entry.correlation_id.unwrap_or_default(),
            entry.reason.unwrap_or_default(),
        ]);
    }
    table
}

async fn of_server(ctl: &Ctl, filter: &AuditFilter, limit: u32) -> Outcome<Entries> {
    let (mut raws, mut entries) = (Vec::new(), Vec::new());
    let mut cursor: Option<String> = None;
    let mut left = limit;
    while left > 0 {
        let mut path = format!("/api/v1/audit?limit={}{}", left.min(PAGE), conditions(filter));
        if let Some(cursor) = &cursor {
            path.push_str(&format!("&cursor={}", segment(cursor)));
        }
        let answer = ctl.client.get(&path).await?;
        raws.extend(members(answer.raw()?, "items"));
        let page: Page<AuditObject> = answer.parse()?;
        let got = u32::try_from(page.items.len()).unwrap_or(u32::MAX);
        entries.extend(page.items);
        left = left.saturating_sub(got);
        // A page may hold less than was asked for, even nothing, while there is more to look at.
        if page.next_cursor.is_none() || page.next_cursor == cursor {
            break;
        }
        cursor = page.next_cursor;
    }
    raws.reverse();
    entries.reverse();
    Ok((raws, entries))
}

/// The conditions as the server's route takes them; nothing where none is given.
fn conditions(filter: &AuditFilter) -> String {
    let given = [
        ("actor", filter.actor.clone()),
        ("action", filter.action.clone()),
        ("subject", filter.about.clone()),
        ("outcome", filter.result.clone()),
        ("command_id", filter.command.map(|id| id.to_string())),
        ("correlation_id", filter.request.clone()),
        ("since", filter.since.map(|at| at.0.to_string())),
        ("until", filter.until.map(|at| at.0.to_string())),
    ];
    let given = given.into_iter().filter_map(|(name, value)| Some((name, value?)));
    given.map(|(name, value)| format!("&{name}={}", segment(&value))).collect()
}

async fn of_site(ctl: &Ctl, filter: &AuditFilter, limit: u32) -> Outcome<Entries> {
    let site = ctl.one_site().await?;
    let (mut raws, mut entries) = (Vec::new(), Vec::new());
    let mut before = None;
    let mut left = limit;
    while left > 0 {
        let args = AuditQueryArgs {
            actor: filter.actor.clone(),
            action: filter.action.clone(),
            subject: filter.about.clone(),
            outcome: filter.result.clone(),
            command_id: filter.command.map(|id| id.to_string()),
            correlation_id: filter.request.clone(),
            since: filter.since.map(|at| at.0),
            until: filter.until.map(|at| at.0),
            limit: Some(left.min(PAGE)),
            before,
        };
        let told = ctl.client.ask(&site, &Call::new("audit.query").args(&args)?).await?;
        raws.extend(members(&told.result_raw()?, "entries"));
        let page: AuditQueryResult = told.result()?;
        left = left.saturating_sub(u32::try_from(page.entries.len()).unwrap_or(u32::MAX));
        entries.extend(page.entries);
        if page.next_before.is_none() || page.next_before == before {
            break;
        }
        before = page.next_before;
    }
    raws.reverse();
    entries.reverse();
    Ok((raws, entries))
}

async fn tail(ctl: &Ctl, recent: u32, follow: bool) -> Outcome {
    let site = match &ctl.global.site {
        Some(_) => Some(ctl.one_site().await?),
        None => None,
    };
    let site = site.as_deref();
    let (raws, entries) = last(ctl, site, recent).await?;
    let mut seen = entries.last().map_or(0, |entry| entry.sequence);
    if recent == 0 {
        seen = last(ctl, site, 1).await?.1.last().map_or(0, |entry| entry.sequence);
    }
    if !follow {
        return list(ctl, (raws, entries));
    }
    if let Format::Json | Format::Yaml = ctl.global.output {
        return Err(Failure::usage("what is followed has no end: use -o jsonl"));
    }
    rows(ctl, (raws, entries), true);
    let mut told_loss = false;
    loop {
        tokio::select! {
            () = tokio::time::sleep(AGAIN) => {}
            _ = tokio::signal::ctrl_c() => return Err(Failure::new(Exit::Interrupted, "")),
        }
        match above(ctl, site, seen).await {
            Ok(come) => {
                told_loss = false;
                seen = come.1.last().map_or(seen, |entry| entry.sequence);
                rows(ctl, come, false);
            }
            Err(failure) if matches!(failure.exit(), Exit::Unreachable | Exit::TimedOut) => {
                if !std::mem::replace(&mut told_loss, true) {
                    say(&format!("-- the connection was lost, resuming after {seen} --"));
                }
            }
            Err(failure) => return Err(failure),
        }
    }
}

async fn last(ctl: &Ctl, site: Option<&str>, many: u32) -> Outcome<Entries> {
    match site {
        Some(site) if many > 0 => site_tail(ctl, site, Some(many.min(PAGE)), None).await,
        Some(_) => Ok((Vec::new(), Vec::new())),
        None => of_server(ctl, &AuditFilter::default(), many).await,
    }
}

async fn site_tail(ctl: &Ctl, site: &str, limit: Option<u32>, after: Option<u64>) -> Outcome<Entries> {
    let call = Call::new("audit.tail").args(&AuditTailArgs { limit, after })?;
    let told = ctl.client.ask(site, &call).await?;
    let result: AuditTailResult = told.result()?;
    Ok((members(&told.result_raw()?, "entries"), result.entries))
}

/// What has come above a number, oldest first.
async fn above(ctl: &Ctl, site: Option<&str>, seen: u64) -> Outcome<Entries> {
    if let Some(site) = site {
        return site_tail(ctl, site, Some(PAGE), Some(seen)).await;
    }
    let answer = ctl.client.get(&format!("/api/v1/audit?after={seen}&limit={PAGE}")).await?;
    let page: Page<AuditObject> = answer.parse()?;
    Ok((members(answer.raw()?, "items"), page.items))
}

/// Prints entries as they come.
fn rows(ctl: &Ctl, (raws, entries): Entries, first: bool) {
    match ctl.global.output {
        Format::Table | Format::Wide => {
            if entries.is_empty() {
                return;
            }
            let text = table(entries).render(ctl.global.output == Format::Wide, width(), ctl.style);
            put(if first { &text } else { text.split_once('\n').map_or("", |(_, rows)| rows) });
        }
        Format::Name => entries.iter().for_each(|entry| put(&entry.sequence.to_string())),
        _ => raws.iter().for_each(|raw| put(&line(raw.get()))),
    }
}

#[cfg(test)]
mod tests {
    use super::{AuditFilter, conditions};

    #[test]
    fn conditions_are_escaped_and_left_out_where_not_given() {
        assert_eq!(conditions(&AuditFilter::default()), "");
        let filter = AuditFilter {
            actor: Some("a&b=c".to_owned()),
            action: Some("node.*".to_owned()),
            ..AuditFilter::default()
        };
        assert_eq!(conditions(&filter), "&actor=a%26b%3Dc&action=node.%2A");
    }
}
