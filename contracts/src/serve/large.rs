//! Answers that may name every node of a site.
//!
//! Invariant: one of ten thousand nodes, over 70 MB, is not written on the runtime's thread, where everything else of the
//! process would wait for it.

use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use umbel_wire::error::{Code, Error};

use super::problem::Failure;

/// The answer as JSON.
pub(super) async fn large<T: Serialize + Send + 'static>(value: T) -> Result<Response, Failure> {
    let written = tokio::task::spawn_blocking(move || serde_json::to_vec(&value)).await;
    let Ok(Ok(json)) = written else {
        return Err(Error::new(Code::Internal, "INTERNAL", "the answer could not be written").into());
    };
    let mut response = json.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
