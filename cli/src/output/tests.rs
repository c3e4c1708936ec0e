//! Tables, JSON text and words for times, from fixed inputs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::{Column, Style, Table, bytes, duration_ms, indent, line, members, printable};

fn sample() -> Table {
    let mut table = Table::new(vec![
        Column::left("NODE"),
        Column::state("STATE"),
        Column::number("RUN"),
        Column::left("AGENT").wide(),
        Column::text("NOTE"),
    ]);
    table.row(vec!["gpu-01".into(), "online".into(), "12".into(), "0.1.0".into(), String::new()]);
    table.row(vec![
        "gpu-two".into(),
        "offline".into(),
        "3".into(),
        "0.1.0".into(),
        "no heartbeat for 3m12s".into(),
    ]);
    table
}

#[test]
fn numbers_stand_right_and_empty_cells_are_a_dash() {
    let text = sample().render(false, None, Style::plain());
    assert_eq!(
        text,
        "NODE     STATE    RUN  NOTE\n\
         gpu-01   online    12  -\n\
         gpu-two  offline    3  no heartbeat for 3m12s\n"
    );
}

#[test]
fn wide_shows_every_column() {
    assert!(sample().render(true, Some(20), Style::plain()).contains("AGENT"));
}

#[test]
fn a_narrow_terminal_loses_columns_from_the_right_and_cuts_the_last() {
    for width in 8..60 {
        let text = sample().render(false, Some(width), Style::plain());
        for row in text.lines() {
            assert!(row.chars().count() <= width, "{width}: {row:?}");
        }
    }
    let text = sample().render(false, Some(38), Style::plain());
    assert!(text.contains("no heartbeat f…"), "{text}");
}

#[test]
fn what_a_table_is_read_for_is_dropped_last() {
    let mut table =
        Table::new(vec![Column::left("TIME"), Column::left("KIND"), Column::text("MESSAGE").kept()]);
    table.row(vec![
        "09:37:41Z".into(),
        "provider_available".into(),
        "gpu-01/main takes requests again".into(),
    ]);
    let text = table.render(false, Some(30), Style::plain());
    assert_eq!(text, "TIME       MESSAGE\n09:37:41Z  gpu-01/main takes…\n");
}

#[test]
fn control_characters_never_reach_the_terminal() {
    assert_eq!(printable("a\u{1b}[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
}

#[test]
fn json_keeps_order_and_unknown_fields() {
    let raw = r#"{"b":1,"a":{},"list":[1,{"x":"a,\"b\": c"}],"none":[ ]}"#;
    let text = indent(raw);
    assert_eq!(
        text,
        "{\n  \"b\": 1,\n  \"a\": {},\n  \"list\": [\n    1,\n    {\n      \"x\": \"a,\\\"b\\\": c\"\n    }\n  ],\n  \"none\": []\n}\n"
    );
    assert_eq!(line(&text).trim_end(), r#"{"b":1,"a":{},"list":[1,{"x":"a,\"b\": c"}],"none":[]}"#);
    assert_eq!(members(raw, "list").len(), 2);
    assert_eq!(members("[1,2,3]", "list").len(), 3);
}

#[test]
fn spans_and_sizes_read_well() {
    let spans = [
        (0, "0s"),
        (20, "20ms"),
        (2_400, "2s"),
        (252_000, "4m12s"),
        (10_800_000, "3h"),
        (1_036_800_000, "12d"),
    ];
    for (ms, words) in spans {
        assert_eq!(duration_ms(ms), words);
    }
    assert_eq!(bytes(512), "512 B");
    assert_eq!(bytes(1_288_490_189), "1.2 GiB");
}
