//! Where an event stream stands: at an event's boundary or inside one, whether it is over, and how it ended.
//!
//! Owns a tail of the bytes that passed and the end that each [`Grammar`] sets; the bytes themselves pass untouched.
//! Leaves what to do about it to [`super::relay`]. Invariant: what a push costs depends on its chunk alone,
//! however long the stream is.

/// Bytes looked back on: enough for `[DONE]` behind a few comments and for the beginning of an error event.
const TAIL: usize = 256;
/// The beginning of a line is looked at up to this: enough for the words that end a stream, spaces around included.
const LINE_MAX: usize = 64;

/// What ends a stream well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Grammar {
    /// `data: [DONE]`: chat and completions.
    #[default]
    Done,
    /// An event of its own, `response.completed`, `.incomplete` or `.failed`, and never `[DONE]`: responses.
    Response,
    /// The event `transcript.text.done`, or `[DONE]`: transcriptions.
    Transcript,
}

/// What the end of the bytes shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The last event is the stream's end; these bytes are still missing to terminate it.
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
    pub(super) fn new(grammar: Grammar) -> Self {
        Self {
            tail: Vec::with_capacity(2 * TAIL),
            whole: true,
            seen: false,
            last_event: LastEvent { grammar, ..LastEvent::default() },
        }
    }

    /// What ends it well.
    pub(super) fn grammar(&self) -> Grammar {
        self.last_event.grammar
    }

    /// Takes the engine's bytes and says how many of them pass to the client: those up to the end of the first
    /// event that ends the stream.
    pub(super) fn push(&mut self, chunk: &[u8]) -> usize {
        let passing = self.last_event.push(chunk);
        self.remember(chunk.get(..passing).unwrap_or(chunk));
        passing
    }

    /// The event that ends the stream has passed to its blank line: nothing may follow.
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
        let is_over = match self.last_event.grammar {
            Grammar::Done => self.last_data_is_done(),
            // Their names stand before their data, so that only whole lines tell the end.
            Grammar::Response => false,
            Grammar::Transcript => self.last_data_is_done() || self.last_event.may_end,
        };
        if self.last_event.said || is_over {
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
        let starts: &[&[u8]] = match self.last_event.grammar {
            Grammar::Response => &[b"{\"error\":", b"{\"type\":\"error\""],
            _ => &[b"{\"error\":"],
        };
        data.next().is_some_and(|data| {
            starts.iter().any(|start| {
                let mut compact = data.iter().filter(|byte| !byte.is_ascii_whitespace()).copied();
                start.iter().all(|wanted| compact.next() == Some(*wanted))
            })
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
    grammar: Grammar,
    /// The beginning of the line that is being read.
    line: Vec<u8>,
    /// The word that ends the stream was said; its event goes on up to a blank line.
    said: bool,
    /// Its blank line has passed.
    passed: bool,
    /// The stream may end here, or with a word that follows.
    may_end: bool,
    /// The event that is being read has a name that ends the stream.
    named: bool,
    /// A word of another grammar came, at which clients would take the stream for over: nothing passes any more.
    refused: bool,
}

impl LastEvent {
    /// How many of these bytes belong to the stream.
    fn push(&mut self, chunk: &[u8]) -> usize {
        // Almost every chunk is whole lines without the word, and this looks at many bytes at a time.
        if self.grammar == Grammar::Done
            && !self.said
            && self.line.is_empty()
            && chunk.ends_with(b"\n")
            && memchr::memchr(b'D', chunk).is_none()
        {
            return chunk.len();
        }
        let mut passing = 0;
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            if self.passed || self.refused {
                break;
            }
            let room = LINE_MAX.saturating_sub(self.line.len());
            self.line.extend_from_slice(piece.get(..room).unwrap_or(piece));
            if piece.ends_with(b"\n") {
                self.line_ends();
                self.line.clear();
            }
            if !self.refused {
                passing += piece.len();
            }
        }
        passing
    }

    fn line_ends(&mut self) {
        let is_blank = self.line.trim_ascii().is_empty();
        self.passed = self.said && is_blank;
        let data = self.line.strip_prefix(b"data:").map(<[u8]>::trim_ascii);
        let is_done = self.line.len() < LINE_MAX && data == Some(b"[DONE]");
        let fits = |name: &[u8]| match self.grammar {
            Grammar::Done => false,
            Grammar::Response => {
                matches!(name, b"response.completed" | b"response.incomplete" | b"response.failed")
            }
            Grammar::Transcript => name == b"transcript.text.done",
        };
        let named = self.named && !is_blank
            || self.line.strip_prefix(b"event:").is_some_and(|n| fits(n.trim_ascii()));
        let ends = data.is_some_and(|data| named || first_type(data).is_some_and(fits));
        match self.grammar {
            Grammar::Done => self.said |= is_done,
            Grammar::Response => {
                self.refused = is_done && !self.said;
                self.said |= ends;
            }
            Grammar::Transcript => {
                self.said |= is_done;
                self.may_end |= ends;
            }
        }
        self.named = named;
    }
}

/// The value of `type` where it is the first field of an event's data.
fn first_type(data: &[u8]) -> Option<&[u8]> {
    let mut rest = data;
    for word in [&b"{"[..], b"\"type\"", b":", b"\""] {
        rest = rest.trim_ascii_start().strip_prefix(word)?;
    }
    rest.get(..rest.iter().position(|byte| *byte == b'"')?)
}

fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

#[cfg(test)]
mod tests;
