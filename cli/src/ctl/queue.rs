//! `ctl queue`: requests that wait and run, a model each, as every site last said; with a model, whose they are and who
//! serves it.
//!
//! Owns the words for a queue's state and the next step. Invariant: a next step names a number that was read and a command.

use serde_json::value::RawValue;
use umbel_contracts::objects::{QueueFigures, QueueObject, SiteStatus};
use umbel_contracts::operations::{QueueShowArgs, QueueShowResult};

use super::Ctl;
use crate::{
    calls::{Call, segment},
    exit::{Exit, Failure, Outcome},
    output::{Column, Format, Table, duration_ms, members, put, say},
};

pub(crate) async fn run(ctl: &Ctl, model: Option<&str>) -> Outcome {
    let mut raws = Vec::new();
    let mut silent = Vec::new();
    let mut table = Table::new(vec![
        Column::left("SITE"),
        Column::left("MODEL"),
        Column::state("STATE"),
        Column::number("WAITING"),
        Column::number("OLDEST"),
        Column::number("RUNNING"),
        Column::number("ENDED/MIN"),
        Column::number("ADMITTED").wide(),
        Column::number("REFUSED"),
        Column::text("NEXT STEP"),
    ]);
    let mut shown: Vec<(String, QueueObject)> = Vec::new();
    for edge in ctl.sites().await? {
        let path = format!("/api/v1/edges/{}/status?sections=queues", segment(&edge.edge_id));
        let answer = match ctl.client.get(&path).await {
            Ok(answer) => answer,
            Err(failure) if matches!(failure.exit(), Exit::Unreachable | Exit::TimedOut) => {
                silent.push(edge.edge_id);
                continue;
            }
            Err(failure) => return Err(failure),
        };
        let status: SiteStatus = answer.parse()?;
        let Some(queues) = status.queues else {
            silent.push(edge.edge_id);
            continue;
        };
        let mut all: Vec<_> = queues.into_iter().zip(members(answer.raw()?, "queues")).collect();
        if let Some(model) = model {
            // A name in full means that one, also where others begin with it.
            let exact = all.iter().any(|(queue, _)| queue.model == model);
            all.retain(
                |(queue, _)| if exact { queue.model == model } else { queue.model.starts_with(model) },
            );
        }
        for (queue, raw) in all {
            raws.push(super::with_site(&edge.edge_id, &raw)?);
            table.row(row(&edge.edge_id, &queue));
            shown.push((edge.edge_id.clone(), queue));
        }
    }
    if let (Some(model), true) = (model, shown.is_empty()) {
        for (site, queue, raw) in called(ctl, model, &silent).await? {
            raws.push(super::with_site(&site, &raw)?);
            table.row(row(&site, &queue));
            shown.push((site, queue));
        }
    }
    if let (Some(model), true, true) = (model, shown.is_empty(), silent.is_empty()) {
        return Err(
            Failure::new(Exit::NotFound, format!("no model `{model}` is served")).remedy("umbel ctl queue")
        );
    }
    if ctl.global.output == Format::Name {
        ctl.put_names(shown.iter().map(|(_, queue)| queue.model.as_str()));
        return super::gather::silent(&silent, "queues");
    }
    if let (Some(_), [(site, queue)]) = (model, shown.as_slice())
        && queue.more.is_some()
    {
        whole(ctl, site, &queue.model, &table).await?;
    } else if !ctl.put_list(&raws) && (silent.is_empty() || !shown.is_empty()) {
        // A site that did not answer may well serve: then the note below is all that is known.
        ctl.put_table(&table, "No model is served. See: umbel ctl node");
    }
    super::gather::silent(&silent, "queues")
}

fn row(site: &str, queue: &QueueObject) -> Vec<String> {
    let more = queue.more.as_ref();
    let of = |count: u32, most: Option<u32>| match most {
        Some(most) => format!("{count}/{most}"),
        None => count.to_string(),
    };
    vec![
        site.to_owned(),
        queue.model.clone(),
        more.map_or_else(String::new, |more| state(queue, more).to_owned()),
        of(queue.depth, more.map(|more| more.limit)),
        if queue.depth == 0 { String::new() } else { duration_ms(queue.oldest_age_ms) },
        of(queue.in_flight, more.map(|more| more.capacity)),
        more.map_or_else(String::new, |more| more.drain_per_minute.to_string()),
        queue.admitted_total.to_string(),
        more.map_or(queue.shed_total, |more| more.rejections.values().sum()).to_string(),
        more.map_or_else(String::new, |more| next_step(queue, more)),
    ]
}

/// One word for how it is.
fn state(queue: &QueueObject, more: &QueueFigures) -> &'static str {
    match more {
        more if more.providers_wanted == 0 => "unwanted",
        more if more.providers_open == 0 && more.providers_loading > 0 => "loading",
        more if more.providers_open == 0 => "unavailable",
        more if queue.depth >= more.limit => "full",
        _ if queue.depth > 0 => "waiting",
        _ if queue.in_flight > 0 => "running",
        _ => "idle",
    }
}

/// What an operator does about it; nothing where all is well.
fn next_step(queue: &QueueObject, more: &QueueFigures) -> String {
    let (depth, slots) = (queue.depth, more.capacity);
    if more.providers_wanted == 0 {
        return "every node that has it is drained, disabled or not eligible: umbel ctl node".to_owned();
    }
    if more.providers_open == 0 {
        let what = if more.providers_loading > 0 {
            "its engine is starting or loading"
        } else {
            "no provider of it is online"
        };
        return format!("{what}: umbel ctl node why NODE");
    }
    if more.leases.unconfirmed > 0 {
        let held = more.leases.unconfirmed;
        return format!(
            "{held} slots wait for a node's word that their request ended: umbel ctl request --unconfirmed"
        );
    }
    if depth == 0 {
        return String::new();
    }
    if queue.in_flight < slots && more.long_waiting == 0 {
        let free = slots - queue.in_flight;
        return format!(
            "{free} slots are free, and what waits was refused there: umbel ctl request --running"
        );
    }
    if queue.in_flight < slots {
        let long = more.long_waiting;
        return format!(
            "{long} long requests wait for long slots, others pass them: umbel ctl queue {}",
            queue.model
        );
    }
    if more.drain_per_minute == 0 {
        return format!("all {slots} slots are held and none ended lately: umbel ctl request --running");
    }
    let minutes_in_ms = u64::from(depth) * 60_000 / u64::from(more.drain_per_minute);
    let last = duration_ms(minutes_in_ms);
    if depth >= more.limit {
        return format!(
            "clients get 429; all {slots} slots are held, {last} for the last in it: add capacity or limit keys"
        );
    }
    format!("all {slots} slots are held; {last} until the last in it has one")
}

/// The queue of each site whose model has this alias: a site knows what its aliases mean.
async fn called(
    ctl: &Ctl,
    alias: &str,
    silent: &[String],
) -> Outcome<Vec<(String, QueueObject, Box<RawValue>)>> {
    let mut found = Vec::new();
    for edge in ctl.sites().await?.into_iter().filter(|edge| !silent.contains(&edge.edge_id)) {
        let args = QueueShowArgs { model: Some(alias.to_owned()), ..QueueShowArgs::default() };
        let told = match ctl.client.ask(&edge.edge_id, &Call::new("queue.show").args(&args)?).await {
            Ok(told) => told,
            Err(failure) if failure.exit() == Exit::NotFound => continue,
            Err(failure) => return Err(failure),
        };
        let raws = members(&told.result_raw()?, "queues");
        let queues = told.result::<QueueShowResult>()?.queues;
        found.extend(queues.into_iter().zip(raws).map(|(queue, raw)| (edge.edge_id.clone(), queue, raw)));
    }
    Ok(found)
}

/// One queue with its keys and providers.
async fn whole(ctl: &Ctl, site: &str, model: &str, table: &Table) -> Outcome {
    let args = QueueShowArgs { model: Some(model.to_owned()), ..QueueShowArgs::default() };
    let told = ctl.client.ask(site, &Call::new("queue.show").args(&args)?).await?;
    if ctl.global.output.is_object() {
        let raws = members(&told.result_raw()?, "queues");
        let raws: Outcome<Vec<_>> = raws.iter().map(|raw| super::with_site(site, raw)).collect();
        ctl.put_list(&raws?);
        return Ok(());
    }
    ctl.put_table(table, "");
    let queues = told.result::<QueueShowResult>()?.queues;
    let Some(queue) = queues.into_iter().next() else { return Ok(()) };
    if let Some(more) = &queue.more {
        refusals(more);
    }
    let mut keys = Table::new(vec![
        Column::left("KEY"),
        Column::left("ID"),
        Column::number("PRIORITY"),
        Column::number("WAITING"),
        Column::number("LONG"),
        Column::number("OLDEST"),
    ]);
    for key in queue.waiting_keys.unwrap_or_default() {
        keys.row(vec![
            key.key_name.unwrap_or_else(|| "(no key)".to_owned()),
            key.key_id.unwrap_or_default(),
            key.priority.to_string(),
            key.waiting.to_string(),
            key.long_waiting.to_string(),
            duration_ms(key.oldest_age_ms),
        ]);
    }
    if !keys.is_empty() {
        put("\n");
        ctl.put_table(&keys, "");
    }
    let mut providers = Table::new(vec![
        Column::left("NODE"),
        Column::state("STATE"),
        Column::number("RUNNING"),
        Column::number("LONG"),
        Column::number("UNCONFIRMED"),
        Column::text("PROVIDER"),
    ]);
    for one in queue.providers.unwrap_or_default() {
        let state = match (one.ejected, one.open) {
            (true, _) => "passed over".to_owned(),
            (false, true) => "open".to_owned(),
            (false, false) => one.status.as_str().to_owned(),
        };
        providers.row(vec![
            one.node,
            state,
            format!("{}/{}", one.in_flight, one.capacity),
            format!("{}/{}", one.long_context_in_flight, one.long_context_capacity),
            one.unconfirmed.to_string(),
            one.provider_id,
        ]);
    }
    put("\n");
    ctl.put_table(&providers, "No provider of it is declared.");
    if queue.more.is_some_and(|more| more.leases.unconfirmed > 0) {
        say(
            "A slot that stays unconfirmed: umbel ctl request --unconfirmed, then umbel ctl request release LEASE -m 'why'",
        );
    }
    Ok(())
}

fn refusals(more: &QueueFigures) {
    if more.rejections.is_empty() {
        return;
    }
    let told: Vec<String> =
        more.rejections.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    put(&format!("\nRefused since the edge's start: {}\n", told.join(", ")));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(depth: u32, in_flight: u32, change: impl Fn(&mut QueueFigures)) -> (String, String) {
        let mut more = QueueFigures {
            limit: 100,
            capacity: 8,
            drain_per_minute: 60,
            providers_open: 1,
            providers_wanted: 1,
            ..QueueFigures::default()
        };
        change(&mut more);
        let queue = QueueObject {
            model: "m".to_owned(),
            depth,
            oldest_age_ms: 0,
            admitted_total: 0,
            shed_total: 0,
            in_flight,
            observed_at: jiff::Timestamp::UNIX_EPOCH,
            more: None,
            waiting_keys: None,
            providers: None,
        };
        (state(&queue, &more).to_owned(), next_step(&queue, &more))
    }

    #[test]
    fn each_state_has_its_word_and_its_next_step() {
        let cases = [
            (queue(0, 0, |_| ()), "idle", ""),
            (queue(0, 3, |_| ()), "running", ""),
            (queue(20, 8, |_| ()), "waiting", "all 8 slots are held; 20s"),
            (queue(20, 8, |more| more.drain_per_minute = 0), "waiting", "none ended lately"),
            (queue(100, 8, |_| ()), "full", "clients get 429"),
            (queue(2, 5, |more| more.long_waiting = 2), "waiting", "2 long requests wait"),
            (queue(2, 5, |_| ()), "waiting", "was refused there"),
            (queue(2, 8, |more| more.leases.unconfirmed = 1), "waiting", "--unconfirmed"),
            (
                queue(2, 0, |more| (more.providers_open, more.providers_loading) = (0, 1)),
                "loading",
                "loading",
            ),
            (queue(2, 0, |more| more.providers_open = 0), "unavailable", "online"),
            (queue(0, 0, |more| more.providers_wanted = 0), "unwanted", "drained"),
        ];
        for ((word, step), wanted, part) in cases {
            assert_eq!(word, wanted, "{step}");
            assert!(step.contains(part) && step.is_empty() == part.is_empty(), "{word}: {step}");
        }
    }
}
