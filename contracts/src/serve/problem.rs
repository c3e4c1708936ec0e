//! The one place where an error becomes an answer: an RFC 9457 problem document with code, reason and the
//! request's correlation id, which is also the header `x-request-id` of every answer.
//!
//! Handlers return a [`Failure`]; [`tell`], the outermost layer, writes it, because only it knows the path and
//! the id.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use umbel_wire::error::{Code, Error};

use super::call::CorrelationId;
use super::fleet::clip;
use crate::objects::ProblemDocument;

/// An error on its way to the client.
#[derive(Clone, Debug)]
pub struct Failure(pub Error);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = status(&self.0).into_response();
        response.extensions_mut().insert(self);
        response
    }
}

fn status(error: &Error) -> StatusCode {
    if error.reason == "METHOD_NOT_ALLOWED" {
        return StatusCode::METHOD_NOT_ALLOWED;
    }
    StatusCode::from_u16(error.code.http()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Gives each request its correlation id and each failure its document.
pub(super) async fn tell(mut request: Request, next: Next) -> Response {
    let id = CorrelationId::of(request.headers());
    let path = clip(request.uri().path());
    let method = request.method().clone();
    request.extensions_mut().insert(id.clone());
    let mut response = next.run(request).await;
    if let Some(Failure(error)) = response.extensions_mut().remove::<Failure>() {
        if error.code == Code::Internal {
            tracing::error!(correlation_id = %id.0, %method, %path, reason = %error.reason, "request failed: {}", error.message);
        } else {
            tracing::debug!(correlation_id = %id.0, %method, %path, code = error.code.name(), reason = %error.reason, "request refused");
        }
        response = document(&error, &path, &id, response);
    }
    if let Ok(value) = HeaderValue::from_str(&id.0) {
        response.headers_mut().insert("x-request-id", value);
    }
    response.headers_mut().entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn document(error: &Error, path: &str, id: &CorrelationId, mut response: Response) -> Response {
    let status = response.status();
    let retry_after_ms = error.retry_after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
    let problem = ProblemDocument {
        kind: "about:blank".into(),
        title: error.code.name().into(),
        status: status.as_u16(),
        detail: error.message.clone(),
        instance: Some(path.into()),
        code: error.code.name().into(),
        reason: error.reason.to_string(),
        correlation_id: id.0.to_string(),
        retry_after_ms,
    };
    *response.body_mut() = Body::from(serde_json::to_vec(&problem).unwrap_or_default());
    let headers = response.headers_mut();
    headers.remove(axum::http::header::CONTENT_LENGTH);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if error.code == Code::Unauthenticated {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(after) = retry_after_ms {
        headers.insert(RETRY_AFTER, HeaderValue::from(after.div_ceil(1000).max(1)));
    }
    response
}
