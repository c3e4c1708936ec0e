//! Settings from the edge on top of the node's own file.
//!
//! Owns which fields they may change and how an engine's fields are merged; leaves the checks to those of the file, which
//! judge the result. Invariant: nothing that a file alone may say comes from here; an error about a field that came from
//! settings names it by its path in the settings.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use umbel_contracts::{
    config::ConfigError,
    deployment::EngineKind,
    settings::{AgentSettings, EngineSettings},
};

use super::{
    Config,
    engine::{Engine, kind_of_settings},
    file,
};

/// The path that errors about settings carry in place of a file's.
const SETTINGS: &str = "settings";

/// A file with settings on top.
#[derive(Debug, Clone)]
pub(crate) struct Overlaid {
    pub(crate) config: Config,
    /// Settings of engines that this node does not have.
    pub(crate) skipped: Vec<String>,
}

/// What merging the engines came to.
#[derive(Debug, Default)]
pub(super) struct Merged {
    /// Engines that settings say something of.
    pub(super) touched: BTreeSet<String>,
    pub(super) skipped: Vec<String>,
}

impl Config {
    /// This file with settings on top.
    ///
    /// # Errors
    /// The field that cannot be, by its path in the settings where it came from there.
    pub(crate) fn with_settings(&self, settings: &AgentSettings) -> Result<Overlaid, String> {
        file::overlaid(&self.source, settings)
            .map(|(config, skipped)| Overlaid { config, skipped })
            // A file's own path says nothing to the edge.
            .map_err(|error| error.message)
    }
}

/// An error about a setting.
pub(super) fn error(key: &str, message: impl std::fmt::Display) -> ConfigError {
    ConfigError { path: PathBuf::from(SETTINGS), place: None, message: format!("{key}: {message}") }
}

/// Merges settings of engines into those of the file.
pub(super) fn merge(
    engines: &mut Vec<Engine>,
    settings: &BTreeMap<String, EngineSettings>,
    roots: &BTreeMap<String, PathBuf>,
) -> Result<Merged, ConfigError> {
    let mut merged = Merged::default();
    for (name, said) in settings {
        if said.enabled == Some(false) {
            engines.retain(|engine| engine.name != *name);
            continue;
        }
        let known = engines.iter().position(|engine| engine.name == *name);
        let engine = match known.and_then(|at| engines.get_mut(at)) {
            Some(engine) => engine,
            None => {
                // A default speaks to all nodes: those without the engine are not wrong.
                let (Some(kind), Some(model)) = (&said.kind, &said.model) else {
                    merged.skipped.push(format!("engines.{name}"));
                    continue;
                };
                engines.push(Engine::new(name.clone(), kind_of(name, kind)?, model.clone()));
                match engines.last_mut() {
                    Some(engine) => engine,
                    None => continue,
                }
            }
        };
        put(engine, name, said, roots)?;
        merged.touched.insert(name.clone());
    }
    Ok(merged)
}

fn kind_of(name: &str, word: &str) -> Result<EngineKind, ConfigError> {
    kind_of_settings(word)
        .ok_or_else(|| error(&format!("engines.{name}.kind"), "must be one of sim, external, llama-server"))
}

fn put(
    engine: &mut Engine,
    name: &str,
    said: &EngineSettings,
    roots: &BTreeMap<String, PathBuf>,
) -> Result<(), ConfigError> {
    if let Some(kind) = &said.kind
        && kind_of(name, kind)? != engine.kind
    {
        let message =
            "the node's file has this engine with another kind; give one of this kind a name of its own";
        return Err(error(&format!("engines.{name}.kind"), message));
    }
    fn over<T: Clone>(field: &mut Option<T>, said: &Option<T>) {
        if said.is_some() {
            field.clone_from(said);
        }
    }
    if let Some(model) = &said.model {
        engine.model.clone_from(model);
    }
    if let Some(aliases) = &said.aliases {
        engine.aliases.clone_from(aliases);
    }
    over(&mut engine.category, &said.category);
    over(&mut engine.capacity, &said.capacity);
    over(&mut engine.max_context_tokens, &said.max_context_tokens);
    over(&mut engine.long_context_threshold_tokens, &said.long_context_threshold_tokens);
    over(&mut engine.long_context_capacity, &said.long_context_capacity);
    over(&mut engine.first_token_delay, &said.first_token_delay);
    over(&mut engine.token_delay, &said.token_delay);
    over(&mut engine.tokens, &said.tokens);
    over(&mut engine.context_tokens, &said.context_tokens);
    over(&mut engine.threads, &said.threads);
    over(&mut engine.start_timeout, &said.start_timeout);
    if let Some(file) = &said.model_file {
        engine.model_file = Some(below(name, file, roots)?);
    }
    Ok(())
}

/// `ROOT/rest` as a path: which roots there are, the node's own file says.
fn below(name: &str, file: &str, roots: &BTreeMap<String, PathBuf>) -> Result<PathBuf, ConfigError> {
    let (root, rest) = file.split_once('/').unwrap_or((file, ""));
    let names: Vec<&str> = roots.keys().map(String::as_str).collect();
    match roots.get(root).filter(|_| !rest.is_empty()) {
        Some(path) => Ok(path.join(rest)),
        None => Err(error(
            &format!("engines.{name}.model_file"),
            format!(
                "must be ROOT/PATH with a root of the node's file ([artifacts.roots]); it has: {}",
                if names.is_empty() { "none".to_owned() } else { names.join(", ") }
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use serde_json::json;

    use super::*;
    use crate::config::EngineSource;

    const FILE: &str = "[node]\nstate_dir = \"/s\"\nallow_sim = true\n[node.labels]\nrack = \"r1\"\n\
        [artifacts]\nquarantine = \"/q\"\n[artifacts.roots]\nmodels = \"/m\"\n\
        [[engine]]\nname = \"chat\"\nkind = \"sim\"\nmodel = \"m\"\n\
        [[engine]]\nname = \"qwen\"\nkind = \"llama-server\"\nmodel = \"q\"\nmodel_file = \"q.gguf\"\n";

    fn overlaid(settings: serde_json::Value) -> Result<Overlaid, String> {
        let file = Config::parse(FILE, Path::new("/etc/umbel/node.toml")).unwrap();
        file.with_settings(&serde_json::from_value(settings).unwrap())
    }

    #[test]
    fn settings_lie_over_the_file() {
        let out = overlaid(json!({
            "log": { "level": "debug" }, "shutdown": { "drain": "5s" }, "labels": { "pool": "a", "rack": "r2" },
            "engines": {
                "chat": { "capacity": 9, "token_delay": "1ms" },
                "qwen": { "model_file": "models/a/b.gguf", "context_tokens": 100 },
                "echo": { "kind": "sim", "model": "e" },
                "nowhere": { "capacity": 3 },
            },
        }))
        .unwrap();
        let config = out.config;
        assert_eq!((config.log_level.as_str(), config.drain), ("debug", Duration::from_secs(5)));
        assert_eq!((config.labels["rack"].as_str(), config.labels["pool"].as_str()), ("r2", "a"));
        let names: Vec<_> = config.engines.iter().map(|engine| engine.name.as_str()).collect();
        assert_eq!(names, ["chat", "qwen", "echo"]);
        assert_eq!(config.engines[0].capacity, 9);
        let EngineSource::Process(process) = &config.engines[1].source else { panic!() };
        assert_eq!(process.model, Path::new("/m/a/b.gguf"));
        assert_eq!(process.profile.context_tokens(1), Some(100));
        assert_eq!(out.skipped, ["engines.nowhere"]);
        assert!(
            overlaid(json!({ "engines": { "qwen": { "enabled": false } } })).unwrap().config.engines.len()
                == 1
        );
        // Nothing said: the file as it is.
        assert_eq!(overlaid(json!({})).unwrap().config.engines[0].capacity, 4);
    }

    /// Row 81: what cannot be on top of this file is refused by the path of the setting.
    #[test]
    fn row_81_errors_name_the_setting() {
        for (engine, settings, path) in [
            ("chat", json!({ "long_context_capacity": 2 }), "engines.chat.long_context_capacity: "),
            ("chat", json!({ "threads": 2 }), "engines.chat.threads: is only for"),
            ("chat", json!({ "kind": "external" }), "engines.chat.kind: the node's file"),
            ("chat", json!({ "aliases": ["m"] }), "engines.chat.aliases: "),
            ("qwen", json!({ "model_file": "other/x.gguf" }), "engines.qwen.model_file: must be ROOT/PATH"),
            ("new", json!({ "kind": "external", "model": "x" }), "engines.new.url: "),
            ("new", json!({ "kind": "llama-server", "model": "x" }), "engines.new.model_file: "),
        ] {
            let mut engines = serde_json::Map::new();
            engines.insert(engine.to_owned(), settings);
            let said = overlaid(json!({ "engines": engines })).unwrap_err();
            assert!(said.starts_with(path), "{said}");
        }
        let file = Config::parse("[node]\nstate_dir = \"/s\"\n", Path::new("/etc/umbel/node.toml")).unwrap();
        let sim = json!({ "engines": { "a": { "kind": "sim", "model": "m" } } });
        let said = file.with_settings(&serde_json::from_value(sim).unwrap()).unwrap_err();
        assert!(said.starts_with("engines.a.kind: \"sim\""), "{said}");
    }
}
