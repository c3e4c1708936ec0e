//! What a command prints: tables that fit the terminal, JSON as the API gave it, and words for times.
//!
//! Data goes to standard output and everything else to standard error. Invariant: nothing that came from
//! another host reaches a terminal with a control character in it.

mod json;
mod live;
mod style;
mod table;
mod words;
mod yaml;

pub(crate) use json::{indent, line, members};
pub(crate) use live::{Gauge, Live, Step, bar};
pub(crate) use style::{ColorChoice, Style, Tone, state_tone};
pub(crate) use table::{Column, Table, details, width};
pub(crate) use words::{age_ms, ago, bytes, clock, count, duration_ms, short, short_subject, until, utc};
pub(crate) use yaml::yaml;

use std::borrow::Cow;
use std::io::Write as _;

use umbel_contracts::names::moves_text;

use crate::exit::Exit;

/// How data is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// A table that fits the terminal.
    Table,
    /// A table with every column.
    Wide,
    /// The API's object.
    Json,
    /// One object a line.
    Jsonl,
    /// The API's object as YAML.
    Yaml,
    /// Names or ids only, one a line.
    Name,
}

impl Format {
    /// Whether programs read it: the API's object, whole.
    pub(crate) fn is_object(self) -> bool {
        matches!(self, Format::Json | Format::Jsonl | Format::Yaml)
    }

    /// One JSON value in this format, if it is one for objects.
    pub(crate) fn object(self, raw: &str) -> Option<String> {
        match self {
            Format::Json => Some(indent(raw)),
            Format::Jsonl => Some(line(raw)),
            Format::Yaml => Some(yaml(raw)),
            Format::Table | Format::Wide | Format::Name => None,
        }
    }
}

/// `text` without what could move the cursor, colour the screen or turn round what stands beside it.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().any(moves_text) {
        Cow::Owned(text.chars().map(|c| if moves_text(c) { '\u{fffd}' } else { c }).collect())
    } else {
        Cow::Borrowed(text)
    }
}

/// As [`printable`], but line breaks stay and following lines are indented.
pub(crate) fn printable_lines(text: &str) -> String {
    text.lines().map(|line| printable(line).into_owned()).collect::<Vec<_>>().join("\n       ")
}

/// Writes data to standard output. A reader that went away (`| head`) has what it wanted; any other failure, such as a
/// full disk, ends the command: what it printed may have been the only copy of a key.
pub(crate) fn put(text: &str) {
    let mut out = std::io::stdout().lock();
    let written = out
        .write_all(text.as_bytes())
        .and_then(|()| if text.ends_with('\n') { Ok(()) } else { out.write_all(b"\n") })
        .and_then(|()| out.flush());
    let exit = match written {
        Ok(()) => return,
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Exit::Done,
        Err(error) => {
            say(&format!("error: the result could not be written to standard output: {error}"));
            Exit::Failed
        }
    };
    std::process::exit(exit as i32);
}

/// Writes a message for people to standard error.
pub(crate) fn say(text: &str) {
    let mut err = std::io::stderr().lock();
    // Nobody is left to tell when standard error is gone.
    let _ = writeln!(err, "{text}");
}

#[cfg(test)]
mod tests;
