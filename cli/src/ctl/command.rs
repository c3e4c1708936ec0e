//! `ctl command`: how a command stands, following one to its end, asking to stop one.
//!
//! Owns following, for every noun that writes. Invariant: Ctrl-C stops watching, never the command.

use std::time::{Duration, Instant};

use serde_json::Value;
use umbel_contracts::objects::{CommandErrorObject, CommandEventObject, CommandPhase, ProgressObject};

use super::{Ctl, away::Away};
use crate::{
    args::CommandVerb,
    calls::{Call, Told, check_end, command_path, new_command_id},
    client::{interactive, parse},
    exit::{Exit, Failure, Outcome},
    output::{Format, Style, clock, details, line, printable, put, say, state_tone},
};

/// Between two tries to follow a command whose stream broke off.
const AGAIN: Duration = Duration::from_secs(1);
/// Tries without any step in between.
const TRIES: u32 = 30;

pub(crate) async fn run(ctl: &Ctl, id: Option<&str>, verb: Option<&CommandVerb>) -> Outcome {
    match (verb, id) {
        (Some(CommandVerb::Show { id }), _) => show(ctl, id).await,
        (None, Some(id)) => show(ctl, id).await,
        (Some(CommandVerb::Watch { id }), _) => {
            let (edge, told) = find(ctl, id).await?;
            if told.command.phase.is_end() {
                return finish(ctl, &told, "");
            }
            follow(ctl, &edge, &told.command.command_id, "").await
        }
        (Some(CommandVerb::Cancel { id }), _) => {
            let (edge, told) = find(ctl, id).await?;
            let call = Call::new("command.cancel")
                .args(&serde_json::json!({ "command_id": told.command.command_id }))?
                .reason(ctl.global.reason.as_deref())
                .dry_run(ctl.global.dry_run);
            send(ctl, &edge, &call, &format!("{edge} is asked to stop {}.", told.command.command_id)).await
        }
        (None, None) => Err(Failure::usage("which command?").remedy("umbel ctl command show ID")),
    }
}

/// Asks each site for the command: its id does not say where it went.
async fn find(ctl: &Ctl, id: &str) -> Outcome<(String, Told)> {
    let id = uuid::Uuid::parse_str(id.trim())
        .map_err(|_| Failure::usage("a command's id is a UUID, as `--detach` prints it"))?
        .to_string();
    let mut silent = Vec::new();
    for edge in ctl.sites().await? {
        match ctl.client.command_show(&edge.edge_id, &id).await {
            Ok(told) => return Ok((edge.edge_id, told)),
            Err(failure) if failure.exit() == Exit::NotFound => {}
            Err(failure) if matches!(failure.exit(), Exit::Unreachable | Exit::TimedOut) => {
                silent.push(edge.edge_id)
            }
            Err(failure) => return Err(failure),
        }
    }
    if silent.is_empty() {
        return Err(Failure::new(Exit::NotFound, format!("no site knows the command {id}"))
            .remedy("sites keep outcomes for 7 days; the control plane's record: umbel ctl audit"));
    }
    Err(Failure::new(Exit::Unreachable, format!("no site that answers knows the command {id}; silent are"))
        .candidates(silent))
}

async fn show(ctl: &Ctl, id: &str) -> Outcome {
    let (edge, told) = find(ctl, id).await?;
    if ctl.put_object(told.raw()) {
        return Ok(());
    }
    let command = &told.command;
    if ctl.global.output == Format::Name {
        put(&command.command_id);
        return Ok(());
    }
    let phase = command.phase.as_str();
    let mut lines = vec![
        ("Command", command.command_id.clone()),
        ("Site", edge),
        ("Operation", command.operation.clone().unwrap_or_else(|| "-".to_owned())),
        ("Phase", ctl.style.paint(state_tone(phase), phase)),
    ];
    if let Some(error) = &command.error {
        lines.push(("Error", words(error)));
    }
    if let Some(result) = &command.result {
        lines.push(("Result", result.to_string()));
    }
    put(&details(&lines));
    Ok(())
}

/// Sends a write to one site and follows it, or prints its id. `done` is said when it succeeded.
pub(crate) async fn send(ctl: &Ctl, edge: &str, call: &Call, done: &str) -> Outcome {
    send_saying(ctl, edge, call, |_| done.to_owned()).await
}

/// The same, with words that depend on the result. `None`: it is not known here.
pub(crate) async fn send_saying(
    ctl: &Ctl,
    edge: &str,
    call: &Call,
    done: impl FnOnce(Option<&Value>) -> String,
) -> Outcome {
    let id = ctl.global.command_id.map_or_else(new_command_id, |id| id.to_string());
    // What is quick is over within a second, and then there is nothing to follow.
    let wait = if ctl.global.detach { Duration::ZERO } else { Duration::from_secs(1) };
    let told = ctl.client.command(edge, &id, call, wait).await?;
    if told.command.phase.is_end() {
        let done = done(told.command.result.as_ref());
        return finish(ctl, &told, &done);
    }
    if ctl.global.detach {
        if !ctl.put_object(told.raw()) {
            put(&id);
            say(&format!("It goes on at {edge}. Follow: umbel ctl command watch {id} --site {edge}"));
        }
        return Ok(());
    }
    say(&format!("Command {id} runs at {edge}. Ctrl-C stops watching, not the command."));
    follow(ctl, edge, &id, &done(None)).await
}

/// Prints how a command ended.
fn finish(ctl: &Ctl, told: &Told, done: &str) -> Outcome {
    ctl.put_object(told.raw());
    told.check()?;
    warn(told.command.result.as_ref());
    if !ctl.global.output.is_object() {
        let replayed = if told.command.replayed { " (it was done already under this id)" } else { "" };
        let done = if done.is_empty() { told.command.phase.as_str() } else { done };
        say(&format!("{}{replayed}", printable(done)));
    }
    Ok(())
}

/// Says that what was done may be lost: it is in the object, and people read this.
fn warn(result: Option<&Value>) {
    if result.is_some_and(not_durable) {
        say(
            "warning: the edge's disk takes no writes. This is in force now and is written as soon as there is room, but \
             a restart of the edge before that takes it back. Free space on its disk; `umbel ctl status` tells when \
             the problem is gone.",
        );
    }
}

/// Whether an operation's result, or one of its nodes, says so.
fn not_durable(result: &Value) -> bool {
    let says = |object: &Value| object.get("not_durable") == Some(&Value::Bool(true));
    let nodes = result.get("nodes").and_then(Value::as_array);
    says(result) || nodes.is_some_and(|nodes| nodes.iter().any(says))
}

/// Follows a command to its end through lost connections; Ctrl-C detaches.
async fn follow(ctl: &Ctl, edge: &str, id: &str, done: &str) -> Outcome {
    tokio::select! {
        outcome = steps(ctl, edge, id, done) => outcome,
        _ = tokio::signal::ctrl_c() => Err(Failure::new(Exit::Interrupted, "stopped watching; the command goes on")
            .remedy(format!("umbel ctl command watch {id} --site {edge}"))),
    }
}

async fn steps(ctl: &Ctl, edge: &str, id: &str, done: &str) -> Outcome {
    let path = format!("{}/events", command_path(edge, id));
    let mut seen = None;
    let mut tries = 0;
    let mut last = String::new();
    let mut away = Away::default();
    loop {
        let lost = match ctl.client.events(&path, None).await {
            Ok(mut events) => loop {
                match events.next().await {
                    Ok(Some(event)) => {
                        let step: CommandEventObject = parse(&event.data)?;
                        if seen.is_some_and(|seen| step.sequence <= seen) {
                            continue;
                        }
                        (seen, tries) = (Some(step.sequence), 0);
                        away.answers();
                        if ctl.global.output == Format::Jsonl && !step.phase.is_end() {
                            put(&line(&event.data));
                        } else if !ctl.global.output.is_object() {
                            tell(ctl, &step, &mut last);
                        }
                        if step.phase.is_end() {
                            return ended(ctl, edge, id, &step, done).await;
                        }
                    }
                    Ok(None) => break None,
                    Err(failure) => break Some(failure),
                }
            },
            Err(failure) if matches!(failure.exit(), Exit::Unreachable | Exit::TimedOut) => Some(failure),
            Err(failure) => return Err(failure),
        };
        // The stream may end before the last step is told; the edge keeps the outcome.
        if let Ok(told) = ctl.client.command_show(edge, id).await
            && told.command.phase.is_end()
        {
            return finish(ctl, &told, done);
        }
        tries += 1;
        let lost =
            lost.unwrap_or_else(|| Failure::new(Exit::Unreachable, "the stream of steps keeps ending"));
        if tries > TRIES {
            let again = format!("the command goes on: umbel ctl command watch {id} --site {edge}");
            return Err(lost.remedy(again));
        }
        // Whatever it is, it is tried again so often.
        if let Ok(Some(note)) = away.silent(lost, Instant::now()) {
            say(&note);
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn ended(ctl: &Ctl, edge: &str, id: &str, step: &CommandEventObject, done: &str) -> Outcome {
    if ctl.global.output.is_object() {
        let told = ctl.client.command_show(edge, id).await?;
        return finish(ctl, &told, done);
    }
    check_end(step.phase, step.error.as_ref(), id)?;
    warn(step.result.as_ref());
    if !done.is_empty() {
        say(&printable(done));
    }
    Ok(())
}

/// One line a step on standard error; on a terminal a step without news rewrites nothing.
fn tell(ctl: &Ctl, step: &CommandEventObject, last: &mut String) {
    let phase = step.phase.as_str();
    let style = Style::stderr(ctl.global.color);
    let mut text =
        format!("{}  {}", style.paint(state_tone(phase), &format!("{phase:<9}")), printable(&step.message));
    if let Some(progress) = &step.progress {
        text.push_str(&bar(progress, interactive()));
    }
    if *last != text && step.phase != CommandPhase::Accepted {
        say(&format!("{}  {text}", clock(step.at)));
    }
    *last = text;
}

fn bar(progress: &ProgressObject, draw: bool) -> String {
    let (done, total, unit) = (progress.done, progress.total, printable(&progress.unit).into_owned());
    if total == 0 {
        return format!("  {done} {unit}");
    }
    let bar = if draw { format!("{}  ", crate::output::bar(done, total)) } else { String::new() };
    format!("  {bar}{done} / {total} {unit}")
}

/// An error of a command as one line.
pub(crate) fn words(error: &CommandErrorObject) -> String {
    if error.reason.is_empty() {
        error.message.clone()
    } else {
        format!("{} ({})", error.message, error.reason)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::not_durable;

    #[test]
    fn what_is_not_on_disk_is_found_in_either_shape() {
        assert!(not_durable(&json!({ "key_id": "k", "not_durable": true })));
        assert!(not_durable(&json!({ "nodes": [{ "name": "a" }, { "name": "b", "not_durable": true }] })));
        for sound in [json!({ "nodes": [{ "name": "a", "not_durable": false }] }), json!({}), json!(null)] {
            assert!(!not_durable(&sound), "{sound}");
        }
    }
}
