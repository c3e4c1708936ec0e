//! One `[[engine]]` of `node.toml`: its shape and its checks.
//!
//! Owns what each kind takes; leaves the rest of the file to `file`. Invariant: a key that does nothing for an engine's
//! kind is refused, not ignored.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Map, Value};
use umbel_contracts::{
    config::{ConfigError, ConfigFile, HumanDuration},
    deployment::{EngineKind, Profile},
    names,
};

use super::{EngineConfig, EngineSource, ProcessSource, Programs};

/// Requests at once: streams of one connection.
const CAPACITY_MAX: u32 = 1024;
/// Other names of a model.
const ALIASES_MAX: usize = 16;

/// GPUs of one host.
const GPUS_MAX: usize = 64;
/// Requests in flight and no byte for so long is a stall, where the file says nothing.
pub(crate) const STALL: Duration = Duration::from_secs(300);
/// Longest run of one request of a `cli` engine, where nothing is said.
pub(crate) const CLI_TIMEOUT: Duration = Duration::from_secs(600);

/// Kinds that settings can bring along: what the others need stands in the node's file only.
const OF_SETTINGS: [EngineKind; 3] = [EngineKind::Sim, EngineKind::External, EngineKind::LlamaServer];

/// The kind of a word in settings.
pub(super) fn kind_of_settings(text: &str) -> Option<EngineKind> {
    OF_SETTINGS.into_iter().find(|kind| kind.as_str() == text)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Engine {
    pub(super) name: String,
    pub(super) kind: EngineKind,
    pub(super) model: String,
    #[serde(default)]
    pub(super) aliases: Vec<String>,
    pub(super) category: Option<String>,
    pub(super) capacity: Option<u32>,
    pub(super) max_context_tokens: Option<u32>,
    pub(super) long_context_threshold_tokens: Option<u32>,
    pub(super) long_context_capacity: Option<u32>,
    // sim
    pub(super) first_token_delay: Option<HumanDuration>,
    pub(super) token_delay: Option<HumanDuration>,
    pub(super) tokens: Option<u32>,
    // external
    pub(super) url: Option<String>,
    // cli
    pub(super) program: Option<String>,
    pub(super) timeout: Option<HumanDuration>,
    // llama-server
    pub(super) model_file: Option<PathBuf>,
    pub(super) context_tokens: Option<u32>,
    pub(super) threads: Option<u32>,
    // vllm and sglang
    pub(super) model_folder: Option<PathBuf>,
    // all that have a process
    pub(super) port: Option<u16>,
    pub(super) gpus: Option<Vec<String>>,
    pub(super) start_timeout: Option<HumanDuration>,
    pub(super) stall_timeout: Option<HumanDuration>,
    pub(super) profile: Option<Map<String, Value>>,
}

impl Engine {
    /// One that says no more than it must.
    pub(super) fn new(name: String, kind: EngineKind, model: String) -> Self {
        Self {
            name,
            kind,
            model,
            aliases: Vec::new(),
            category: None,
            capacity: None,
            max_context_tokens: None,
            long_context_threshold_tokens: None,
            long_context_capacity: None,
            first_token_delay: None,
            token_delay: None,
            tokens: None,
            url: None,
            program: None,
            timeout: None,
            model_file: None,
            context_tokens: None,
            threads: None,
            model_folder: None,
            port: None,
            gpus: None,
            start_timeout: None,
            stall_timeout: None,
            profile: None,
        }
    }
}

/// Checks of one `[[engine]]`.
pub(super) struct Checker<'a> {
    pub(super) source: &'a ConfigFile,
    pub(super) index: usize,
    /// Its name, if settings say something of it: then errors name it as settings do.
    pub(super) set: Option<&'a str>,
}

impl Checker<'_> {
    pub(super) fn error(&self, key: &str, message: impl std::fmt::Display) -> ConfigError {
        match self.set {
            Some(name) => super::overlay::error(&format!("engines.{name}.{key}"), message),
            None => self.source.error(&format!("engine[{}].{key}", self.index), message),
        }
    }

    /// Checks all of it.
    pub(super) fn engine(
        &self,
        engine: Engine,
        allow_sim: bool,
        programs: &Programs,
        path: &impl Fn(&Path) -> PathBuf,
    ) -> Result<EngineConfig, ConfigError> {
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        // It names files of the state directory and is half of the provider's id.
        if engine.name.is_empty()
            || engine.name.len() > 63
            || !engine.name.chars().all(legal)
            || engine.name.starts_with('-')
        {
            return Err(self.error(
                "name",
                "an engine's name has 1 to 63 of a-z, 0-9 and '-', and does not begin with '-'",
            ));
        }
        self.names(&engine)?;
        self.only_its_own_keys(&engine)?;
        let capacity = engine.capacity.unwrap_or(4);
        if !(1..=CAPACITY_MAX).contains(&capacity) {
            return Err(self.error("capacity", format!("must be 1 to {CAPACITY_MAX}")));
        }
        self.context(&engine, capacity)?;
        let source = self.source_of(&engine, allow_sim, programs, path)?;
        if let Some(most) = source.process().and_then(|process| process.profile.max_requests())
            && most < capacity
        {
            let says = format!("must be at most what the engine takes at once by its profile ({most})");
            return Err(self.error("capacity", says));
        }
        let category = self.category(&engine, &source)?;
        Ok(EngineConfig {
            name: engine.name,
            source,
            model: engine.model,
            aliases: engine.aliases,
            category,
            capacity,
            max_context_tokens: engine.max_context_tokens.unwrap_or_default(),
            long_context_threshold_tokens: engine.long_context_threshold_tokens.unwrap_or_default(),
            long_context_capacity: engine.long_context_capacity.unwrap_or_default(),
            origin: None,
        })
    }

    fn names(&self, engine: &Engine) -> Result<(), ConfigError> {
        if !names::is_model(&engine.model) {
            return Err(self.error("model", format!("a model's name {}", names::MODEL_IS)));
        }
        if engine.aliases.len() > ALIASES_MAX {
            return Err(self.error("aliases", format!("there are more than {ALIASES_MAX}")));
        }
        let mut seen = BTreeSet::from([engine.model.as_str()]);
        for alias in &engine.aliases {
            if !names::is_model(alias) {
                return Err(self.error("aliases", format!("an alias {}", names::MODEL_IS)));
            }
            if !seen.insert(alias) {
                return Err(
                    self.error("aliases", format!("\"{alias}\" is there twice, or is the model's own name"))
                );
            }
        }
        Ok(())
    }

    fn only_its_own_keys(&self, engine: &Engine) -> Result<(), ConfigError> {
        use EngineKind::{Cli, External, LlamaServer, Sglang, Sim, Vllm};
        let (processes, folders): (&[_], &[_]) = (&[Vllm, Sglang, LlamaServer], &[Vllm, Sglang]);
        let keys: [(_, _, &[EngineKind]); 15] = [
            ("first_token_delay", engine.first_token_delay.is_some(), &[Sim]),
            ("token_delay", engine.token_delay.is_some(), &[Sim]),
            ("tokens", engine.tokens.is_some(), &[Sim]),
            ("url", engine.url.is_some(), &[External]),
            ("program", engine.program.is_some(), &[Cli]),
            ("timeout", engine.timeout.is_some(), &[Cli]),
            ("model_file", engine.model_file.is_some(), &[LlamaServer]),
            ("context_tokens", engine.context_tokens.is_some(), &[LlamaServer]),
            ("threads", engine.threads.is_some(), &[LlamaServer]),
            ("model_folder", engine.model_folder.is_some(), folders),
            ("port", engine.port.is_some(), processes),
            ("gpus", engine.gpus.is_some(), processes),
            ("start_timeout", engine.start_timeout.is_some(), processes),
            ("stall_timeout", engine.stall_timeout.is_some(), processes),
            ("profile", engine.profile.is_some(), processes),
        ];
        for (key, is_there, kinds) in keys {
            if is_there && !kinds.contains(&engine.kind) {
                let names: Vec<_> = kinds.iter().map(|kind| format!("\"{kind}\"")).collect();
                return Err(self.error(key, format!("is only for engines of kind {}", names.join(", "))));
            }
        }
        Ok(())
    }

    fn context(&self, engine: &Engine, capacity: u32) -> Result<(), ConfigError> {
        let max = engine.max_context_tokens.unwrap_or_default();
        let threshold = engine.long_context_threshold_tokens.unwrap_or_default();
        let long = engine.long_context_capacity.unwrap_or_default();
        if threshold > 0 && max > 0 && threshold >= max {
            return Err(self.error("long_context_threshold_tokens", "must be below max_context_tokens"));
        }
        if long > capacity {
            return Err(self.error("long_context_capacity", format!("must be at most capacity ({capacity})")));
        }
        if threshold > 0 && long == 0 {
            return Err(self.error(
                "long_context_threshold_tokens",
                "needs long_context_capacity: without it no long request could ever run",
            ));
        }
        if long > 0 && threshold == 0 {
            return Err(self.error("long_context_capacity", "needs long_context_threshold_tokens"));
        }
        Ok(())
    }

    fn category(&self, engine: &Engine, source: &EngineSource) -> Result<String, ConfigError> {
        let fallback = match source {
            EngineSource::External { authority, .. } => external_category(authority),
            EngineSource::Cli { .. } => "cli",
            _ => "local_inference",
        };
        let category = engine.category.as_deref().unwrap_or(fallback);
        match (category, source) {
            ("cli", EngineSource::Cli { .. }) => Ok(category.to_owned()),
            ("cli", _) => Err(self.error("category", "\"cli\" is only for engines of kind \"cli\"")),
            (_, EngineSource::Cli { .. }) => {
                Err(self.error("category", "an engine of kind \"cli\" has the category \"cli\""))
            }
            ("local_inference" | "api", _) => Ok(category.to_owned()),
            _ => Err(self.error("category", "must be \"local_inference\" or \"api\"")),
        }
    }

    fn source_of(
        &self,
        engine: &Engine,
        allow_sim: bool,
        programs: &Programs,
        path: &impl Fn(&Path) -> PathBuf,
    ) -> Result<EngineSource, ConfigError> {
        match engine.kind {
            EngineKind::Sim if !allow_sim => {
                Err(self
                    .error("kind", "\"sim\" makes answers up; set node.allow_sim = true if that is wanted"))
            }
            EngineKind::Sim => Ok(EngineSource::Sim {
                first_token_delay: engine.first_token_delay.map(Into::into).unwrap_or_default(),
                token_delay: engine.token_delay.map(Into::into).unwrap_or_default(),
                tokens: engine.tokens.unwrap_or(16),
            }),
            EngineKind::External => {
                let Some(url) = &engine.url else {
                    return Err(self.error("url", "is missing: http://HOST:PORT of the server"));
                };
                let (authority, base_path) = parse_url(url).map_err(|why| self.error("url", why))?;
                Ok(EngineSource::External { authority, base_path })
            }
            EngineKind::Cli => {
                let named = engine.program.as_ref().and_then(|name| programs.cli.get(name));
                let Some(program) = named else {
                    return Err(self.error("program", "must be the name of a program in [programs.cli]"));
                };
                let timeout: Duration = engine.timeout.map_or(CLI_TIMEOUT, Into::into);
                if timeout.is_zero() {
                    return Err(self.error("timeout", "must be above zero"));
                }
                Ok(EngineSource::Cli { program: program.clone(), timeout })
            }
            EngineKind::Vllm | EngineKind::Sglang | EngineKind::LlamaServer => self.process(engine, path),
        }
    }

    /// One that has a process.
    fn process(
        &self,
        engine: &Engine,
        path: &impl Fn(&Path) -> PathBuf,
    ) -> Result<EngineSource, ConfigError> {
        let (key, model, what) = if engine.kind.needs_main_file() {
            ("model_file", &engine.model_file, "the model's GGUF file")
        } else {
            ("model_folder", &engine.model_folder, "the folder with the model's files")
        };
        let Some(model) = model.as_deref().filter(|file| !file.as_os_str().is_empty()) else {
            return Err(self.error(key, format!("is missing: {what}")));
        };
        if engine.threads.is_some_and(|threads| threads > 1024) {
            return Err(self.error("threads", "must be at most 1024"));
        }
        if engine.start_timeout.is_some_and(|said| said.0 < Duration::from_secs(1)) {
            return Err(self.error("start_timeout", "must be at least 1s"));
        }
        let gpus = engine.gpus.clone().unwrap_or_default();
        if gpus.len() > GPUS_MAX || gpus.iter().any(|uuid| !is_gpu(uuid)) {
            let says = format!("must be up to {GPUS_MAX} UUIDs as nvidia-smi -L shows them: \"GPU-...\"");
            return Err(self.error("gpus", says));
        }
        Ok(EngineSource::Process(Box::new(ProcessSource {
            profile: self.profile(engine)?,
            model: path(model),
            port: engine.port.unwrap_or_default(),
            gpus,
            stall_timeout: engine.stall_timeout.map_or(STALL, Into::into),
        })))
    }

    /// Its profile: the table, and what has a key of its own.
    fn profile(&self, engine: &Engine) -> Result<Profile, ConfigError> {
        let mut table = engine.profile.clone().unwrap_or_default();
        let number = |said: Option<u32>| said.filter(|said| *said > 0).map(Value::from);
        let keys = [
            ("context_tokens", "ctx_size", number(engine.context_tokens)),
            ("threads", "threads", number(engine.threads)),
            ("start_timeout", "start_timeout", engine.start_timeout.map(|said| said.to_string().into())),
        ];
        for (key, option, value) in &keys {
            if let Some(value) = value
                && table.insert((*option).to_owned(), value.clone()).is_some()
            {
                return Err(self.error(key, format!("stands in the profile as {option}, too")));
            }
        }
        Profile::read(engine.kind, &table, "profile").map_err(|fault| {
            let short = keys.iter().find(|(_, option, value)| {
                value.is_some() && fault.path.strip_prefix("profile.") == Some(*option)
            });
            self.error(short.map_or(fault.path.as_str(), |(key, ..)| key), fault.message)
        })
    }
}

/// A GPU's UUID, or that of a part of one, as the driver writes it.
pub(crate) fn is_gpu(uuid: &str) -> bool {
    (uuid.starts_with("GPU-") || uuid.starts_with("MIG-"))
        && uuid.len() <= 64
        && uuid.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

/// The category of a server that is already there.
pub(crate) fn external_category(authority: &str) -> &'static str {
    if is_here(authority) { "local_inference" } else { "api" }
}

/// `http://HOST:PORT/PATH` into `HOST:PORT` and `PATH`; a path's end of `/v1` is part of every route anyway.
pub(super) fn parse_url(url: &str) -> Result<(String, String), &'static str> {
    if url.starts_with("https://") {
        return Err(
            "https is not spoken to engines in this version: use http:// on a network that you trust",
        );
    }
    let rest = url.strip_prefix("http://").ok_or("must begin with http://")?;
    let (authority, path) = rest.split_once('/').map_or((rest, ""), |(authority, path)| (authority, path));
    if authority.contains('@') {
        return Err("must not hold a user or password");
    }
    let authority = if authority.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']')) {
        authority.to_owned()
    } else {
        format!("{authority}:80")
    };
    if !umbel_wire::token::is_address(&authority) {
        return Err("must be http://HOST:PORT");
    }
    let path = path.trim_end_matches('/');
    let path =
        path.strip_suffix("v1").filter(|before| before.is_empty() || before.ends_with('/')).unwrap_or(path);
    let path = path.trim_end_matches('/');
    if !path.chars().all(|c| c.is_ascii_alphanumeric() || "-_./~".contains(c))
        || path.split('/').any(|part| part == "..")
    {
        return Err("its path may have letters, digits and -_.~/ only, no query");
    }
    Ok((authority, if path.is_empty() { String::new() } else { format!("/{path}") }))
}

/// The server is on this host.
fn is_here(authority: &str) -> bool {
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}
