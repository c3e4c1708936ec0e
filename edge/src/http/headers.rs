//! Headers: which pass to the engine and back, and request ids.
//!
//! Owns the allow-lists (anything else stays here, so that no credential or hop-by-hop header can slip through
//! by a new name) and the correlation id of each request. Invariant: what `Connection` names never passes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use umbel_contracts::proto::node;

/// `x-request-id`.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Of the client's headers, those that an engine may see. The node has a list of its own.
const TO_ENGINE: [HeaderName; 6] = [
    header::CONTENT_TYPE,
    header::ACCEPT,
    header::USER_AGENT,
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("x-session-id"),
];

/// Of the engine's headers, those that a client may see. `retry-after` is judged before.
const TO_CLIENT: [&str; 9] = [
    "content-type",
    "content-length",
    "content-encoding",
    "content-language",
    "content-disposition",
    "cache-control",
    "openai-processing-ms",
    "openai-version",
    "openai-model",
];

/// Longest header value passed on; engines' limits are of this order.
const VALUE_MAX: usize = 4 * 1024;

/// The client's headers for the engine.
pub(super) fn to_engine(headers: &HeaderMap) -> Vec<node::Header> {
    let mut named_by_connection = headers.get_all(header::CONNECTION).iter().peekable();
    let any_named = named_by_connection.peek().is_some();
    let mut passed = Vec::with_capacity(4);
    for name in &TO_ENGINE {
        if let Some(value) = headers.get(name)
            && value.len() <= VALUE_MAX
            && !(any_named && connection_names(headers, name.as_str()))
        {
            passed.push(node::Header { name: name.as_str().to_owned(), value: value.as_bytes().to_vec() });
        }
    }
    passed
}

fn connection_names(headers: &HeaderMap, name: &str) -> bool {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|token| token.trim().eq_ignore_ascii_case(name))
}

/// The engine's headers for the client.
pub(super) fn to_client(from: &[node::Header], to: &mut HeaderMap) {
    for header in from {
        let Some(name) = TO_CLIENT.iter().find(|name| header.name.eq_ignore_ascii_case(name)) else {
            continue;
        };
        if let Ok(value) = HeaderValue::from_bytes(&header.value) {
            to.insert(HeaderName::from_static(name), value);
        }
    }
}

/// A header of the engine's answer.
pub(super) fn of_engine<'a>(headers: &'a [node::Header], name: &str) -> Option<&'a [u8]> {
    headers.iter().find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value.as_slice())
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
    pub(super) fn of(&self, headers: &HeaderMap) -> HeaderValue {
        match headers.get(&REQUEST_ID) {
            Some(value) if is_request_id(value.as_bytes()) => value.clone(),
            _ => self.make(),
        }
    }

    /// A new one.
    pub(super) fn make(&self) -> HeaderValue {
        const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
        let ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let count = self.next.fetch_add(1, Ordering::Relaxed);
        // 48 bits of time, 40 of the process, 40 of the counter.
        let number = (ms << 80)
            | (u128::from(self.process & 0xff_ffff_ffff) << 40)
            | u128::from(count & 0xff_ffff_ffff);
        let mut text = *b"req_00000000000000000000000000";
        for (place, digit) in text.iter_mut().skip(4).enumerate() {
            let shift = 5 * (25 - place);
            let index = usize::try_from((number >> shift) & 31).unwrap_or(0);
            *digit = DIGITS.get(index).copied().unwrap_or(b'0');
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
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer x"),
            ("cookie", "a=b"),
            ("x-api-key", "k"),
            ("api-key", "k"),
            ("proxy-authorization", "Basic x"),
            ("connection", "x-foo, TraceState"),
            ("x-foo", "1"),
            ("te", "trailers"),
            ("accept-encoding", "gzip"),
            ("content-type", "application/json"),
            ("traceparent", "00-a-b-01"),
            ("tracestate", "v=1"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let passed: Vec<String> = to_engine(&headers).into_iter().map(|header| header.name).collect();
        assert_eq!(passed, ["content-type", "traceparent"]);

        let from = ["Content-Type", "Set-Cookie", "Server", "Connection", "Transfer-Encoding", "Keep-Alive"]
            .map(|name| node::Header { name: name.to_owned(), value: b"x".to_vec() });
        let mut to = HeaderMap::new();
        to_client(&from, &mut to);
        assert_eq!(to.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["content-type"]);
    }

    #[test]
    fn request_ids_are_kept_if_sound_and_else_made_in_order() {
        let ids = RequestIds::new();
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID, HeaderValue::from_static("my-id_1.x"));
        assert_eq!(ids.of(&headers), "my-id_1.x");
        headers.insert(REQUEST_ID, HeaderValue::from_static("with space"));
        let (one, two) = (ids.of(&headers), ids.of(&headers));
        assert!(is_request_id(one.as_bytes()) && one.len() == 30 && one != two, "{one:?} {two:?}");
    }
}
