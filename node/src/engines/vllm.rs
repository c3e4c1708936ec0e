//! vLLM's server: from a profile to a command line.
//!
//! Owns the names of the options that every start has; the profile's keys are names of options themselves. Names are held
//! against those of a named version (`options/`). Invariant: its key is in its environment.

use std::ffi::OsString;

use umbel_contracts::deployment::Profile;

use super::adapter::{Start, with_profile};

/// Seconds that running requests get after SIGTERM: below the supervisor's grace, after which it is killed.
const SHUTDOWN: u32 = 8;

/// `vllm serve MODEL ...`.
pub(super) fn arguments(start: &Start<'_>) -> Vec<OsString> {
    let (config, process) = (start.config, start.process);
    let mut arguments: Vec<OsString> = vec!["serve".into(), process.model.clone().into()];
    let mut fixed: Vec<(&str, OsString)> = vec![
        ("--host", start.address.ip().to_string().into()),
        ("--port", start.address.port().to_string().into()),
    ];
    let Profile::Vllm(profile) = &process.profile else { return arguments };
    if profile.max_num_seqs.is_none() {
        fixed.push(("--max-num-seqs", config.slots().to_string().into()));
    }
    if profile.shutdown_timeout.is_none() {
        fixed.push(("--shutdown-timeout", SHUTDOWN.to_string().into()));
    }
    if process.profile.gpus().is_none() && process.gpus.len() > 1 {
        fixed.push(("--tensor-parallel-size", process.gpus.len().to_string().into()));
    }
    arguments.extend(with_profile(fixed, start));
    // Access logs have a line a request; a page that describes the API is nobody's here.
    for flag in ["--disable-uvicorn-access-log", "--disable-fastapi-docs", "--enable-prompt-tokens-details"] {
        arguments.push(flag.into());
    }
    // Last, as it takes all that follows. It refuses names that it was not started with.
    arguments.push("--served-model-name".into());
    arguments.push(config.model.clone().into());
    arguments.extend(config.fixed_aliases().iter().map(OsString::from));
    arguments
}

/// Its key, and that it asks nobody outside.
pub(super) fn environment(key: &str) -> Vec<(&'static str, String)> {
    vec![
        ("VLLM_API_KEY", key.to_owned()),
        ("VLLM_NO_USAGE_STATS", "1".to_owned()),
        ("DO_NOT_TRACK", "1".to_owned()),
        ("HF_HUB_OFFLINE", "1".to_owned()),
    ]
}
