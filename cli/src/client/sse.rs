//! Server-sent events, as a reader of lines.
//!
//! Owns the text format (`id:`, `event:`, `data:`, comments); leaves reconnecting to the commands. Invariant:
//! one event is at most [`MAX_EVENT`] bytes, whatever the server sends.

use std::{collections::VecDeque, time::Duration};

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::exit::{Exit, Failure, Outcome};

/// The longest event: a command's result is at most 1 MiB, and JSON in JSON grows.
const MAX_EVENT: usize = 4 * 1024 * 1024;
/// Servers send at least a comment every 15 s; twice that and a little more is silence.
const SILENCE: Duration = Duration::from_secs(40);

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Event {
    /// Where to resume after it.
    pub(crate) id: Option<String>,
    /// Its name; `message` when the server gave none.
    pub(crate) name: String,
    /// One JSON object.
    pub(crate) data: String,
}

/// An open stream of events.
#[derive(Debug)]
pub(crate) struct Events {
    body: Incoming,
    parser: Parser,
}

impl Events {
    pub(super) fn new(body: Incoming) -> Self {
        Events { body, parser: Parser::default() }
    }

    /// The next event; `None` when the server ended the stream.
    pub(crate) async fn next(&mut self) -> Outcome<Option<Event>> {
        loop {
            if let Some(event) = self.parser.ready.pop_front() {
                return Ok(Some(event));
            }
            let lost =
                |why: &str| Failure::new(Exit::Unreachable, format!("the stream of events broke off: {why}"));
            match timeout(SILENCE, self.body.frame()).await {
                Err(_) => return Err(lost("nothing was heard for 40s")),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(lost(&error.to_string())),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.parser.feed(&data)?;
                    }
                }
            }
        }
    }
}

#[derive(Debug, Default)]
struct Parser {
    line: Vec<u8>,
    after_return: bool,
    event: Event,
    has_data: bool,
    ready: VecDeque<Event>,
}

impl Parser {
    fn feed(&mut self, bytes: &[u8]) -> Outcome {
        for &byte in bytes {
            let after_return = std::mem::replace(&mut self.after_return, byte == b'\r');
            match byte {
                b'\n' if after_return => {}
                b'\n' | b'\r' => self.end_line(),
                _ if self.line.len() + self.event.data.len() >= MAX_EVENT => {
                    return Err(Failure::failed(format!("the server sent an event above {MAX_EVENT} bytes")));
                }
                byte => self.line.push(byte),
            }
        }
        Ok(())
    }

    fn end_line(&mut self) {
        let bytes = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&bytes);
        if line.is_empty() {
            let mut event = std::mem::take(&mut self.event);
            self.event.id.clone_from(&event.id);
            if std::mem::take(&mut self.has_data) {
                if event.name.is_empty() {
                    "message".clone_into(&mut event.name);
                }
                self.ready.push_back(event);
            }
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => self.event.id = Some(value.to_owned()),
            "event" => value.clone_into(&mut self.event.name),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            // Comments keep the connection alive; other fields mean nothing here.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::{Event, Parser};

    #[test]
    fn events_are_read_however_the_bytes_are_cut() {
        let text =
            b": hello\n\nid: 7\nevent: node\ndata: {\"a\":\ndata: 1}\n\ndata:x\r\n\r\nevent: lonely\n\n";
        let wanted = vec![
            Event { id: Some("7".into()), name: "node".into(), data: "{\"a\":\n1}".into() },
            Event { id: Some("7".into()), name: "message".into(), data: "x".into() },
        ];
        for size in 1..text.len() {
            let mut parser = Parser::default();
            for part in text.chunks(size) {
                parser.feed(part).unwrap();
            }
            assert_eq!(Vec::from(parser.ready), wanted, "in parts of {size}");
        }
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut parser = Parser::default();
        let part = vec![b'x'; 1024 * 1024];
        let mut refused = false;
        for _ in 0..8 {
            refused = refused || parser.feed(&part).is_err();
        }
        assert!(refused);
    }
}
