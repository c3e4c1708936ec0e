//! A node's life: complete before it is dispatched to, what a restart forgets and keeps, drains.

use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use umbel_contracts::objects::CommandPhase;
use umbel_contracts::proto::control::{ProviderHealth, ProviderStatus};
use umbel_contracts::proto::node::EngineState;
use umbel_wire::liveness::State;
use umbel_wire::{CloseReason, Open};

use super::rig::{Edge, Relay, engine, name_leases, run, until};
use crate::shell::status;

fn admit(edge: &Edge) -> Option<crate::shell::dispatch::Slot> {
    edge.slot()
}

#[test]
fn a_node_is_complete_before_it_is_given_work() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let before = status::node(&edge.running.site, &edge.view(&node));
        assert!(!before.connected && !before.ready);
        let (connection, _) = node.dial(&edge).await.unwrap();
        assert!(!edge.connected(&node), "it has not named its leases");
        assert!(admit(&edge).is_none());
        name_leases(&connection, &[]).await.unwrap();
        super::rig::beat(&connection, 1).await.unwrap();
        let snapshot = status::node(&edge.running.site, &edge.view(&node));
        assert!(snapshot.connected && snapshot.ready, "{:?}", snapshot.readiness);
        let provider = &snapshot.providers[0];
        assert_eq!(provider.status(), ProviderStatus::Available);
        assert_eq!((provider.capacity, provider.in_flight), (4, 0));
        let slot = admit(&edge).expect("a slot");
        assert_eq!(status::node(&edge.running.site, &edge.view(&node)).providers[0].in_flight, 1);
        drop(slot);
        connection.close(CloseReason::Shutdown);
        until("it is not connected", || !edge.connected(&node)).await;
        let after = status::node(&edge.running.site, &edge.view(&node));
        let provider = &after.providers[0];
        assert_eq!(
            (provider.status(), provider.health()),
            (ProviderStatus::Unavailable, ProviderHealth::Offline)
        );
        assert_eq!((provider.capacity, provider.in_flight, provider.queued), (0, 0, 0));
        assert_eq!(provider.model, "llama");
    });
}

#[test]
fn an_engine_that_loads_takes_nothing_yet() {
    run(async {
        let edge = Edge::start().await;
        let mut node = edge.node("n").await;
        node.hello.engines = vec![engine("e", EngineState::Loading)];
        let connection = node.connect(&edge).await;
        assert!(edge.connected(&node) && admit(&edge).is_none());
        let states = umbel_contracts::proto::node::NodeEngines {
            engines: vec![engine("e", EngineState::Ready).status.unwrap()],
        };
        let payload = prost::Message::encode_to_vec(&states);
        connection.event(umbel_contracts::event::NODE_ENGINES, "engines", payload);
        until("it takes requests", || admit(&edge).is_some()).await;
    });
}

/// Row 5: after a restart nobody is declared offline before the offline time has passed since the start, and a node
/// that comes back is online at once.
#[test]
fn a_restart_declares_nobody_offline() {
    run(async {
        let times = "[liveness]\nheartbeat = \"100ms\"\nstale = \"300ms\"\noffline = \"900ms\"\n";
        let edge = Edge::start_with(times).await;
        let (stays, returns) = (edge.node("stays").await, edge.node("returns").await);
        let _both = (stays.connect(&edge).await, returns.connect(&edge).await);
        let edge = edge.restart().await;
        let started = edge.running.site.started;
        assert_eq!(edge.view(&stays).liveness, State::Unknown);
        assert_eq!(edge.view(&returns).liveness, State::Unknown);
        // Declared engines stand in the snapshot although nobody is here.
        assert_eq!(status::node(&edge.running.site, &edge.view(&stays)).providers.len(), 1);
        let _connection = returns.connect(&edge).await;
        assert_eq!(edge.view(&returns).liveness, State::Online);
        until("the one that stays away is offline", || {
            let state = edge.view(&stays).liveness;
            assert_ne!(state, State::Stale, "it goes from unknown to offline");
            state == State::Offline
        })
        .await;
        assert!(Instant::now() - started >= edge.config.liveness.offline);
    });
}

/// A lost store is not taken for a site without nodes and keys, which would let everybody on this host in.
#[test]
fn a_lost_store_is_not_an_empty_one() {
    run(async {
        let Edge { directory, config, running, .. } = Edge::start().await;
        running.crash().await;
        let path = config.state_dir.join(crate::app::STORE_FILE);
        for emptied in [true, false] {
            std::fs::remove_file(&path).unwrap();
            if emptied {
                std::fs::write(&path, "").unwrap();
            }
            let Err(crate::StartError::State(why)) = crate::app::Running::build(&config).await else {
                panic!("it starts")
            };
            assert!(why.contains("missing or empty") && why.contains("Restore the last backup"), "{why}");
        }
        assert!(!path.exists());
        drop(directory);
    });
}

/// Row 6: online, stale and offline by heartbeats; nothing is dispatched meanwhile, and it all comes back.
#[test]
fn liveness_follows_heartbeats() {
    run(async {
        let times = "[liveness]\nheartbeat = \"50ms\"\nstale = \"200ms\"\noffline = \"500ms\"\n";
        let edge = Edge::start_with(times).await;
        let node = edge.node("n").await;
        let connection = node.connect(&edge).await;
        for round in 2..4 {
            until("stale", || edge.view(&node).liveness == State::Stale).await;
            assert!(!edge.connected(&node) && admit(&edge).is_none());
            until("offline", || edge.view(&node).liveness == State::Offline).await;
            assert!(admit(&edge).is_none());
            super::rig::beat(&connection, round).await.unwrap();
            assert!(edge.connected(&node), "the first heartbeat brings it back");
            assert!(admit(&edge).is_some());
        }
        assert!(!edge.audit("node_offline").await.is_empty());
    });
}

/// Row 76: a drain outlives restarts of node and edge, its streams finish, undrain restores, a second is a no-op.
#[test]
fn a_drain_stays_until_it_is_taken_back() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let relay = Arc::new(Relay::default());
        let connection = node.connect_with(&edge, Arc::clone(&relay)).await;
        let mut slots: Vec<_> = (0..3).map(|_| admit(&edge).unwrap()).collect();
        let streams: Vec<_> = slots
            .iter_mut()
            .map(|slot| slot.open(Open { method: 3, end: true, ..Open::default() }).unwrap())
            .collect();
        until("three streams run", || relay.open() == 3).await;
        let id = uuid::Uuid::new_v4().to_string();
        let drain = edge.ask_as(&id, "node.drain", "node:n", json!({ "deadline_seconds": 60 }));
        let finish = async {
            until("it drains", || edge.view(&node).row.draining).await;
            assert!(admit(&edge).is_none(), "no new work");
            assert_eq!(relay.streams.lock().unwrap().len(), 3, "running streams go on");
            relay.finish();
        };
        let (drained, ()) = tokio::join!(drain, finish);
        let drained = drained.unwrap();
        assert_eq!(drained.phase, CommandPhase::Succeeded, "{:?}", drained.error);
        drop((streams, slots));
        connection.close(CloseReason::Shutdown);
        let _again = node.connect(&edge).await;
        assert!(edge.view(&node).row.draining && admit(&edge).is_none());
        let edge = edge.restart().await;
        let _once_more = node.connect(&edge).await;
        assert!(edge.view(&node).row.draining && admit(&edge).is_none());
        let noop = edge.ask("node.drain", "node:n", json!({})).await.unwrap();
        assert_eq!(noop.phase, CommandPhase::Succeeded);
        edge.ask("node.undrain", "node:n", json!({})).await.unwrap();
        assert!(admit(&edge).is_some());
        let entries = edge.audit("node.drain").await;
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0].record.command_id, id);
    });
}

/// A drain whose leases do not end is told so at its deadline; the mark stays.
#[test]
fn a_drain_has_a_deadline() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let _connection = node.connect(&edge).await;
        let slot = admit(&edge).unwrap();
        let late = edge.ask("node.drain", "node:n", json!({ "deadline_seconds": 0 })).await.unwrap();
        assert_eq!(late.phase, CommandPhase::TimedOut);
        assert!(edge.view(&node).row.draining);
        drop(slot);
    });
}

/// A site of 5,000 nodes fits: in parts, all of one revision.
#[test]
fn a_site_of_five_thousand_nodes() {
    run(async {
        use prost::Message;
        let edge = Edge::start().await;
        let template = edge.node("template").await;
        let row = edge.view(&template).row.clone();
        let site = &edge.running.site;
        site.change(|registry| {
            for n in 1..5_000_u32 {
                let mut row = row.clone();
                row.name = format!("node-{n:04}");
                row.credential.key_sha256 = umbel_wire::KeyHash([n.to_be_bytes()[3]; 32]).to_string();
                registry.insert(
                    umbel_wire::NodeId::random(),
                    row,
                    umbel_store::Position(1),
                    Default::default(),
                );
            }
        });
        let question = status::Question::check(Default::default()).unwrap();
        let mut reading = status::Reading::new(site, question).await;
        let (mut nodes, mut parts) = (0, 0);
        while let Some(part) = reading.next(site) {
            assert!(part.encoded_len() < 1024 * 1024);
            nodes += part.nodes.len();
            parts += 1;
        }
        assert_eq!(nodes, 5_000);
        assert!(parts > 1);
    });
}

/// Row 93: an agent that ends says so first: its providers drain and get nothing new, what runs goes on.
#[test]
fn an_agent_that_ends_is_given_nothing_more() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let relay = Arc::new(Relay::default());
        let connection = node.connect_with(&edge, Arc::clone(&relay)).await;
        let mut slot = admit(&edge).unwrap();
        let mut stream = slot.open(Open { method: 3, end: true, ..Open::default() }).unwrap();
        until("a stream runs", || relay.open() == 1).await;
        connection.goaway(umbel_wire::GoawayReason::Shutdown, "the agent ends", None);
        until("nothing new is given to it", || admit(&edge).is_none()).await;
        let provider = &status::node(&edge.running.site, &edge.view(&node)).providers[0];
        assert_eq!(provider.status(), ProviderStatus::Draining);
        relay.finish();
        while stream.data().await.is_some() {}
        assert!(matches!(stream.terminal(), Some(umbel_wire::Terminal::Ended { error: None, .. })));
    });
}
