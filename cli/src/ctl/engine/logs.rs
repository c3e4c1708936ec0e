//! `ctl engine logs`: what an engine writes, also after its end; following it.
//!
//! Owns when following ends and what is said then. Leaves which lines are kept to the engine's node. Invariant: an engine that
//! has ended is not followed for ever; whoever followed a replica is told which ones its deployment has now.

use std::time::{Duration, Instant};

use serde_json::json;
use umbel_contracts::objects::EngineObject;
use umbel_contracts::operations::{EngineLogsArgs, EngineLogsResult};

use super::find;
use crate::{
    calls::Call,
    client::parse,
    ctl::{Ctl, away::Away, gather::gather},
    exit::{Exit, Failure, Outcome},
    output::{printable, put, say},
};

/// How often new lines are asked for while output is followed.
const EVERY: Duration = Duration::from_secs(1);
/// Lines of one question while following.
const LINES: u32 = 1_000;
/// Looks without a new line after which it is asked whether the engine is there at all.
const QUIET: u32 = 3;

pub(super) async fn run(ctl: &Ctl, name: &str, lines: u32, follow: bool) -> Outcome {
    let (site, engine, name, there) = match find(ctl, name).await {
        Ok((site, found)) => (site, found.provider_id, found.engine, true),
        // One that has ended: its site may know its last words.
        Err(failure) if failure.exit() == Exit::NotFound => match ctl.one_site().await {
            Ok(site) => (site, name.to_owned(), name.to_owned(), false),
            Err(_) => return Err(failure),
        },
        Err(failure) => return Err(failure),
    };
    let mut cursor = None;
    let mut lines = lines;
    let mut away = Away::default();
    let mut quiet = 0;
    loop {
        let args = EngineLogsArgs { engine: engine.clone(), lines: Some(lines), cursor };
        let told = ctl.client.ask(&site, &Call::new("engine.logs").args(&args)?).await;
        let result: EngineLogsResult = match told {
            Ok(told) if !follow && ctl.put_object(&told.result_raw()?) => return Ok(()),
            Ok(told) => told.result()?,
            Err(failure) if failure.exit() == Exit::NotFound => {
                return Err(gone(ctl, &engine, &name, failure).await);
            }
            Err(failure) if follow => {
                // A node or an edge that restarts is part of what one follows.
                away.silent(failure, Instant::now())?.into_iter().for_each(|note| say(&note));
                cursor = args.cursor;
                tokio::time::sleep(EVERY).await;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        away.answers();
        if result.gap {
            say("note: lines in between are no longer kept");
        }
        for line in &result.lines {
            put(&printable(line));
        }
        if !follow {
            return Ok(());
        }
        quiet = if result.lines.is_empty() { quiet + 1 } else { 0 };
        if !there || quiet % QUIET == 0 && quiet > 0 && has_ended(ctl, &site, &engine).await {
            say(&format!("-- {} has ended{} --", printable(&name), now_there(ctl, &engine, &name).await));
            return Ok(());
        }
        let full = result.lines.len() >= usize::try_from(lines).unwrap_or(usize::MAX);
        (cursor, lines) = (Some(result.cursor), LINES);
        if !full {
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                _ = tokio::signal::ctrl_c() => return Err(Failure::new(Exit::Interrupted, "stopped following")),
            }
        }
    }
}

async fn has_ended(ctl: &Ctl, site: &str, engine: &str) -> bool {
    let Ok(call) = Call::new("engine.show").args(&json!({ "engine": engine })) else { return false };
    ctl.client.ask(site, &call).await.is_err_and(|failure| failure.exit() == Exit::NotFound)
}

/// Nothing of it is known: perhaps of those that came after it.
async fn gone(ctl: &Ctl, engine: &str, name: &str, failure: Failure) -> Failure {
    match now_there(ctl, engine, name).await {
        there if there.is_empty() => failure,
        there => Failure::new(failure.exit(), format!("there is no engine {name} any more{there}")),
    }
}

/// `; its deployment has q.r2 on gpu-2 now`, where it was a replica and others are there.
async fn now_there(ctl: &Ctl, engine: &str, name: &str) -> String {
    let name = name.rsplit('/').next().unwrap_or(name);
    let Some((deployment, _)) = name.rsplit_once(".r") else { return String::new() };
    let Ok(gathered) = gather(ctl, "engine.list", "engines").await else { return String::new() };
    let parsed = gathered.items.iter().filter_map(|(_, raw)| parse::<EngineObject>(raw.get()).ok());
    let others: Vec<EngineObject> = parsed
        .filter(|one| one.deployment.as_deref() == Some(deployment) && one.provider_id != engine)
        .collect();
    let Some(first) = others.first() else { return String::new() };
    let on: Vec<String> = others.iter().map(|one| format!("{} on {}", one.engine, one.node)).collect();
    printable(&format!("; now there is {}: umbel ctl engine logs {}", on.join(", "), first.engine))
        .into_owned()
}
