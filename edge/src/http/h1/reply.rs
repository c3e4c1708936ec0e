//! An answer's status line, header fields, and how its body is framed.

use std::cell::RefCell;

use http::header::{self, HeaderMap, HeaderName};
use http::{Method, Response, StatusCode};
use umbel_wire::clock::Wall;

use super::Head;

/// To whom an answer goes, as far as it decides its form.
#[derive(Clone, Copy, Debug)]
pub(in crate::http) struct To {
    /// It asked for the head alone.
    wants_head_only: bool,
    is_11: bool,
    /// The connection may serve another request behind the answer.
    pub(in crate::http) keeps: bool,
}

impl To {
    pub(in crate::http) fn of(head: &Head) -> Self {
        Self { wants_head_only: head.method == Method::HEAD, is_11: head.is_11, keeps: head.keeps }
    }

    /// Whoever sent what could not be read: this is the last that it hears.
    pub(in crate::http) fn anyone() -> Self {
        Self { wants_head_only: false, is_11: true, keeps: false }
    }
}

/// How the end of an answer's body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Framing {
    /// It has none.
    Nothing,
    /// So many bytes are still owed.
    Length(u64),
    Chunked,
    /// By the connection's end.
    UntilClose,
}

impl Framing {
    /// Writes a part of the body.
    pub(in crate::http) fn push(&mut self, part: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Nothing => {}
            // More than was announced would be read as the next answer.
            Self::Length(left) => {
                let length = part.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= length as u64;
                out.extend_from_slice(part.get(..length).unwrap_or_default());
            }
            // An empty chunk would be the last.
            Self::Chunked if part.is_empty() => {}
            Self::Chunked => {
                out.reserve(part.len() + 24);
                number(part.len() as u64, 16, out);
                out.extend_from_slice(b"\r\n");
                out.extend_from_slice(part);
                out.extend_from_slice(b"\r\n");
            }
            Self::UntilClose => out.extend_from_slice(part),
        }
    }

    /// Writes the body's end; false if it is not whole.
    pub(in crate::http) fn finish(&self, out: &mut Vec<u8>) -> bool {
        match self {
            Self::Length(left) => return *left == 0,
            Self::Chunked => out.extend_from_slice(b"0\r\n\r\n"),
            Self::Nothing | Self::UntilClose => {}
        }
        true
    }
}

/// Writes the head of `response` to `out`; `length` is its body's, where it is known. What the head says of the connection holds:
/// `to.keeps` becomes false where it says that the connection ends.
pub(in crate::http) fn write<B>(
    response: &Response<B>,
    length: Option<u64>,
    to: &mut To,
    out: &mut Vec<u8>,
) -> Framing {
    let (status, fields) = (response.status(), response.headers());
    let length = length.or_else(|| announced(fields));
    let framing = match (status, length) {
        (StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED, _) => Framing::Nothing,
        (_, Some(length)) => Framing::Length(length),
        (_, None) if to.is_11 => Framing::Chunked,
        (_, None) => Framing::UntilClose,
    };
    to.keeps &= framing != Framing::UntilClose && !ends(fields);
    out.reserve(512);
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
    for (name, value) in fields {
        if *name != header::CONTENT_LENGTH && *name != header::CONNECTION {
            field(name, value.as_bytes(), out);
        }
    }
    match framing {
        Framing::Length(length) => {
            out.extend_from_slice(b"content-length: ");
            number(length, 10, out);
            out.extend_from_slice(b"\r\n");
        }
        Framing::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        Framing::Nothing | Framing::UntilClose => {}
    }
    if !to.keeps {
        field(&header::CONNECTION, b"close", out);
    } else if !to.is_11 {
        field(&header::CONNECTION, b"keep-alive", out);
    }
    date(out);
    out.extend_from_slice(b"\r\n");
    if to.wants_head_only { Framing::Nothing } else { framing }
}

fn announced(fields: &HeaderMap) -> Option<u64> {
    fields.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn ends(fields: &HeaderMap) -> bool {
    fields.get(header::CONNECTION).is_some_and(|value| value == "close")
}

fn field(name: &HeaderName, value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn number(mut number: u64, base: u64, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [b'0'; 20];
    let mut start = text.len();
    for place in text.iter_mut().rev() {
        let digit = usize::try_from(number % base).unwrap_or_default();
        *place = DIGITS.get(digit).copied().unwrap_or_default();
        start -= 1;
        number /= base;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(text.get(start..).unwrap_or_default());
}

/// Writes the date line: a text that is made once a second.
fn date(out: &mut Vec<u8>) {
    thread_local! {
        static LINE: RefCell<(i64, String)> = const { RefCell::new((-1, String::new())) };
    }
    let second = Wall::now().unix_ms() / 1_000;
    LINE.with_borrow_mut(|(of, line)| {
        if *of != second {
            let stamp = jiff::Timestamp::from_second(second).unwrap_or_default();
            let printer = jiff::fmt::rfc2822::DateTimePrinter::new();
            // A year that the format does not have: an answer may go without a date.
            let date = printer.timestamp_to_rfc9110_string(&stamp);
            *line = date.map(|date| format!("date: {date}\r\n")).unwrap_or_default();
            *of = second;
        }
        out.extend_from_slice(line.as_bytes());
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
    use http::HeaderValue;

    use super::*;

    /// The lines of a head without its date, and what became of the connection.
    fn written(response: &Response<()>, length: Option<u64>, mut to: To) -> (Vec<String>, Framing, bool) {
        let mut out = Vec::new();
        let framing = write(response, length, &mut to, &mut out);
        let text = String::from_utf8(out).unwrap();
        let lines = text.strip_suffix("\r\n\r\n").unwrap().split("\r\n").map(str::to_owned);
        let (dates, lines): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with("date: "));
        assert!(dates.len() == 1 && dates[0].ends_with(" GMT") && dates[0].len() == 35, "{dates:?}");
        (lines, framing, to.keeps)
    }

    fn to(is_11: bool, keeps: bool) -> To {
        To { wants_head_only: false, is_11, keeps }
    }

    fn with(status: u16, fields: &[(&'static str, &'static str)]) -> Response<()> {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        for (name, value) in fields {
            response.headers_mut().insert(*name, HeaderValue::from_static(value));
        }
        response
    }

    #[test]
    fn a_body_ends_by_its_length_its_chunks_or_the_connection() {
        let response = with(200, &[("x-a", "b")]);
        let head = ["HTTP/1.1 200 OK", "x-a: b"];
        let (lines, framing, keeps) = written(&response, Some(10), to(true, true));
        assert_eq!(lines, [&head[..], &["content-length: 10"]].concat());
        assert_eq!((framing, keeps), (Framing::Length(10), true));
        let (lines, framing, keeps) = written(&response, None, to(true, true));
        assert_eq!(lines, [&head[..], &["transfer-encoding: chunked"]].concat());
        assert_eq!((framing, keeps), (Framing::Chunked, true));
        let (lines, framing, keeps) = written(&response, None, to(false, true));
        assert_eq!(lines, [&head[..], &["connection: close"]].concat());
        assert_eq!((framing, keeps), (Framing::UntilClose, false));
        let (lines, _, keeps) = written(&response, Some(0), to(false, true));
        assert_eq!(lines, [&head[..], &["content-length: 0", "connection: keep-alive"]].concat());
        assert!(keeps);
    }

    #[test]
    fn the_length_of_what_is_sent_counts_and_else_the_announced_one() {
        let response = with(200, &[("content-length", "5")]);
        assert_eq!(written(&response, Some(6), to(true, true)).0[1..], ["content-length: 6"]);
        let (lines, framing, _) = written(&response, None, to(true, true));
        assert_eq!((&lines[1..], framing), (&["content-length: 5".to_owned()][..], Framing::Length(5)));
        for status in [204, 304] {
            let (lines, framing, _) =
                written(&with(status, &[("content-length", "5")]), None, to(true, true));
            assert_eq!((lines.len(), framing), (1, Framing::Nothing));
        }
        let asked = To { wants_head_only: true, ..to(true, true) };
        let (lines, framing, _) = written(&response, Some(6), asked);
        assert_eq!((&lines[1..], framing), (&["content-length: 6".to_owned()][..], Framing::Nothing));
    }

    #[test]
    fn an_answer_that_says_close_is_the_last() {
        let (lines, _, keeps) = written(&with(503, &[("connection", "close")]), Some(0), to(true, true));
        assert_eq!(lines, ["HTTP/1.1 503 Service Unavailable", "content-length: 0", "connection: close"]);
        assert!(!keeps);
        assert!(written(&with(299, &[]), Some(0), to(true, false)).0.contains(&"HTTP/1.1 299 ".to_owned()));
    }

    #[test]
    fn parts_are_framed_and_never_more_than_was_announced() {
        let framed = |mut framing: Framing, parts: &[&[u8]]| {
            let mut out = Vec::new();
            for part in parts {
                framing.push(part, &mut out);
            }
            let whole = framing.finish(&mut out);
            (String::from_utf8(out).unwrap(), whole)
        };
        let long = [b'x'; 0x1a0];
        let chunked = format!("1\r\na\r\n1a0\r\n{}\r\n0\r\n\r\n", "x".repeat(0x1a0));
        assert_eq!(framed(Framing::Chunked, &[b"a", b"", &long]), (chunked, true));
        assert_eq!(framed(Framing::Length(3), &[b"ab", b"cd"]), ("abc".to_owned(), true));
        assert_eq!(framed(Framing::Length(5), &[b"ab", b"cd"]), ("abcd".to_owned(), false));
        assert_eq!(framed(Framing::UntilClose, &[b"ab", b"cd"]), ("abcd".to_owned(), true));
        assert_eq!(framed(Framing::Nothing, &[b"ab"]), (String::new(), true));
    }

    #[test]
    fn numbers_are_whole() {
        for (value, base, text) in [
            (0, 10, "0"),
            (7, 10, "7"),
            (100, 10, "100"),
            (u64::MAX, 10, "18446744073709551615"),
            (0x1f, 16, "1f"),
            (u64::MAX, 16, "ffffffffffffffff"),
        ] {
            let mut out = Vec::new();
            number(value, base, &mut out);
            assert_eq!(out, text.as_bytes());
        }
    }
}
