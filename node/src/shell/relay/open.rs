//! What may go from an opening to an engine: a known route, a few headers, the engine's own key.
//!
//! Owns that list; leaves the body to its parent. Invariant: nothing that a client sent as a credential, and nothing
//! that could end a header early, reaches an engine.

use std::time::Duration;

use umbel_contracts::headers::{TO_ENGINE, is_value};
use umbel_contracts::proto::node::InferenceOpen;
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
/// Decodes and checks an opening.
pub(super) fn parse(message: &[u8]) -> Result<InferenceOpen, Ended> {
    let open: InferenceOpen = umbel_contracts::bounds::decode(message)
        .map_err(|error| Ended::refused(error.code, "BAD_OPENING", error.message))?;
    if !ROUTES.iter().any(|(method, path)| *method == open.method && *path == open.path) {
        return Err(Ended::refused(
            Code::Unimplemented,
            "UNKNOWN_ROUTE",
            "this node does not relay that route",
        ));
    }
    Ok(open)
}

/// Whether an engine that gets it twice does nothing twice but work: a response may be kept there.
pub(super) fn may_be_repeated(open: &InferenceOpen) -> bool {
    open.path != "/v1/responses"
}

/// The head of the request to the engine.
pub(super) fn request_head(open: &InferenceOpen, http: &HttpRoute) -> Vec<u8> {
    let mut head =
        Vec::with_capacity(512 + usize::try_from(open.body_bytes.min(32 * 1024)).unwrap_or_default());
    let mut put = |parts: &[&[u8]]| parts.iter().for_each(|part| head.extend_from_slice(part));
    put(&[open.method.as_bytes(), b" ", http.base.as_bytes(), open.path.as_bytes(), b" HTTP/1.1\r\nhost: "]);
    put(&[http.pool.host().as_bytes(), b"\r\n"]);
    for header in &open.headers {
        if let Some(name) = TO_ENGINE.iter().find(|name| header.name.eq_ignore_ascii_case(name))
            && is_value(&header.value)
        {
            put(&[name.as_bytes(), b": ", &header.value, b"\r\n"]);
        }
    }
    if !open.request_id.is_empty() && is_value(open.request_id.as_bytes()) {
        put(&[b"x-request-id: ", open.request_id.as_bytes(), b"\r\n"]);
    }
    if let Some(key) = &http.key {
        put(&[b"authorization: Bearer ", key.as_bytes(), b"\r\n"]);
    }
    if open.method == "POST" {
        put(&[b"content-length: ", open.body_bytes.to_string().as_bytes(), b"\r\n"]);
    }
    put(&[b"\r\n"]);
    head
}

/// A time limit of an opening; 0 says none.
pub(super) fn limit(milliseconds: u32, otherwise: Duration) -> Duration {
    if milliseconds == 0 { otherwise } else { Duration::from_millis(u64::from(milliseconds)) }
}
