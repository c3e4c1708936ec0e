//! A request's line and header fields.

use std::mem::MaybeUninit;

use http::Method;
use memchr::memmem;

/// Of a request's line and headers together.
pub(in crate::http) const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Header fields of a request. The official clients send about 15.
pub(in crate::http) const HEADERS_MAX: usize = 100;

/// Why a head is not read. The connection ends with it: where the next request begins is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Unread {
    /// It breaks the rules, or could be read in two ways.
    Malformed,
    /// It is larger than [`HEAD_BYTES_MAX`], or has more fields than [`HEADERS_MAX`].
    TooLarge,
}

/// What a head says of the body behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Announced {
    /// So many bytes; 0 where nothing is said.
    Length(u64),
    /// It says itself where it ends.
    Chunked,
}

/// Bytes of a head, as places in its text.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: u16,
    end: u16,
}

impl Place {
    /// Where `part` lies in `text`, of which it is a part and which is no longer than a head.
    fn of(part: &[u8], text: &[u8]) -> Self {
        let start = (part.as_ptr() as usize).wrapping_sub(text.as_ptr() as usize);
        let place = |at: usize| u16::try_from(at).unwrap_or_default();
        Self { start: place(start), end: place(start.wrapping_add(part.len())) }
    }

    fn in_text(self, text: &[u8]) -> &[u8] {
        text.get(usize::from(self.start)..usize::from(self.end)).unwrap_or_default()
    }
}

/// A request's header fields in their order: one copy of their text.
#[derive(Debug, Default)]
pub(in crate::http) struct Fields {
    text: Vec<u8>,
    places: Vec<(Place, Place)>,
}

impl Fields {
    /// Each with its name in lower case.
    pub(in crate::http) fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> + Clone {
        self.places.iter().map(|(name, value)| {
            // Names are tokens, which are ASCII.
            let name = std::str::from_utf8(name.in_text(&self.text)).unwrap_or_default();
            (name, value.in_text(&self.text))
        })
    }

    /// The first of this name, which is in lower case.
    pub(in crate::http) fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// All of this name, which is in lower case.
    pub(in crate::http) fn get_all<'a>(&'a self, name: &'static str) -> impl Iterator<Item = &'a [u8]> {
        self.iter().filter(move |(known, _)| *known == name).map(|(_, value)| value)
    }

    #[cfg(test)]
    pub(in crate::http) fn of(fields: &[(&str, &[u8])]) -> Self {
        let lines = fields.iter().map(|(name, value)| [name.as_bytes(), b": ", value, b"\r\n"].concat());
        let text = [b"GET / HTTP/1.1\r\n", lines.collect::<Vec<_>>().concat().as_slice(), b"\r\n"].concat();
        read(&text).ok().flatten().map(|(head, _)| head.fields).unwrap_or_default()
    }
}

/// The head of a request.
#[derive(Debug)]
pub(in crate::http) struct Head {
    pub(in crate::http) method: Method,
    /// HTTP/1.1; else 1.0.
    pub(in crate::http) is_11: bool,
    pub(in crate::http) fields: Fields,
    pub(in crate::http) announced: Announced,
    /// The client sends its body only once it is told to.
    pub(in crate::http) expects_continue: bool,
    /// The connection may serve another request after this one.
    pub(in crate::http) keeps: bool,
    target: Place,
}

impl Head {
    /// The path that is asked for, without the query. A proxy's form of a request (`GET http://edge/path`) has the same one.
    pub(in crate::http) fn path(&self) -> &str {
        self.path_and_query().0
    }

    /// What is behind the path's `?`.
    pub(in crate::http) fn query(&self) -> Option<&str> {
        self.path_and_query().1
    }

    fn path_and_query(&self) -> (&str, Option<&str>) {
        let target = std::str::from_utf8(self.target.in_text(&self.fields.text)).unwrap_or_default();
        let target = match target.split_once("://") {
            Some((_, behind)) if !target.starts_with('/') => {
                behind.find(['/', '?']).map_or("/", |at| behind.get(at..).unwrap_or_default())
            }
            _ => target,
        };
        target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)))
    }
}

/// Whether input that held no whole head up to `looked` may hold one now: reading it anew for each byte that trickles in would
/// cost its square. What breaks the rules is seen as well, at the latest when there is twice as much.
pub(in crate::http) fn may_be_whole(input: &[u8], looked: usize) -> bool {
    let new = input.get(looked.saturating_sub(3)..).unwrap_or_default();
    input.len() >= HEAD_BYTES_MAX
        || input.len() >= 2 * looked
        || memmem::find(new, b"\n\n").is_some()
        || memmem::find(new, b"\n\r\n").is_some()
}

/// The head that `input` begins with, and its length; `None` if it goes on behind it.
///
/// # Errors
/// It can't be one.
pub(in crate::http) fn read(input: &[u8]) -> Result<Option<(Head, usize)>, Unread> {
    let mut space = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut []);
    let length = match request.parse_with_uninit_headers(input, &mut space) {
        Ok(httparse::Status::Complete(length)) if length <= HEAD_BYTES_MAX => length,
        Ok(httparse::Status::Partial) if input.len() < HEAD_BYTES_MAX => return Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => return Err(Unread::TooLarge),
        Err(_) => return Err(Unread::Malformed),
    };
    let method = request.method.and_then(|method| Method::from_bytes(method.as_bytes()).ok());
    let method = method.ok_or(Unread::Malformed)?;
    // `read` of a target that is no UTF-8 fails in httparse; a fragment has no place in one.
    let target = request.path.filter(|target| !target.contains('#')).ok_or(Unread::Malformed)?;
    let is_11 = request.version == Some(1);
    let mut said = Said::default();
    let mut text = input.get(..length).unwrap_or_default().to_vec();
    if memchr::memchr_iter(b'\n', &text).any(|at| at == 0 || text.get(at - 1) != Some(&b'\r')) {
        // To another server it would end no line.
        return Err(Unread::Malformed);
    }
    let mut places = Vec::with_capacity(request.headers.len());
    for field in &*request.headers {
        let name = Place::of(field.name.as_bytes(), input);
        if let Some(name) = text.get_mut(usize::from(name.start)..usize::from(name.end)) {
            name.make_ascii_lowercase();
        }
        said.take(name.in_text(&text), field.value)?;
        places.push((name, Place::of(field.value, input)));
    }
    let target = Place::of(target.as_bytes(), input);
    let announced = said.announced(is_11)?;
    let keeps = !said.close && (is_11 || said.keep_alive);
    let expects_continue = said.expects_continue && is_11 && announced != Announced::Length(0);
    let fields = Fields { text, places };
    Ok(Some((Head { method, is_11, fields, announced, expects_continue, keeps, target }, length)))
}

/// What the fields say of the body and the connection.
#[derive(Default)]
struct Said {
    length: Option<u64>,
    codings: u32,
    close: bool,
    keep_alive: bool,
    expects_continue: bool,
}

impl Said {
    fn take(&mut self, name: &[u8], value: &[u8]) -> Result<(), Unread> {
        match name {
            b"content-length" => {
                let length = decimal(value).ok_or(Unread::Malformed)?;
                if self.length.replace(length).is_some() {
                    return Err(Unread::Malformed);
                }
            }
            b"transfer-encoding" => {
                // Any other coding is one that nobody here takes off.
                if !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Unread::Malformed);
                }
                self.codings += 1;
            }
            b"connection" => {
                for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                    self.close |= option.eq_ignore_ascii_case(b"close");
                    self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            b"expect" => self.expects_continue |= value.eq_ignore_ascii_case(b"100-continue"),
            _ => {}
        }
        Ok(())
    }

    /// RFC 9112, section 6.3; what it lets a server refuse is refused: two ends of one body, a coding said twice, or to
    /// HTTP/1.0, which has none.
    fn announced(&self, is_11: bool) -> Result<Announced, Unread> {
        match (self.codings, self.length) {
            (0, length) => Ok(Announced::Length(length.unwrap_or(0))),
            (1, None) if is_11 => Ok(Announced::Chunked),
            _ => Err(Unread::Malformed),
        }
    }
}

/// Digits and nothing else, not even a sign.
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
    use super::*;

    fn whole(text: &str) -> Head {
        let (head, length) = read(text.as_bytes()).unwrap().unwrap();
        assert_eq!(length, text.len());
        head
    }

    fn refused(text: impl AsRef<[u8]>) -> Unread {
        read(text.as_ref()).unwrap_err()
    }

    #[test]
    fn a_head_is_read_once_it_is_whole_and_not_before() {
        let text = "\r\nPOST /v1/a?b=c HTTP/1.1\r\nHost: e\r\nX-Y:  z \r\ncontent-length: 12\r\n\r\n";
        for end in 0..text.len() {
            assert!(read(&text.as_bytes()[..end]).unwrap().is_none(), "{end}");
        }
        let head = whole(text);
        assert_eq!((head.method.as_str(), head.path(), head.query()), ("POST", "/v1/a", Some("b=c")));
        let fields: Vec<_> = head.fields.iter().collect();
        let expected: [(&str, &[u8]); 3] = [("host", b"e"), ("x-y", b"z"), ("content-length", b"12")];
        assert_eq!(fields, expected);
        assert_eq!((head.announced, head.keeps, head.is_11), (Announced::Length(12), true, true));
        let (_, length) = read(b"GET / HTTP/1.1\r\n\r\nGET ").unwrap().unwrap();
        assert_eq!(length, 18, "what is behind it stays");
    }

    #[test]
    fn every_form_of_a_target_has_its_path() {
        for (target, path, query) in [
            ("/", "/", None),
            ("/a?", "/a", Some("")),
            ("/a?b?c", "/a", Some("b?c")),
            ("http://edge/a?b", "/a", Some("b")),
            ("http://edge", "/", None),
            ("http://edge?b", "", Some("b")),
            ("/a/http://edge/b", "/a/http://edge/b", None),
            ("*", "*", None),
            ("edge:443", "edge:443", None),
        ] {
            let head = whole(&format!("GET {target} HTTP/1.1\r\n\r\n"));
            assert_eq!((head.path(), head.query()), (path, query), "{target}");
        }
        assert_eq!(refused("GET /a#b HTTP/1.1\r\n\r\n"), Unread::Malformed);
    }

    #[test]
    fn where_a_body_ends_is_never_guessed() {
        let of = |fields: &str| read(format!("POST / HTTP/1.1\r\n{fields}\r\n\r\n").as_bytes());
        for (fields, announced) in [
            ("a: b", Announced::Length(0)),
            ("content-length: 0", Announced::Length(0)),
            ("content-length: 18446744073709551615", Announced::Length(u64::MAX)),
            ("Content-Length: 05", Announced::Length(5)),
            ("Transfer-Encoding: Chunked", Announced::Chunked),
        ] {
            assert_eq!(of(fields).unwrap().unwrap().0.announced, announced, "{fields}");
        }
        for fields in [
            "content-length: 5\r\ncontent-length: 6",
            "Content-Length: 5\r\ncontent-length: 5",
            "content-length: 5, 5",
            "content-length: +5",
            "content-length: -1",
            "content-length: 0x5",
            "content-length: 5 5",
            "content-length:",
            "content-length: 18446744073709551616",
            "content-length: 5\r\ntransfer-encoding: chunked",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
            "transfer-encoding: chunked, chunked",
            "transfer-encoding: gzip, chunked",
            "transfer-encoding: identity",
            "transfer-encoding: xchunked",
            "transfer-encoding: \u{b}chunked",
            "transfer-encoding:",
            "transfer-encoding : chunked",
            " transfer-encoding: chunked",
            "a: b\r\n c: folded",
            "a\u{0}: b",
            "a: b\u{0}",
            "a: b\rc: d",
            "a: b\nc: d",
        ] {
            assert_eq!(of(fields).unwrap_err(), Unread::Malformed, "{fields:?}");
        }
        assert_eq!(refused("POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n"), Unread::Malformed);
    }

    #[test]
    fn connections_are_kept_as_their_version_has_it() {
        for (version, field, keeps) in [
            ("1.1", "a: b", true),
            ("1.1", "connection: Close", false),
            ("1.1", "connection: keep-alive, x, close", false),
            ("1.1", "connection: keep-alive\r\nconnection: close", false),
            ("1.1", "connection: closed", true),
            ("1.0", "a: b", false),
            ("1.0", "connection: Keep-Alive", true),
            ("1.0", "connection: keep-alive, close", false),
        ] {
            let head = whole(&format!("GET / HTTP/{version}\r\n{field}\r\n\r\n"));
            assert_eq!((head.keeps, head.is_11), (keeps, version == "1.1"), "{version} {field}");
        }
    }

    #[test]
    fn only_who_has_something_to_send_is_told_to_go_on() {
        for (text, expects) in [
            ("POST / HTTP/1.1\r\nexpect: 100-Continue\r\ncontent-length: 1\r\n\r\n", true),
            ("POST / HTTP/1.1\r\nexpect: 100-continue\r\n\r\n", false),
            ("POST / HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n", false),
            ("POST / HTTP/1.1\r\nexpect: other\r\ncontent-length: 1\r\n\r\n", false),
        ] {
            assert_eq!(whole(text).expects_continue, expects, "{text}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused_without_waiting_for_its_end() {
        for text in [
            &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET / HTTP/3.0\r\n",
            b"GET  / HTTP/1.1\r\n",
            b"GET /a b HTTP/1.1\r\n",
            b"GET /\xff HTTP/1.1\r\n\r\n",
            b"G\x00T / HTTP/1.1\r\n",
            b"HTTP/1.1 200 OK\r\n",
        ] {
            assert_eq!(refused(text), Unread::Malformed, "{:?}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn a_head_has_its_bounds() {
        let of = |fields: usize, value: usize| {
            let line = format!("x: {}\r\n", "v".repeat(value));
            format!("GET / HTTP/1.1\r\n{}\r\n", line.repeat(fields))
        };
        assert_eq!(whole(&of(HEADERS_MAX, 1)).fields.iter().count(), HEADERS_MAX);
        assert_eq!(refused(of(HEADERS_MAX + 1, 1)), Unread::TooLarge);
        let most = HEAD_BYTES_MAX - of(1, 0).len();
        whole(&of(1, most));
        assert_eq!(refused(of(1, most + 1)), Unread::TooLarge);
        let endless = of(1, HEAD_BYTES_MAX);
        assert!(read(&endless.as_bytes()[..HEAD_BYTES_MAX - 1]).unwrap().is_none());
        assert_eq!(refused(&endless.as_bytes()[..HEAD_BYTES_MAX]), Unread::TooLarge);
    }

    #[test]
    fn a_head_that_trickles_is_not_read_for_each_byte() {
        let text = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "v".repeat(4_000));
        let (mut looked, mut looks) = (0, 0);
        for end in 1..=text.len() {
            let input = &text.as_bytes()[..end];
            if may_be_whole(input, looked) {
                looks += 1;
                looked = end;
                assert_eq!(read(input).unwrap().is_some(), end == text.len());
            }
        }
        assert!(looked == text.len() && looks < 20, "{looks} looks, the last at {looked}");
        assert!(may_be_whole(b"GET / HTTP/1.0\n\n", 15), "to be refused at once");
    }
}
