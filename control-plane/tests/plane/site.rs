//! An edge made for these tests: it enrolls, says hello, answers statuses and runs commands once each, and can be
//! told to fall silent.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use prost::Message;
use serde_json::{Value, json};
use tokio::sync::Notify;
use umbel_contracts::proto::control::{
    CommandError, EdgeCommandEvent, EdgeCommandRequest, EdgeCommandResponse, EdgeEnrollRequest,
    EdgeEnrollResponse, EdgeHelloRequest, EdgeHelloResponse, EdgeNodeEvent, EdgeNodeSnapshot,
    EdgeStatusRequest, EdgeStatusResponse, EdgeSummary, Operation, Phase,
};
use umbel_contracts::{event, method};
use umbel_wire::ids::{EdgeId, InstanceId};
use umbel_wire::secret::Secret;
use umbel_wire::tls::{ClientIdentity, KeyPair, Trust, wire_client};
use umbel_wire::{
    CloseReason, Connection, DialError, DialTarget, Error, Handler, HelloOut, IncomingStream, NoHandler,
    Purpose, VersionRange, dial_once,
};

use crate::rig::{Plane, within};

/// A key and what it enrolled as.
pub(crate) struct Site {
    pub(crate) edge_id: String,
    pub(crate) key: KeyPair,
    pub(crate) chain: Vec<Vec<u8>>,
    pub(crate) acts: Arc<Acts>,
}

/// What the edge does and did.
#[derive(Default)]
pub(crate) struct Acts {
    /// Answers no status.
    pub(crate) silent: AtomicBool,
    /// Breaks the connection instead of answering a command, after it was stored.
    pub(crate) cut: AtomicBool,
    /// Leaves commands running until `finish`.
    pub(crate) hold: AtomicBool,
    /// Tells a command's end as a step right before it answers that it runs.
    pub(crate) ends_when_shown: AtomicBool,
    pub(crate) statuses: AtomicUsize,
    pub(crate) runs: AtomicUsize,
    /// What the last answer to a hello asked for.
    pub(crate) asked: AtomicU64,
    pub(crate) requests: Mutex<Vec<EdgeCommandRequest>>,
    /// Outcomes by command id, as an edge stores them.
    stored: Mutex<HashMap<String, EdgeCommandResponse>>,
    pub(crate) closed: Mutex<Vec<CloseReason>>,
    pub(crate) closing: Notify,
}

pub(crate) fn target(plane: &Plane, trust: Trust, identity: Option<ClientIdentity>) -> DialTarget {
    DialTarget {
        addresses: vec![plane.running().edges_address().to_string()],
        server_name: "control-plane.umbel".into(),
        tls: wire_client(trust, identity).unwrap(),
    }
}

pub(crate) fn out(purpose: Purpose, payload: Vec<u8>) -> HelloOut {
    HelloOut { purpose, versions: VersionRange::ONE, instance: InstanceId::random(), payload }
}

pub(crate) fn identity(key: &KeyPair, chain: &[Vec<u8>]) -> ClientIdentity {
    ClientIdentity::new(chain.iter().map(|der| der.clone().into()).collect(), key.private_key())
}

pub(crate) fn enroll_request(
    token_id: &str,
    secret: &Secret,
    edge_id: &str,
    key: &KeyPair,
) -> EdgeEnrollRequest {
    EdgeEnrollRequest {
        token_id: token_id.into(),
        token_secret: secret.expose().to_vec(),
        edge_id: edge_id.into(),
        signing_request: key.signing_request().unwrap(),
        display_name: format!("Site {edge_id}"),
        software_version: "0.0.1".into(),
    }
}

/// Tries to enroll.
pub(crate) async fn enroll(plane: &Plane, request: EdgeEnrollRequest) -> Result<EdgeEnrollResponse, Error> {
    let target = target(plane, Trust::CaDigest(plane.ca_digest), None);
    let dialed = within(dial_once(target, out(Purpose::Enroll, request.encode_to_vec()), |_, _| {
        Ok(Arc::new(NoHandler))
    }))
    .await;
    match dialed {
        Ok((_, welcome)) => Ok(EdgeEnrollResponse::decode(welcome.payload).unwrap()),
        Err(error) => {
            Err(error.rejection.clone().unwrap_or_else(|| panic!("no reason given: {error}")).error)
        }
    }
}

/// Mints a token, enrolls, and does not connect yet.
pub(crate) async fn enrolled(plane: &Plane, edge_id: &str) -> Site {
    let (token_id, secret) = plane.mint(edge_id).await;
    let key = KeyPair::generate().unwrap();
    let response = enroll(plane, enroll_request(&token_id, &secret, edge_id, &key)).await.unwrap();
    assert_eq!(response.edge_id, edge_id);
    Site { edge_id: edge_id.into(), key, chain: response.certificate_chain, acts: Arc::default() }
}

/// Enrolls and connects.
pub(crate) async fn connected(plane: &Plane, edge_id: &str) -> (Site, Connection) {
    let site = enrolled(plane, edge_id).await;
    let connection = site.connect(plane).await.unwrap();
    (site, connection)
}

impl Site {
    pub(crate) fn hello(&self) -> EdgeHelloRequest {
        let operation = |name: &str, class| Operation { name: name.into(), class };
        EdgeHelloRequest {
            edge_id: self.edge_id.clone(),
            display_name: format!("Site {}", self.edge_id),
            software_version: "0.0.1".into(),
            operations: vec![
                operation("node.list", 1),
                operation("command.show", 1),
                operation("node.drain", 2),
                operation("enrollment.create", 3),
            ],
            features: Vec::new(),
        }
    }

    pub(crate) async fn connect(&self, plane: &Plane) -> Result<Connection, DialError> {
        let identity = identity(&self.key, &self.chain);
        self.connect_as(plane, Some(identity), out(Purpose::Hello, self.hello().encode_to_vec())).await
    }

    pub(crate) async fn connect_as(
        &self,
        plane: &Plane,
        identity: Option<ClientIdentity>,
        hello: HelloOut,
    ) -> Result<Connection, DialError> {
        let target = target(plane, Trust::Ca(vec![plane.ca.clone()]), identity);
        let handler = Arc::new(Answers { edge_id: self.edge_id.clone(), acts: Arc::clone(&self.acts) });
        let (connection, welcome) = within(dial_once(target, hello, |_, _| Ok(handler))).await?;
        let answer = EdgeHelloResponse::decode(welcome.payload).unwrap_or_default();
        self.acts.asked.store(answer.audit_witnessed, Ordering::SeqCst);
        Ok(connection)
    }

    /// A command that somebody else had it begin, and that runs.
    pub(crate) fn begun(&self, command_id: &str) {
        let answer = EdgeCommandResponse {
            command_id: command_id.into(),
            phase: Phase::Running as i32,
            ..EdgeCommandResponse::default()
        };
        self.acts.stored.lock().unwrap().insert(command_id.into(), answer);
    }

    /// Finishes a command that was held, and tells.
    pub(crate) fn finish(&self, connection: &Connection, command_id: &str, sequence: u64) {
        let mut stored = self.acts.stored.lock().unwrap();
        let answer = stored.get_mut(command_id).unwrap();
        answer.phase = Phase::Succeeded as i32;
        answer.result_json = b"{\"drained\":1}".to_vec();
        let event = EdgeCommandEvent {
            command_id: command_id.into(),
            sequence,
            phase: answer.phase,
            result_json: answer.result_json.clone(),
            at_unix_ms: 1,
            ..EdgeCommandEvent::default()
        };
        connection.event(event::EDGE_COMMAND, command_id, event.encode_to_vec());
    }

    /// The entry of its audit that the answer to its last hello asked for.
    pub(crate) fn asked(&self) -> u64 {
        self.acts.asked.load(Ordering::SeqCst)
    }

    pub(crate) fn runs(&self) -> usize {
        self.acts.runs.load(Ordering::SeqCst)
    }
}

/// Tells an event of the site.
pub(crate) fn tell(connection: &Connection, edge_id: &str, sequence: u64, kind: &str) {
    let event = EdgeNodeEvent {
        edge_id: edge_id.into(),
        sequence,
        at_unix_ms: 1,
        kind: kind.into(),
        message: "It happened.".into(),
        ..EdgeNodeEvent::default()
    };
    connection.event(event::EDGE_NODE, &sequence.to_string(), event.encode_to_vec());
}

struct Answers {
    edge_id: String,
    acts: Arc<Acts>,
}

impl Handler for Answers {
    fn on_stream(&self, connection: &Connection, stream: IncomingStream) {
        match stream.method() {
            method::EDGE_STATUS => self.status(stream),
            method::EDGE_COMMAND => self.command(connection, stream),
            other => panic!("method {other}"),
        }
    }

    fn on_closed(&self, _connection: &Connection, reason: &CloseReason) {
        self.acts.closed.lock().unwrap().push(reason.clone());
        self.acts.closing.notify_one();
    }
}

impl Answers {
    fn status(&self, stream: IncomingStream) {
        self.acts.statuses.fetch_add(1, Ordering::SeqCst);
        if self.acts.silent.load(Ordering::SeqCst) {
            // Held until the other side gives up.
            tokio::spawn(async move { stream.reset().await });
            return;
        }
        let request = EdgeStatusRequest::decode(stream.message()).unwrap();
        let refusal = match request.node_selector.as_str() {
            "node:nope" => Some(umbel_wire::Code::NotFound),
            "nodes:x" => Some(umbel_wire::Code::InvalidArgument),
            _ => None,
        };
        if let Some(code) = refusal {
            return stream.fail(Error::new(code, "SELECTOR", "As the edge says."), true, &[]);
        }
        let wants = |name: &str| {
            request.sections.is_empty() || request.sections.iter().any(|section| section == name)
        };
        let node = |number: usize| EdgeNodeSnapshot {
            node_id: format!("00000000-0000-4000-8000-{number:012}"),
            name: format!("gpu-{number}"),
            ..EdgeNodeSnapshot::default()
        };
        let nodes = if wants("nodes") { (0..40).map(node).collect() } else { Vec::new() };
        let first = EdgeStatusResponse {
            request_id: request.request_id,
            edge_id: self.edge_id.clone(),
            observed_at_unix_ms: 1_700_000_000_000,
            summary: Some(EdgeSummary { nodes_total: 40, nodes_online: 39, ..EdgeSummary::default() }),
            nodes,
            ..EdgeStatusResponse::default()
        };
        let second = EdgeStatusResponse {
            nodes: if wants("nodes") { vec![node(40)] } else { Vec::new() },
            ..Default::default()
        };
        reply(stream, &[first, second]);
    }

    fn command(&self, connection: &Connection, stream: IncomingStream) {
        let request = EdgeCommandRequest::decode(stream.message()).unwrap();
        self.acts.requests.lock().unwrap().push(request.clone());
        let answer = match request.operation.as_str() {
            "command.show" => self.show(connection, &request),
            "node.list" => EdgeCommandResponse {
                command_id: request.command_id,
                phase: Phase::Succeeded as i32,
                result_json: b"{\"nodes\":[]}".to_vec(),
                ..EdgeCommandResponse::default()
            },
            "no.such" => {
                let error =
                    Error::new(umbel_wire::Code::Unimplemented, "OPERATION_UNKNOWN", "No such operation.");
                return stream.fail(error, true, &[]);
            }
            _ => self.run(request),
        };
        if self.acts.cut.swap(false, Ordering::SeqCst) {
            return connection.close(CloseReason::Stalled);
        }
        reply(stream, &[answer]);
    }

    /// Runs a command once, and replays it afterwards.
    fn run(&self, request: EdgeCommandRequest) -> EdgeCommandResponse {
        let mut stored = self.acts.stored.lock().unwrap();
        if let Some(answer) = stored.get(&request.command_id) {
            return EdgeCommandResponse { replayed: true, ..answer.clone() };
        }
        self.acts.runs.fetch_add(1, Ordering::SeqCst);
        let held = self.acts.hold.load(Ordering::SeqCst);
        let answer = EdgeCommandResponse {
            command_id: request.command_id.clone(),
            phase: if held { Phase::Accepted } else { Phase::Succeeded } as i32,
            result_json: if held { Vec::new() } else { b"{\"drained\":1}".to_vec() },
            ..EdgeCommandResponse::default()
        };
        stored.insert(request.command_id, answer.clone());
        answer
    }

    fn show(&self, connection: &Connection, request: &EdgeCommandRequest) -> EdgeCommandResponse {
        let args: Value = serde_json::from_slice(&request.args_json).unwrap();
        let stored = self.acts.stored.lock().unwrap();
        let mut answer =
            EdgeCommandResponse { command_id: request.command_id.clone(), ..EdgeCommandResponse::default() };
        match stored.get(args["command_id"].as_str().unwrap()) {
            Some(known) => {
                let result: Value = serde_json::from_slice(&known.result_json).unwrap_or(Value::Null);
                let phase = umbel_contracts::objects::CommandPhase::from_proto(known.phase).unwrap();
                let state = json!({
                    "command_id": known.command_id, "operation": "node.drain", "phase": phase, "message": "",
                    "progress": null, "error": null, "result": result, "accepted_at": "2026-01-01T00:00:00Z",
                    "ended_at": null,
                });
                answer.phase = Phase::Succeeded as i32;
                answer.result_json = state.to_string().into_bytes();
                if self.acts.ends_when_shown.load(Ordering::SeqCst) {
                    let event = EdgeCommandEvent {
                        command_id: known.command_id.clone(),
                        sequence: 2,
                        phase: Phase::Succeeded as i32,
                        at_unix_ms: 1,
                        ..EdgeCommandEvent::default()
                    };
                    connection.event(event::EDGE_COMMAND, &known.command_id, event.encode_to_vec());
                }
            }
            None => {
                answer.phase = Phase::Failed as i32;
                answer.error = Some(CommandError {
                    code: "NOT_FOUND".into(),
                    reason: "COMMAND_UNKNOWN".into(),
                    message: "No such command.".into(),
                });
            }
        }
        answer
    }
}

fn reply<M: Message + Clone + 'static>(stream: IncomingStream, messages: &[M]) {
    let mut bytes = Vec::new();
    messages.iter().for_each(|message| message.encode_length_delimited(&mut bytes).unwrap());
    tokio::spawn(async move {
        if stream.send(&bytes).await.is_ok() {
            stream.finish(&[]);
        }
    });
}

pub(crate) fn edge_id(text: &str) -> EdgeId {
    EdgeId::parse(text).unwrap()
}
