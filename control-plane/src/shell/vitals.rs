//! Metrics that are read at each scrape: the fleet as it is seen here, commands on their way, certificates and store.
//!
//! Owns names and labels. Invariants: they are what an operator's question of the same moment would say, with its age;
//! site is a name that was enrolled here, never one that a peer says.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Instant;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use umbel_contracts::daemon::exposition::{self, Peer, counter, gauge, gauges, whole};
use umbel_contracts::objects::EdgeConnection;
use umbel_contracts::proto::control::EdgeSummary;
use umbel_store::{COMMIT_BUCKETS, Health};
use umbel_wire::clock::{self, Wall};
use umbel_wire::peer::PeerCertificate;

use super::plane::Plane;
use crate::core::views::age_ms;

/// The control plane itself.
pub(crate) struct Own {
    /// Weak: the plane has the metrics.
    pub(crate) plane: Weak<Plane>,
    /// Its store's file.
    pub(crate) store: PathBuf,
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Own")
    }
}

/// One enrolled edge, as it is seen here.
struct Site {
    name: String,
    connection: EdgeConnection,
    heard_ms: Option<u64>,
    revoked: bool,
    said: Option<(Arc<EdgeSummary>, u64)>,
}

/// Every word that a site's connection may be.
const CONNECTIONS: [(EdgeConnection, &str); 4] = [
    (EdgeConnection::Connected, "connected"),
    (EdgeConnection::Stale, "stale"),
    (EdgeConnection::Disconnected, "disconnected"),
    (EdgeConnection::Never, "never"),
];

/// Name, help, label with its words and the value of each: what a site last said of itself.
type Said = (
    &'static str,
    &'static str,
    &'static [(&'static [(&'static str, &'static str)], fn(&EdgeSummary) -> Option<u64>)],
);

const SAID: [Said; 8] = [
    (
        "umbel_cp_site_nodes",
        "Nodes of a site by state, as it last said",
        &[
            (&[("state", "online")], |said| Some(said.nodes_online.into())),
            (&[("state", "stale")], |said| Some(said.nodes_stale.into())),
            (&[("state", "offline")], |said| Some(said.nodes_offline.into())),
        ],
    ),
    (
        "umbel_cp_site_providers",
        "Providers of a site, as it last said",
        &[
            (&[("state", "available")], |said| Some(said.providers_available.into())),
            (&[("state", "unavailable")], |said| {
                Some(said.providers_total.saturating_sub(said.providers_available).into())
            }),
        ],
    ),
    (
        "umbel_cp_site_requests",
        "Requests of applications at a site, as it last said",
        &[
            (&[("phase", "in_flight")], |said| Some(said.requests_in_flight)),
            (&[("phase", "queued")], |said| Some(said.requests_queued)),
        ],
    ),
    (
        "umbel_cp_site_deployments",
        "Deployments of a site by whether they have all replicas that they want, as it last said",
        &[
            (&[("state", "whole")], |said| {
                said.deployments.as_ref().map(|all| all.total.saturating_sub(all.short).into())
            }),
            (&[("state", "short")], |said| said.deployments.as_ref().map(|all| all.short.into())),
        ],
    ),
    (
        "umbel_cp_site_replicas",
        "Replicas of a site that are wanted, that are ready, and that have failed, as it last said",
        &[
            (&[("state", "wanted")], |said| said.deployments.as_ref().map(|all| all.replicas_wanted.into())),
            (&[("state", "ready")], |said| said.deployments.as_ref().map(|all| all.replicas_ready.into())),
            (&[("state", "failed")], |said| said.deployments.as_ref().map(|all| all.replicas_failed.into())),
        ],
    ),
    (
        "umbel_cp_site_jobs",
        "Jobs of a site's nodes that have not ended, as it last said",
        &[
            (&[("state", "queued")], |said| said.jobs.as_ref().map(|jobs| jobs.queued.into())),
            (&[("state", "running")], |said| said.jobs.as_ref().map(|jobs| jobs.running.into())),
        ],
    ),
    (
        "umbel_cp_site_problems",
        "What is wrong at a site, as it last said",
        &[(&[], |said| Some(said.problems_total.into()))],
    ),
    (
        "umbel_cp_site_config_revision",
        "Version of a site's settings, as it last said",
        &[(&[], |said| Some(said.facts.as_ref().map_or(0, |facts| facts.settings_version)))],
    ),
];

impl Own {
    fn sites(plane: &Plane, now: Instant) -> Vec<Site> {
        let fleet = plane.fleet();
        let site = |edge_id: &_, revoked| {
            let view = fleet.views.get(edge_id);
            let summary = view.and_then(|view| view.summary.as_ref());
            Site {
                name: edge_id.to_string(),
                connection: fleet.views.connection(edge_id),
                heard_ms: view.and_then(|view| view.heard_ms(now)),
                revoked,
                said: summary.map(|summary| (Arc::clone(&summary.said), age_ms(now, summary.received))),
            }
        };
        fleet.edges.sorted().into_iter().map(|(id, known)| site(id, known.row.revoked.is_some())).collect()
    }
}

impl Collector for Own {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(plane) = self.plane.upgrade() else { return Ok(()) };
        let sites = Self::sites(&plane, clock::now());
        fleet(&mut encoder, &sites)?;
        let running = whole(plane.commands().running() as u64);
        let help = "Relayed commands whose end is not known";
        gauge(&mut encoder, "umbel_cp_commands_running", help, running)?;
        let keys = &plane.keys;
        let authority = PeerCertificate::parse(keys.authority.certificate_der()).ok();
        let ends = [
            ("authority", authority.map(|authority| authority.not_after)),
            ("edges", Some(keys.edges.not_after())),
            ("api", Some(keys.api.not_after())),
        ];
        exposition::certificates(
            &mut encoder,
            ends.into_iter().filter_map(|(name, end)| Some((name, end?))),
        )?;
        let (store, times) = (plane.store(), plane.store().commit_times());
        exposition::store(&mut encoder, &self.store, &COMMIT_BUCKETS, &times.counts, times.sum)?;
        let help = "Whether its store takes writes";
        let writable = f64::from(u8::from(!matches!(store.health(), Health::ReadOnly(_))));
        gauge(&mut encoder, "umbel_cp_store_writable", help, writable)?;
        let help = "Durable transactions of its store";
        counter(&mut encoder, "umbel_cp_store_transactions", help, store.transactions())
    }
}

/// Age of something that was heard, as the moment that it was.
fn ago(age_ms: u64) -> Wall {
    Wall(Wall::now().unix_ms().saturating_sub(i64::try_from(age_ms).unwrap_or(i64::MAX)))
}

fn fleet(encoder: &mut DescriptorEncoder<'_>, sites: &[Site]) -> fmt::Result {
    let count = |of| whole(sites.iter().filter(|site| site.connection == of).count() as u64);
    let states = CONNECTIONS.map(|(connection, word)| ([("state", word)], count(connection)));
    let help = "Enrolled sites by the state of their connection";
    gauges(encoder, "umbel_cp_sites", help, states)?;
    let peer = |site: &Site| Peer {
        name: site.name.clone(),
        up: site.connection == EdgeConnection::Connected,
        heard: site.heard_ms.map(ago),
    };
    // One whose credential was revoked is not missed.
    let wanted: Vec<Peer> = sites.iter().filter(|site| !site.revoked).map(peer).collect();
    exposition::peers(encoder, "edge", &wanted)?;
    let said = || sites.iter().filter_map(|site| Some((site, site.said.as_ref()?)));
    let ages = said().map(|(site, (_, age))| ([("site", site.name.as_str())], whole(*age) / 1e3));
    let help = "Since a site last told its figures; all umbel_cp_site figures are as old as that";
    gauges(encoder, "umbel_cp_view_age_seconds", help, ages)?;
    for (name, help, words) in SAID {
        let series = said().flat_map(|(site, (said, _))| {
            words.iter().filter_map(move |(more, value)| {
                let mut labels = vec![("site", site.name.as_str())];
                labels.extend_from_slice(more);
                Some((labels, whole(value(said)?)))
            })
        });
        gauges(encoder, name, help, series)?;
    }
    Ok(())
}
