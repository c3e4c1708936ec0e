//! `runtime.probe`: an engine is started beside those that serve, looked at layer by layer, measured, and ended.
//!
//! Owns the order and the figures; leaves starting and ending to `engines`. Invariant: whatever comes of it, nothing of the
//! engine is left when the answer goes out, and nobody is told of it as of a provider.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{task::spawn_blocking, time::timeout};
use tokio_util::sync::CancellationToken;
use umbel_contracts::{
    causes::Cause,
    deployment::Profile,
    proto::node::{Evidence, JobFailure, RuntimeProbe, RuntimeProbeReport},
};

use super::{Deployments, END, Step, cancelled, evidence, failure, milliseconds};
use crate::{
    core::{deployments::Kept, supervisor::State as EngineState},
    shell::{
        engine_http::ask_in_pieces,
        engines::{Engine, HttpRoute, Route, TRIED},
        process::memory,
    },
};

/// Tokens that are asked for if the job says none, and at most.
const TOKENS: u32 = 32;
const TOKENS_MAX: u32 = 1024;
/// Bytes of the input.
const INPUT_MAX: usize = 16 * 1024;
/// What is asked if the job says nothing.
const INPUT: &str = "The capital of France is";
/// One inference, the first of which may compile kernels.
const INFERENCE: Duration = Duration::from_secs(300);
/// Bytes of its answer.
const ANSWER_MAX: usize = 1024 * 1024;

/// What one inference showed.
#[derive(Debug, Default)]
struct Measured {
    first_token: Duration,
    /// From the first event to the last.
    rest: Duration,
    events: u32,
    bytes: usize,
}

impl Deployments {
    /// Starts an engine, looks at it, measures it, ends it.
    ///
    /// # Errors
    /// What was refused before it was started, or the first layer that was not there, with all that were and the last
    /// lines of its output.
    pub(crate) async fn probe(
        &self,
        body: &RuntimeProbe,
        tell: impl Fn(Step),
        cancel: &CancellationToken,
    ) -> Result<RuntimeProbeReport, JobFailure> {
        tell(Step { phase: "validating".to_owned(), message: String::new() });
        let Some(load) = &body.load else {
            return Err(failure(Cause::Invalid, "load", "is missing: what to start", false));
        };
        if body.input.len() > INPUT_MAX {
            return Err(failure(Cause::Invalid, "input", format!("is longer than {INPUT_MAX} bytes"), false));
        }
        let mut wanted = Kept::read(load)?;
        // Beside the deployment's own engine; its record, if this agent is killed, is nobody's.
        wanted.engine = format!("{TRIED}{}", wanted.engine);
        self.fits(&wanted).await?;
        let config = wanted.config(&self.engines.grounds());
        let limit = match body.timeout_ms {
            0 => config.source.process().map_or(END, |process| process.start_timeout()) + INFERENCE,
            said => Duration::from_millis(u64::from(said)),
        };
        let Some(engine) = self.engines.try_out(config) else {
            let says = "another probe of this engine still runs, or the agent is ending";
            return Err(failure(Cause::StillRuns, "", says, true));
        };
        let tried = tokio::select! {
            tried = timeout(limit, self.try_it(&engine, &wanted, body, &tell)) => match tried {
                Ok(tried) => tried,
                Err(_) => Err(self.failed(&engine, Some(limit)).await),
            },
            () = cancel.cancelled() => Err(cancelled()),
        };
        tell(Step { phase: "stopping".to_owned(), message: String::new() });
        self.engines.give_up(&engine);
        let mut changes = self.engines.changes();
        let gone = async {
            while self.engines.is_there(&engine.name) {
                if changes.changed().await.is_err() {
                    break;
                }
            }
        };
        if timeout(END, gone).await.is_err() {
            tracing::error!(engine = %engine.name, "an engine that was tried out does not end");
        }
        tried
    }

    async fn try_it(
        &self,
        engine: &Arc<Engine>,
        wanted: &Kept,
        body: &RuntimeProbe,
        tell: &impl Fn(Step),
    ) -> Result<RuntimeProbeReport, JobFailure> {
        let began = Instant::now();
        let mut changes = self.engines.changes();
        loop {
            let view = engine.view();
            tell(Step { phase: view.state.to_string(), message: view.cause.clone() });
            match view.state {
                EngineState::Ready => break,
                // A probe is one start: what crashes has failed.
                EngineState::Failed | EngineState::Stopped => return Err(self.failed(engine, None).await),
                _ if view.restarts > 0 => return Err(self.failed(engine, None).await),
                _ => {}
            }
            if changes.changed().await.is_err() {
                return Err(failure(Cause::Internal, "", "the engines are gone", true));
            }
        }
        let start_ms = milliseconds(began);
        let mut layers = evidence::layers(engine, &engine.view()).await;
        if layers.iter().any(|layer| !layer.ok) {
            return Err(failure_of(layers, engine, None));
        }
        let (began, way) = (Instant::now(), engine.way());
        let measured = match way.as_deref() {
            Some(Route::Http(http)) => infer(http, wanted, body).await,
            // What is built in has nothing to measure.
            _ => Ok(Measured::default()),
        };
        let measured = match measured {
            Ok(measured) => {
                let says = format!("{} events, {} bytes", measured.events, measured.bytes);
                layers.push(evidence::layer("inference", Ok(says), began));
                measured
            }
            Err(why) => {
                layers.push(evidence::layer("inference", Err(why), began));
                return Err(failure_of(layers, engine, None));
            }
        };
        let seconds = measured.rest.as_secs_f64();
        let rate = if seconds > 0.0 { f64::from(measured.events.saturating_sub(1)) / seconds } else { 0.0 };
        Ok(RuntimeProbeReport {
            layers,
            start_ms,
            first_token_ms: u64::try_from(measured.first_token.as_millis()).unwrap_or(u64::MAX),
            tokens_per_second_milli: (rate * 1000.0) as u64,
            peak_memory_bytes: self.peak_memory(engine).await,
            engine_version: String::new(),
        })
    }

    async fn failed(&self, engine: &Arc<Engine>, limit: Option<Duration>) -> JobFailure {
        let layers = evidence::layers(engine, &engine.view()).await;
        failure_of(layers, engine, limit)
    }

    /// Of the host's memory at its highest, and of the GPUs' as they were looked at last.
    async fn peak_memory(&self, engine: &Arc<Engine>) -> u64 {
        let of_engine = |gpu: &umbel_contracts::proto::node::GpuTelemetry| -> u64 {
            gpu.engines.iter().filter(|one| one.engine == engine.name).map(|one| one.bytes).sum()
        };
        let gpus: u64 = self.watch.telemetry().gpus.iter().map(of_engine).sum();
        let Some(leader) = engine.leader() else { return gpus };
        let read = spawn_blocking(move || memory::peak(&leader)).await;
        gpus + read.unwrap_or_default()
    }
}

fn failure_of(layers: Vec<Evidence>, engine: &Engine, limit: Option<Duration>) -> JobFailure {
    let view = engine.view();
    let ended = view.restarts > 0 || matches!(view.state, EngineState::Failed | EngineState::Restarting);
    let code = if ended { evidence::code(&view) } else { evidence::code_of_layers(&layers) };
    let missing = layers.iter().find(|layer| !layer.ok).map(|layer| layer.detail.clone());
    let mut says = missing.filter(|says| !says.is_empty()).unwrap_or(view.cause);
    if let Some(limit) = limit {
        says = format!("was not done within {} s: {says}", limit.as_secs());
    }
    JobFailure { output_tail: view.tail, layers, ..failure(code, "", says, false) }
}

/// One inference of the fixed input, as a stream.
async fn infer(http: &HttpRoute, wanted: &Kept, body: &RuntimeProbe) -> Result<Measured, String> {
    let input = if body.input.is_empty() { INPUT } else { &body.input };
    let tokens = if body.answer_tokens == 0 { TOKENS } else { body.answer_tokens.min(TOKENS_MAX) };
    let of_meaning = match &wanted.profile {
        Profile::LlamaServer(profile) => profile.embedding == Some(true) || profile.reranking == Some(true),
        _ => false,
    };
    let (path, asked) = if of_meaning {
        ("/v1/embeddings", serde_json::json!({ "model": wanted.model, "input": input }))
    } else {
        (
            "/v1/completions",
            serde_json::json!({ "model": wanted.model, "prompt": input, "max_tokens": tokens, "stream": true }),
        )
    };
    let asked = asked.to_string();
    let authorization =
        http.key.as_ref().map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    let request = format!(
        "POST {}{path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{authorization}Connection: close\r\n\r\n{asked}",
        http.base,
        http.pool.place(),
        asked.len()
    );
    let began = Instant::now();
    let (mut first, mut last) = (None, began);
    let mut measured = Measured::default();
    let (mut said, mut ended) = (Vec::new(), false);
    let status = ask_in_pieces(&http.pool, request.as_bytes(), INFERENCE, ANSWER_MAX, |piece| {
        let now = Instant::now();
        measured.bytes += piece.len();
        said.extend_from_slice(piece);
        let events = memchr::memmem::find_iter(piece, b"data: {").count();
        if events > 0 {
            first.get_or_insert(now);
            last = now;
            measured.events += u32::try_from(events).unwrap_or_default();
        }
    })
    .await?;
    if status != 200 {
        return Err(format!("an inference was answered with {status}"));
    }
    if of_meaning {
        let is_object = serde_json::from_slice::<serde_json::Map<_, serde_json::Value>>(&said).is_ok();
        return if is_object {
            Ok(measured)
        } else {
            Err("an embedding was not answered with JSON".to_owned())
        };
    }
    ended |= memchr::memmem::find(&said, b"[DONE]").is_some();
    if measured.events == 0 || !ended {
        return Err(format!("an inference brought {} events, and its end did not come", measured.events));
    }
    measured.first_token = first.map_or(Duration::ZERO, |first: Instant| first.duration_since(began));
    measured.rest = first.map_or(Duration::ZERO, |first| last.duration_since(first));
    Ok(measured)
}
