//! Boundaries and endings, whatever the pieces.

use super::*;

fn tracked(text: &str, piece: usize) -> Tracker {
    let mut tracker = Tracker::new(Grammar::Done);
    for chunk in text.as_bytes().chunks(piece) {
        tracker.push(chunk);
    }
    tracker
}

#[test]
fn it_knows_boundaries_and_endings_whatever_the_pieces() {
    let event = "data: {\"choices\":[{\"delta\":{\"content\":\"é✓\"}}]}";
    let long = format!("data: {}\n\n", "x".repeat(1000));
    let cases: [(String, Ending); 12] = [
        (String::new(), Ending::AtBoundary),
        (format!("{event}\n\n"), Ending::AtBoundary),
        (format!("{event}\r\n\r\n"), Ending::AtBoundary),
        (format!("{long}: ping\n"), Ending::AtBoundary),
        (format!("{event}\n"), Ending::MissingBlank("\n")),
        (format!("{event}\r\n\r\n{event}\r\n"), Ending::MissingBlank("\r\n")),
        (event.to_owned(), Ending::InsideEvent),
        (format!("{event}\n\ndata: [DONE]\n\n"), Ending::Done("")),
        (format!("{event}\n\ndata: [DONE]\n"), Ending::Done("\n")),
        (format!("{event}\n\ndata: [DONE]"), Ending::Done("\n\n")),
        (format!("{long}data:[DONE]\r\n\r\n"), Ending::Done("")),
        (format!("{event}\n\nevent: x\n"), Ending::MissingBlank("\n")),
    ];
    for (text, ending) in &cases {
        for piece in [1, 7, 100, 4096] {
            assert_eq!(tracked(text, piece).ending(), *ending, "{text:?} in pieces of {piece}");
        }
    }
}

#[test]
fn what_follows_the_first_done_event_does_not_pass() {
    let event = "data: {\"c\":\"é\"}\n\n";
    for (passes, rest) in [
        (format!("{event}data: [DONE]\n\n"), format!("{event}data: [DONE]\n\n")),
        (format!("{event}data: [DONE]\r\n\r\n"), "\r\n".to_owned()),
        ("data:[DONE] \n\n".to_owned(), "data: [DONE]\n\n".to_owned()),
        ("data: [DONE]\nid: 1\n: comment\n\n".to_owned(), "\n".to_owned()),
        (format!("data: {}\n\ndata: [DONE]\n\n", "x".repeat(1000)), "x".to_owned()),
    ] {
        let text = format!("{passes}{rest}");
        for piece in [1, 7, 100, 4096] {
            let mut tracker = Tracker::new(Grammar::Done);
            let passed: usize = text.as_bytes().chunks(piece).map(|chunk| tracker.push(chunk)).sum();
            assert_eq!(text.get(..passed), Some(passes.as_str()), "in pieces of {piece}");
            assert!(tracker.is_done() && tracker.ending() == Ending::Done(""), "{text:?}");
        }
    }
    let wide = format!("data: [DONE]{}x\n\n", " ".repeat(LINE_MAX));
    for open in
        ["data: [DONE]", "data: [DONE]\n", "data: {\"c\":\"data: [DONE]\"}\n\n", "x: [DONE]\n\n", &wide]
    {
        assert!(!tracked(open, 5).is_done(), "{open:?}");
    }
}

/// Bytes that pass, how it ended, and whether nothing may follow.
fn by(grammar: Grammar, text: &str, piece: usize) -> (usize, Ending, bool) {
    let mut tracker = Tracker::new(grammar);
    let passed = text.as_bytes().chunks(piece).map(|chunk| tracker.push(chunk)).sum();
    (passed, tracker.ending(), tracker.is_done())
}

#[test]
fn behaviour_5_responses_end_with_an_event_of_their_own_and_never_with_done() {
    let delta = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\"}\n\n";
    let long = "x".repeat(1000);
    for how in ["completed", "incomplete", "failed"] {
        for last in [
            format!("event: response.{how}\ndata: {{\"response\":{{\"text\":\"{long}\"}}}}\n\n"),
            format!("data: {{ \"type\" : \"response.{how}\",\"response\":\"{long}\"}}\n\n"),
        ] {
            let whole = format!("{delta}{last}");
            for piece in [1, 7, 100, 4096] {
                for rest in ["", "data: [DONE]\n\n", delta] {
                    let ended = by(Grammar::Response, &format!("{whole}{rest}"), piece);
                    assert_eq!(ended, (whole.len(), Ending::Done(""), true), "{last} in pieces of {piece}");
                }
                let open = whole.strip_suffix('\n').unwrap_or_default();
                assert_eq!(by(Grammar::Response, open, piece), (open.len(), Ending::Done("\n"), false));
                let inside = whole.get(..whole.len() - 10).unwrap_or_default();
                assert_eq!(by(Grammar::Response, inside, piece).1, Ending::InsideEvent, "{inside}");
            }
        }
    }
    // A word that would end it for clients does not pass.
    for piece in [7, 4096] {
        let (passed, ending, done) = by(Grammar::Response, &format!("{delta}data: [DONE]\n\n"), piece);
        assert!(!done && passed <= delta.len() + 12 && !matches!(ending, Ending::Done(_)), "{ending:?}");
    }
    assert_eq!(by(Grammar::Response, delta, 9).1, Ending::AtBoundary);
    for cut in
        ["event: response.completed\n", "event: response.completed\n\n", "event: response.completed\ndata: {"]
    {
        assert!(!matches!(by(Grammar::Response, cut, 9).1, Ending::Done(_)), "{cut}");
    }
}

#[test]
fn transcriptions_end_with_either() {
    let delta = "data: {\"type\":\"transcript.text.delta\",\"delta\":\"a\"}\n\n";
    let last = "data: {\"type\":\"transcript.text.done\",\"text\":\"a\"}\n\n";
    for (text, ending) in [
        (format!("{delta}{last}"), Ending::Done("")),
        (format!("{delta}{last}data: [DONE]\n\n"), Ending::Done("")),
        (format!("{delta}data: [DONE]\n\n"), Ending::Done("")),
        (delta.to_owned(), Ending::AtBoundary),
    ] {
        assert_eq!(by(Grammar::Transcript, &text, 5).0, text.len());
        assert_eq!(by(Grammar::Transcript, &text, 5).1, ending, "{text}");
    }
}

#[test]
fn done_inside_a_text_is_not_done() {
    for text in ["data: {\"c\":\"data: [DONE]\"}\n\n", "data: {\"c\":\"[DONE]\"}\n\n", "xdata: [DONE]\n\n"] {
        assert_eq!(tracked(text, 3).ending(), Ending::AtBoundary, "{text}");
    }
    let cut = format!("data: {}data: [DONE]\n\n", "y".repeat(2 * TAIL));
    assert_eq!(tracked(&cut, 5).ending(), Ending::AtBoundary);
}

#[test]
fn the_engines_own_error_event_is_recognised() {
    assert!(tracked("data: {\"x\":1}\n\ndata: { \"error\": {\"message\":\"m\"}}\n\n", 9).ended_with_error());
    assert!(tracked("data: {\"error\":{}}\n\ndata: [DONE]\n\n", 9).ended_with_error());
    assert!(!tracked("data: {\"error\":{}}\n\ndata: {\"x\":1}\n\n", 9).ended_with_error());
}
