//! Whether an OpenAI-compatible server is ready: it takes connections, is healthy, and lists the model.
//!
//! Owns the probe of `external` and of supervised engines; leaves when to probe to the supervisor.
//! Invariant: what it says has no address and nothing of the answer's text.

use std::time::Duration;

use crate::shell::engine_http::{Pool, ask};

/// One question of a probe.
const LIMIT: Duration = Duration::from_secs(5);
/// One token, behind whatever else is asked for.
const TRY_LIMIT: Duration = Duration::from_secs(60);
/// A list of models: large gateways have hundreds.
const LIST_MAX: usize = 1024 * 1024;

/// The list of `/v1/models`, as far as it matters.
#[derive(serde::Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(serde::Deserialize)]
struct Model {
    id: String,
}

/// Asks once. One that `was_ready` is only asked for its health, if it has such a route: a list of models can be long.
///
/// # Errors
/// Why it is not ready: one sentence.
pub(crate) async fn probe(
    pool: &Pool,
    base: &str,
    model: &str,
    key: Option<&str>,
    was_ready: bool,
) -> Result<(), String> {
    let (status, _) = get(pool, "/health", None).await?;
    match status {
        200..=299 if was_ready => return Ok(()),
        // Servers without the route are asked for their models only.
        200..=299 | 404 | 405 | 401 | 403 => {}
        503 => return Err("it is still loading (its health route says 503)".into()),
        other => return Err(format!("its health route says {other}")),
    }
    lists(pool, base, model, key).await
}

/// What its health route says.
///
/// # Errors
/// That it is not healthy: one sentence.
pub(crate) async fn health(pool: &Pool) -> Result<String, String> {
    match get(pool, "/health", None).await?.0 {
        status @ 200..=299 => Ok(format!("its health route says {status}")),
        404 | 405 => Ok("it has no health route".to_owned()),
        status @ (401 | 403) => Ok(format!("its health route wants a key ({status})")),
        503 => Err("it is still loading (its health route says 503)".to_owned()),
        status => Err(format!("its health route says {status}")),
    }
}

/// Whether it lists the model.
///
/// # Errors
/// Why not: one sentence.
pub(crate) async fn lists(pool: &Pool, base: &str, model: &str, key: Option<&str>) -> Result<(), String> {
    let (status, body) = get(pool, &format!("{base}/v1/models"), key).await?;
    if status != 200 {
        return Err(format!("its list of models says {status}"));
    }
    let models: Models = serde_json::from_slice(&body)
        .map_err(|_| "its list of models is not the JSON that OpenAI documents".to_owned())?;
    if models.data.iter().any(|listed| listed.id == model) {
        return Ok(());
    }
    let mut names: Vec<&str> = models.data.iter().map(|listed| listed.id.as_str()).take(8).collect();
    names.sort_unstable();
    Err(format!(
        "it does not list the model '{model}'; it has: {}",
        names.join(", ").chars().take(200).collect::<String>()
    ))
}

/// Asks for one token, as a caller would. Any answer that is not the engine's own failure will do: not every engine
/// completes text.
///
/// # Errors
/// What came instead: one sentence.
pub(crate) async fn try_one(pool: &Pool, base: &str, model: &str, key: Option<&str>) -> Result<(), String> {
    let body = serde_json::json!({ "model": model, "prompt": "1", "max_tokens": 1 }).to_string();
    let authorization = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    let request = format!(
        "POST {base}/v1/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{authorization}Connection: close\r\n\r\n{body}",
        pool.place(),
        body.len()
    );
    match ask(pool, request.as_bytes(), TRY_LIMIT, LIST_MAX).await? {
        (500 | 502 | 504..=599, _) => Err("a request of the agent's own failed as well".into()),
        _ => Ok(()),
    }
}

async fn get(pool: &Pool, path: &str, key: Option<&str>) -> Result<(u16, Vec<u8>), String> {
    let authorization = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\nAccept: application/json\r\n{authorization}Connection: close\r\n\r\n",
        pool.place()
    );
    ask(pool, request.as_bytes(), LIMIT, LIST_MAX).await
}
