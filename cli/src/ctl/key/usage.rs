//! `ctl key usage`: requests and tokens of each key and model, in all or by day.

use serde_json::{Map, Value, value::RawValue};
use umbel_contracts::operations::{ApiKeyObject, KeyUsageObject};

use super::{Ctl, all, chosen};
use crate::{
    args::{By, KeyUsage},
    client::parse,
    ctl::gather::{Gathered, gather_with, pages},
    exit::Outcome,
    output::{Column, Table, ago, count, say},
};

/// Stands for requests without a key; no key's id has a `_`.
const LOOPBACK: &str = "_loopback";

pub(super) async fn run(ctl: &Ctl, asked: &KeyUsage) -> Outcome {
    let mut args = Map::new();
    if asked.by == By::Day {
        args.insert("by".to_owned(), "day".into());
    }
    if let Some(model) = &asked.model {
        args.insert("model".to_owned(), model.as_str().into());
    }
    if let Some(since) = asked.since {
        args.insert("since".to_owned(), since.to_string().into());
    }
    let gathered = match asked.id.as_deref() {
        None => gather_with(ctl, "apikey.usage", "usage", "", &args).await?,
        Some(LOOPBACK) => {
            args.insert("key_id".to_owned(), LOOPBACK.into());
            gather_with(ctl, "apikey.usage", "usage", "", &args).await?
        }
        Some(id) => of_one(ctl, id, args).await?,
    };
    if ctl.put_list(&gathered.raws()?) {
        return gathered.complete("usage");
    }
    let rows = gathered.items.iter().map(|(site, raw)| Ok((site.clone(), parse(raw.get())?)));
    let mut rows: Vec<(String, KeyUsageObject)> = rows.collect::<Outcome<_>>()?;
    // Ids mean nothing to people: within a day the names do.
    rows.sort_by(|(a_site, a), (b_site, b)| {
        b.day
            .cmp(&a.day)
            .then_with(|| (a_site, &a.name, &a.key_id, &a.model).cmp(&(b_site, &b.name, &b.key_id, &b.model)))
    });
    ctl.put_table(&table(asked.by, &rows), "Nothing was used yet.");
    if rows.len() > 1 {
        say(&together(&rows));
    }
    gathered.complete("usage")
}

async fn of_one(ctl: &Ctl, id: &str, mut args: Map<String, Value>) -> Outcome<Gathered> {
    let keys = all(ctl).await?;
    let (site, key, _) = chosen(keys.clone(), id)?.item;
    // A name stands for all that ever had it: what was used did not go when the key was replaced.
    let of_name = |other: &ApiKeyObject| key.name == id && other.name == id;
    let meant = |(at, other, _): &(String, ApiKeyObject, String)| {
        *at == site && (other.key_id == key.key_id || of_name(other))
    };
    let key_ids: Vec<String> = keys.into_iter().filter(meant).map(|(_, other, _)| other.key_id).collect();
    let mut gathered = Gathered { items: Vec::new(), silent: Vec::new() };
    for key_id in key_ids {
        args.insert("key_id".to_owned(), key_id.into());
        let items: Vec<Box<RawValue>> = pages(ctl, &site, "apikey.usage", "usage", "", &args).await?;
        gathered.items.extend(items.into_iter().map(|item| (site.clone(), item)));
    }
    Ok(gathered)
}

fn table(by: By, rows: &[(String, KeyUsageObject)]) -> Table {
    let mut columns = Vec::new();
    if by == By::Day {
        columns.push(Column::left("DAY"));
    }
    columns.extend([
        Column::left("NAME"),
        Column::left("ID").wide(),
        Column::left("SITE"),
        Column::left("MODEL"),
        Column::number("REQUESTS"),
        Column::number("REFUSED"),
        Column::number("PROMPT"),
        Column::number("CACHED"),
        Column::number("COMPLETION"),
        Column::number("USED"),
    ]);
    let mut table = Table::new(columns);
    for (site, used) in rows {
        let mut cells = Vec::new();
        if by == By::Day {
            cells.push(used.day.map(|day| day.to_string()).unwrap_or_default());
        }
        cells.extend([
            if used.name.is_empty() { used.key_id.clone() } else { used.name.clone() },
            used.key_id.clone(),
            site.clone(),
            used.model.clone(),
            used.requests.to_string(),
            used.refused.to_string(),
            used.prompt_tokens.to_string(),
            used.cached_tokens.to_string(),
            used.completion_tokens.to_string(),
            ago(used.last_used_at),
        ]);
        table.row(cells);
    }
    table
}

fn together(rows: &[(String, KeyUsageObject)]) -> String {
    let sum = |of: fn(&KeyUsageObject) -> u64| {
        rows.iter().fold(0_u64, |sum, (_, used)| sum.saturating_add(of(used)))
    };
    let requests = usize::try_from(sum(|used| used.requests)).unwrap_or(usize::MAX);
    format!(
        "Together {} ({} refused), {} tokens of prompts, {} of answers.",
        count(requests, "request"),
        sum(|used| used.refused),
        sum(|used| used.prompt_tokens),
        sum(|used| used.completion_tokens),
    )
}
