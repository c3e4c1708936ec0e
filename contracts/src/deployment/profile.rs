//! The profile of an engine: its typed parameters, one struct an adapter, and the checks that need no host.
//!
//! Owns: which keys a profile has, what each may hold, what may never stand in one, the canonical form and its digest.
//! Leaves to others: what a key becomes on a command line, and whether it fits a host (the node's adapters).
//! Invariant: a `Profile` that exists holds nothing unknown and nothing out of bounds; two that mean the same have the
//! same canonical bytes; no value of one is an address, a program, a variable or an option's name.
//!
//! Keys are the engine's own names of its options with `_` for `-`, so its documentation can be used as it is; the few
//! that are not options (`start_timeout`) are Umbel's.

mod keys;
mod kinds;
mod refused;
#[cfg(test)]
mod tests;
mod walk;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use keys::{CliProfile, ExternalProfile, LlamaServerProfile, SglangProfile, SimProfile, VllmProfile};
pub use kinds::{Counts, Figure, Holds, Key, NumberOrWord};
pub(super) use walk::{holds, short};

use super::{canonical, digest};
use crate::settings::Fault;

/// Largest profile in bytes of canonical JSON: it travels in a job.
pub const PROFILE_BYTES_MAX: usize = 8 * 1024;

/// The adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EngineKind {
    /// vLLM's OpenAI-compatible server.
    Vllm,
    /// SGLang's server.
    Sglang,
    /// llama.cpp's server.
    LlamaServer,
    /// An OpenAI-compatible server that is already there.
    External,
    /// A program of the node's own file, started once a request.
    Cli,
    /// Built in: answers by rule.
    Sim,
}

/// The typed parameters of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Profile {
    /// For vLLM.
    Vllm(VllmProfile),
    /// For SGLang.
    Sglang(SglangProfile),
    /// For llama-server.
    LlamaServer(LlamaServerProfile),
    /// For a server that is already there.
    External(ExternalProfile),
    /// For a program started once a request.
    Cli(CliProfile),
    /// For the built-in engine.
    Sim(SimProfile),
}

impl EngineKind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Vllm, Self::Sglang, Self::LlamaServer, Self::External, Self::Cli, Self::Sim];

    /// The word in documents and on the wire.
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

    /// The kind of that word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// Whether it reads a model's files: external servers, programs and the built-in engine do not.
    #[must_use]
    pub const fn needs_artifact(self) -> bool {
        matches!(self, Self::Vllm | Self::Sglang | Self::LlamaServer)
    }

    /// Whether one of the files is the model (a GGUF file), not the whole folder.
    #[must_use]
    pub const fn needs_main_file(self) -> bool {
        matches!(self, Self::LlamaServer)
    }

    /// Why an engine of this kind cannot serve a model under a name; as an alias, if `alias`.
    #[must_use]
    pub fn refuses_name(self, name: &str, alias: bool) -> Option<&'static str> {
        if alias && !self.is_started_with_aliases() {
            return None;
        }
        match self {
            Self::Vllm | Self::Sglang if name.starts_with('-') => {
                Some("the engine would take what begins with '-' for an option")
            }
            Self::LlamaServer if name.contains(',') => {
                Some("the engine would take what is behind the comma for another name")
            }
            _ => None,
        }
    }

    /// Whether it is told its model's aliases when it is started; for others the node and the edge name the model itself.
    #[must_use]
    pub const fn is_started_with_aliases(self) -> bool {
        matches!(self, Self::Vllm)
    }

    /// Files of which one has to be at the top of a model's folder; empty for those that are not given a folder.
    #[must_use]
    pub const fn folder_needs(self) -> &'static [&'static str] {
        match self {
            // The second is Mistral's own form of the first.
            Self::Vllm | Self::Sglang => &["config.json", "params.json"],
            _ => &[],
        }
    }

    /// Whether the node starts a process for it that lives on.
    #[must_use]
    pub const fn has_process(self) -> bool {
        self.needs_artifact()
    }

    /// The keys that a profile of this kind may have.
    #[must_use]
    pub const fn keys(self) -> &'static [Key] {
        match self {
            Self::Vllm => VllmProfile::KEYS,
            Self::Sglang => SglangProfile::KEYS,
            Self::LlamaServer => LlamaServerProfile::KEYS,
            Self::External => ExternalProfile::KEYS,
            Self::Cli => CliProfile::KEYS,
            Self::Sim => SimProfile::KEYS,
        }
    }
}

impl std::fmt::Display for EngineKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for EngineKind {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        Self::parse(word).ok_or_else(|| format!("must be one of {}", Self::ALL.map(Self::as_str).join(", ")))
    }
}

/// A key's path below its table's.
fn join(at: &str, key: &str) -> String {
    if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") }
}

impl Profile {
    /// Reads the profile of an engine of that kind; `at` is the path of the table, for errors.
    ///
    /// # Errors
    /// The first key that is unknown, may not stand in a profile, or does not hold what it may; or two that
    /// contradict each other.
    pub fn read(kind: EngineKind, table: &Map<String, Value>, at: &str) -> Result<Self, Fault> {
        walk::check(kind, table, at)?;
        let value = Value::Object(table.clone());
        let read = match kind {
            EngineKind::Vllm => serde_json::from_value(value).map(Self::Vllm),
            EngineKind::Sglang => serde_json::from_value(value).map(Self::Sglang),
            EngineKind::LlamaServer => serde_json::from_value(value).map(Self::LlamaServer),
            EngineKind::External => serde_json::from_value(value).map(Self::External),
            EngineKind::Cli => serde_json::from_value(value).map(Self::Cli),
            EngineKind::Sim => serde_json::from_value(value).map(Self::Sim),
        };
        let profile = read.map_err(|error| Fault::new(at, format!("cannot be read: {error}")))?;
        walk::rules(&profile, at)?;
        if profile.canonical().len() > PROFILE_BYTES_MAX {
            return Err(Fault::new(at, format!("is above {PROFILE_BYTES_MAX} bytes")));
        }
        Ok(profile)
    }

    /// Reads what [`Profile::canonical`] wrote.
    ///
    /// # Errors
    /// As [`Profile::read`], and if the bytes are no such JSON.
    pub fn from_canonical(bytes: &[u8], at: &str) -> Result<Self, Fault> {
        let no_object = || Fault::new(at, "is not the JSON object of a profile");
        if bytes.len() > PROFILE_BYTES_MAX {
            return Err(Fault::new(at, format!("is above {PROFILE_BYTES_MAX} bytes")));
        }
        let mut table: Map<String, Value> = serde_json::from_slice(bytes).map_err(|_| no_object())?;
        let word = table.remove("kind");
        let kind = word.as_ref().and_then(Value::as_str).and_then(EngineKind::parse);
        let kind = kind.ok_or_else(|| Fault::new(join(at, "kind"), "is no kind of engine"))?;
        Self::read(kind, &table, at)
    }

    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> EngineKind {
        match self {
            Self::Vllm(_) => EngineKind::Vllm,
            Self::Sglang(_) => EngineKind::Sglang,
            Self::LlamaServer(_) => EngineKind::LlamaServer,
            Self::External(_) => EngineKind::External,
            Self::Cli(_) => EngineKind::Cli,
            Self::Sim(_) => EngineKind::Sim,
        }
    }

    /// Whether the engine serves files of an artifact.
    #[must_use]
    pub const fn needs_artifact(&self) -> bool {
        self.kind().needs_artifact()
    }

    /// Whether the engine is given one file of it, not the folder.
    #[must_use]
    pub const fn needs_main_file(&self) -> bool {
        self.kind().needs_main_file()
    }

    /// What it says, by key.
    #[must_use]
    pub fn table(&self) -> Map<String, Value> {
        fn object(profile: &impl Serialize) -> Map<String, Value> {
            match serde_json::to_value(profile) {
                Ok(Value::Object(table)) => table,
                // Structs of optional scalars have no other form.
                _ => Map::new(),
            }
        }
        match self {
            Self::Vllm(profile) => object(profile),
            Self::Sglang(profile) => object(profile),
            Self::LlamaServer(profile) => object(profile),
            Self::External(profile) => object(profile),
            Self::Cli(profile) => object(profile),
            Self::Sim(profile) => object(profile),
        }
    }

    /// The files that it names, by key: beside the model's one file, or in its folder.
    #[must_use]
    pub fn files(&self) -> Vec<(&'static str, String)> {
        let table = self.table();
        let files = self.kind().keys().iter().filter(|key| key.holds == Holds::File);
        files.filter_map(|key| Some((key.name, table.get(key.name)?.as_str()?.to_owned()))).collect()
    }

    /// The one form of what it says: JSON with its kind, keys in order, no blanks.
    #[must_use]
    pub fn canonical(&self) -> Vec<u8> {
        let mut table = self.table();
        table.insert("kind".to_owned(), Value::String(self.kind().as_str().to_owned()));
        canonical(&Value::Object(table))
    }

    /// SHA-256 of [`Profile::canonical`], in hex.
    #[must_use]
    pub fn digest(&self) -> String {
        digest(&self.canonical())
    }

    /// Tokens that one request can have if `capacity` run at once, where the profile says so.
    #[must_use]
    pub fn context_tokens(&self, capacity: u32) -> Option<u32> {
        match self {
            Self::Vllm(profile) => profile.max_model_len,
            Self::Sglang(profile) => profile.context_length,
            // It divides its context by its slots, unless they share it.
            Self::LlamaServer(profile) => profile.ctx_size.map(|all| match profile.kv_unified {
                Some(true) => all,
                _ => all / capacity.max(1),
            }),
            Self::External(_) | Self::Cli(_) | Self::Sim(_) => None,
        }
    }

    /// Requests that the engine takes at once at most, where the profile says so: a capacity above makes no sense.
    #[must_use]
    pub fn max_requests(&self) -> Option<u32> {
        match self {
            Self::Vllm(profile) => profile.max_num_seqs,
            Self::Sglang(profile) => profile.max_running_requests,
            Self::LlamaServer(_) | Self::External(_) | Self::Cli(_) | Self::Sim(_) => None,
        }
    }

    /// How many copies of its files a replica's engine holds in the memory of its GPUs; `None` where what it holds there is not
    /// what the files take: other number formats, weights in the host's memory, weights that are made up.
    #[must_use]
    pub fn copies(&self) -> Option<u32> {
        let as_stored = |format: Option<&str>| !matches!(format, Some("dummy" | "bitsandbytes"));
        match self {
            Self::Vllm(profile) => {
                let stored = profile.quantization.is_none() && as_stored(profile.load_format.as_deref());
                let there = profile.cpu_offload_gb.is_none();
                (stored && there).then(|| profile.data_parallel_size.unwrap_or(1))
            }
            Self::Sglang(profile) => {
                let stored = profile.quantization.is_none() && as_stored(profile.load_format.as_deref());
                stored.then(|| profile.dp_size.unwrap_or(1))
            }
            Self::LlamaServer(profile) => {
                let experts = profile.n_cpu_moe.is_none() && profile.cpu_moe.is_none();
                let divided = profile.split_mode.as_deref() != Some("none");
                let layers = match &profile.gpu_layers {
                    None => true,
                    Some(NumberOrWord::Word(word)) => word == "all",
                    Some(NumberOrWord::Number(_)) => false,
                };
                (experts && divided && layers).then_some(1)
            }
            Self::External(_) | Self::Cli(_) | Self::Sim(_) => None,
        }
    }

    /// Whether the model is divided over as many GPUs as a replica gets.
    #[must_use]
    pub fn divides(&self) -> bool {
        let engine = matches!(self, Self::Vllm(_) | Self::Sglang(_) | Self::LlamaServer(_));
        engine && self.gpus().is_none()
    }

    /// GPUs of a whole replica, where the profile says how the model is divided.
    #[must_use]
    pub fn gpus(&self) -> Option<u32> {
        let product = |parts: [Option<u32>; 3]| {
            let said = parts.iter().any(Option::is_some);
            said.then(|| parts.iter().map(|part| part.unwrap_or(1)).product())
        };
        match self {
            Self::Vllm(profile) => product([
                profile.tensor_parallel_size,
                profile.pipeline_parallel_size,
                profile.data_parallel_size,
            ]),
            Self::Sglang(profile) => product([profile.tp_size, profile.pp_size, profile.dp_size]),
            Self::LlamaServer(_) | Self::External(_) | Self::Cli(_) | Self::Sim(_) => None,
        }
    }
}
