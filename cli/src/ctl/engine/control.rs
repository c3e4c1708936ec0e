//! `ctl engine stop` and `restart`: an operator's wish, and what becomes of it.
//!
//! Owns sending it and following the engine until it is so. Leaves ending and starting to the engine's node. Invariants: an
//! engine is said to be stopped only when its node says that nothing of it runs; Ctrl-C stops watching, never the wish.

use std::time::{Duration, Instant};

use serde_json::json;
use umbel_contracts::objects::EngineObject;
use umbel_contracts::operations::EngineControlArgs;

use super::chosen;
use crate::{
    calls::Call,
    client::parse,
    ctl::{Ctl, away::Away, command},
    exit::{Exit, Failure, Outcome},
    output::{Style, clock, printable, say, state_tone},
};

/// How often it is looked at while it is followed.
const EVERY: Duration = Duration::from_millis(500);

/// What is wanted of an engine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    Stop,
    Restart,
}

pub(super) async fn send(ctl: &Ctl, name: &str, wish: Wish, deadline: Option<Duration>) -> Outcome {
    let act = if wish == Wish::Stop { "Stop" } else { "Restart" };
    let (site, found) = chosen(ctl, name, act).await?;
    let args = EngineControlArgs {
        engine: found.provider_id.clone(),
        deadline_seconds: deadline.map(|deadline| deadline.as_secs()),
    };
    let (operation, told) = match wish {
        Wish::Stop => ("engine.stop", "is stopping"),
        Wish::Restart => ("engine.restart", "is stopping, then starts anew"),
    };
    let call =
        Call::new(operation).args(&args)?.reason(ctl.global.reason.as_deref()).dry_run(ctl.global.dry_run);
    command::send(ctl, &site, &call, &format!("{} on {} {told}.", found.engine, found.node)).await?;
    if ctl.global.output.is_object() || ctl.global.dry_run || ctl.global.detach {
        return Ok(());
    }
    tokio::select! {
        outcome = follow(ctl, &site, &found, wish) => outcome,
        _ = tokio::signal::ctrl_c() => Err(Failure::new(Exit::Interrupted, "stopped watching; it goes on")
            .remedy(format!("umbel ctl engine show {} --site {site}", found.engine))),
    }
}

/// Tells its states until it is as it was wanted.
async fn follow(ctl: &Ctl, site: &str, before: &EngineObject, wish: Wish) -> Outcome {
    let style = Style::stderr(ctl.global.color);
    let name = format!("{} on {}", before.engine, before.node);
    let (mut told, mut rested) = (String::new(), 0);
    let mut away = Away::default();
    loop {
        tokio::time::sleep(EVERY).await;
        let call = Call::new("engine.show").args(&json!({ "engine": before.provider_id }))?;
        let one: EngineObject = match ctl.client.ask(site, &call).await {
            Ok(answer) => parse(&answer.result_raw()?)?,
            Err(failure) if failure.exit() == Exit::NotFound => {
                say(&format!("{name} is gone."));
                return Ok(());
            }
            Err(failure) => {
                away.silent(failure, Instant::now())?.into_iter().for_each(|note| say(&note));
                continue;
            }
        };
        away.answers();
        let step = format!("{}  {}", style.paint(state_tone(&one.state), &one.state), printable(&one.cause));
        if step != told {
            say(format!("{}  {}  {step}", clock(jiff::Timestamp::now()), printable(&one.engine)).trim_end());
            told = step;
        }
        // What its node has not told yet looks like rest: another process, or a second look, is none of that.
        let is_rest = matches!(one.state.as_str(), "ready" | "failed" | "stopped");
        let is_other = one.process_since.is_some() && one.process_since != before.process_since;
        rested = if is_rest { rested + 1 } else { 0 };
        match (wish, one.state.as_str()) {
            (Wish::Stop, "stopped") => {
                let again = format!("umbel ctl engine restart {}", one.engine);
                say(&format!("{name} is stopped until it is restarted: {again}"));
                return Ok(());
            }
            (Wish::Restart, "ready") if is_other || rested > 1 => {
                say(&format!("{name} is ready."));
                return Ok(());
            }
            (Wish::Restart, state) if rested > 1 => {
                let says = format!("{name} is {state}: {}", one.cause);
                let logs = format!("umbel ctl engine logs {}", one.engine);
                return Err(Failure::new(Exit::Condition, says).remedy(logs));
            }
            _ => {}
        }
    }
}
