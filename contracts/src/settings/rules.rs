//! Rules between the fields of one node's settings.
//!
//! Owns what can be judged without the node's file; the node judges them again on top of it. Invariant: where a field
//! is not said here, nothing that depends on it is refused here.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{AgentSettings, EngineSettings, Fault, NAMES_BYTES_MAX, Path};

/// Keys that only one kind of engine has.
const OF_KIND: [(&str, &str); 7] = [
    ("first_token_delay", "sim"),
    ("token_delay", "sim"),
    ("tokens", "sim"),
    ("model_file", "llama-server"),
    ("context_tokens", "llama-server"),
    ("threads", "llama-server"),
    ("start_timeout", "llama-server"),
];

/// Checks settings that have passed the tables.
pub(super) fn check(settings: &Value, at: &str) -> Result<(), Fault> {
    let typed: AgentSettings = serde_json::from_value(settings.clone())
        .map_err(|error| Fault::new(at, format!("cannot be read: {error}")))?;
    names(&typed, at)?;
    let mut meant: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, engine) in &typed.engines {
        let path = |key: &str| {
            let mut path = at.parse().unwrap_or(Path(Vec::new()));
            path.0.extend(["engines", name, key].map(str::to_owned));
            path.to_string()
        };
        let said = settings.get("engines").and_then(|engines| engines.get(name));
        if let Some(kind) = &engine.kind {
            for (key, of) in OF_KIND {
                if of != kind && said.is_some_and(|said| said.get(key).is_some()) {
                    return Err(Fault::new(path(key), format!("is only for engines of kind \"{of}\"")));
                }
            }
        }
        context(engine, &path)?;
        if engine.enabled == Some(false) {
            continue;
        }
        let Some(model) = &engine.model else { continue };
        let aliases = engine.aliases.iter().flatten();
        for (key, name) in std::iter::once(("model", model)).chain(aliases.map(|alias| ("aliases", alias))) {
            if key == "aliases" && name == model {
                return Err(Fault::new(path(key), format!("\"{name}\" is the model's own name")));
            }
            if *meant.entry(name).or_insert(model) != model {
                let message = format!("\"{name}\" means another model at another engine of this node");
                return Err(Fault::new(path(key), message));
            }
        }
    }
    Ok(())
}

/// What is said here is on the node whatever its file says.
fn names(settings: &AgentSettings, at: &str) -> Result<(), Fault> {
    let mut bytes = 0;
    for (name, engine) in settings.engines.iter().filter(|(_, engine)| engine.enabled != Some(false)) {
        let aliases = engine.aliases.iter().flatten().map(String::len).sum::<usize>();
        bytes += name.len() + engine.model.as_ref().map_or(0, String::len) + aliases;
        if bytes > NAMES_BYTES_MAX {
            let mut path = at.parse().unwrap_or(Path(Vec::new()));
            path.0.extend(["engines", name].map(str::to_owned));
            let most = NAMES_BYTES_MAX / 1024;
            let message = format!(
                "with this one the names of engines, models and aliases are above {most} KiB together"
            );
            return Err(Fault::new(path.to_string(), message));
        }
    }
    Ok(())
}

fn context(engine: &EngineSettings, path: &impl Fn(&str) -> String) -> Result<(), Fault> {
    if let (Some(long), Some(capacity)) = (engine.long_context_capacity, engine.capacity)
        && long > capacity
    {
        let message = format!("must be at most capacity ({capacity})");
        return Err(Fault::new(path("long_context_capacity"), message));
    }
    if let (Some(threshold), Some(max)) = (engine.long_context_threshold_tokens, engine.max_context_tokens)
        && threshold > 0
        && max > 0
        && threshold >= max
    {
        return Err(Fault::new(path("long_context_threshold_tokens"), "must be below max_context_tokens"));
    }
    Ok(())
}
