//! `/livez`, `/readyz`, `/health` and `/metrics`. No key is needed, and none depends on the control plane.
//!
//! Invariant: a store that takes no writes is told and changes no status: the site serves.

use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, Response, StatusCode};
use umbel_contracts::daemon::exposition::TextFormat;

use super::Front;
use super::answer::Answer;
use super::body::discard;
use super::connection::Service;
use super::error::Failure;
use super::h1::Head;
use super::incoming::Incoming;
use super::socket::Socket;

/// Answers a path of health; `None` if it is none.
pub(super) fn answer(
    front: &Front,
    method: &Method,
    path: &str,
    query: Option<&str>,
) -> Option<Response<Answer>> {
    if !matches!(path, "/livez" | "/readyz" | "/health" | "/v1/health") {
        return None;
    }
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Some(Failure::method_not_allowed("GET, HEAD").response());
    }
    // The process answers: it lives. It takes traffic until it drains.
    let ready = path == "/livez" || !front.is_draining();
    let verbose = query.is_some_and(|query| query.split('&').any(|pair| pair.starts_with("verbose")));
    // Writing to it cannot fail.
    let mut text = String::new();
    if path == "/health" || path == "/v1/health" {
        let sound = front.keys.store_is_sound();
        let broken = front.options().parts.troubles();
        let status = match (ready, sound && broken.is_empty()) {
            (false, _) => "draining",
            (true, false) => "degraded",
            (true, true) => "ok",
        };
        let store = if sound { "ok" } else { "read_only" };
        let _ = write!(text, r#"{{"status":"{status}","store":"{store}""#);
        if let Some(first) = broken.first() {
            // Names of this program's own, without a quote in them.
            let _ = write!(text, r#","broken":"{}""#, first.part);
        }
        text.push('}');
    } else if verbose {
        let mark = if ready { '+' } else { '-' };
        let _ = writeln!(text, "[{mark}]taking-traffic {}", if ready { "ok" } else { "draining" });
        if path == "/readyz" && !front.keys.store_is_sound() {
            text.push_str("[!]store read-only: the site serves, changes are refused\n");
        }
        for broke in front.options().parts.troubles().iter().filter(|_| path == "/readyz") {
            let _ = writeln!(text, "[!]{} broke off: the log says where", broke.part);
        }
        text.push_str(if ready { "ok\n" } else { "failed\n" });
    } else {
        text.push_str(if ready { "ok" } else { "draining" });
    }
    let content_type =
        if path.ends_with("/health") { "application/json" } else { "text/plain; charset=utf-8" };
    Some(plain(if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, content_type, text))
}

/// What is given on the metrics listener.
pub(super) struct Metrics<'a> {
    pub(super) front: &'a Front,
}

impl Service for Metrics<'_> {
    type Received = Head;

    async fn receive<S: Socket>(&self, head: Head, incoming: &mut Incoming<'_, '_, S>) -> Head {
        discard(incoming).await;
        head
    }

    async fn answer(&self, head: Head) -> Response<Answer> {
        let accept = head.fields.get("accept");
        metrics_listener(self.front, &head.method, head.path(), head.query(), accept).await
    }
}

async fn metrics_listener(
    front: &Front,
    method: &Method,
    path: &str,
    query: Option<&str>,
    accept: Option<&[u8]>,
) -> Response<Answer> {
    if let Some(response) = answer(front, method, path, query) {
        return response;
    }
    match path {
        "/metrics" if *method == Method::GET => {
            let format = TextFormat::accepted(accept.and_then(|accept| std::str::from_utf8(accept).ok()));
            let Ok(exposition) = front.scrapes.take(Arc::clone(&front.metrics), format).await else {
                let text = "the metrics could not be written\n".to_owned();
                return plain(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", text);
            };
            let mut response = Response::new(Answer::exposition(exposition));
            let content_type = HeaderValue::from_static(format.content_type());
            response.headers_mut().insert(header::CONTENT_TYPE, content_type);
            response
        }
        "/metrics" => Failure::method_not_allowed("GET").response(),
        _ => Failure::unknown_url().response(),
    }
}

fn plain(status: StatusCode, content_type: &'static str, text: String) -> Response<Answer> {
    let mut response = Response::new(Answer::Whole(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
