//! llama.cpp's `llama-server`: from a profile to a command line.
//!
//! Owns the names of the options that every start has; the profile's keys are names of options themselves. Names are held
//! against those of a named version (`options/`). Invariant: its key is in its environment.

use std::ffi::OsString;

use super::adapter::{Start, with_profile};

/// `llama-server --model FILE ...`.
pub(super) fn arguments(start: &Start<'_>) -> Vec<OsString> {
    let (config, process) = (start.config, start.process);
    let mut fixed: Vec<(&str, OsString)> = vec![
        ("--model", process.model.clone().into()),
        // It answers whatever name a request has, and lists this one.
        ("--alias", config.model.clone().into()),
        ("--host", start.address.ip().to_string().into()),
        ("--port", start.address.port().to_string().into()),
        ("--parallel", config.slots().to_string().into()),
    ];
    if start.on_cpu {
        fixed.push(("--device", "none".into()));
    }
    let mut arguments = with_profile(fixed, start);
    arguments.extend(["--metrics", "--no-webui"].map(OsString::from));
    arguments
}

/// Its key.
pub(super) fn environment(key: &str) -> Vec<(&'static str, String)> {
    vec![("LLAMA_API_KEY", key.to_owned())]
}
