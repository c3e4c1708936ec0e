//! What an engine shows from outside, one layer upon the other, and what its end is called.
//!
//! Owns the layers (process, port, health, model) and the names of failures; leaves asking to `engine_http`. Invariant: a
//! layer above one that is not there is not asked, and no detail has an address.

use std::time::{Duration, Instant};

use tokio::{net::TcpStream, time::timeout};
use umbel_contracts::{
    causes::Cause,
    proto::node::{Evidence, JobFailure},
};

use crate::{
    core::supervisor::State,
    engines::ready,
    shell::engines::{Engine, Exposed, HttpRoute, Route, View},
};

/// One connection.
const CONNECT: Duration = Duration::from_secs(5);

pub(super) fn layer(name: &str, seen: Result<String, String>, began: Instant) -> Evidence {
    let ok = seen.is_ok();
    let mut detail = seen.unwrap_or_else(|why| why);
    umbel_wire::text::shorten(&mut detail, 256);
    let milliseconds = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    Evidence { layer: name.to_owned(), ok, detail, milliseconds }
}

/// Looks at one, up to the first layer that is not there.
pub(super) async fn layers(engine: &Engine, view: &View) -> Vec<Evidence> {
    let began = Instant::now();
    let has_process = engine.config().source.process().is_some();
    let process = match (has_process, engine.leader()) {
        (false, _) if matches!(view.state, State::Failed | State::Stopped) => Err(view.cause.clone()),
        (false, _) => Ok("it has none here".to_owned()),
        (true, Some(leader)) => Ok(format!("runs as process {}", leader.id.0)),
        (true, None) if view.cause.is_empty() => Err("does not run".to_owned()),
        (true, None) => Err(format!("does not run: {}", view.cause)),
    };
    let mut layers = vec![layer("process", process, began)];
    let stands = |layers: &[Evidence]| layers.last().is_some_and(|last| last.ok);
    let Some(way) = engine.way().filter(|_| stands(&layers)) else { return layers };
    let Route::Http(http) = way.as_ref() else { return layers };
    let began = Instant::now();
    layers.push(layer("port", port(http).await, began));
    if stands(&layers) {
        let began = Instant::now();
        layers.push(layer("health", ready::health(&http.pool).await, began));
    }
    if stands(&layers) {
        let (began, model) = (Instant::now(), engine.in_force().model);
        let listed = ready::lists(&http.pool, &http.base, &model, http.key.as_deref()).await;
        layers.push(layer("model", listed.map(|()| format!("it lists {model}")), began));
    }
    layers
}

async fn port(http: &HttpRoute) -> Result<String, String> {
    let place = http.pool.place().to_string();
    match timeout(CONNECT, TcpStream::connect(place)).await {
        Ok(Ok(_)) => Ok(match http.ports.exposed() {
            Exposed::Nothing => "it takes connections",
            Exposed::Beside => "it takes connections; other hosts may reach ports beside it",
            Exposed::Itself => "it takes connections, of other hosts as well",
        }
        .to_owned()),
        Ok(Err(error)) => Err(format!("it takes no connections: {}", error.kind())),
        Err(_) => Err("a connection does not come about in time".to_owned()),
    }
}

/// The name of a failure: its engine's own, else by the words of its cause.
pub(super) fn code(view: &View) -> Cause {
    if let Some(code) = view.code {
        return code;
    }
    let has = |words: &[&str]| words.iter().any(|word| view.cause.contains(word));
    if has(&["within", "in time"]) {
        Cause::TimedOut
    } else if has(&["exited", "signal"]) {
        Cause::ProcessExited
    } else {
        Cause::Failed
    }
}

/// An engine that has failed, as the end of a job.
pub(super) fn failure_of(view: View) -> JobFailure {
    let code = code(&view);
    // A server that is not ours to start may be there later.
    let retry = code.passes() || (view.looks_again && code == Cause::Failed);
    JobFailure { output_tail: view.tail, ..super::failure(code, "", view.cause, retry) }
}

/// What a probe failed for, by the first layer that is not there.
pub(super) fn code_of_layers(layers: &[Evidence]) -> Cause {
    match layers.iter().find(|layer| !layer.ok).map(|layer| layer.layer.as_str()) {
        Some("process") => Cause::ProcessExited,
        Some("port") => Cause::PortNotOpen,
        Some("health") => Cause::HealthFailed,
        Some("model") => Cause::ModelMissing,
        Some("inference") => Cause::InferenceFailed,
        _ => Cause::TimedOut,
    }
}
