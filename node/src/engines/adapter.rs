//! From what an engine shall be to a process: checks of the host, program, arguments, environment, files.
//!
//! Owns what all engines that have a process share, and which adapter an engine is for; leaves the names of one engine's
//! options to its own file, and starting it to `shell`. Invariants: it listens on loopback; its key is in its environment
//! or in a file of mode 0600, never in its arguments; whatever stands in a profile is one argument; no shell comes between.

use std::{
    ffi::OsString,
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use serde_json::Value;
use umbel_contracts::{
    causes::Cause,
    config::ByteSize,
    deployment::{EngineKind, profile::Holds},
};

use super::{llama_server, model_files, sglang, vllm};
use crate::{
    config::{Accelerator, EngineConfig, EngineSource, ProcessSource, Programs, program_key},
    core::deployments::Refusal,
};

/// What adapters know of the host.
#[derive(Debug, Clone)]
pub(crate) struct HostFacts {
    pub(crate) programs: Programs,
    pub(crate) accelerator: Accelerator,
}

/// What to start.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    /// The whole environment.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// Written with mode 0600 before the start.
    pub(crate) files: Vec<(PathBuf, Vec<u8>)>,
}

/// One start: what an adapter makes arguments of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start<'a> {
    pub(super) config: &'a EngineConfig,
    pub(super) process: &'a ProcessSource,
    pub(super) address: SocketAddr,
    /// A file with its key, for engines that take it from one.
    pub(super) key_file: &'a Path,
    /// It computes on no GPU.
    pub(super) on_cpu: bool,
}

/// Checks an engine against this host, in milliseconds. Blocks on files.
///
/// # Errors
/// What is missing or does not fit, and what to do.
pub(crate) fn validate(config: &EngineConfig, facts: &HostFacts) -> Result<(), Refusal> {
    let process = match &config.source {
        EngineSource::Process(process) => process,
        EngineSource::Missing { why, .. } => return Err(Refusal::new(Cause::NotAllowed, "kind", why)),
        EngineSource::Cli { program, .. } => return is_program(program, EngineKind::Cli),
        EngineSource::Sim { .. } | EngineSource::External { .. } => return Ok(()),
    };
    let kind = process.kind();
    let Some(program) = facts.programs.of(kind) else {
        let key = program_key(kind);
        let says = format!("{key} is not set: name the {kind} program there, in the node's own file");
        return Err(Refusal::new(Cause::ProgramMissing, "kind", says));
    };
    is_program(program, kind)?;
    names(config, kind)?;
    match kind {
        EngineKind::LlamaServer => model_files::check_file(&process.model)?,
        _ => model_files::check_folder(&process.model, kind.folder_needs())?,
    }
    files_of_profile(process)?;
    divided_over_gpus(config, process)?;
    context(config, process)?;
    if process.port != 0 && TcpListener::bind((Ipv4Addr::LOCALHOST, process.port)).is_err() {
        let says = "its port is in use by another process: end that one, or set port = 0 to take a free one";
        return Err(Refusal::new(Cause::PortTaken, "port", says));
    }
    Ok(())
}

pub(crate) fn is_program(program: &Path, kind: EngineKind) -> Result<(), Refusal> {
    let key = program_key(kind);
    let refusal = |says: String| {
        Refusal::new(Cause::ProgramMissing, "kind", format!("{key} {}{says}", program.display()))
    };
    let facts = std::fs::metadata(program).map_err(|error| refusal(format!(": {error}")))?;
    if !facts.is_file() || facts.permissions().mode() & 0o111 == 0 {
        return Err(refusal(" is not a program that can be run".to_owned()));
    }
    Ok(())
}

/// Names that an engine would take for something else.
fn names(config: &EngineConfig, kind: EngineKind) -> Result<(), Refusal> {
    let names = std::iter::once((&config.model, false)).chain(config.aliases.iter().map(|name| (name, true)));
    for (name, alias) in names {
        if let Some(why) = kind.refuses_name(name, alias) {
            let path = if alias { "aliases" } else { "model" };
            let says = format!("\"{name}\" cannot be a model's name for {kind}: {why}");
            return Err(Refusal::new(Cause::Invalid, path, says));
        }
    }
    Ok(())
}

fn files_of_profile(process: &ProcessSource) -> Result<(), Refusal> {
    for (name, file) in process.profile.files() {
        if !beside(process, &file).is_file() {
            let says = format!("\"{file}\" is not among the model's files");
            return Err(Refusal::new(Cause::ArtifactMissing, &format!("profile.{name}"), says));
        }
    }
    Ok(())
}

fn divided_over_gpus(config: &EngineConfig, process: &ProcessSource) -> Result<(), Refusal> {
    let shards = config.origin.as_ref().map_or(1, |origin| origin.shard_count.max(1));
    let Some(wanted) = process.profile.gpus() else { return Ok(()) };
    let given = u32::try_from(process.gpus.len()).unwrap_or(u32::MAX).saturating_mul(shards);
    if given == 0 || given == wanted {
        return Ok(());
    }
    let says = format!("the profile divides the model over {wanted} GPUs, and {given} are given");
    Err(Refusal::new(Cause::Invalid, "profile", says))
}

fn context(config: &EngineConfig, process: &ProcessSource) -> Result<(), Refusal> {
    let Some(model) = model_files::context_tokens(process) else { return Ok(()) };
    if let Some(said) = process.profile.context_tokens(config.capacity).filter(|said| *said > model) {
        let key = match process.kind() {
            EngineKind::Vllm => "profile.max_model_len",
            EngineKind::Sglang => "profile.context_length",
            _ => "profile.ctx_size",
        };
        let says = format!("{said} tokens a request are more than the model's context of {model}");
        return Err(Refusal::new(Cause::Context, key, says));
    }
    // A node's own file may say more than is true of it; a deployment may not.
    if config.origin.is_some() && config.max_context_tokens > model {
        let says =
            format!("{} tokens are more than the model's context of {model}", config.max_context_tokens);
        return Err(Refusal::new(Cause::Context, "max_context_tokens", says));
    }
    Ok(())
}

/// The address that it shall listen on.
///
/// # Errors
/// If no port is free.
pub(crate) fn address(config: &EngineConfig) -> io::Result<SocketAddr> {
    let port = config.source.process().map_or(0, |process| process.port);
    if port != 0 {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    // Free now; if another process takes it before the engine does, the engine ends and is started again.
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// What to start. `folder` is the engines' own.
///
/// # Errors
/// If this kind of engine has no process, or its program is not named.
pub(crate) fn prepare(
    config: &EngineConfig,
    facts: &HostFacts,
    address: SocketAddr,
    key: &str,
    folder: &Path,
) -> Result<Command, String> {
    let process = config.source.process().ok_or("this kind of engine has no process")?;
    let kind = process.kind();
    let program =
        facts.programs.of(kind).ok_or_else(|| format!("{} is not set", program_key(kind)))?.to_owned();
    // A deployment that was given no GPU computes on none; an engine of the file may see all there are.
    let none = config.origin.is_some() && process.gpus.is_empty();
    let key_file = folder.join(format!("{}.key.yaml", config.name));
    let on_cpu = none || facts.accelerator == Accelerator::Cpu;
    let start = Start { config, process, address, key_file: &key_file, on_cpu };
    let mut environment = inherited();
    if none || !process.gpus.is_empty() {
        environment.retain(|(name, _)| name != "CUDA_VISIBLE_DEVICES");
        environment.push(("CUDA_VISIBLE_DEVICES".into(), process.gpus.join(",").into()));
    }
    let (arguments, own, file) = match kind {
        EngineKind::Vllm => (vllm::arguments(&start), vllm::environment(key), None),
        EngineKind::Sglang => (sglang::arguments(&start), sglang::environment(), Some(sglang::key_file(key))),
        _ => (llama_server::arguments(&start), llama_server::environment(key), None),
    };
    environment.retain(|(name, _)| !own.iter().any(|(other, _)| name == other));
    environment.extend(own.into_iter().map(|(name, value)| (name.into(), value.into())));
    let files = file.map(|content| (key_file.clone(), content)).into_iter().collect();
    Ok(Command { program, arguments, environment, files })
}

/// Variables that go along from the agent's environment: what a program needs to find its libraries, caches and GPUs.
pub(crate) fn inherited() -> Vec<(OsString, OsString)> {
    const NAMES: [&str; 13] = [
        "PATH",
        "HOME",
        "USER",
        "LANG",
        "TMPDIR",
        "TZ",
        "LD_LIBRARY_PATH",
        "XDG_CACHE_HOME",
        "HF_HOME",
        "VLLM_CACHE_ROOT",
        "SGLANG_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
    ];
    const PREFIXES: [&str; 8] = ["LC_", "CUDA_", "NVIDIA_", "NCCL_", "HIP_", "ROCR_", "VK_", "GGML_"];
    let goes = |name: &OsString| {
        let name = name.to_string_lossy();
        NAMES.contains(&name.as_ref()) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    std::env::vars_os().filter(|(name, _)| goes(name)).collect()
}

/// The version of the engine whose option names this agent's command lines are held against; others mostly take them as well.
pub(crate) fn options_of(kind: EngineKind) -> Option<&'static str> {
    match kind {
        EngineKind::Vllm => Some("0.33.0"),
        EngineKind::Sglang => Some("0.5.23"),
        EngineKind::LlamaServer => Some("b10434"),
        _ => None,
    }
}

/// What an engine's program is asked for its version.
pub(crate) fn version_arguments(kind: EngineKind) -> &'static [&'static str] {
    match kind {
        // It has a word of its own for it.
        EngineKind::Sglang => &["version"],
        _ => &["--version"],
    }
}

/// The version in what a program said: behind `version:`, or the first word that looks like one.
pub(crate) fn version(said: &str) -> Option<String> {
    const VERSION_MAX: usize = 64;
    let word = |text: &str| text.split_ascii_whitespace().next().map(str::to_owned);
    let behind = said.lines().find_map(|line| word(line.split_once("version:")?.1));
    let like = |word: &&str| {
        word.contains('.')
            && word.starts_with(|c: char| c.is_ascii_digit())
            && word.chars().all(|c| c.is_ascii_alphanumeric() || ".+-_".contains(c))
    };
    let first = || said.split_ascii_whitespace().find(like).map(str::to_owned);
    behind.or_else(first).filter(|version| version.len() <= VERSION_MAX)
}

/// A file of the model, as an absolute path.
fn beside(process: &ProcessSource, file: &str) -> PathBuf {
    let folder = match process.kind() {
        EngineKind::LlamaServer => process.model.parent().unwrap_or(&process.model),
        _ => &process.model,
    };
    folder.join(file)
}

/// The options that a profile says, each with its value where it has one: keys are the options' own names.
pub(super) fn options(process: &ProcessSource) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    for (name, value) in process.options() {
        let Some(key) = process.kind().keys().iter().find(|key| key.name == name) else { continue };
        let option = format!("--{}", name.replace('_', "-"));
        match (key.holds, &value) {
            (Holds::Flag, Value::Bool(false)) => {
                arguments.push(format!("--no-{}", name.replace('_', "-")).into())
            }
            (Holds::Flag | Holds::Switch, _) => arguments.push(option.into()),
            (Holds::File, Value::String(file)) => {
                arguments.extend([option.into(), beside(process, file).into()])
            }
            (Holds::Size(..), Value::String(size)) => {
                let bytes = size.parse::<ByteSize>().map_or_else(|_| size.clone(), |size| size.0.to_string());
                arguments.extend([option.into(), bytes.into()]);
            }
            (_, Value::String(text)) => arguments.extend([option.into(), text.into()]),
            (_, value) => arguments.extend([option.into(), value.to_string().into()]),
        }
    }
    arguments
}

/// The arguments that every start has, with the engine's own names for them, and then those of the profile.
pub(super) fn with_profile(
    fixed: impl IntoIterator<Item = (&'static str, OsString)>,
    start: &Start<'_>,
) -> Vec<OsString> {
    let mut arguments: Vec<OsString> =
        fixed.into_iter().flat_map(|(name, value)| [name.into(), value]).collect();
    arguments.extend(options(start.process));
    arguments
}
