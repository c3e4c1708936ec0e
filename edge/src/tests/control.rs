//! A fake control plane: hello, heartbeat, status, commands and events over one link.

use std::sync::{Arc, Mutex};

use prost::Message;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use umbel_contracts::proto::control::{
    AuditPlace, EdgeCommandEvent, EdgeCommandRequest, EdgeCommandResponse, EdgeCredentialRequest,
    EdgeCredentialResponse, EdgeEnrollRequest, EdgeEnrollResponse, EdgeHeartbeat, EdgeHeartbeatAck,
    EdgeHelloRequest, EdgeHelloResponse, EdgeNodeEvent, EdgeStatusRequest, EdgeStatusResponse, Phase,
};
use umbel_contracts::{event, method};
use umbel_wire::ca::Authority;
use umbel_wire::tls::{self, KeyPair};
use umbel_wire::token::{EnrollmentToken, TokenKind};
use umbel_wire::{
    BoxFuture, CloseReason, Connection, Door, EdgeId, Error, Generation, Handler, IncomingRequest, KeyHash,
    Newcomer, Open, Purpose, Rejection, Terminal, WelcomeOut,
};

use super::rig::{Edge, TIME, run, until};
use crate::shell::control::membership::{Joined, write};

#[derive(Default)]
struct Seen {
    hello: Option<EdgeHelloRequest>,
    link: Option<Connection>,
    heartbeats: Vec<EdgeHeartbeat>,
    events: Vec<EdgeNodeEvent>,
    steps: Vec<EdgeCommandEvent>,
    authority: Option<Authority>,
    address: String,
    // Keys that it turned away for good, and enrollments that it signed.
    revoked: Vec<KeyHash>,
    enrolled: usize,
    // Whether a new certificate is wanted, and how many it gave.
    renew: bool,
    renewed: usize,
    // The entry of the audit that it asks for.
    asks: u64,
    // The key of each accepted hello.
    keys: Vec<KeyHash>,
}

#[derive(Clone, Default)]
struct Plane(Arc<Mutex<Seen>>);

fn reject(newcomer: Newcomer, error: Error) {
    let yours = newcomer.hello().versions;
    newcomer.reject(Rejection { error, verdict: None, yours, mine: umbel_contracts::CONTROL_PROTOCOL });
}

impl Door for Plane {
    fn knows(&self, _: &KeyHash) -> bool {
        true
    }

    fn knock(&self, newcomer: Newcomer) -> BoxFuture<'static, ()> {
        let plane = self.clone();
        Box::pin(async move {
            if newcomer.hello().purpose == Purpose::Enroll {
                return plane.enroll(newcomer);
            }
            let key = newcomer.certificate().unwrap().key_hash;
            if plane.0.lock().unwrap().revoked.contains(&key) {
                // It asks to wait for longer than this test may last.
                let error = Error::new(umbel_wire::Code::Unauthenticated, "CREDENTIAL_REVOKED", "revoked");
                let error = error.with_retry_after(std::time::Duration::from_secs(600));
                return reject(newcomer, error);
            }
            let hello = EdgeHelloRequest::decode(newcomer.hello().payload.clone()).unwrap();
            let (renew_now, audit_witnessed) = {
                let mut seen = plane.0.lock().unwrap();
                (std::mem::take(&mut seen.renew), seen.asks)
            };
            let answer = EdgeHelloResponse {
                control_plane_id: "cp1".into(),
                fleet_name: "prod".into(),
                renew_now,
                audit_witnessed,
            };
            let welcome = WelcomeOut {
                generation: Generation(1),
                intervals: umbel_wire::Intervals {
                    heartbeat: std::time::Duration::from_millis(50),
                    ..Default::default()
                },
                payload: answer.encode_to_vec(),
                ..WelcomeOut::default()
            };
            let link = newcomer.accept(welcome, Arc::new(plane.clone()));
            let mut seen = plane.0.lock().unwrap();
            seen.keys.push(key);
            seen.hello = Some(hello);
            seen.link = Some(link);
        })
    }
}

impl Handler for Plane {
    fn on_request(&self, _: &Connection, request: IncomingRequest) {
        if request.method == method::EDGE_CREDENTIAL {
            let mut seen = self.0.lock().unwrap();
            seen.renewed += 1;
            let asked = EdgeCredentialRequest::decode(request.payload.clone()).unwrap().signing_request;
            let (site, now) = (EdgeId::parse("ber1").unwrap(), umbel_wire::clock::Wall::now());
            let time = std::time::Duration::from_secs(1_000);
            let issued = seen.authority.as_ref().unwrap().sign_edge(&asked, &site, now, time).unwrap();
            let answer = EdgeCredentialResponse {
                certificate_chain: issued.chain,
                not_after_unix_ms: issued.not_after.unix_ms(),
            };
            return request.respond(Ok(answer.encode_to_vec()));
        }
        let heartbeat = EdgeHeartbeat::decode(request.payload.clone()).unwrap();
        self.0.lock().unwrap().heartbeats.push(heartbeat);
        request.respond(Ok(EdgeHeartbeatAck::default().encode_to_vec()));
    }

    fn on_event(&self, _: &Connection, number: u32, _: &str, payload: &[u8]) -> Result<(), Error> {
        let mut seen = self.0.lock().unwrap();
        match number {
            event::EDGE_NODE => seen.events.push(EdgeNodeEvent::decode(payload).unwrap()),
            _ => seen.steps.push(EdgeCommandEvent::decode(payload).unwrap()),
        }
        Ok(())
    }
}

/// A control plane on loopback that the edge has joined.
async fn joined(edge: &Edge) -> (Plane, CancellationToken) {
    let plane = Plane::default();
    let directory = edge.directory.path().join("cp");
    let now = umbel_wire::clock::Wall::now();
    let time = std::time::Duration::from_secs(1_000);
    let authority = Authority::create(&directory, "cp1", now).unwrap();
    let server = authority.issue_server(&["control-plane.umbel".to_owned()], now, time).unwrap();
    let server = tls::wire_server(server.chain, server.key.private_key()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let shutdown = CancellationToken::new();
    tokio::spawn(umbel_wire::serve(listener, server, Arc::new(plane.clone()), shutdown.clone()));
    plane.0.lock().unwrap().address.clone_from(&address);
    let key = KeyPair::generate().unwrap();
    let site = EdgeId::parse("ber1").unwrap();
    let addresses = [address];
    let key_pem = key.to_pem();
    let issued = authority.sign_edge(&key.signing_request().unwrap(), &site, now, time).unwrap();
    let place = edge.config.state_dir.join("control-planes/cp1");
    let joined = Joined {
        control_plane_id: "cp1",
        edge_id: "ber1",
        addresses: &addresses,
        token_id: "0123456789abcdef",
        key_pem: key_pem.as_bytes(),
        chain_pem: &tls::to_pem(&issued.chain.into_iter().map(Into::into).collect::<Vec<_>>()),
        ca_pem: &tls::to_pem(std::slice::from_ref(authority.certificate_der())),
    };
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    write(&place, &joined).unwrap();
    until("the edge dials", || plane.0.lock().unwrap().link.is_some()).await;
    plane.0.lock().unwrap().authority = Some(authority);
    (plane, shutdown)
}

impl Plane {
    // As a control plane does: an edge whose credential stands is refused, the token is not spent.
    fn enroll(&self, newcomer: Newcomer) {
        let mut seen = self.0.lock().unwrap();
        if seen.revoked.is_empty() {
            let error = Error::new(umbel_wire::Code::Conflict, "EDGE_ALREADY_ENROLLED", "it is");
            return reject(newcomer, error);
        }
        let request = EdgeEnrollRequest::decode(newcomer.hello().payload.clone()).unwrap();
        seen.enrolled += 1;
        let authority = seen.authority.as_ref().unwrap();
        let (site, now) = (EdgeId::parse(&request.edge_id).unwrap(), umbel_wire::clock::Wall::now());
        let time = std::time::Duration::from_secs(1_000);
        let issued = authority.sign_edge(&request.signing_request, &site, now, time).unwrap();
        let answer = EdgeEnrollResponse {
            edge_id: request.edge_id,
            control_plane_id: "cp1".into(),
            not_after_unix_ms: issued.not_after.unix_ms(),
            certificate_chain: issued.chain.iter().map(|one| one.to_vec()).collect(),
            ca_certificate: authority.certificate_der().to_vec(),
        };
        newcomer.answer(answer.encode_to_vec());
    }

    fn token(&self) -> String {
        let seen = self.0.lock().unwrap();
        let token = EnrollmentToken {
            kind: TokenKind::Edge,
            edge_id: EdgeId::parse("ber1").unwrap(),
            token_id: umbel_wire::token::new_id(),
            ca_digest: seen.authority.as_ref().unwrap().digest(),
            addresses: vec![seen.address.clone()],
            secret: umbel_wire::secret::Secret::generate(),
        };
        token.to_text().unwrap().expose().to_owned()
    }

    fn link(&self) -> Connection {
        self.0.lock().unwrap().link.clone().unwrap()
    }

    async fn call<M: Message + Default>(&self, method: u32, message: Vec<u8>) -> Result<Vec<M>, Error> {
        let open = Open { method, message, end: true, timeout: TIME, ..Open::default() };
        let mut stream = self.link().open(open, |_| ()).unwrap();
        let mut bytes = Vec::new();
        while let Some(part) = stream.data().await {
            bytes.extend_from_slice(&part);
        }
        match stream.terminal() {
            Some(Terminal::Ended { error: None, .. }) => {}
            Some(Terminal::Ended { error: Some(error), .. }) => return Err(error),
            other => panic!("{other:?}"),
        }
        let mut rest = bytes.as_slice();
        let mut messages = Vec::new();
        while !rest.is_empty() {
            messages.push(M::decode_length_delimited(&mut rest).unwrap());
        }
        Ok(messages)
    }

    async fn command(&self, request: EdgeCommandRequest) -> Result<EdgeCommandResponse, Error> {
        let answers = self.call(method::EDGE_COMMAND, request.encode_to_vec()).await?;
        Ok(answers.into_iter().next().unwrap())
    }
}

fn command(operation: &str, selector: &str, args: &str, role: &str) -> EdgeCommandRequest {
    EdgeCommandRequest {
        command_id: uuid::Uuid::new_v4().to_string(),
        operation: operation.into(),
        target_selector: selector.into(),
        args_json: args.into(),
        reason: "a test".into(),
        metadata: [("actor".to_owned(), "olga".to_owned()), ("role".to_owned(), role.to_owned())].into(),
        ..EdgeCommandRequest::default()
    }
}

#[test]
fn a_control_plane_sees_and_commands_the_site() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let (plane, _shutdown) = joined(&edge).await;
        let hello = plane.0.lock().unwrap().hello.clone().unwrap();
        assert_eq!(hello.edge_id, "ber1");
        assert_eq!(hello.operations.len(), umbel_contracts::operations::ALL.len());
        until("heartbeats come", || plane.0.lock().unwrap().heartbeats.len() >= 2).await;

        let connection = node.connect(&edge).await;
        until("it is told", || plane.0.lock().unwrap().events.iter().any(|one| one.kind == "node_ready"))
            .await;
        let parts: Vec<EdgeStatusResponse> =
            plane.call(method::EDGE_STATUS, EdgeStatusRequest::default().encode_to_vec()).await.unwrap();
        let nodes: Vec<_> = parts.iter().flat_map(|part| &part.nodes).collect();
        assert!(nodes.len() == 1 && nodes[0].connected);
        assert_eq!(parts[0].summary.as_ref().unwrap().nodes_online, 1);
        assert_eq!(parts[0].queues.len(), 1);
        // Nothing changed since: it says so.
        let known = EdgeStatusRequest { known_revision: parts[0].revision.clone(), ..Default::default() };
        let again: Vec<EdgeStatusResponse> =
            plane.call(method::EDGE_STATUS, known.encode_to_vec()).await.unwrap();
        assert!(again.len() == 1 && again[0].unchanged);
        let bad = EdgeStatusRequest { node_selector: "node:".into(), ..Default::default() };
        let refused = plane.call::<EdgeStatusResponse>(method::EDGE_STATUS, bad.encode_to_vec()).await;
        assert_eq!(refused.unwrap_err().code, umbel_wire::Code::InvalidArgument);

        // R4: nothing that leaves the site names an address.
        let port = edge.running.nodes_address.port().to_string();
        let text = format!("{parts:?} {:?}", plane.0.lock().unwrap().events);
        assert!(!text.contains("127.0.0.1") && !text.contains(&port));

        let viewer = plane.command(command("node.drain", "node:n", "{}", "viewer")).await.unwrap_err();
        assert_eq!(viewer.reason, "ROLE_TOO_LOW");
        let request = command("node.drain", "node:n", "{}", "operator");
        let drained = plane.command(request.clone()).await.unwrap();
        assert_eq!(drained.phase(), Phase::Succeeded);
        let replayed = plane.command(request).await.unwrap();
        assert!(replayed.replayed && replayed.result_json == drained.result_json);
        let entry = &edge.audit("node.drain").await[0].record;
        assert_eq!(entry.actor, "olga@cp1");
        drop(connection);
    });
}

/// What stands at the entry of its audit that a control plane names is in the first heartbeat, and no more once it was
/// heard; one that asks for nothing is answered nothing.
#[test]
fn the_entry_of_the_audit_that_is_asked_for_is_answered() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let _connection = node.connect(&edge).await;
        until("something is audited", || edge.running.site.store.audit_head().sequence > 1).await;
        let asked = edge.running.site.store.audit_head();
        let (plane, shutdown) = joined(&edge).await;
        let beats = |plane: &Plane| plane.0.lock().unwrap().heartbeats.clone();
        until("a heartbeat came", || !beats(&plane).is_empty()).await;
        assert_eq!(beats(&plane)[0].audit_witnessed, None);
        for (sequence, hash) in
            [(asked.sequence, asked.hash.to_vec()), (asked.sequence + 1_000_000, Vec::new())]
        {
            let before = beats(&plane).len();
            {
                let mut seen = plane.0.lock().unwrap();
                seen.asks = sequence;
                seen.link.take().unwrap().close(CloseReason::Broke);
            }
            until("it dialed again", || plane.0.lock().unwrap().link.is_some()).await;
            until("two heartbeats came", || {
                let beats = beats(&plane);
                let answered = beats[before..].iter().position(|beat| beat.audit_witnessed.is_some());
                answered.is_some_and(|at| beats.len() > before + at + 1)
            })
            .await;
            let answers: Vec<_> =
                beats(&plane)[before..].iter().filter_map(|beat| beat.audit_witnessed.clone()).collect();
            assert_eq!(answers, [AuditPlace { sequence, hash, aged: false }]);
        }
        shutdown.cancel();
    });
}

/// Row 7: the control plane goes away; the site goes on, and a command goes on too.
#[test]
fn a_command_outlives_its_control_plane() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let _connection = node.connect(&edge).await;
        let slot = edge.slot().expect("a slot");
        let (plane, shutdown) = joined(&edge).await;
        let request = command("node.drain", "node:n", "{}", "operator");
        let id = request.command_id.clone();
        let accepted = plane.command(request).await.unwrap();
        assert!(matches!(accepted.phase(), Phase::Accepted | Phase::Running), "{accepted:?}");
        let link = plane.link();
        shutdown.cancel();
        link.close(CloseReason::Shutdown);
        link.closed().await;
        drop(slot);
        until("it ends without anybody there", || edge.running.commands.running(&id).is_none()).await;
        let row = edge.running.commands.row(&id).await.unwrap();
        assert_eq!(row.phase, umbel_contracts::objects::CommandPhase::Succeeded);
        assert!(edge.connected(&node));
    });
}

/// A revoked edge comes back with a new token, under a new key, while it runs; the same token again changes nothing.
#[test]
fn a_new_token_lets_a_revoked_edge_back() {
    run(async {
        let edge = Edge::start().await;
        let (plane, _shutdown) = joined(&edge).await;
        let enroll = async |token: &str| {
            let (config, token) = (edge.config.clone(), token.to_owned());
            tokio::task::spawn_blocking(move || crate::enroll(&config, &token)).await.unwrap()
        };
        let spare = plane.token();
        assert!(enroll(&spare).await.unwrap().already, "its credential stands: it stays");

        let place = edge.config.state_dir.join("control-planes/cp1");
        let certificate = || std::fs::read(place.join("certificate.pem")).unwrap();
        let before = certificate();
        let key = tls::parse_chain(&before).unwrap();
        let key = umbel_wire::peer::PeerCertificate::parse(&key[0]).unwrap().key_hash;
        let link = {
            let mut seen = plane.0.lock().unwrap();
            seen.revoked.push(key);
            seen.link.take().unwrap()
        };
        link.close(CloseReason::Revoked);
        until("it was told", || place.join("last-rejection.txt").exists()).await;
        let enrolled = enroll(&spare).await.unwrap();
        assert!(!enrolled.already && certificate() != before);
        until("it is back", || plane.0.lock().unwrap().link.is_some()).await;
        until("the refusal is forgotten", || !place.join("last-rejection.txt").exists()).await;
        assert!(enroll(&spare).await.unwrap().already, "a spent token is not sent again");
        assert_eq!(plane.0.lock().unwrap().enrolled, 1);
    });
}

/// Row 30, towards a control plane: the credential is replaced in two phases while the site is connected.
#[test]
fn row_30_the_edges_own_credential_is_renewed() {
    run(async {
        let edge = Edge::start().await;
        let (plane, _shutdown) = joined(&edge).await;
        let seen = |look: &dyn Fn(&Seen) -> bool| look(&plane.0.lock().unwrap());
        let place = edge.config.state_dir.join("control-planes/cp1");
        plane.0.lock().unwrap().renew = true;
        plane.link().close(CloseReason::Shutdown);
        until("the new key is shown", || seen(&|seen| seen.keys.last() != seen.keys.first())).await;
        let (first, second) = {
            let seen = plane.0.lock().unwrap();
            (*seen.keys.first().unwrap(), *seen.keys.last().unwrap())
        };
        until("the old pair is gone", || {
            !place.join("key.pem").exists() && !place.join("certificate.pem").exists()
        })
        .await;
        assert!(place.join("key.2.pem").exists());

        // Once more: the two pairs of names take turns.
        plane.0.lock().unwrap().renew = true;
        let before = plane.0.lock().unwrap().renewed;
        plane.link().close(CloseReason::Shutdown);
        until("it is given", || seen(&|seen| seen.renewed > before)).await;
        until("the third is shown", || {
            seen(&|seen| seen.keys.last().is_some_and(|key| ![first, second].contains(key)))
        })
        .await;
        until("the second pair is gone", || !place.join("key.2.pem").exists()).await;

        // Ended and started again, it comes with what it has.
        let third = *plane.0.lock().unwrap().keys.last().unwrap();
        let hellos = plane.0.lock().unwrap().keys.len();
        let _edge = edge.restart().await;
        until("it dials", || seen(&|seen| seen.keys.len() > hellos)).await;
        assert_eq!(plane.0.lock().unwrap().keys.last(), Some(&third));
    });
}

#[test]
fn a_renewed_credential_that_is_refused_does_not_keep_the_edge_out() {
    run(async {
        let edge = Edge::start().await;
        let (plane, _shutdown) = joined(&edge).await;
        let place = edge.config.state_dir.join("control-planes/cp1");
        let edge = {
            // Left by a renewal that the control plane does not know of: it was restored from a backup.
            let config = edge.config.clone();
            let directory = edge.directory;
            edge.running.drain(std::time::Duration::from_secs(5)).await;
            let key = KeyPair::generate().unwrap();
            umbel_wire::files::write_private(&place.join("key.2.pem"), key.to_pem().as_bytes()).unwrap();
            let chain = {
                let mut seen = plane.0.lock().unwrap();
                seen.revoked.push(key.key_hash());
                let (site, now) = (EdgeId::parse("ber1").unwrap(), umbel_wire::clock::Wall::now());
                let time = std::time::Duration::from_secs(1_000);
                let request = key.signing_request().unwrap();
                let issued = seen.authority.as_ref().unwrap().sign_edge(&request, &site, now, time).unwrap();
                issued.chain.into_iter().map(Into::into).collect::<Vec<_>>()
            };
            let chain = tls::to_pem(&chain);
            umbel_wire::files::write_private(&place.join("certificate.2.pem"), chain.as_bytes()).unwrap();
            let hellos = plane.0.lock().unwrap().keys.len();
            let edge = Edge::resume(directory, config).await;
            until("the one in use opens", || plane.0.lock().unwrap().keys.len() > hellos).await;
            edge
        };
        until("the same key is asked for again", || plane.0.lock().unwrap().renewed == 1).await;
        drop(edge);
    });
}
