//! The walk over a profile's table: does each key hold what it may, and do they fit each other?
//!
//! Invariant: a key that the kind does not have is refused by name, with the likely one or the reason.

use serde_json::{Map, Value};

use super::{EngineKind, Holds, Profile, join, kinds::Figure, refused};
use crate::{
    config::{ByteSize, HumanDuration, closest},
    settings::Fault,
};

/// Bytes of a name.
const NAME_MAX: usize = 64;
/// Bytes of a file's path below its artifact.
const FILE_MAX: usize = 256;

/// Key by key.
pub(super) fn check(kind: EngineKind, table: &Map<String, Value>, at: &str) -> Result<(), Fault> {
    for (name, value) in table {
        let Some(key) = kind.keys().iter().find(|key| key.name == name) else {
            return Err(Fault::new(join(at, name), unknown(kind, name)));
        };
        holds(value, key.holds).map_err(|message| Fault::new(join(at, name), message))?;
    }
    Ok(())
}

fn unknown(kind: EngineKind, name: &str) -> String {
    if let Some(why) = refused::why(name) {
        return format!("may not stand in a profile: {why}");
    }
    let names: Vec<&str> = kind.keys().iter().map(|key| key.name).collect();
    let plain = name.trim_start_matches('-').replace('-', "_");
    if names.contains(&plain.as_str()) {
        return format!("is written \"{plain}\" in a profile");
    }
    if let Some(other) =
        EngineKind::ALL.into_iter().find(|other| other.keys().iter().any(|key| key.name == plain))
    {
        return format!("is a key of {other}'s profile, not of {kind}'s");
    }
    match closest(name, &names) {
        Some(likely) => format!("is no key of {kind}'s profile; did you mean \"{likely}\"?"),
        None => format!("is no key of {kind}'s profile; it has: {}", names.join(", ")),
    }
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("must be a text, in quotes, not {}", short(value)))
}

/// A value as an error shows it: it may be anything.
pub(in crate::deployment) fn short(value: &Value) -> String {
    let text = value.to_string();
    let mut cut: String = text.chars().take(40).collect();
    if cut.len() < text.len() {
        cut.push_str("...");
    }
    cut
}

fn number(value: &Value, least: u32, most: u32) -> Result<(), String> {
    match value.as_u64() {
        Some(said) if (u64::from(least)..=u64::from(most)).contains(&said) => Ok(()),
        _ => Err(format!("must be a whole number from {least} to {most}, not {}", short(value))),
    }
}

/// Whether a value is what a key holds: what is legal and what stands there, if not.
pub(in crate::deployment) fn holds(value: &Value, holds: Holds) -> Result<(), String> {
    match holds {
        Holds::Number(least, most) => number(value, least, most),
        Holds::NumberOr(_, _, words) if value.as_str().is_some_and(|word| words.contains(&word)) => Ok(()),
        Holds::NumberOr(least, most, words) => {
            number(value, least, most).map_err(|message| format!("{message}; or one of {}", words.join(", ")))
        }
        Holds::Figure(least, most) => figure(value, least, most),
        Holds::Size(least, most) => {
            let said: Option<ByteSize> = value.as_str().and_then(|text| text.parse().ok());
            if said.is_some_and(|said| (least..=most).contains(&said.0)) {
                return Ok(());
            }
            let (least, most) = (ByteSize(least), ByteSize(most));
            Err(format!("must be a size in quotes from {least} to {most}, not {}", short(value)))
        }
        Holds::Duration(least, most) => {
            let said: Option<HumanDuration> = value.as_str().and_then(|text| text.parse().ok());
            let human = |ms| HumanDuration(std::time::Duration::from_millis(ms));
            if said.is_some_and(|said| (human(least).0..=human(most).0).contains(&said.0)) {
                return Ok(());
            }
            let (least, most) = (human(least), human(most));
            Err(format!(
                "must be a duration in quotes such as \"30s\", {least} to {most}, not {}",
                short(value)
            ))
        }
        Holds::Flag if value.is_boolean() => Ok(()),
        Holds::Flag => Err(format!("must be true or false, not {}", short(value))),
        Holds::Switch if value.as_bool() == Some(true) => Ok(()),
        Holds::Switch => Err(format!("can only be switched on: true, or leave it out; not {}", short(value))),
        Holds::Word(words) if words.contains(&text(value)?) => Ok(()),
        Holds::Word(words) => Err(format!("must be one of {}, not {}", words.join(", "), short(value))),
        Holds::Name if is_name(text(value)?) => Ok(()),
        Holds::Name => Err(format!(
            "must be a name of 1 to {NAME_MAX} letters, digits, '-', '_' and '.', beginning with a letter or digit, not {}",
            short(value)
        )),
        Holds::File if is_file(text(value)?) => Ok(()),
        Holds::File => {
            Err(format!("must be a file of the artifact, as FOLDER/FILE, without `..`, not {}", short(value)))
        }
        Holds::Counts(names, most) => counts(value, names, most),
    }
}

fn figure(value: &Value, least: u64, most: u64) -> Result<(), String> {
    let (from, to) = (Figure { milli: least }, Figure { milli: most });
    match value.as_f64().and_then(Figure::from_number) {
        Some(said) if (from..=to).contains(&said) => Ok(()),
        _ => Err(format!(
            "must be a number from {from} to {to} with at most three decimals, not {}",
            short(value)
        )),
    }
}

fn counts(value: &Value, names: &[&str], most: u32) -> Result<(), String> {
    let Some(table) = value.as_object() else {
        return Err(format!("must be a table with {}, not {}", names.join(", "), short(value)));
    };
    for (name, value) in table {
        if !names.contains(&name.as_str()) {
            return Err(format!(
                "has no \"{}\"; it has: {}",
                name.chars().take(40).collect::<String>(),
                names.join(", ")
            ));
        }
        number(value, 0, most).map_err(|message| format!("{name} {message}"))?;
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    name.len() <= NAME_MAX
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// Row 94: nothing outside of the artifact's folder, on any system.
fn is_file(path: &str) -> bool {
    path.len() <= FILE_MAX
        && !path.contains(['\\', ':'])
        && crate::names::is_plain(path)
        && path.is_ascii()
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

/// What the keys say together.
pub(super) fn rules(profile: &Profile, at: &str) -> Result<(), Fault> {
    let fault = |key: &str, message: String| Err(Fault::new(join(at, key), message));
    match profile {
        Profile::Vllm(vllm) => {
            if vllm.enable_auto_tool_choice == Some(true) && vllm.tool_call_parser.is_none() {
                return fault("enable_auto_tool_choice", "needs tool_call_parser".into());
            }
            if vllm.spec_tokens.is_some() != vllm.spec_method.is_some() {
                return fault("spec_method", "spec_method and spec_tokens need each other".into());
            }
            if let (Some(batched), Some(seqs)) = (vllm.max_num_batched_tokens, vllm.max_num_seqs)
                && batched < seqs
            {
                return fault("max_num_batched_tokens", format!("must be at least max_num_seqs ({seqs})"));
            }
            if vllm.enable_chunked_prefill == Some(false)
                && let (Some(batched), Some(length)) = (vllm.max_num_batched_tokens, vllm.max_model_len)
                && batched < length
            {
                let message = format!("without chunked prefill it must be at least max_model_len ({length})");
                return fault("max_num_batched_tokens", message);
            }
        }
        Profile::LlamaServer(llama) => {
            if let (Some(whole), Some(part)) = (llama.batch_size, llama.ubatch_size)
                && part > whole
            {
                return fault("ubatch_size", format!("must be at most batch_size ({whole})"));
            }
            if llama.cache_type_v.as_deref().is_some_and(|kind| !matches!(kind, "f32" | "f16" | "bf16"))
                && llama.flash_attn.as_deref() == Some("off")
            {
                return fault("cache_type_v", "a quantized cache of values needs flash_attn".into());
            }
        }
        Profile::External(external) if external.endpoint.is_none() => {
            return fault("endpoint", "is missing: the name of an endpoint in the node's own file".into());
        }
        Profile::Cli(cli) if cli.program.is_none() => {
            return fault("program", "is missing: the name of a program in the node's own file".into());
        }
        Profile::Sglang(_) | Profile::External(_) | Profile::Cli(_) | Profile::Sim(_) => {}
    }
    Ok(())
}
