//! An engine as the boundary has it: its state and what it declares.
//!
//! Leaves what it is and how it does to the parent. Invariant: what is told is one reading of its view.

use umbel_contracts::causes::Cause;
use umbel_contracts::proto::node::{DeclaredEngine, EngineState, EngineStatus};

use super::Engine;
use crate::core::supervisor::Exit;

impl Engine {
    /// Its state, as the boundary has it.
    pub(crate) fn status(&self) -> EngineStatus {
        let view = self.view();
        EngineStatus {
            name: self.name.clone(),
            state: EngineState::from(view.state).into(),
            cause: view.cause,
            output_tail: view.tail,
            in_flight: self.in_flight(),
            profile_digest: self.in_force().profile_digest(),
            since_unix_ms: view.since.unix_ms(),
            restarts: view.restarts,
            process_since_unix_ms: self.lock().process_since_unix_ms,
            code: view.code.map_or("", Cause::as_str).to_owned(),
            exit_status: match view.exit {
                Some(Exit::Code(code)) => Some(code),
                _ => None,
            },
            exit_signal: match view.exit {
                Some(Exit::Signal(signal)) => u32::try_from(signal).ok(),
                _ => None,
            },
        }
    }

    /// What it is, as the boundary has it.
    pub(crate) fn declared(&self) -> DeclaredEngine {
        let config = self.in_force();
        let profile_digest = config.profile_digest();
        let gpu_uuids = config.source.process().map(|process| process.gpus.clone()).unwrap_or_default();
        let origin = config.origin.unwrap_or_default();
        DeclaredEngine {
            kind: config.source.kind().to_owned(),
            name: config.name,
            model: config.model,
            aliases: config.aliases,
            category: config.category,
            capacity: config.capacity,
            max_context_tokens: config.max_context_tokens,
            long_context_threshold_tokens: config.long_context_threshold_tokens,
            long_context_capacity: config.long_context_capacity,
            status: Some(self.status()),
            deployment: origin.deployment,
            replica: origin.replica,
            shard_index: origin.shard_index,
            shard_count: origin.shard_count,
            gpu_uuids,
            artifact_digest: origin.artifact_digest,
            profile_digest,
        }
    }
}
