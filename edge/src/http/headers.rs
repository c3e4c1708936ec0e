//! Headers: which pass to the engine and back, and request ids.
//!
//! Owns whose word a request is that comes without a key, and the correlation id of each request. Leaves the lists to
//! [`umbel_contracts::headers`] (anything else stays here, so that no credential or hop-by-hop header can slip through by
//! a new name). Invariant: what `Connection` names never passes.

use std::net::IpAddr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use umbel_contracts::headers::{TO_CLIENT, TO_ENGINE, is_value};
use umbel_contracts::inference::reading::Field;
use umbel_wire::clock::Wall;

use super::h1::{Fields, Head};

/// `x-request-id`.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Headers by which a proxy says that it speaks for somebody else.
const OF_PROXIES: [&str; 9] = [
    "via",
    "forwarded",
    "x-real-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-original-forwarded-for",
    "true-client-ip",
    "cf-connecting-ip",
    "fastly-client-ip",
];

/// Whether a request that comes from this host is one of this host's own: no proxy says that it speaks for somebody else,
/// no web page of another host sends it, and it is meant for this host and not for a name that somebody's DNS leads here.
/// What a browser lets a page send is not the word of whoever sits before it.
pub(super) fn is_of_this_host(fields: &Fields) -> bool {
    let mut names = fields.iter().map(|(name, _)| name);
    let proxied = names.any(|name| name.starts_with("x-forwarded-") || OF_PROXIES.contains(&name));
    let host = fields.get("host").and_then(visible);
    // A name without a dot is one of this host's own network.
    let meant = host.is_none_or(|host| is_here(host) || !of_authority(host).contains('.'));
    let own_page = |origin: &[u8]| {
        let origin = visible(origin).and_then(|origin| origin.split_once("://"));
        origin.is_some_and(|(_, authority)| is_here(authority))
    };
    !proxied && meant && fields.get_all("origin").all(own_page)
}

/// A value that is text, if it is.
fn visible(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value).ok().filter(|value| value.is_ascii())
}

/// The host of `HOST:PORT`, without the brackets of an address.
fn of_authority(authority: &str) -> &str {
    match authority.strip_prefix('[') {
        Some(address) => address.split_once(']').map_or(address, |(address, _)| address),
        None => authority.split_once(':').map_or(authority, |(host, _)| host),
    }
}

/// Whether it means the host that it is said on: `localhost`, or an address, which no DNS has a say in.
fn is_here(authority: &str) -> bool {
    let host = of_authority(authority).trim_end_matches('.').to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost") || host.parse::<IpAddr>().is_ok()
}

/// What the edge itself reads of a request's fields, in one walk over them.
#[derive(Debug, Default)]
pub(super) struct Said<'a> {
    pub(super) authorization: Option<&'a [u8]>,
    /// The official clients set it on their retries.
    pub(super) retry_count: Option<&'a [u8]>,
    hosts: usize,
    authorizations: usize,
}

impl<'a> Said<'a> {
    pub(super) fn of(fields: &'a Fields) -> Self {
        let mut said = Self::default();
        for (name, value) in fields.iter() {
            match name {
                "host" => said.hosts += 1,
                "authorization" => {
                    said.authorizations += 1;
                    said.authorization.get_or_insert(value);
                }
                "x-stainless-retry-count" => {
                    said.retry_count.get_or_insert(value);
                }
                _ => {}
            }
        }
        said
    }

    /// Whether another server could take the same head for somebody else's: a host said never or twice (RFC 9112, section 3.2),
    /// credentials said twice.
    pub(super) fn is_ambiguous(&self, head: &Head) -> bool {
        self.hosts > 1 || (self.hosts == 0 && head.is_11) || self.authorizations > 1
    }
}

/// The client's headers for the engine: the first of each name.
pub(super) fn to_engine(fields: &Fields) -> impl Iterator<Item = (&str, &[u8])> {
    let mut passed = 0u32;
    let any_named = fields.get("connection").is_some();
    fields.iter().filter(move |(name, value)| {
        let Some(at) = TO_ENGINE.iter().position(|known| *known == *name) else { return false };
        let bit = 1 << at;
        let is_first = passed & bit == 0;
        passed |= bit;
        is_first && is_value(value) && !(any_named && connection_names(fields, name))
    })
}

fn connection_names(fields: &Fields, name: &str) -> bool {
    fields
        .get_all("connection")
        .flat_map(|value| value.split(|byte| *byte == b','))
        .any(|option| option.trim_ascii().eq_ignore_ascii_case(name.as_bytes()))
}

/// Those of [`TO_CLIENT`] that a client sees as the engine said them, as their names are once and for all.
static AS_SAID: LazyLock<Vec<(&str, HeaderName)>> = LazyLock::new(|| {
    let names = TO_CLIENT.iter().map(|name| (*name, HeaderName::from_static(name)));
    names.filter(|(_, name)| *name != header::RETRY_AFTER).collect()
});

/// The engine's headers for the client.
pub(super) fn to_client(from: &[Field<'_>], to: &mut HeaderMap) {
    for (name, value) in from {
        let passed = AS_SAID.iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
        if let (Some((_, name)), Ok(value)) = (passed, HeaderValue::from_bytes(value)) {
            to.insert(name, value);
        }
    }
}

/// A header of the engine's answer.
pub(super) fn of_engine<'a>(headers: &[Field<'a>], name: &str) -> Option<&'a [u8]> {
    headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
}

/// Makes correlation ids: `req_` and 26 characters, ordered by time, unique in this process and unlikely to
/// be met again in another.
#[derive(Debug)]
pub(super) struct RequestIds {
    process: u64,
    next: AtomicU64,
}

impl RequestIds {
    pub(super) fn new() -> Self {
        let mut random = [0; 16];
        umbel_wire::secret::random_bytes(&mut random);
        let [a, b, c, d, e, f, g, h, rest @ ..] = random;
        Self {
            process: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            next: AtomicU64::new(u64::from_be_bytes(rest) >> 16),
        }
    }

    /// The client's own id if it is sound, else a new one.
    pub(super) fn of(&self, now: Wall, fields: &Fields) -> HeaderValue {
        let own = fields.get(REQUEST_ID.as_str()).filter(|value| is_request_id(value));
        own.and_then(|value| HeaderValue::from_bytes(value).ok()).unwrap_or_else(|| self.make(now))
    }

    /// A new one.
    pub(super) fn make(&self, now: Wall) -> HeaderValue {
        const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
        let ms = u128::try_from(now.unix_ms()).unwrap_or_default();
        let count = self.next.fetch_add(1, Ordering::Relaxed);
        // 48 bits of time, 40 of the process, 40 of the counter.
        let mut number = (ms << 80)
            | (u128::from(self.process & 0xff_ffff_ffff) << 40)
            | u128::from(count & 0xff_ffff_ffff);
        let mut text = *b"req_00000000000000000000000000";
        for place in text.iter_mut().skip(4).rev() {
            let digit = usize::try_from(number & 31).unwrap_or_default();
            *place = DIGITS.get(digit).copied().unwrap_or(b'0');
            number >>= 5;
        }
        HeaderValue::from_bytes(&text).unwrap_or_else(|_| HeaderValue::from_static("req_0"))
    }
}

/// 1 to 128 characters of `A-Za-z0-9._-`.
fn is_request_id(value: &[u8]) -> bool {
    (1..=128).contains(&value.len())
        && value.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
    use super::*;

    #[test]
    fn row_35_only_harmless_headers_pass_in_either_direction() {
        let fields = [
            ("authorization", "Bearer x"),
            ("cookie", "a=b"),
            ("x-api-key", "k"),
            ("api-key", "k"),
            ("proxy-authorization", "Basic x"),
            ("connection", "x-foo, TraceState"),
            ("x-foo", "1"),
            ("te", "trailers"),
            ("host", "edge"),
            ("origin", "http://edge"),
            ("via", "1.1 x"),
            ("forwarded", "for=192.0.2.1"),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-host", "x"),
            ("x-real-ip", "192.0.2.1"),
            ("accept-encoding", "gzip"),
            ("content-type", "application/json"),
            ("traceparent", "00-a-b-01"),
            ("tracestate", "v=1"),
            ("traceparent", "a second one"),
        ];
        let mut fields = fields.map(|(name, value)| (name, value.as_bytes())).to_vec();
        // What a node would not take does not go there, nor what stands behind it.
        fields.extend([("accept", &b"caf\xe9"[..]), ("accept", b"text/plain")]);
        let fields = Fields::of(&fields);
        let passed: Vec<_> = to_engine(&fields).collect();
        assert_eq!(passed, [("content-type", &b"application/json"[..]), ("traceparent", b"00-a-b-01")]);

        let from = ["Content-Type", "Set-Cookie", "Server", "Connection", "Transfer-Encoding", "Keep-Alive"]
            .map(|name| (name, &b"x"[..]));
        let mut to = HeaderMap::new();
        to_client(&from, &mut to);
        assert_eq!(to.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["content-type"]);
    }

    #[test]
    fn without_a_key_only_what_is_this_hosts_own_is_let_in() {
        let of = |fields: &[(&str, &str)]| {
            let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
            is_of_this_host(&Fields::of(&fields))
        };
        for host in
            ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:80", "[::1]", "gpu-1:8080", "a.localhost"]
        {
            assert!(of(&[("host", host)]), "{host}");
        }
        assert!(of(&[]) && of(&[("host", "localhost"), ("origin", "http://localhost:3000")]));
        for host in
            ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example:80"]
        {
            assert!(!of(&[("host", host)]), "{host}");
        }
        for origin in ["http://evil.example", "https://localhost.evil.example", "null", "http://gpu-1"] {
            assert!(!of(&[("host", "localhost"), ("origin", origin)]), "{origin}");
        }
        for proxied in
            ["via", "forwarded", "x-forwarded-for", "x-forwarded-proto", "x-real-ip", "cf-connecting-ip"]
        {
            assert!(!of(&[("host", "localhost"), (proxied, "x")]), "{proxied}");
        }
    }

    #[test]
    fn request_ids_are_kept_if_sound_and_else_made_in_order() {
        let ids = RequestIds::new();
        let fields = Fields::of(&[("x-request-id", b"my-id_1.x")]);
        let now = Wall::now();
        assert_eq!(ids.of(now, &fields), "my-id_1.x");
        let fields = Fields::of(&[("x-request-id", b"with space")]);
        let (one, two) = (ids.of(now, &fields), ids.of(now, &fields));
        assert!(is_request_id(one.as_bytes()) && one.len() == 30 && one != two, "{one:?} {two:?}");
    }
}
