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
use umbel_contracts::config::{ConfigError, ConfigFile, HumanDuration};

use super::{EngineConfig, EngineSource};

/// Requests at once: streams of one connection.
const CAPACITY_MAX: u32 = 1024;
/// Bytes of a model's name.
const MODEL_MAX: usize = 200;
const ALIASES_MAX: usize = 16;

#[derive(Debug, Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    Sim,
    External,
    LlamaServer,
}

impl Kind {
    pub(super) fn parse(text: &str) -> Option<Self> {
        [Self::Sim, Self::External, Self::LlamaServer].into_iter().find(|kind| word(*kind) == text)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Engine {
    pub(super) name: String,
    pub(super) kind: Kind,
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
    // llama-server
    pub(super) model_file: Option<PathBuf>,
    pub(super) port: Option<u16>,
    pub(super) context_tokens: Option<u32>,
    pub(super) threads: Option<u32>,
    pub(super) start_timeout: Option<HumanDuration>,
}

impl Engine {
    /// One that says no more than it must.
    pub(super) fn new(name: String, kind: Kind, model: String) -> Self {
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
            model_file: None,
            port: None,
            context_tokens: None,
            threads: None,
            start_timeout: None,
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
        let source = self.source_of(&engine, allow_sim, path)?;
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
        })
    }

    fn names(&self, engine: &Engine) -> Result<(), ConfigError> {
        let legal = |name: &str| {
            !name.is_empty() && name.len() <= MODEL_MAX && !name.chars().any(|c| c.is_control() || c == ' ')
        };
        if !legal(&engine.model) {
            return Err(
                self.error("model", format!("a model's name has 1 to {MODEL_MAX} bytes, without spaces"))
            );
        }
        if engine.aliases.len() > ALIASES_MAX {
            return Err(self.error("aliases", format!("there are more than {ALIASES_MAX}")));
        }
        let mut seen = BTreeSet::from([engine.model.as_str()]);
        for alias in &engine.aliases {
            if !legal(alias) {
                return Err(
                    self.error("aliases", format!("an alias has 1 to {MODEL_MAX} bytes, without spaces"))
                );
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
        let keys = [
            ("first_token_delay", engine.first_token_delay.is_some(), Kind::Sim),
            ("token_delay", engine.token_delay.is_some(), Kind::Sim),
            ("tokens", engine.tokens.is_some(), Kind::Sim),
            ("url", engine.url.is_some(), Kind::External),
            ("model_file", engine.model_file.is_some(), Kind::LlamaServer),
            ("port", engine.port.is_some(), Kind::LlamaServer),
            ("context_tokens", engine.context_tokens.is_some(), Kind::LlamaServer),
            ("threads", engine.threads.is_some(), Kind::LlamaServer),
            ("start_timeout", engine.start_timeout.is_some(), Kind::LlamaServer),
        ];
        for (key, is_there, kind) in keys {
            if is_there && kind != engine.kind {
                return Err(self.error(key, format!("is only for engines of kind \"{}\"", word(kind))));
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
            EngineSource::External { authority, .. } if !is_here(authority) => "api",
            _ => "local_inference",
        };
        let category = engine.category.as_deref().unwrap_or(fallback);
        match category {
            "local_inference" | "api" => Ok(category.to_owned()),
            "cli" => Err(self.error(
                "category",
                "\"cli\" is for engines of kind \"cli\", which this version does not have",
            )),
            _ => Err(self.error("category", "must be \"local_inference\" or \"api\"")),
        }
    }

    fn source_of(
        &self,
        engine: &Engine,
        allow_sim: bool,
        path: &impl Fn(&Path) -> PathBuf,
    ) -> Result<EngineSource, ConfigError> {
        match engine.kind {
            Kind::Sim if !allow_sim => {
                Err(self
                    .error("kind", "\"sim\" makes answers up; set node.allow_sim = true if that is wanted"))
            }
            Kind::Sim => Ok(EngineSource::Sim {
                first_token_delay: engine.first_token_delay.map(Into::into).unwrap_or_default(),
                token_delay: engine.token_delay.map(Into::into).unwrap_or_default(),
                tokens: engine.tokens.unwrap_or(16),
            }),
            Kind::External => {
                let Some(url) = &engine.url else {
                    return Err(self.error("url", "is missing: http://HOST:PORT of the server"));
                };
                let (authority, base_path) = parse_url(url).map_err(|why| self.error("url", why))?;
                Ok(EngineSource::External { authority, base_path })
            }
            Kind::LlamaServer => {
                let Some(model_file) =
                    engine.model_file.as_deref().filter(|file| !file.as_os_str().is_empty())
                else {
                    return Err(self.error("model_file", "is missing: the model's GGUF file"));
                };
                if engine.threads.is_some_and(|threads| threads > 1024) {
                    return Err(self.error("threads", "must be at most 1024"));
                }
                let start_timeout: Duration =
                    engine.start_timeout.map_or(Duration::from_secs(600), Into::into);
                if start_timeout < Duration::from_secs(1) {
                    return Err(self.error("start_timeout", "must be at least 1s"));
                }
                Ok(EngineSource::LlamaServer {
                    model_file: path(model_file),
                    port: engine.port.unwrap_or_default(),
                    context_tokens: engine.context_tokens.unwrap_or_default(),
                    threads: engine.threads.unwrap_or_default(),
                    start_timeout,
                })
            }
        }
    }
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Sim => "sim",
        Kind::External => "external",
        Kind::LlamaServer => "llama-server",
    }
}

/// `http://HOST:PORT/PATH` into `HOST:PORT` and `PATH`; a path's end of `/v1` is part of every route anyway.
fn parse_url(url: &str) -> Result<(String, String), &'static str> {
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
