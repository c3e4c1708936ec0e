//! `GET /v1/models` and `/v1/models/{id}`: what a caller may use, aliases too.

use bytes::Bytes;
use http::Response;
use http::header::{self, HeaderValue};
use serde::Serialize;

use super::Front;
use super::answer::Answer;
use super::error::Failure;
use super::routes::below_v1;
use crate::core::keys::Caller;

#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
}

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Model<'a>>,
}

impl<'a> Model<'a> {
    fn new(id: &'a str, created: u64) -> Self {
        Self { id, object: "model", created, owned_by: "umbel" }
    }
}

/// What a path asks for: all (`Some(None)`), one by its encoded id, or nothing of models.
pub(super) fn requested(path: &str) -> Option<Option<&str>> {
    let rest = below_v1(path)?.strip_prefix("models")?;
    match rest.strip_prefix('/') {
        None => rest.is_empty().then_some(None),
        Some(id) => Some(Some(id.trim_start_matches('/'))),
    }
}

/// The list, or one model. Ids with a slash may be written raw or as `%2F`.
pub(super) fn answer(front: &Front, caller: &Caller, id: Option<&str>) -> Result<Response<Answer>, Failure> {
    let all = front.dispatch.model_names();
    let mut names = all.clone();
    names.retain(|(name, canonical)| {
        let means = |other: &str| all.iter().any(|(name, of)| **name == *other && of == canonical);
        caller.may_use(name, canonical, means)
    });
    let body = match id {
        None => {
            let data = names.iter().map(|(name, _)| Model::new(name, front.started_unix)).collect();
            serde_json::to_vec(&List { object: "list", data })
        }
        Some(id) => {
            let id = percent_decoded(id);
            let (name, _) =
                names.iter().find(|(name, _)| **name == *id).ok_or_else(|| Failure::model_not_found(&id))?;
            serde_json::to_vec(&Model::new(name, front.started_unix))
        }
    };
    // Strings and integers always serialize.
    let mut response = Response::new(Answer::Whole(Bytes::from(body.unwrap_or_default())));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let decoded = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match decoded.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if first == b'%' => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_may_have_slashes_raw_or_encoded() {
        assert_eq!(requested("/v1/models"), Some(None));
        assert_eq!(requested("/v1/models/"), Some(None));
        assert_eq!(requested("//v1/models//a/b/"), Some(Some("a/b")));
        assert_eq!(requested("/v1/models/Qwen/Qwen3-32B"), Some(Some("Qwen/Qwen3-32B")));
        assert_eq!(requested("/v1/modelsx"), None);
        assert_eq!(percent_decoded("Qwen%2FQwen3%2f32%zz%4"), "Qwen/Qwen3/32%zz%4");
    }
}
