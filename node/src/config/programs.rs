//! `[programs]` and `[endpoints]` of `node.toml`: what this host runs and reaches, by names that deployments may use.
//!
//! Owns their keys and checks; leaves whether a program is there to the adapters. Invariant: a program's path and a
//! server's address come from here and from nowhere else.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use umbel_contracts::{
    config::{ConfigError, ConfigFile},
    deployment::EngineKind,
};

/// Programs of kind `cli`, and endpoints: lists that a person writes.
const NAMES_MAX: usize = 32;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    vllm: Option<PathBuf>,
    sglang: Option<PathBuf>,
    llama_server: Option<PathBuf>,
    #[serde(default)]
    cli: BTreeMap<String, PathBuf>,
}

/// The programs of this host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Programs {
    /// vLLM's program `vllm`.
    pub(crate) vllm: Option<PathBuf>,
    /// SGLang's program `sglang`.
    pub(crate) sglang: Option<PathBuf>,
    /// llama.cpp's program `llama-server`.
    pub(crate) llama_server: Option<PathBuf>,
    /// Programs that may be started once a request, by name.
    pub(crate) cli: BTreeMap<String, PathBuf>,
}

/// An OpenAI-compatible server that is already there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// `host:port`.
    pub(crate) authority: String,
    /// Path before `/v1`, without a slash at its end; mostly empty.
    pub(crate) base_path: String,
}

impl Programs {
    /// The program of a kind of engine that has a process.
    #[must_use]
    pub(crate) fn of(&self, kind: EngineKind) -> Option<&Path> {
        match kind {
            EngineKind::Vllm => self.vllm.as_deref(),
            EngineKind::Sglang => self.sglang.as_deref(),
            EngineKind::LlamaServer => self.llama_server.as_deref(),
            EngineKind::External | EngineKind::Cli | EngineKind::Sim => None,
        }
    }
}

/// The key of the node's file that names the program of a kind of engine.
#[must_use]
pub(crate) fn program_key(kind: EngineKind) -> &'static str {
    match kind {
        EngineKind::Vllm => "programs.vllm",
        EngineKind::Sglang => "programs.sglang",
        EngineKind::LlamaServer => "programs.llama_server",
        EngineKind::External => "endpoints",
        EngineKind::Cli => "programs.cli",
        EngineKind::Sim => "node.allow_sim",
    }
}

pub(super) fn programs(
    source: &ConfigFile,
    table: &Table,
    path: &impl Fn(&Path) -> PathBuf,
) -> Result<Programs, ConfigError> {
    names(source, "programs.cli", table.cli.keys())?;
    Ok(Programs {
        vllm: table.vllm.as_deref().map(path),
        sglang: table.sglang.as_deref().map(path),
        llama_server: table.llama_server.as_deref().map(path),
        cli: table.cli.iter().map(|(name, program)| (name.clone(), path(program))).collect(),
    })
}

pub(super) fn endpoints(
    source: &ConfigFile,
    table: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, Endpoint>, ConfigError> {
    names(source, "endpoints", table.keys())?;
    let endpoint = |(name, url): (&String, &String)| {
        let (authority, base_path) =
            super::engine::parse_url(url).map_err(|why| source.error(&format!("endpoints.{name}"), why))?;
        Ok((name.clone(), Endpoint { authority, base_path }))
    };
    table.iter().map(endpoint).collect()
}

fn names<'a>(
    source: &ConfigFile,
    table: &str,
    names: impl ExactSizeIterator<Item = &'a String>,
) -> Result<(), ConfigError> {
    if names.len() > NAMES_MAX {
        return Err(source.error(table, format!("there are more than {NAMES_MAX}")));
    }
    for name in names {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !(1..=63).contains(&name.len()) || !name.chars().all(fits) || name.starts_with('-') {
            let says = "a name has 1 to 63 lower-case letters, digits and '-', and does not begin with '-'";
            return Err(source.error(&format!("{table}.{name}"), says));
        }
    }
    Ok(())
}
