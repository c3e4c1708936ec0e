//! What the node says on one connection, from WELCOME to its end.
//!
//! Owns the order and the intervals; leaves the messages to `reports`. Invariant: leases come before the first
//! heartbeat, and a slow or refusing edge never holds a stream up.

use std::{sync::Arc, time::Duration};

use prost::Message;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use umbel_contracts::{
    bounds, event, method,
    proto::node::{Artifact, NodeArtifacts, NodeEngines, NodeHeartbeatAck, NodeLeases, NodeLeasesAck},
};
use umbel_wire::{Connection, Error, Intervals, attend};

use super::Edge;

/// Where the edge suggests nothing.
const HEARTBEAT: Duration = Duration::from_secs(10);
const INVENTORY: Duration = Duration::from_secs(600);
/// Changes of engines that come together are told together.
const GATHER: Duration = Duration::from_millis(50);
/// One request to the edge.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Between two tries to agree on leases; the edge gives 10 s in all.
const LEASES_AGAIN: Duration = Duration::from_millis(100);
/// Naming goes on beside all else after this: below the edge's patience for a connection that is silent.
const NAMING: Duration = Duration::from_secs(5);
/// Longest pause between two namings.
const LEASES_SELDOM: Duration = Duration::from_secs(2);
/// Until leases are named again that the edge could not take.
const NAME_AGAIN: Duration = Duration::from_secs(1);

/// Talks until the connection ends.
pub(super) async fn talk(edge: Arc<Edge>, connection: Connection, intervals: Intervals) {
    tokio::select! {
        _ = connection.closed() => {}
        () = speak(&edge, &connection, intervals) => {}
    }
}

async fn speak(edge: &Arc<Edge>, connection: &Connection, intervals: Intervals) {
    let named = tokio::time::timeout(NAMING, leases(edge, connection)).await;
    if let Ok(Err(error)) = &named {
        tracing::warn!(%error, "the edge did not take the node's leases; they are named again");
    }
    if !matches!(named, Ok(Ok(()))) {
        // The edge was slow, or something does not let go of what was cancelled: it gives no work until it does, closes
        // a connection that does not name them any more, and hears the node meanwhile.
        name_again(edge, connection);
    }
    attend(connection, Arc::clone(&edge.jobs).talk(connection.clone()));
    let every = |suggested: Duration, otherwise| if suggested.is_zero() { otherwise } else { suggested };
    let inventory = every(intervals.inventory, INVENTORY);
    let mut heartbeats = ticks(Instant::now(), every(intervals.heartbeat, HEARTBEAT));
    let watch = edge.reports.watch();
    watch.set_interval(intervals.telemetry);
    let mut news = watch.news();
    let mut lost = news.borrow().lost;
    let mut changes = edge.engines.changes();
    let mut settings = edge.reports.settings().news();
    let mut artifacts = edge.reports.artifacts();
    let mut runtimes = edge.reports.installed().news();
    // They may have changed since the hello was put together.
    declare(edge, connection);
    tell_artifacts(connection, &artifacts.borrow_and_update());
    loop {
        tokio::select! {
            _ = heartbeats.tick() => heartbeat(edge, connection),
            () = edge.relay.orphans_over() => name_again(edge, connection),
            // The watch lives as long as the agent.
            Ok(()) = news.changed() => {
                let now = *news.borrow_and_update();
                if std::mem::replace(&mut lost, now.lost) != now.lost {
                    // No work goes to a lost GPU a heartbeat longer than it must.
                    heartbeat(edge, connection);
                }
                report(edge, connection, inventory);
            }
            Ok(()) = settings.changed() => {
                settings.borrow_and_update();
                declare(edge, connection);
                // How a trial ended is not kept back until the next heartbeat.
                heartbeat(edge, connection);
            }
            // The sender lives as long as the agent.
            Ok(()) = runtimes.changed() => declare(edge, connection),
            Ok(()) = artifacts.changed() => tell_artifacts(connection, &artifacts.borrow_and_update()),
            // The sender lives as long as the agent.
            Ok(()) = changes.changed() => {
                tokio::time::sleep(GATHER).await;
                changes.borrow_and_update();
                declare(edge, connection);
                let message = NodeEngines { engines: edge.reports.statuses() };
                connection.event(event::NODE_ENGINES, "engines", message.encode_to_vec());
            }
        }
    }
}

/// Declares anew what has changed.
fn declare(edge: &Edge, connection: &Connection) {
    if let Some(message) = edge.reports.declared_anew() {
        connection.event(event::NODE_DECLARED, "declared", message.encode_to_vec());
    }
}

/// Tells all artifacts that are here. A hello has room for some only.
fn tell_artifacts(connection: &Connection, artifacts: &[Artifact]) {
    let message = NodeArtifacts { artifacts: artifacts.to_vec() };
    connection.event(event::NODE_ARTIFACTS, "artifacts", message.encode_to_vec());
}

/// Sends the reports that are due.
fn report(edge: &Edge, connection: &Connection, inventory: Duration) {
    let now = std::time::Instant::now();
    if let Some(message) = edge.reports.inventory_due(now, inventory) {
        connection.event(event::NODE_INVENTORY, "inventory", message.encode_to_vec());
    }
    if let Some(message) = edge.reports.telemetry_due(now) {
        connection.event(event::NODE_TELEMETRY, "telemetry", message.encode_to_vec());
    }
}

fn ticks(from: Instant, period: Duration) -> tokio::time::Interval {
    let mut ticks = interval_at(from, period);
    // After a pause one report is enough.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Names the leases that are still carried, until the edge has none to cancel: the streams of older connections end
/// by themselves once those are lost, and are named anew then.
async fn leases(edge: &Edge, connection: &Connection) -> Result<(), Error> {
    let mut pause = LEASES_AGAIN;
    loop {
        let message = NodeLeases { lease_ids: edge.relay.leases() };
        let answer = connection.request(method::NODE_LEASES, message.encode_to_vec(), TIMEOUT).await?;
        let answer: NodeLeasesAck = bounds::decode(&answer)?;
        if answer.cancel_lease_ids.is_empty() {
            return Ok(());
        }
        edge.relay.cancel(&answer.cancel_lease_ids);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LEASES_SELDOM);
    }
}

/// Says what is carried after an older connection broke: the slots of what is not are taken until then.
fn name_again(edge: &Arc<Edge>, connection: &Connection) {
    let (edge, connection) = (Arc::clone(edge), connection.clone());
    tokio::spawn(async move {
        let named = async {
            while let Err(error) = leases(&edge, &connection).await {
                tracing::debug!(code = error.code.name(), reason = %error.reason, "NodeLeases");
                tokio::time::sleep(NAME_AGAIN).await;
            }
        };
        // The next connection names them first of all.
        tokio::select! { _ = connection.closed() => {} () = named => {} }
    });
}

/// Sends a heartbeat without waiting for its answer here: the next one is due whatever becomes of it.
fn heartbeat(edge: &Arc<Edge>, connection: &Connection) {
    let message = edge.reports.heartbeat(edge.relay.in_flight()).encode_to_vec();
    let (edge, connection) = (Arc::clone(edge), connection.clone());
    tokio::spawn(async move {
        let answered = connection.request(method::NODE_HEARTBEAT, message, TIMEOUT).await;
        if answered.is_ok() {
            edge.heard();
        }
        match answered.and_then(|answer| bounds::decode::<NodeHeartbeatAck>(&answer)) {
            Ok(ack) if ack.reconnect_spread_ms > 0 => {
                connection.set_reconnect_spread(Duration::from_millis(u64::from(ack.reconnect_spread_ms)));
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(code = error.code.name(), reason = %error.reason, "NodeHeartbeat"),
        }
    });
}
