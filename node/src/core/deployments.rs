//! What a deployment's engine is on this node: taken from the edge's request, kept, and made an engine of.
//!
//! Owns every check of a request that needs only the request, and the form that is kept; leaves files, programs, ports and
//! GPUs of the host to the adapters and `shell/deployments`. Invariant: what is kept names no path, program or address of
//! this host: those come from the node's own file each time an engine is made of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use umbel_contracts::{
    artifact::{check_path, check_repository, check_revision},
    causes::Cause,
    deployment::{self, EngineKind, Profile},
    proto::node::{DeploymentLoad, EngineArtifact},
    settings::CAPACITY_MAX,
};

mod list;

pub(crate) use list::{OfName, Taken, taken, without};

use crate::config::{
    CLI_TIMEOUT, Config, Endpoint, EngineConfig, EngineSource, Origin, ProcessSource, Programs, STALL,
    external_category, is_gpu, program_key,
};

/// Bytes of a model's name, and how many others it may have: as in the node's own file.
const MODEL_MAX: usize = 200;
const ALIASES_MAX: usize = 16;
/// GPUs of one node.
const GPUS_MAX: usize = 64;
/// Bytes of a digest in hexadecimal.
const DIGEST: usize = 64;

/// Why an engine cannot be started here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: Cause,
    /// The field that it is about: `profile.max_model_len`; empty where there is none.
    pub(crate) path: String,
    /// What is wrong and what to do.
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(code: Cause, path: &str, message: impl Into<String>) -> Self {
        Self { code, path: path.to_owned(), message: message.into() }
    }
}

/// One engine of a deployment, as it stands on this node's disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// `DEPLOYMENT.rN`, with several shards `DEPLOYMENT.rN.sM`.
    pub(crate) engine: String,
    pub(crate) origin: Origin,
    pub(crate) profile: Profile,
    pub(crate) model: String,
    #[serde(default)]
    pub(crate) aliases: Vec<String>,
    pub(crate) category: String,
    #[serde(default)]
    pub(crate) artifact: Option<KeptArtifact>,
    #[serde(default)]
    pub(crate) gpus: Vec<String>,
    pub(crate) capacity: u32,
    #[serde(default)]
    pub(crate) max_context_tokens: u32,
    #[serde(default)]
    pub(crate) long_context_threshold_tokens: u32,
    #[serde(default)]
    pub(crate) long_context_capacity: u32,
}

/// Where its files are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptArtifact {
    pub(crate) repository: String,
    pub(crate) revision: String,
    pub(crate) digest: String,
    /// A name of the node's own list.
    pub(crate) root: String,
    /// Below the root.
    pub(crate) path: String,
    /// Of a model that is one file: which.
    #[serde(default)]
    pub(crate) main_file: String,
}

/// What engines of deployments need of the node's own file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Grounds {
    pub(crate) programs: Programs,
    pub(crate) endpoints: BTreeMap<String, Endpoint>,
    pub(crate) roots: BTreeMap<String, PathBuf>,
    pub(crate) allow_sim: bool,
}

impl Grounds {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            programs: config.programs.clone(),
            endpoints: config.endpoints.clone(),
            roots: config.artifacts.roots.clone(),
            allow_sim: config.allow_sim,
        }
    }

    /// The kinds of engines that this node can run, as far as its file says.
    pub(crate) fn kinds(&self) -> Vec<EngineKind> {
        let can = |kind: &EngineKind| match kind {
            EngineKind::Vllm | EngineKind::Sglang | EngineKind::LlamaServer => {
                self.programs.of(*kind).is_some()
            }
            EngineKind::External => true,
            EngineKind::Cli => !self.programs.cli.is_empty(),
            EngineKind::Sim => self.allow_sim,
        };
        EngineKind::ALL.into_iter().filter(can).collect()
    }
}

fn invalid(path: &str, says: impl Into<String>) -> Refusal {
    Refusal::new(Cause::Invalid, path, says)
}

impl Kept {
    /// Checks a request.
    ///
    /// # Errors
    /// The first field that is wrong, by its path.
    pub(crate) fn read(load: &DeploymentLoad) -> Result<Self, Refusal> {
        let Some(kind) = EngineKind::parse(&load.kind) else {
            let kinds = EngineKind::ALL.map(EngineKind::as_str).join(", ");
            return Err(invalid(
                "kind",
                format!("is no kind of engine that this agent knows; those are {kinds}"),
            ));
        };
        named(load)?;
        let profile = Profile::from_canonical(&load.profile_json, "profile")
            .map_err(|fault| Refusal::new(Cause::Invalid, &fault.path, fault.message))?;
        if profile.kind() != kind {
            return Err(invalid("profile", format!("is one of {}, not of {kind}", profile.kind())));
        }
        if profile.canonical() != load.profile_json || profile.digest() != load.profile_digest {
            return Err(invalid("profile_digest", "is not the SHA-256 of the profile in its canonical form"));
        }
        models(load)?;
        figures(load, &profile)?;
        let artifact = match (&load.artifact, kind.needs_artifact()) {
            (Some(artifact), true) => Some(files(artifact, kind)?),
            (None, true) => return Err(invalid("artifact", format!("is missing: {kind} serves files"))),
            (Some(_), false) => {
                return Err(invalid("artifact", format!("is not for {kind}: it serves no files")));
            }
            (None, false) => None,
        };
        gpus(&load.gpu_uuids, kind)?;
        let category = category(load, kind)?;
        Ok(Self {
            engine: load.engine.clone(),
            origin: Origin {
                deployment: load.deployment.clone(),
                replica: load.replica,
                shard_index: load.shard_index.max(1),
                shard_count: load.shard_count.max(1),
                profile_digest: load.profile_digest.clone(),
                artifact_digest: artifact.as_ref().map(|files| files.digest.clone()).unwrap_or_default(),
            },
            profile,
            model: load.model.clone(),
            aliases: load.aliases.clone(),
            category,
            artifact,
            gpus: load.gpu_uuids.clone(),
            capacity: load.capacity,
            max_context_tokens: load.max_context_tokens,
            long_context_threshold_tokens: load.long_context_threshold_tokens,
            long_context_capacity: load.long_context_capacity,
        })
    }

    /// The folder of its files, where the node's file has the root.
    pub(crate) fn folder(&self, grounds: &Grounds) -> Option<PathBuf> {
        let artifact = self.artifact.as_ref()?;
        Some(grounds.roots.get(&artifact.root)?.join(&artifact.path))
    }

    /// The engine that it is on this node now.
    pub(crate) fn config(&self, grounds: &Grounds) -> EngineConfig {
        let source = self.source(grounds).unwrap_or_else(|why| EngineSource::Missing {
            kind: self.profile.kind().as_str().to_owned(),
            why,
        });
        let category = match &source {
            EngineSource::External { authority, .. } if self.category.is_empty() => {
                external_category(authority)
            }
            EngineSource::Cli { .. } => "cli",
            _ if self.category.is_empty() => "local_inference",
            _ => &self.category,
        };
        EngineConfig {
            name: self.engine.clone(),
            category: category.to_owned(),
            source,
            model: self.model.clone(),
            aliases: self.aliases.clone(),
            capacity: self.capacity,
            max_context_tokens: self.max_context_tokens,
            long_context_threshold_tokens: self.long_context_threshold_tokens,
            long_context_capacity: self.long_context_capacity,
            origin: Some(self.origin.clone()),
        }
    }

    fn source(&self, grounds: &Grounds) -> Result<EngineSource, String> {
        let millis = |said: Option<umbel_contracts::config::HumanDuration>, otherwise: Duration| {
            said.map_or(otherwise, Into::into)
        };
        match &self.profile {
            Profile::Sim(_) if !grounds.allow_sim => Err(not_here(EngineKind::Sim, "true", &[])),
            Profile::Sim(sim) => Ok(EngineSource::Sim {
                first_token_delay: millis(sim.first_token_delay, Duration::ZERO),
                token_delay: millis(sim.token_delay, Duration::ZERO),
                tokens: sim.tokens.unwrap_or(16),
            }),
            Profile::External(external) => {
                let name = external.endpoint.as_deref().unwrap_or_default();
                let here = || grounds.endpoints.keys().map(String::as_str).collect::<Vec<_>>();
                let endpoint = grounds.endpoints.get(name);
                let endpoint = endpoint.ok_or_else(|| not_here(EngineKind::External, name, &here()))?;
                Ok(EngineSource::External {
                    authority: endpoint.authority.clone(),
                    base_path: endpoint.base_path.clone(),
                })
            }
            Profile::Cli(cli) => {
                let name = cli.program.as_deref().unwrap_or_default();
                let here = || grounds.programs.cli.keys().map(String::as_str).collect::<Vec<_>>();
                let program = grounds.programs.cli.get(name);
                let program = program.ok_or_else(|| not_here(EngineKind::Cli, name, &here()))?.clone();
                Ok(EngineSource::Cli { program, timeout: millis(cli.timeout, CLI_TIMEOUT) })
            }
            Profile::Vllm(_) | Profile::Sglang(_) | Profile::LlamaServer(_) => {
                let artifact = self.artifact.as_ref().ok_or("it has no files")?;
                let folder = self.folder(grounds).ok_or_else(|| {
                    let here: Vec<_> = grounds.roots.keys().map(String::as_str).collect();
                    format!(
                        "the node's file has no artifact root \"{}\" ([artifacts.roots]); it has: {}",
                        artifact.root,
                        listed(&here)
                    )
                })?;
                let one_file = self.profile.needs_main_file();
                Ok(EngineSource::Process(Box::new(ProcessSource {
                    profile: self.profile.clone(),
                    model: if one_file { folder.join(&artifact.main_file) } else { folder },
                    port: 0,
                    gpus: self.gpus.clone(),
                    stall_timeout: STALL,
                })))
            }
        }
    }

    /// Whether what runs as this can go on as the other: what has a process keeps what it was started with.
    pub(crate) fn goes_on_as(&self, other: &Self) -> bool {
        !self.profile.kind().has_process()
            || (self.profile == other.profile
                && self.artifact == other.artifact
                && self.gpus == other.gpus
                && self.model == other.model)
    }
}

fn not_here(kind: EngineKind, name: &str, here: &[&str]) -> String {
    let key = program_key(kind);
    if kind == EngineKind::Sim {
        return format!("{key} is not {name} in the node's own file: engines of kind sim make answers up");
    }
    format!("the node's own file has no \"{name}\" in [{key}]; it has: {}", listed(here))
}

fn listed(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Its names say what it is.
fn named(load: &DeploymentLoad) -> Result<(), Refusal> {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let name = &load.deployment;
    if name.is_empty()
        || name.len() > deployment::NAME_BYTES_MAX
        || !name.chars().all(legal)
        || name.starts_with('-')
    {
        return Err(invalid("deployment", "is not the name of a deployment"));
    }
    let rest = load.engine.strip_prefix(name.as_str()).unwrap_or_default();
    let replica = format!(".r{}", load.replica);
    let of_shard = |rest: &str| {
        rest.is_empty()
            || rest.strip_prefix(".s").is_some_and(|shard| shard.len() <= 3 && shard.parse::<u32>().is_ok())
    };
    // It names files of the state directory.
    if load.replica == 0 || !rest.strip_prefix(replica.as_str()).is_some_and(of_shard) {
        return Err(invalid("engine", format!("must be {name}{replica}, or {name}{replica}.sM of a shard")));
    }
    if load.shard_index > load.shard_count.max(1) {
        return Err(invalid("shard_index", "must be at most shard_count"));
    }
    Ok(())
}

fn models(load: &DeploymentLoad) -> Result<(), Refusal> {
    let legal = |name: &str| {
        !name.is_empty() && name.len() <= MODEL_MAX && !name.chars().any(|c| c.is_control() || c == ' ')
    };
    if !legal(&load.model) {
        return Err(invalid("model", format!("a model's name has 1 to {MODEL_MAX} bytes, without spaces")));
    }
    if load.aliases.len() > ALIASES_MAX {
        return Err(invalid("aliases", format!("there are more than {ALIASES_MAX}")));
    }
    let mut seen = BTreeSet::from([load.model.as_str()]);
    for alias in &load.aliases {
        if !legal(alias) || !seen.insert(alias) {
            let says =
                format!("\"{alias}\" is there twice, or no name of 1 to {MODEL_MAX} bytes without spaces");
            return Err(invalid("aliases", says));
        }
    }
    Ok(())
}

fn figures(load: &DeploymentLoad, profile: &Profile) -> Result<(), Refusal> {
    let (capacity, long) = (load.capacity, load.long_context_capacity);
    let (max, threshold) = (load.max_context_tokens, load.long_context_threshold_tokens);
    if !(1..=CAPACITY_MAX).contains(&capacity) {
        return Err(invalid("capacity", format!("must be 1 to {CAPACITY_MAX}, not {capacity}")));
    }
    if let Some(most) = profile.max_requests().filter(|most| *most < capacity) {
        return Err(invalid("capacity", format!("the engine takes {most} requests at once by its profile")));
    }
    if long > capacity {
        return Err(invalid("long_context_capacity", format!("must be at most capacity ({capacity})")));
    }
    if (long > 0) != (threshold > 0) {
        let says = "long_context_threshold_tokens and long_context_capacity need each other";
        return Err(invalid("long_context_threshold_tokens", says));
    }
    if max > 0 && threshold >= max {
        return Err(invalid("long_context_threshold_tokens", "must be below max_context_tokens"));
    }
    if let Some(tokens) = profile.context_tokens(capacity).filter(|tokens| *tokens < max) {
        let says = format!("the engine takes {tokens} tokens a request by its profile");
        return Err(Refusal::new(Cause::Context, "max_context_tokens", says));
    }
    Ok(())
}

fn files(artifact: &EngineArtifact, kind: EngineKind) -> Result<KeptArtifact, Refusal> {
    let at = |key: &str, checked: Result<(), String>| {
        checked.map_err(|says| invalid(&format!("artifact.{key}"), says))
    };
    at("repository", check_repository(&artifact.repository))?;
    at("revision", check_revision(&artifact.revision))?;
    at("path", check_path(&artifact.path))?;
    let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    if artifact.digest.len() != DIGEST || !artifact.digest.chars().all(hex) {
        return Err(invalid("artifact.digest", "must be 64 lower-case hexadecimal digits"));
    }
    match (kind.needs_main_file(), artifact.main_file.is_empty()) {
        (true, true) => {
            return Err(invalid("artifact.main_file", format!("is missing: {kind} serves one GGUF file")));
        }
        (true, false) => at("main_file", check_path(&artifact.main_file))?,
        (false, _) => {}
    }
    Ok(KeptArtifact {
        repository: artifact.repository.clone(),
        revision: artifact.revision.clone(),
        digest: artifact.digest.clone(),
        root: artifact.root.clone(),
        path: artifact.path.clone(),
        main_file: artifact.main_file.clone(),
    })
}

fn gpus(uuids: &[String], kind: EngineKind) -> Result<(), Refusal> {
    if uuids.len() > GPUS_MAX || uuids.iter().any(|uuid| !is_gpu(uuid)) {
        return Err(invalid("gpu_uuids", format!("must be up to {GPUS_MAX} UUIDs of GPUs")));
    }
    if uuids.iter().collect::<BTreeSet<_>>().len() != uuids.len() {
        return Err(invalid("gpu_uuids", "a GPU is there twice"));
    }
    if !uuids.is_empty() && !kind.has_process() {
        return Err(invalid("gpu_uuids", format!("are not for {kind}: it has no process here")));
    }
    Ok(())
}

fn category(load: &DeploymentLoad, kind: EngineKind) -> Result<String, Refusal> {
    match (load.category.as_str(), kind) {
        ("" | "cli", EngineKind::Cli) => Ok("cli".to_owned()),
        ("cli", _) | (_, EngineKind::Cli) => {
            Err(invalid("category", "\"cli\" is for engines of kind cli, and only for those"))
        }
        ("" | "local_inference" | "api", _) => Ok(load.category.clone()),
        _ => Err(invalid("category", "must be local_inference, api or cli")),
    }
}

/// Two engines of which at least one is given GPUs: a GPU that both would have.
pub(crate) fn shared_gpu<'a>(
    wanted: &'a [String],
    others: impl IntoIterator<Item = (&'a str, &'a [String])>,
) -> Option<(&'a str, &'a str)> {
    others.into_iter().find_map(|(engine, gpus)| {
        wanted.iter().find(|uuid| gpus.contains(uuid)).map(|uuid| (uuid.as_str(), engine))
    })
}

#[cfg(test)]
mod tests;
