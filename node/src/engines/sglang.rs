//! SGLang's server: from a profile to a command line.
//!
//! Owns the names of the options that every start has; the profile's keys are names of options themselves. Names are held
//! against those of a named version (`options/`). Invariant: its key is in a file, since it takes none from its
//! environment and arguments can be read by everybody.

use std::ffi::OsString;

use umbel_contracts::deployment::Profile;

use super::adapter::{Start, with_profile};

/// `sglang serve --model-path MODEL ...`.
pub(super) fn arguments(start: &Start<'_>) -> Vec<OsString> {
    let (config, process) = (start.config, start.process);
    let mut fixed: Vec<(&str, OsString)> = vec![
        ("--model-path", process.model.clone().into()),
        ("--config", start.key_file.into()),
        ("--host", start.address.ip().to_string().into()),
        ("--port", start.address.port().to_string().into()),
        // It answers whatever name a request has, and lists this one.
        ("--served-model-name", config.model.clone().into()),
        // A line a request otherwise.
        ("--log-level-http", "warning".into()),
    ];
    let mut arguments: Vec<OsString> = vec!["serve".into()];
    let Profile::Sglang(profile) = &process.profile else { return arguments };
    if profile.max_running_requests.is_none() {
        fixed.push(("--max-running-requests", config.slots().to_string().into()));
    }
    if process.profile.gpus().is_none() && process.gpus.len() > 1 {
        fixed.push(("--tp-size", process.gpus.len().to_string().into()));
    }
    arguments.extend(with_profile(fixed, start));
    arguments.extend(["--enable-metrics", "--enable-cache-report"].map(OsString::from));
    arguments
}

/// That it asks nobody outside.
pub(super) fn environment() -> Vec<(&'static str, String)> {
    vec![("HF_HUB_OFFLINE", "1".to_owned()), ("DO_NOT_TRACK", "1".to_owned())]
}

/// The file that its key is in: options as YAML.
pub(super) fn key_file(key: &str) -> Vec<u8> {
    // The key has hexadecimal digits only; in quotes it is a text whatever they are.
    format!("api-key: \"{key}\"\n").into_bytes()
}
