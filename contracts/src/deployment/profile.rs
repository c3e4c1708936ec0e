//! An engine's typed parameters.
//!
//! Owns which kinds of engine there are. Invariant: what an adapter takes has its type here; nothing else reaches an
//! engine's command line.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{canonical, digest};
use crate::settings::Fault;

/// Which adapter runs an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EngineKind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// llama.cpp's server.
    LlamaServer,
    /// A server that is already there.
    External,
    /// A program that is started for each request.
    Cli,
    /// Built in: answers that are made up.
    Sim,
}

impl EngineKind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Vllm, Self::Sglang, Self::LlamaServer, Self::External, Self::Cli, Self::Sim];

    /// Its spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::LlamaServer => "llama-server",
            Self::External => "external",
            Self::Cli => "cli",
            Self::Sim => "sim",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The parameters of one engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    kind: EngineKind,
    parameters: Map<String, Value>,
}

impl Profile {
    /// Takes the parameters of a kind of engine; `at` stands before the path of a fault.
    ///
    /// # Errors
    /// The first parameter that is wrong.
    pub fn read(kind: EngineKind, parameters: &Map<String, Value>, _at: &str) -> Result<Self, Fault> {
        Ok(Self { kind, parameters: parameters.clone() })
    }

    /// Which adapter they are for.
    #[must_use]
    pub const fn kind(&self) -> EngineKind {
        self.kind
    }

    /// Its canonical JSON, with the kind in it.
    #[must_use]
    pub fn canonical(&self) -> Vec<u8> {
        let mut all = self.parameters.clone();
        all.insert("kind".to_owned(), Value::String(self.kind.as_str().to_owned()));
        canonical(&all)
    }

    /// SHA-256 of its canonical JSON, in hexadecimal.
    #[must_use]
    pub fn digest(&self) -> String {
        digest(&self.canonical())
    }

    /// Whether the engine serves files of an artifact.
    #[must_use]
    pub const fn needs_artifact(&self) -> bool {
        matches!(self.kind, EngineKind::Vllm | EngineKind::Sglang | EngineKind::LlamaServer)
    }

    /// Whether the engine is given one file of it, not the folder.
    #[must_use]
    pub const fn needs_main_file(&self) -> bool {
        matches!(self.kind, EngineKind::LlamaServer)
    }

    /// Tokens that one of `capacity` requests at once can have, if the parameters say.
    #[must_use]
    pub fn context_tokens(&self, _capacity: u32) -> Option<u32> {
        None
    }

    /// Requests that the engine takes at once, if the parameters say.
    #[must_use]
    pub fn max_requests(&self) -> Option<u32> {
        None
    }

    /// GPUs that one replica computes on, if the parameters say.
    #[must_use]
    pub fn gpus(&self) -> Option<u32> {
        None
    }
}
