//! `ctl audit`: who did what. Without `--site` the server's own record, with it the record that the site keeps.

use serde_json::value::RawValue;
use umbel_contracts::{
    objects::{AuditObject, Page},
    operations::AuditTailResult,
};

use super::Ctl;
use crate::{
    calls::{Call, segment},
    exit::Outcome,
    output::{Column, Format, Table, duration_ms, members, utc},
};

/// Entries on one page of the server.
const PAGE: u32 = 1000;

pub(crate) async fn run(ctl: &Ctl, limit: u32) -> Outcome {
    let (raws, entries) = match &ctl.global.site {
        Some(_) => of_site(ctl, limit).await?,
        None => of_server(ctl, limit).await?,
    };
    if ctl.put_list(&raws) {
        return Ok(());
    }
    if ctl.global.output == Format::Name {
        let sequences: Vec<String> = entries.iter().map(|entry| entry.sequence.to_string()).collect();
        ctl.put_names(sequences.iter().map(String::as_str));
        return Ok(());
    }
    let mut table = Table::new(vec![
        Column::left("TIME"),
        Column::left("WHO"),
        Column::left("ACTION"),
        Column::left("ABOUT"),
        Column::left("RESULT"),
        Column::left("SITE"),
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
            entry.argument_names.join(","),
            entry.took_ms.map_or_else(String::new, duration_ms),
            entry.command_id.unwrap_or_default(),
            entry.correlation_id.unwrap_or_default(),
            entry.reason.unwrap_or_default(),
        ]);
    }
    ctl.put_table(&table, "Nothing was recorded yet.");
    Ok(())
}

type Entries = (Vec<Box<RawValue>>, Vec<AuditObject>);

async fn of_server(ctl: &Ctl, limit: u32) -> Outcome<Entries> {
    let (mut raws, mut entries) = (Vec::new(), Vec::new());
    let mut cursor: Option<String> = None;
    let mut left = limit;
    while left > 0 {
        let mut path = format!("/api/v1/audit?limit={}", left.min(PAGE));
        if let Some(cursor) = &cursor {
            path.push_str(&format!("&cursor={}", segment(cursor)));
        }
        let answer = ctl.client.get(&path).await?;
        raws.extend(members(answer.raw()?, "items"));
        let page: Page<AuditObject> = answer.parse()?;
        let got = u32::try_from(page.items.len()).unwrap_or(u32::MAX);
        entries.extend(page.items);
        left = left.saturating_sub(got);
        cursor = page.next_cursor;
        if cursor.is_none() || got == 0 {
            break;
        }
    }
    // The server gives the newest first; people read downwards in time.
    raws.reverse();
    entries.reverse();
    Ok((raws, entries))
}

async fn of_site(ctl: &Ctl, limit: u32) -> Outcome<Entries> {
    let site = ctl.one_site().await?;
    let args = serde_json::json!({ "limit": limit.clamp(1, PAGE) });
    let told = ctl.client.ask(&site, &Call::new("audit.tail").args(&args)?).await?;
    let result: AuditTailResult = told.result()?;
    Ok((members(&told.result_raw()?, "entries"), result.entries))
}
