//! One id, one run (fault row 71), and one end for the audit.
#![allow(clippy::unwrap_used, reason = "tests")]

use serde_json::json;

use super::*;

fn body(args: serde_json::Value) -> CommandRequestBody {
    serde_json::from_value(json!({"operation": "node.drain", "target_selector": "node:a", "args": args}))
        .unwrap()
}

fn row(id: &str, body: &CommandRequestBody) -> (Key, PendingRow) {
    let row = PendingRow {
        edge_id: "ber1".into(),
        command_id: id.into(),
        operation: body.operation.clone(),
        digest: digest(body),
        actor: "ada".into(),
        correlation_id: "req_1".into(),
        asked_at_unix_ms: 1,
        detail: Detail::default(),
    };
    ((EdgeId::parse("ber1").unwrap(), id.into()), row)
}

fn answer(phase: CommandPhase) -> CommandObject {
    CommandObject {
        command_id: "c1".into(),
        edge_id: "ber1".into(),
        operation: None,
        phase,
        error: None,
        result: None,
        replayed: false,
    }
}

fn step(sequence: u64, phase: CommandPhase) -> CommandEventObject {
    serde_json::from_value(json!({
        "command_id": "c1", "sequence": sequence, "phase": phase, "at": "2026-01-01T00:00:00Z"
    }))
    .unwrap()
}

#[test]
fn the_same_id_joins_while_it_is_on_its_way_and_is_asked_again_after_a_loss() {
    let now = Instant::now();
    let mut commands = Commands::default();
    let (key, row) = row("c1", &body(json!({})));
    assert_eq!(commands.begin(now, &key, row.clone()), Ok(Begin::Send(Box::new(row.clone()))));
    assert_eq!(commands.begin(now, &key, row.clone()), Ok(Begin::Join));
    commands.lost(&key);
    assert_eq!(commands.show(&key), None, "nothing is known of it");
    assert_eq!(commands.open(&key.0), ["c1"]);
    assert_eq!(commands.begin(now, &key, row), Ok(Begin::Again), "the edge replays it");
}

#[test]
fn another_content_under_the_same_id_is_a_conflict() {
    let now = Instant::now();
    let mut commands = Commands::default();
    let (key, first) = row("c1", &body(json!({"a": 1, "b": 2})));
    commands.begin(now, &key, first).unwrap();
    let (_, spelled_otherwise) = row("c1", &body(serde_json::from_str(r#"{ "b":2, "a":1 }"#).unwrap()));
    assert_eq!(commands.begin(now, &key, spelled_otherwise), Ok(Begin::Join));
    let (_, other) = row("c1", &body(json!({"a": 1})));
    let refused = commands.begin(now, &key, other).unwrap_err();
    assert_eq!((refused.code, &*refused.reason), (Code::Conflict, "COMMAND_ID_REUSED"));
}

#[test]
fn an_end_is_told_once_whichever_way_it_comes() {
    let now = Instant::now();
    let mut commands = Commands::default();
    let (key, asked) = row("c1", &body(json!({})));
    commands.begin(now, &key, asked).unwrap();
    assert_eq!(commands.step(now, &key, step(2, CommandPhase::Running)), None);
    assert_eq!(commands.answered(now, &key, &answer(CommandPhase::Accepted)), None);
    assert_eq!(commands.show(&key).unwrap().phase, CommandPhase::Running, "a late answer takes no step back");
    let later = now + Duration::from_millis(1500);
    let ended = commands.step(later, &key, step(3, CommandPhase::Succeeded)).unwrap();
    assert_eq!((ended.outcome.as_str(), ended.took), ("succeeded", Some(Duration::from_millis(1500))));
    assert_eq!(
        commands.step(later, &key, step(3, CommandPhase::Succeeded)),
        None,
        "told twice, counted once"
    );
    assert_eq!(commands.answered(later, &key, &answer(CommandPhase::Failed)), None, "an end does not change");
    assert_eq!(commands.show(&key).unwrap().phase, CommandPhase::Succeeded);
    assert_eq!(commands.steps_after(&key, 2).len(), 1);
    assert_eq!(commands.running(), 0);
    let (_, again) = row("c1", &body(json!({})));
    assert_eq!(commands.begin(later, &key, again), Ok(Begin::Again), "its end is not audited twice");
}

#[test]
fn a_refused_command_leaves_nothing_behind() {
    let now = Instant::now();
    let mut commands = Commands::default();
    let (key, row) = row("c1", &body(json!({})));
    commands.begin(now, &key, row).unwrap();
    let ended = commands.refused(now, &key, Code::NotFound).unwrap();
    assert_eq!(ended.outcome, "refused: NOT_FOUND");
    assert_eq!((commands.records.len(), commands.order.len()), (0, 0));
}

#[test]
fn finished_ones_make_room_and_running_ones_do_not() {
    let now = Instant::now();
    let mut commands = Commands::default();
    let body = body(json!({}));
    for number in 0..COMMANDS_MAX {
        let (key, row) = row(&format!("c{number}"), &body);
        commands.begin(now, &key, row).unwrap();
    }
    let (key, extra) = row("extra", &body);
    assert_eq!(commands.begin(now, &key, extra.clone()).unwrap_err().code, Code::ResourceExhausted);
    let (done, _) = row("c7", &body);
    commands.answered(now, &done, &answer(CommandPhase::Succeeded)).unwrap();
    assert_eq!(commands.begin(now, &key, extra.clone()), Ok(Begin::Send(Box::new(extra))));
    assert!(commands.show(&done).is_none());
    assert_eq!(commands.records.len(), COMMANDS_MAX);
}

#[test]
fn a_long_command_keeps_its_latest_steps() {
    let now = Instant::now();
    let mut commands = Commands::default();
    let (key, row) = row("c1", &body(json!({})));
    commands.begin(now, &key, row).unwrap();
    for sequence in 1..=1_000 {
        commands.step(now, &key, step(sequence, CommandPhase::Running));
    }
    let steps = commands.steps_after(&key, 0);
    assert_eq!((steps.len(), steps.last().unwrap().sequence), (STEPS_MAX, 1_000));
}

#[test]
fn a_command_that_is_only_followed_is_not_audited() {
    let now = Instant::now();
    let mut commands = Commands::default();
    let (key, _) = row("c1", &body(json!({})));
    assert_eq!(commands.follow(&key), Ok(true), "its edge is to be asked");
    assert_eq!(commands.step(now, &key, step(1, CommandPhase::Succeeded)), None);
    assert_eq!(commands.show(&key).unwrap().phase, CommandPhase::Succeeded);
    commands.asked(&key);
    assert_eq!(commands.follow(&key), Ok(false), "what is known is not asked again");
    commands.follow(&(key.0.clone(), "c2".into())).unwrap();
    let (other, row2) = row("c2", &body(json!({})));
    assert_eq!(
        commands.begin(now, &other, row2.clone()),
        Ok(Begin::Send(Box::new(row2))),
        "asked for later, it is this audit's"
    );
}

#[test]
fn one_that_is_followed_in_vain_is_kept_as_long_as_anybody_asks_for_it() {
    let mut commands = Commands::default();
    let (key, asked) = row("c1", &body(json!({})));
    assert_eq!((commands.follow(&key), commands.follow(&key)), (Ok(true), Ok(true)));
    commands.asked(&key);
    assert!(commands.operation(&key).is_some(), "the other one asks still");
    commands.asked(&key);
    assert!(commands.operation(&key).is_none());
    // One that was asked for here meanwhile is not the follower's to forget.
    assert_eq!(commands.follow(&key), Ok(true));
    commands.begin(Instant::now(), &key, asked).unwrap();
    commands.asked(&key);
    assert!(commands.in_flight(&key));
}

#[test]
fn what_the_edge_does_not_know_is_over() {
    let now = Instant::now();
    let mut commands = Commands::default();
    let (key, asked) = row("c1", &body(json!({})));
    commands.restore(asked);
    assert_eq!(commands.open(&key.0), ["c1"]);
    let ended = commands.vanished(now, &key).unwrap();
    assert_eq!((ended.outcome.as_str(), ended.took), ("lost: the edge does not know it", None));
    assert!(commands.open(&key.0).is_empty());
}
