//! Views: whose word counts, how old it is, and what is never kept.
#![allow(clippy::unwrap_used, reason = "tests")]

use umbel_contracts::proto::control::{Operation, Problem};

use super::*;

fn times() -> Times {
    Times::new(Duration::from_secs(30), Duration::from_secs(90)).unwrap()
}

fn edge() -> EdgeId {
    EdgeId::parse("ber1").unwrap()
}

fn hello() -> EdgeHelloRequest {
    let operation = |name: &str, class| Operation { name: name.into(), class };
    EdgeHelloRequest {
        edge_id: "ber1".into(),
        display_name: "Berlin\u{1b}[2J".into(),
        operations: vec![operation("node.list", 1), operation("node.drain", 2), operation("new.thing", 77)],
        ..Default::default()
    }
}

fn connected(now: Instant) -> Views {
    let mut views = Views::new(times(), now);
    views.connected(now, &edge(), Generation(7), 1, &hello());
    views
}

/// Sweeps second by second up to this many after the start, as the process does.
fn sweep(views: &mut Views, start: Instant, from: u64, to: u64) -> Vec<&'static str> {
    let swept = (from + 1..=to).flat_map(|second| views.sweep(start + Duration::from_secs(second)));
    swept.map(|(_, _, what)| what).collect()
}

#[test]
fn silence_turns_a_connection_stale_and_then_disconnected_by_this_hosts_clock() {
    let start = Instant::now();
    let mut views = connected(start);
    assert_eq!(views.connection(&edge()), EdgeConnection::Connected);
    assert_eq!(sweep(&mut views, start, 0, 30), ["edge_stale"]);
    assert_eq!(views.connection(&edge()), EdgeConnection::Stale);
    // A heartbeat that claims to be from the distant past counts from when it came.
    let later = start + Duration::from_secs(31);
    views.summary(later, &edge(), Generation(7), 1, EdgeSummary::default()).unwrap();
    assert_eq!(views.connection(&edge()), EdgeConnection::Connected);
    assert_eq!(sweep(&mut views, start, 31, 125), ["edge_stale", "edge_offline"]);
    assert_eq!(views.connection(&edge()), EdgeConnection::Disconnected);
    assert_eq!(views.connection(&EdgeId::parse("ham1").unwrap()), EdgeConnection::Never);
}

/// Fault row 7's cousin: this process was stopped; that is no silence of the edges.
#[test]
fn a_pause_of_this_process_is_not_held_against_anybody() {
    let start = Instant::now();
    let mut views = connected(start);
    assert!(sweep(&mut views, start, 0, 5).is_empty());
    let woken = start + Duration::from_secs(3600);
    assert!(views.sweep(woken).is_empty());
    assert_eq!(views.connection(&edge()), EdgeConnection::Connected);
}

#[test]
fn a_stale_connection_changes_nothing() {
    let start = Instant::now();
    let mut views = connected(start);
    views.connected(start, &edge(), Generation(8), 1, &hello());
    assert!(!views.disconnected(&edge(), Generation(7)), "a late close is not the live connection's");
    let taken = views.summary(start, &edge(), Generation(7), 1, EdgeSummary::default());
    assert_eq!(taken, Ok(Taken::Stale));
    assert_eq!(views.event(start, &edge(), Generation(7), 1), None);
    assert!(views.get(&edge()).unwrap().summary.is_none());
    assert!(views.disconnected(&edge(), Generation(8)));
    assert_eq!(views.connection(&edge()), EdgeConnection::Disconnected);
    let view = views.get(&edge()).unwrap();
    assert_eq!(view.last_generation, Some(Generation(8)));
}

/// Fault row 7: the last word stays, with its age, when the edge is cut off.
#[test]
fn the_last_summary_outlives_the_connection() {
    let start = Instant::now();
    let mut views = connected(start);
    let said = EdgeSummary { nodes_total: 3, ..Default::default() };
    views.summary(start, &edge(), Generation(7), 1, said).unwrap();
    views.disconnected(&edge(), Generation(7));
    let summary = views.get(&edge()).unwrap().summary.clone().unwrap();
    assert_eq!(summary.said.nodes_total, 3);
    assert_eq!(age_ms(start + Duration::from_secs(60), summary.received), 60_000);
}

/// Fault row 47: a summary beyond the bound is refused and the former one kept.
#[test]
fn a_view_has_a_bound() {
    let start = Instant::now();
    let mut views = connected(start);
    let problem = Problem { message: "x".repeat(1024), ..Default::default() };
    let said = EdgeSummary { problems: vec![problem; 17], ..Default::default() };
    let refused = views.summary(start, &edge(), Generation(7), 1, said).unwrap_err();
    assert_eq!(refused.code, Code::TooLarge);
    assert!(views.get(&edge()).unwrap().summary.is_none());
}

#[test]
fn gaps_in_the_events_are_counted() {
    let start = Instant::now();
    let mut views = connected(start);
    let mut event = |sequence| views.event(start, &edge(), Generation(7), sequence);
    assert_eq!(event(41), Some(0), "the first event of a connection starts the count");
    assert_eq!(event(42), Some(0));
    assert_eq!(event(45), Some(2));
    assert_eq!(event(44), Some(0), "one that comes late loses nothing");
    assert_eq!(event(46), Some(0));
    assert_eq!(views.get(&edge()).unwrap().events_lost, 2);
}

#[test]
fn an_operation_of_an_unknown_class_needs_an_admin() {
    let views = connected(Instant::now());
    let view = views.get(&edge()).unwrap();
    assert_eq!(view.class("node.list"), Some(Class::Read));
    assert_eq!(view.class("node.drain"), Some(Class::Operate));
    assert_eq!(view.class("new.thing"), Some(Class::Admin));
    assert_eq!(view.class("no.such"), None);
    assert_eq!(view.display_name, "Berlin[2J", "no escape sequence reaches an operator's terminal");
}

#[test]
fn a_copy_that_gave_up_is_no_problem_any_more() {
    let start = Instant::now();
    let mut views = connected(start);
    let since = |views: &Views, seconds| {
        views.get(&edge()).unwrap().duplicate_since(start + Duration::from_secs(seconds))
    };
    views.duplicate(start, &edge(), 5);
    views.duplicate(start + Duration::from_secs(500), &edge(), 505);
    assert_eq!(since(&views, 1000), Some(5), "it has been knocking since the first time");
    assert_eq!(since(&views, 1100), None);
    views.duplicate(start + Duration::from_secs(2000), &edge(), 2005);
    assert_eq!(since(&views, 2000), Some(2005));
}
