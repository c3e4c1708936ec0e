//! Where an event stream stands: at an event's boundary or inside one, whether it is over, and how it ended.
//!
//! Owns a tail of the bytes that passed and the end that `[DONE]` sets; the bytes themselves pass untouched.
//! Leaves what to do about it to [`super::relay`]. Invariant: what a push costs depends on its chunk alone,
//! however long the stream is.

/// Bytes looked back on: enough for `[DONE]` behind a few comments and for the beginning of an error event.
const TAIL: usize = 256;
/// A line that is as long is not `data: [DONE]`, spaces around the word included.
const DONE_LINE_MAX: usize = 32;

/// What the end of the bytes shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The last event is `[DONE]`; these bytes are still missing to terminate it.
    Done(&'static str),
    /// Between two events (or nothing came at all).
    AtBoundary,
    /// All lines of the last event are whole; only its blank line is missing.
    MissingBlank(&'static str),
    /// Inside a line.
    InsideEvent,
}

/// Follows an event stream.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    tail: Vec<u8>,
    /// The tail begins at the stream's first byte.
    whole: bool,
    seen: bool,
    last_event: LastEvent,
}

impl Tracker {
    pub(super) fn new() -> Self {
        Self {
            tail: Vec::with_capacity(2 * TAIL),
            whole: true,
            seen: false,
            last_event: LastEvent::default(),
        }
    }

    /// Takes the engine's bytes and says how many of them pass to the client: those up to the end of the
    /// first `[DONE]` event.
    pub(super) fn push(&mut self, chunk: &[u8]) -> usize {
        let passing = self.last_event.push(chunk);
        self.remember(chunk.get(..passing).unwrap_or(chunk));
        passing
    }

    /// The `[DONE]` event has passed to its blank line: nothing may follow.
    pub(super) fn is_done(&self) -> bool {
        self.last_event.passed
    }

    fn remember(&mut self, chunk: &[u8]) {
        self.seen |= !chunk.is_empty();
        if chunk.len() >= TAIL {
            self.whole &= self.tail.is_empty() && chunk.len() == TAIL;
            self.tail.clear();
            self.tail.extend_from_slice(chunk.get(chunk.len() - TAIL..).unwrap_or_default());
            return;
        }
        if self.tail.len() + chunk.len() > 2 * TAIL {
            self.whole = false;
            let cut = self.tail.len().saturating_sub(TAIL);
            self.tail.drain(..cut);
        }
        self.tail.extend_from_slice(chunk);
    }

    /// Whether bytes of our own may be put in here.
    pub(super) fn at_boundary(&self) -> bool {
        !self.seen
            || self.tail.ends_with(b"\n\n")
            || self.tail.ends_with(b"\n\r\n")
            || self.tail.ends_with(b"\r\r")
            || (self.whole && matches!(self.tail.as_slice(), b"\n" | b"\r\n" | b"\r"))
            || self.only_comments_since_boundary()
    }

    /// After a boundary, whole comment lines belong to no event.
    fn only_comments_since_boundary(&self) -> bool {
        let mut rest = self.tail.as_slice();
        if !rest.ends_with(b"\n") {
            return false;
        }
        loop {
            let body = rest.strip_suffix(b"\n").unwrap_or(rest);
            let body = body.strip_suffix(b"\r").unwrap_or(body);
            let start = body.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            let line = body.get(start..).unwrap_or_default();
            if line.is_empty() {
                return true;
            }
            if line.first() != Some(&b':') || (start == 0 && !self.whole) {
                return false;
            }
            if start == 0 {
                return true;
            }
            rest = rest.get(..start).unwrap_or_default();
        }
    }

    /// What the last event shows, once nothing more comes.
    pub(super) fn ending(&self) -> Ending {
        let crlf = self.tail.windows(2).any(|pair| pair == b"\r\n");
        let (line_end, blank) = if crlf { ("\r\n\r\n", "\r\n") } else { ("\n\n", "\n") };
        let at_boundary = self.at_boundary();
        let line_is_whole = self.tail.ends_with(b"\n") || self.tail.ends_with(b"\r");
        let missing = match (at_boundary, line_is_whole) {
            (true, _) => "",
            (false, true) => blank,
            (false, false) => line_end,
        };
        if self.last_event.said || self.last_data_is_done() {
            return Ending::Done(missing);
        }
        match (at_boundary, line_is_whole) {
            (true, _) => Ending::AtBoundary,
            (false, true) => Ending::MissingBlank(blank),
            (false, false) => Ending::InsideEvent,
        }
    }

    fn last_data_is_done(&self) -> bool {
        self.last_data().is_some_and(|data| data.trim_ascii() == b"[DONE]")
    }

    /// Whether the engine itself told an error as its last event (before a `[DONE]`, if there is one).
    pub(super) fn ended_with_error(&self) -> bool {
        let mut data = self.data_lines().filter(|data| data.trim_ascii() != b"[DONE]");
        data.next().is_some_and(|data| {
            let mut compact = data.iter().filter(|byte| !byte.is_ascii_whitespace()).copied();
            b"{\"error\":".iter().all(|wanted| compact.next() == Some(*wanted))
        })
    }

    fn last_data(&self) -> Option<&[u8]> {
        self.data_lines().next()
    }

    /// The values of `data:` lines in the tail, last first. A line that the tail does not hold from its start
    /// is left out.
    fn data_lines(&self) -> impl Iterator<Item = &[u8]> {
        let cut = if self.whole { None } else { self.tail.iter().position(|byte| is_line_end(*byte)) };
        let from = if self.whole { 0 } else { cut.map_or(self.tail.len(), |at| at + 1) };
        self.tail
            .get(from..)
            .unwrap_or_default()
            .rsplit(|byte| is_line_end(*byte))
            .filter_map(|line| line.strip_prefix(b"data:"))
    }
}

/// The search for the stream's last event. Lines end in a newline here: in a stream of carriage returns alone,
/// which no engine sends, `[DONE]` is seen only by [`Tracker::ending`].
#[derive(Debug, Default)]
struct LastEvent {
    /// The beginning of the line that is being read.
    line: Vec<u8>,
    /// `data: [DONE]` was said; its event goes on up to a blank line.
    said: bool,
    /// Its blank line has passed.
    passed: bool,
}

impl LastEvent {
    /// How many of these bytes belong to the stream.
    fn push(&mut self, chunk: &[u8]) -> usize {
        // Almost every chunk is whole lines without the word, and this looks at many bytes at a time.
        if !self.said && self.line.is_empty() && chunk.ends_with(b"\n") && !chunk.contains(&b'D') {
            return chunk.len();
        }
        let mut passing = 0;
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            if self.passed {
                break;
            }
            passing += piece.len();
            let room = DONE_LINE_MAX.saturating_sub(self.line.len());
            self.line.extend_from_slice(piece.get(..room).unwrap_or(piece));
            if piece.ends_with(b"\n") {
                self.passed = self.said && self.line.trim_ascii().is_empty();
                self.said |= self.line.len() < DONE_LINE_MAX
                    && self.line.strip_prefix(b"data:").is_some_and(|data| data.trim_ascii() == b"[DONE]");
                self.line.clear();
            }
        }
        passing
    }
}

fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracked(text: &str, piece: usize) -> Tracker {
        let mut tracker = Tracker::new();
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
                let mut tracker = Tracker::new();
                let passed: usize = text.as_bytes().chunks(piece).map(|chunk| tracker.push(chunk)).sum();
                assert_eq!(text.get(..passed), Some(passes.as_str()), "in pieces of {piece}");
                assert!(tracker.is_done() && tracker.ending() == Ending::Done(""), "{text:?}");
            }
        }
        let wide = format!("data: [DONE]{}x\n\n", " ".repeat(DONE_LINE_MAX));
        for open in
            ["data: [DONE]", "data: [DONE]\n", "data: {\"c\":\"data: [DONE]\"}\n\n", "x: [DONE]\n\n", &wide]
        {
            assert!(!tracked(open, 5).is_done(), "{open:?}");
        }
    }

    #[test]
    fn done_inside_a_text_is_not_done() {
        for text in
            ["data: {\"c\":\"data: [DONE]\"}\n\n", "data: {\"c\":\"[DONE]\"}\n\n", "xdata: [DONE]\n\n"]
        {
            assert_eq!(tracked(text, 3).ending(), Ending::AtBoundary, "{text}");
        }
        let cut = format!("data: {}data: [DONE]\n\n", "y".repeat(2 * TAIL));
        assert_eq!(tracked(&cut, 5).ending(), Ending::AtBoundary);
    }

    #[test]
    fn the_engines_own_error_event_is_recognised() {
        assert!(
            tracked("data: {\"x\":1}\n\ndata: { \"error\": {\"message\":\"m\"}}\n\n", 9).ended_with_error()
        );
        assert!(tracked("data: {\"error\":{}}\n\ndata: [DONE]\n\n", 9).ended_with_error());
        assert!(!tracked("data: {\"error\":{}}\n\ndata: {\"x\":1}\n\n", 9).ended_with_error());
    }
}
