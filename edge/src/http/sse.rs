//! Where an event stream stands: at an event's boundary or inside one, and how it ended.
//!
//! Owns a tail of the bytes that passed; the bytes themselves pass untouched. Leaves what to do about it to
//! [`super::relay`]. Invariant: a push costs the same however long the stream is, and never more than its
//! chunk's tail.

/// Bytes looked back on: enough for `[DONE]` behind a few comments and for the beginning of an error event.
const TAIL: usize = 256;

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
}

impl Tracker {
    pub(super) fn new() -> Self {
        Self { tail: Vec::with_capacity(2 * TAIL), whole: true, seen: false }
    }

    /// Bytes that pass to the client.
    pub(super) fn push(&mut self, chunk: &[u8]) {
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
        if self.last_data_is_done() {
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
