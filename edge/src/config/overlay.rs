//! The edge's own settings on top of its file.
//!
//! Owns which fields of [`Config`] settings may change, and the rules between fields that are judged on the result.
//! Invariant: what comes out is as valid as a file; an error names the path of the setting.

use std::time::Duration;

use umbel_contracts::settings::{EdgeSettings, Fault};
use umbel_wire::liveness::Times;

use super::{Config, StreamUsage};

impl Config {
    /// This file with settings on top.
    ///
    /// # Errors
    /// The field of the settings that cannot be together with the rest.
    pub(crate) fn with_settings(&self, settings: &EdgeSettings) -> Result<Self, Fault> {
        let mut config = self.clone();
        let EdgeSettings { api, metrics, queue, upstream, liveness, log, shutdown, clock, audit } = settings;
        put(&mut config.api.body_max, api.body_max.map(|size| size.0));
        put(&mut config.api.held_max, api.held_max.map(|size| size.0));
        put(&mut config.api.stream_usage, api.stream_usage.as_deref().and_then(StreamUsage::parse));
        put(&mut config.api.keepalive, api.keepalive.map(Into::into));
        put(&mut config.metrics.keys, metrics.keys);
        put(&mut config.queue.max_requests, queue.max_requests);
        put(&mut config.queue.max_wait, queue.max_wait.map(Into::into));
        put(&mut config.queue.max_wait_loading, queue.max_wait_loading.map(Into::into));
        put(&mut config.upstream.first_byte_timeout, upstream.first_byte_timeout.map(Into::into));
        put(&mut config.upstream.idle_timeout, upstream.idle_timeout.map(Into::into));
        put(&mut config.liveness.stale, liveness.stale.map(Into::into));
        put(&mut config.liveness.offline, liveness.offline.map(Into::into));
        put(&mut config.log.level, log.level.clone());
        put(&mut config.drain, shutdown.drain.map(Into::into));
        put(&mut config.clock.allowed_skew, clock.allowed_skew.map(Into::into));
        put(&mut config.audit.keep, audit.keep.map(Into::into));
        put(&mut config.audit.max_entries, audit.max_entries);
        config.together()?;
        Ok(config)
    }

    /// Rules between fields of the settings and of the file.
    fn together(&self) -> Result<(), Fault> {
        if self.api.body_max > self.api.held_max / 4 {
            let message = format!(
                "must be at most a quarter of api.held_max ({} bytes), which is what one key's requests may hold",
                self.api.held_max
            );
            return Err(Fault::new("edge.api.body_max", message));
        }
        let (heartbeat, stale, offline) =
            (self.liveness.heartbeat, self.liveness.stale, self.liveness.offline);
        Times::new(stale, offline).map_err(|message| Fault::new("edge.liveness.offline", message))?;
        if stale < heartbeat * 2 {
            let least: Duration = heartbeat * 2;
            let message = format!(
                "must be at least two heartbeats of this edge's file, {least:?}, or one lost one makes it stale"
            );
            return Err(Fault::new("edge.liveness.stale", message));
        }
        Ok(())
    }
}

fn put<T>(field: &mut T, said: Option<T>) {
    if let Some(said) = said {
        *field = said;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn overlaid(settings: serde_json::Value) -> Result<Config, String> {
        let config = Config::parse("[edge]\nsite = \"ber1\"\n", Path::new("/etc/umbel/edge.toml")).unwrap();
        let settings = serde_json::from_value(settings).unwrap();
        config.with_settings(&settings).map_err(|fault| fault.to_string())
    }

    #[test]
    fn settings_lie_over_the_file() {
        let config = overlaid(json!({
            "queue": { "max_wait": "5s" }, "liveness": { "stale": "20s" }, "clock": { "allowed_skew": "30s" },
        }))
        .unwrap();
        assert_eq!(config.queue.max_wait, Duration::from_secs(5));
        assert_eq!(config.queue.max_requests, 1_000);
        assert_eq!(config.liveness.stale, Duration::from_secs(20));
        assert_eq!(config.clock.allowed_skew, Duration::from_secs(30));
    }

    #[test]
    fn what_cannot_be_together_is_refused_by_its_path() {
        for (settings, path) in [
            (json!({ "liveness": { "offline": "30s" } }), "edge.liveness.offline"),
            (json!({ "liveness": { "stale": "90s" } }), "edge.liveness.offline"),
            (json!({ "liveness": { "stale": "19s" } }), "edge.liveness.stale"),
            (json!({ "api": { "held_max": "1MiB" } }), "edge.api.body_max"),
        ] {
            let said = overlaid(settings).unwrap_err();
            assert!(said.starts_with(path), "{said}");
        }
    }
}
