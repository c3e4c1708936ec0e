//! `ctl request`: applications' requests that run, the last ones that ended, and leases whose end nobody confirmed.
//!
//! Leaves what is kept to the edges. Invariant: nothing of a message is shown, because nothing of it is kept.

use umbel_contracts::objects::{LeaseObject, RequestObject};
use umbel_contracts::operations::{
    ApiKeyListResult, ListArgs, RequestListArgs, RequestListResult, RequestReleaseArgs, RequestShowArgs,
};

use super::{Ctl, command, pick, with_site};
use crate::{
    args::{RequestFilter, RequestVerb},
    calls::Call,
    client::parse,
    exit::{Exit, Failure, Outcome},
    output::{Column, Format, Table, ago, bytes, details, duration_ms, members, put, say, utc},
};

/// Requests that one question brings at most.
const PAGE: u32 = 200;
const LIST: &str = "umbel ctl request";

pub(crate) async fn run(
    ctl: &Ctl,
    id: Option<&str>,
    filter: &RequestFilter,
    verb: Option<&RequestVerb>,
) -> Outcome {
    match (verb, id) {
        (Some(RequestVerb::List { filter }), _) => list(ctl, filter).await,
        (Some(RequestVerb::Show { id }), _) => show(ctl, id).await,
        (None, Some(id)) => show(ctl, id).await,
        (Some(RequestVerb::Release { lease }), _) => release(ctl, lease).await,
        (None, None) => list(ctl, filter).await,
    }
}

/// A key's id from what people call it, at one site.
async fn key_id(ctl: &Ctl, site: &str, wanted: &str) -> Outcome<String> {
    let (mut keys, mut cursor) = (Vec::new(), None);
    loop {
        let call = Call::new("apikey.list").args(&ListArgs { limit: Some(1_000), cursor })?;
        let page: ApiKeyListResult = ctl.client.ask(site, &call).await?.result()?;
        keys.extend(page.apikeys);
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    let names = |key: &umbel_contracts::operations::ApiKeyObject| vec![key.name.clone(), key.key_id.clone()];
    Ok(pick::one(keys, wanted, "key", names, "umbel ctl key")?.item.key_id)
}

struct Asked {
    requests: Vec<(RequestObject, Box<serde_json::value::RawValue>)>,
    unconfirmed: Vec<LeaseObject>,
}

async fn ask(ctl: &Ctl, site: &str, filter: &RequestFilter) -> Outcome<Asked> {
    let key_id = match &filter.key {
        Some(key) => Some(key_id(ctl, site, key).await?),
        None => None,
    };
    let mut asked = Asked { requests: Vec::new(), unconfirmed: Vec::new() };
    let mut args = RequestListArgs {
        model: filter.model.clone(),
        key_id,
        running: match (filter.running, filter.ended) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        },
        status: filter.status.clone(),
        slow_ms: filter.slow.map(|slow| u64::try_from(slow.as_millis()).unwrap_or(u64::MAX)),
        limit: None,
        cursor: None,
    };
    let wanted = usize::try_from(filter.limit).unwrap_or(usize::MAX);
    loop {
        let left = u32::try_from(wanted.saturating_sub(asked.requests.len())).unwrap_or(u32::MAX);
        args.limit = Some(left.clamp(1, PAGE));
        let told = ctl.client.ask(site, &Call::new("request.list").args(&args)?).await?;
        let raws = members(&told.result_raw()?, "requests");
        let page: RequestListResult = told.result()?;
        asked.requests.extend(page.requests.into_iter().zip(raws));
        asked.unconfirmed.extend(page.unconfirmed);
        if page.next_cursor.is_none() || page.next_cursor == args.cursor || asked.requests.len() >= wanted {
            asked.requests.truncate(wanted);
            return Ok(asked);
        }
        args.cursor = page.next_cursor;
    }
}

async fn list(ctl: &Ctl, filter: &RequestFilter) -> Outcome {
    let sites: Vec<String> = ctl.sites().await?.into_iter().map(|edge| edge.edge_id).collect();
    let (mut silent, mut raws, mut rows, mut leases) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for site in &sites {
        match ask(ctl, site, filter).await {
            Ok(asked) => {
                for (request, raw) in asked.requests {
                    raws.push(with_site(site, &raw)?);
                    rows.push((site.clone(), request));
                }
                leases.extend(asked.unconfirmed.into_iter().map(|lease| (site.clone(), lease)));
            }
            Err(failure)
                if sites.len() > 1 && matches!(failure.exit(), Exit::Unreachable | Exit::TimedOut) =>
            {
                silent.push(site.clone());
            }
            Err(failure) => return Err(failure.during(site)),
        }
    }
    if filter.unconfirmed {
        unconfirmed(ctl, &leases)?;
        return super::gather::silent(&silent, "requests");
    }
    if ctl.global.output == Format::Name {
        ctl.put_names(rows.iter().map(|(_, request)| request.request_id.as_str()));
    } else if !ctl.put_list(&raws) {
        let mut table = Table::new(vec![
            Column::left("REQUEST"),
            Column::left("SITE"),
            Column::number("AGE"),
            Column::left("MODEL"),
            Column::left("KEY"),
            Column::state("STATE"),
            Column::number("TOOK"),
            Column::number("QUEUED"),
            Column::number("PREFILL"),
            Column::number("TOKENS"),
            Column::left("NODE"),
            Column::left("ROUTE").wide(),
            Column::text("REASON"),
        ]);
        rows.iter().for_each(|(site, request)| table.row(row(site, request)));
        ctl.put_table(&table, "No request fits.");
        if !leases.is_empty() {
            let count = leases.len();
            say(&format!("{count} slots are held by leases that no node confirmed: {LIST} --unconfirmed"));
        }
    }
    super::gather::silent(&silent, "requests")
}

fn row(site: &str, request: &RequestObject) -> Vec<String> {
    let key = request.key_name.as_ref().or(request.key_id.as_ref());
    vec![
        request.request_id.clone(),
        site.to_owned(),
        ago(Some(request.started_at)),
        request.model.clone().unwrap_or_default(),
        key.cloned().unwrap_or_default(),
        state(request),
        duration_ms(request.took_ms),
        duration_ms(request.queued_ms),
        if request.tries.is_empty() { String::new() } else { duration_ms(request.prefill_ms) },
        tokens(request),
        request.tries.last().map(|last| last.node.clone()).unwrap_or_default(),
        request.route.clone(),
        request.reason.clone().unwrap_or_default(),
    ]
}

/// The status, or the phase of one that runs.
fn state(request: &RequestObject) -> String {
    match request.status {
        Some(499) => "left".to_owned(),
        Some(status) => status.to_string(),
        None => request.phase.clone(),
    }
}

/// `19870+120` with `~` where they were counted by the edge.
fn tokens(request: &RequestObject) -> String {
    match &request.usage {
        Some(usage) => {
            let about = if usage.reported { "" } else { "~" };
            format!("{about}{}+{}", usage.prompt_tokens, usage.completion_tokens)
        }
        None => request.estimated_tokens.map(|estimate| format!("~{estimate}")).unwrap_or_default(),
    }
}

fn unconfirmed(ctl: &Ctl, leases: &[(String, LeaseObject)]) -> Outcome {
    if ctl.global.output == Format::Name {
        ctl.put_names(leases.iter().map(|(_, lease)| lease.lease_id.as_str()));
        return Ok(());
    }
    let mut raws = Vec::new();
    let mut table = Table::new(vec![Column::left("LEASE"), Column::left("SITE"), Column::text("PROVIDER")]);
    for (site, lease) in leases {
        table.row(vec![lease.lease_id.clone(), site.clone(), lease.provider_id.clone()]);
        let raw = serde_json::value::to_raw_value(lease)
            .map_err(|error| Failure::failed(format!("a lease has no JSON form: {error}")))?;
        raws.push(with_site(site, &raw)?);
    }
    if !ctl.put_list(&raws) {
        ctl.put_table(&table, "Every lease's end is confirmed.");
        if !table.is_empty() {
            say("If its engine is idle or gone: umbel ctl request release LEASE -m 'why'");
        }
    }
    Ok(())
}

async fn show(ctl: &Ctl, id: &str) -> Outcome {
    let args = RequestShowArgs { request_id: id.to_owned() };
    let mut silent = Vec::new();
    let mut found = Vec::new();
    for edge in ctl.sites().await? {
        let call = Call::new("request.show").args(&args)?;
        match ctl.client.ask(&edge.edge_id, &call).await {
            Ok(told) => {
                for raw in members(&told.result_raw()?, "requests") {
                    let request: RequestObject = parse(raw.get())?;
                    found.push((edge.edge_id.clone(), request, with_site(&edge.edge_id, &raw)?));
                }
            }
            Err(failure) if failure.exit() == Exit::NotFound => {}
            Err(failure) if matches!(failure.exit(), Exit::Unreachable | Exit::TimedOut) => {
                silent.push(edge.edge_id)
            }
            Err(failure) => return Err(failure.during(&edge.edge_id)),
        }
    }
    found.sort_by_key(|(_, request, _)| std::cmp::Reverse(request.started_at));
    let Some((site, request, raw)) = found.first() else {
        if silent.is_empty() {
            let what = format!("no site keeps a request `{id}`: they keep the last 2,048 that ended");
            return Err(Failure::new(Exit::NotFound, what).remedy(LIST));
        }
        let what = format!("no site that answers keeps a request `{id}`; silent are");
        return Err(Failure::new(Exit::Unreachable, what).candidates(silent));
    };
    if ctl.global.output == Format::Name {
        put(&request.request_id);
        return Ok(());
    }
    if !ctl.put_object(raw.get()) {
        put(&details(&lines(site, request)));
    }
    let others = found.len() - 1;
    if others > 0 {
        say(&format!("note: {others} older requests had this id too; this is the newest"));
    }
    Ok(())
}

fn lines(site: &str, request: &RequestObject) -> Vec<(&'static str, String)> {
    let key = match (&request.key_name, &request.key_id) {
        (Some(name), Some(id)) => format!("{name} ({id})"),
        (None, Some(id)) => id.clone(),
        _ => "none: a caller on the edge's own host".to_owned(),
    };
    let spent = |ms, what: &str| format!("{} {what}", duration_ms(ms));
    let time = [
        spent(request.queued_ms, "queued"),
        spent(request.prefill_ms, "until the engine's head"),
        spent(request.streaming_ms, "streaming"),
    ];
    let prompt = match request.estimated_tokens {
        Some(estimate) => format!(
            "{}, {} of them prompt; about {estimate} tokens by estimate{}",
            bytes(request.body_bytes),
            bytes(request.prompt_bytes),
            if request.long { ", long" } else { "" }
        ),
        None => bytes(request.body_bytes),
    };
    let mut lines = vec![
        ("Request", request.request_id.clone()),
        ("Site", site.to_owned()),
        ("State", state(request)),
        ("Model", request.model.clone().unwrap_or_default()),
        ("Route", format!("{}{}", request.route, if request.stream { ", stream" } else { "" })),
        ("Key", key),
        ("Began", utc(Some(request.started_at))),
        ("Took", format!("{}: {}", duration_ms(request.took_ms), time.join(", "))),
        ("Size", prompt),
    ];
    if request.status.is_some() {
        lines.push(("Answer", bytes(request.answer_bytes)));
    }
    if let Some(usage) = &request.usage {
        let who = if usage.reported { "the engine's count" } else { "counted by the edge" };
        lines.push((
            "Tokens",
            format!(
                "{} prompt ({} cached), {} answer; {who}",
                usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
            ),
        ));
    }
    for one in &request.tries {
        let node = if one.node.is_empty() { one.provider_id.as_str() } else { one.node.as_str() };
        let how = match (&one.failed, request.status) {
            (Some(failed), _) => format!("failed: {failed}"),
            (None, None) => "runs".to_owned(),
            (None, Some(_)) => "answered".to_owned(),
        };
        let prefix = if one.affinity { "; chosen for the prompt's beginning" } else { "" };
        lines.push(("Try", format!("{node}: {how}{prefix}")));
    }
    if let Some(reason) = &request.reason {
        lines.push(("Reason", reason.clone()));
    }
    if let Some(lease) = &request.lease {
        lines.push(("Lease", format!("{} {}", lease.lease_id, lease.phase)));
        if lease.phase == "unconfirmed" {
            lines.push(("Next step", format!("umbel ctl request release {} -m 'why'", lease.lease_id)));
        }
    }
    lines
}

async fn release(ctl: &Ctl, lease: &str) -> Outcome {
    let reason = ctl.reason_for("releasing a lease")?;
    let site = ctl.one_site().await?;
    ctl.confirm(&format!(
        "Give lease {lease} at {site} free? If its engine still works on it, the engine gets more than its capacity."
    ))?;
    let args = RequestReleaseArgs { lease_id: lease.to_owned() };
    let call = Call::new("request.release").args(&args)?.reason(Some(reason)).dry_run(ctl.global.dry_run);
    let done = if ctl.global.dry_run { "would be" } else { "is" };
    command::send(ctl, &site, &call, &format!("The slot of lease {lease} at {site} {done} free.")).await
}
