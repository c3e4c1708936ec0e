//! What may go from an opening to an engine: a known route, a few headers, the engine's own key.
//!
//! Owns that list; leaves the body to its parent. Invariant: nothing that a client sent as a credential, and nothing
//! that could end a header early, reaches an engine.

use std::time::Duration;

use umbel_contracts::headers::{TO_ENGINE, is_value};
use umbel_contracts::inference::reading::Opening;
use umbel_wire::Code;

use super::Ended;
use crate::shell::engines::HttpRoute;

/// The routes that an engine is asked for.
const ROUTES: [(&str, &str); 7] = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/rerank"),
    ("POST", "/v1/audio/transcriptions"),
    ("GET", "/v1/models"),
];

/// A route of [`ROUTES`].
pub(super) type Known = (&'static str, &'static str);

/// Reads and checks an opening.
pub(super) fn parse(message: &[u8]) -> Result<(Known, Opening<'_>), Ended> {
    let opening =
        Opening::read(message).map_err(|error| Ended::refused(error.code, "BAD_OPENING", error.message))?;
    let route = ROUTES.iter().find(|route| **route == (opening.method, opening.path));
    let route = route.ok_or_else(|| {
        Ended::refused(Code::Unimplemented, "UNKNOWN_ROUTE", "this node does not relay that route")
    })?;
    Ok((*route, opening))
}

/// What an engine is asked for.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    /// The lines of its headers that are the client's, as they go to the engine.
    lines: Vec<u8>,
    pub(super) body_bytes: u64,
    pub(super) first_byte_timeout_ms: u32,
    pub(super) idle_timeout_ms: u32,
    pub(super) request_id: String,
}

impl Asked {
    pub(super) fn new((method, path): Known, opening: &Opening<'_>) -> Self {
        let mut lines = Vec::with_capacity(256);
        let mut put = |name: &str, value: &[u8]| {
            if is_value(value) {
                [name.as_bytes(), b": ", value, b"\r\n"]
                    .iter()
                    .for_each(|part| lines.extend_from_slice(part));
            }
        };
        for (name, value) in &opening.headers {
            if let Some(name) = TO_ENGINE.iter().find(|known| name.eq_ignore_ascii_case(known)) {
                put(name, value);
            }
        }
        if !opening.request_id.is_empty() {
            put("x-request-id", opening.request_id.as_bytes());
        }
        Self {
            method,
            path,
            lines,
            body_bytes: opening.body_bytes,
            first_byte_timeout_ms: opening.first_byte_timeout_ms,
            idle_timeout_ms: opening.idle_timeout_ms,
            request_id: opening.request_id.to_owned(),
        }
    }

    /// Whether an engine that gets it twice does nothing twice but work: a response may be kept there.
    pub(super) fn may_be_repeated(&self) -> bool {
        self.path != "/v1/responses"
    }

    /// The head of the request to the engine, in front of room for a body that is not long.
    pub(super) fn head(&self, http: &HttpRoute) -> Vec<u8> {
        let body = usize::try_from(self.body_bytes.min(32 * 1024)).unwrap_or_default();
        let mut head = Vec::with_capacity(256 + self.lines.len() + body);
        let mut put = |parts: &[&[u8]]| parts.iter().for_each(|part| head.extend_from_slice(part));
        put(&[self.method.as_bytes(), b" ", http.base.as_bytes(), self.path.as_bytes()]);
        put(&[b" HTTP/1.1\r\nhost: ", http.pool.host().as_bytes(), b"\r\n", &self.lines]);
        if let Some(key) = &http.key {
            put(&[b"authorization: Bearer ", key.as_bytes(), b"\r\n"]);
        }
        if self.method == "POST" {
            put(&[b"content-length: ", self.body_bytes.to_string().as_bytes(), b"\r\n"]);
        }
        put(&[b"\r\n"]);
        head
    }
}

/// A time limit of an opening; 0 says none.
pub(super) fn limit(milliseconds: u32, otherwise: Duration) -> Duration {
    if milliseconds == 0 { otherwise } else { Duration::from_millis(u64::from(milliseconds)) }
}
