//! Metrics of the edge itself: its links, certificates, settings and store, and what was used with each API key.
//!
//! Leaves requests to [`crate::metrics`], queues to `dispatch`, nodes to [`super::gauges`], build and process to
//! `umbel_contracts`. Invariants: everything is read when it is asked for; names of control planes, certificates and keys
//! are the operator's own, never a peer's; keys have series only where a setting says so.

use std::fmt;
use std::sync::{Arc, Weak};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use umbel_contracts::daemon::exposition::{self, Peer, Reloads};
use umbel_store::COMMIT_BUCKETS;

use super::keys::Keys;
use super::site::Site;
use crate::app::STORE_FILE;

/// Certificates of the links to control planes, by the name of the control plane.
const LINKS: &str = "control-plane/";

/// The edge itself.
pub(crate) struct Own {
    /// Weak: the metrics must not keep the site alive.
    pub(crate) site: Weak<Site>,
    /// Likewise.
    pub(crate) keys: Weak<Keys>,
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Own")
    }
}

impl Collector for Own {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(site) = self.site.upgrade() else { return Ok(()) };
        let changes = site.settings.changes();
        let reloads = Reloads { scope: "site", applied: changes.applied, refused: changes.refused };
        exposition::settings(&mut encoder, site.settings.version(), &[reloads])?;
        let ends = site.expiries.ends();
        let peers: Vec<Peer> = ends
            .iter()
            .filter_map(|(name, _)| name.strip_prefix(LINKS))
            .map(|name| {
                let (up, heard) = site.events.link_of(name);
                Peer { name: name.to_owned(), up, heard }
            })
            .collect();
        exposition::peers(&mut encoder, "control_plane", &peers)?;
        exposition::certificates(&mut encoder, ends.iter().map(|(name, end)| (name.as_str(), *end)))?;
        let (file, times) = (site.settings.in_force().state_dir.join(STORE_FILE), site.store.commit_times());
        exposition::store(&mut encoder, &file, &COMMIT_BUCKETS, &times.counts, times.sum)?;
        match self.keys.upgrade() {
            Some(keys) if site.settings.in_force().metrics.keys => by_key(&mut encoder, &keys),
            _ => Ok(()),
        }
    }
}

/// What was used with each key in its life, over restarts too. As many series as keys, which are bounded.
fn by_key(encoder: &mut DescriptorEncoder<'_>, keys: &Keys) -> fmt::Result {
    let totals: Vec<(Arc<str>, _)> = keys.by_key();
    let requests = totals.iter().map(|(key_id, used)| ([("key_id", &**key_id)], used.requests));
    exposition::counters(encoder, "umbel_edge_key_requests", "Requests with an API key", requests)?;
    let tokens = totals.iter().flat_map(|(key_id, used)| {
        let labels = |direction| [("key_id", &**key_id), ("direction", direction)];
        [(labels("input"), used.prompt_tokens), (labels("output"), used.completion_tokens)]
    });
    exposition::counters(encoder, "umbel_edge_key_tokens", "Tokens used with an API key", tokens)
}
