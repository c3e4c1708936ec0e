//! The connection to one control plane.
//!
//! Owns hello, heartbeat, and the answers to its two streams. Invariant: a stream that is reset stops its reading
//! at once; a command that it began goes on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prost::Message;
use umbel_contracts::bounds;
use umbel_contracts::operations::{self, Class, LARGEST_METADATA, LARGEST_RESULT, METADATA_KEYS};
use umbel_contracts::proto::control::{
    CommandError, EdgeCommandRequest, EdgeCommandResponse, EdgeHeartbeat, EdgeHeartbeatAck, EdgeHelloRequest,
    EdgeHelloResponse, EdgeStatusRequest, Operation,
};
use umbel_contracts::{CONTROL_PROTOCOL, method};
use umbel_wire::{
    Attempt, BoxFuture, CloseReason, Code, Connection, DialError, DialRole, DialTarget, Error, Handler,
    HelloOut, IncomingStream, InstanceId, Purpose, Welcome, attend, clock,
};

use super::membership::{Membership, REJECTION};
use super::note::Note;
use super::renewal::Renewal;
use crate::core::commands::Request;
use crate::shell::commands::{AT_ONCE, Commands, Standing};
use crate::shell::status::{self, Question, Reading};

/// The control planes' servers have this name whatever their address.
const SERVER_NAME: &str = "control-plane.umbel";
/// Between heartbeats unless WELCOME says otherwise.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// How one control plane is dialed.
pub(super) struct Role {
    commands: Arc<Commands>,
    membership: Membership,
    renewal: Arc<Renewal>,
    instance: InstanceId,
    // The last failure, so that each new one is logged once and not at every attempt.
    failure: Mutex<String>,
    // What `umbel edge doctor` reads of the last refusal; none: it is accepted.
    rejection: Arc<Note>,
}

impl Role {
    pub(super) fn new(commands: Arc<Commands>, membership: Membership) -> Self {
        let renewal = Arc::new(Renewal::open(&membership));
        let rejection = Note::new(&membership.name, membership.directory.join(REJECTION));
        Self {
            commands,
            membership,
            renewal,
            instance: InstanceId::random(),
            failure: Mutex::default(),
            rejection,
        }
    }

    fn failed(&self, text: String) {
        let mut last = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if *last != text {
            tracing::warn!(control_plane = %self.membership.name, "{text}");
            *last = text;
        }
    }
}

impl DialRole for Role {
    fn target(&self) -> DialTarget {
        DialTarget {
            addresses: self.membership.addresses.clone(),
            server_name: SERVER_NAME.to_owned(),
            tls: self.renewal.dial(),
        }
    }

    fn wants_anew(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.renewal.wants_anew())
    }

    fn again_at_once(&self, error: &DialError) -> bool {
        self.renewal.failed(error.rejection.is_some())
    }

    fn hello(&self, _attempt: Attempt) -> HelloOut {
        let site = &self.commands.site;
        let operations = operations::ALL
            .iter()
            .map(|spec| Operation { name: spec.name.to_owned(), class: spec.class.to_proto().into() })
            .collect();
        let hello = EdgeHelloRequest {
            edge_id: site.edge_id.to_string(),
            display_name: site.name.clone(),
            software_version: env!("CARGO_PKG_VERSION").to_owned(),
            operations,
            features: Vec::new(),
        };
        HelloOut {
            purpose: Purpose::Hello,
            versions: CONTROL_PROTOCOL,
            instance: self.instance,
            payload: hello.encode_to_vec(),
        }
    }

    fn on_welcome(&self, connection: &Connection, welcome: &Welcome) -> Result<Arc<dyn Handler>, Error> {
        let answer = bounds::decode::<EdgeHelloResponse>(&welcome.payload)?;
        let name = self.membership.name.clone();
        tracing::info!(
            control_plane = %name, id = %answer.control_plane_id, generation = %welcome.generation, "connected"
        );
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.rejection.keep(None);
        self.commands.site.events.link(&name, connection.clone());
        self.renewal.accepted();
        attend(connection, Arc::clone(&self.renewal).talk(connection.clone(), answer.renew_now));
        let interval = welcome.intervals.heartbeat;
        let interval = if interval.is_zero() { HEARTBEAT } else { interval };
        let link = (name.clone(), connection.clone());
        attend(connection, heartbeats(Arc::clone(&self.commands), link, interval, answer.audit_witnessed));
        Ok(Arc::new(Link { commands: Arc::clone(&self.commands), name }))
    }

    fn on_failure(&self, error: &DialError, retry_in: Duration) {
        if let Some(rejection) = &error.rejection {
            let text = format!("{}: {}\n", rejection.error.reason, rejection.error.message);
            self.rejection.keep(Some(text));
        }
        self.failed(format!("not connected ({error}); the site serves without it"));
        tracing::debug!(control_plane = %self.membership.name, ?retry_in, "next dial");
    }

    fn on_lost(&self, reason: &CloseReason, _retry_in: Duration) {
        self.failed(format!("the connection was lost ({reason}); the site serves without it"));
    }
}

// `asked`: the entry of the audit that the control plane wants to see again; 0: none.
async fn heartbeats(
    commands: Arc<Commands>,
    (name, connection): (String, Connection),
    interval: Duration,
    mut asked: u64,
) {
    let mut sequence = 0;
    loop {
        sequence += 1;
        let audit_witnessed = status::audit_place(&commands.site, asked).await;
        let answers = audit_witnessed.is_some();
        let heartbeat = EdgeHeartbeat {
            sequence,
            observed_at_unix_ms: commands.site.wall().unix_ms(),
            summary: Some(status::summary(&commands.site).await),
            audit_witnessed,
        };
        // A heartbeat that fails needs no remedy here: the connection judges itself.
        let answer = connection.request(method::EDGE_HEARTBEAT, heartbeat.encode_to_vec(), interval).await;
        if let Ok(answer) = answer
            && let Ok(ack) = bounds::decode::<EdgeHeartbeatAck>(&answer)
        {
            commands.site.events.heard(&name);
            // What the next redial after a loss spreads over follows the fleet's size.
            connection.set_reconnect_spread(Duration::from_millis(ack.reconnect_spread_ms.into()));
            if answers {
                asked = 0;
            }
        }
        // Not an interval: after a pause there is one heartbeat, not a burst (row 16).
        tokio::select! {
            _ = connection.closed() => return,
            () = tokio::time::sleep(interval) => {}
        }
    }
}

/// The handler of one connection.
struct Link {
    commands: Arc<Commands>,
    name: String,
}

impl Handler for Link {
    fn on_stream(&self, _connection: &Connection, stream: IncomingStream) {
        let commands = Arc::clone(&self.commands);
        match stream.method() {
            method::EDGE_STATUS => drop(tokio::spawn(tell_status(commands, stream))),
            method::EDGE_COMMAND => drop(tokio::spawn(take_command(commands, self.name.clone(), stream))),
            _ => stream.fail(
                Error::new(
                    Code::Unimplemented,
                    "UNKNOWN_METHOD",
                    "this edge does not know the method; it may be older",
                ),
                true,
                &[],
            ),
        }
    }

    fn on_closed(&self, connection: &Connection, reason: &CloseReason) {
        tracing::info!(control_plane = %self.name, "the connection ended: {reason}");
        self.commands.site.events.unlink(&self.name, connection);
    }
}

async fn tell_status(commands: Arc<Commands>, stream: IncomingStream) {
    let site = &commands.site;
    let question = bounds::decode::<EdgeStatusRequest>(stream.message()).and_then(Question::check);
    let mut reading = match question {
        Ok(question) => Reading::new(site, question).await,
        Err(error) => return stream.fail(error, true, &[]),
    };
    while let Some(part) = reading.next(site) {
        // Reset or lost: nobody wants the rest.
        if stream.send(&part.encode_length_delimited_to_vec()).await.is_err() {
            return;
        }
    }
    stream.finish(&[]);
}

async fn take_command(commands: Arc<Commands>, name: String, stream: IncomingStream) {
    let started = clock::now();
    let request =
        match bounds::decode::<EdgeCommandRequest>(stream.message()).and_then(|one| request(one, &name)) {
            Ok(request) => request,
            Err(error) => return stream.fail(error, true, &[]),
        };
    let (id, operation) = (request.command_id.clone(), request.operation.clone());
    // The command goes on when the stream is reset; only the answer is no longer wanted.
    let answer = commands.ask(request, AT_ONCE).await;
    tracing::debug!(command = %id, %operation, took = ?started.elapsed(), "a command was answered");
    match answer {
        Err(error) => stream.fail(error, true, &[]),
        Ok(standing) => match response(id, standing) {
            Err(error) => stream.fail(error, false, &[]),
            Ok(response) => {
                if stream.send(&response.encode_length_delimited_to_vec()).await.is_ok() {
                    stream.finish(&[]);
                }
            }
        },
    }
}

fn response(command_id: String, standing: Standing) -> Result<EdgeCommandResponse, Error> {
    let result_json = standing.result.and_then(|result| serde_json::to_vec(&result).ok()).unwrap_or_default();
    if result_json.len() > LARGEST_RESULT {
        let message = "the result is above 1 MiB; ask with a smaller limit, or with a selector";
        return Err(Error::new(Code::TooLarge, "RESULT_TOO_LARGE", message));
    }
    Ok(EdgeCommandResponse {
        command_id,
        phase: standing.phase.to_proto().into(),
        error: standing.error.map(|error| CommandError {
            code: error.code,
            reason: error.reason,
            message: error.message,
        }),
        result_json,
        replayed: standing.replayed,
    })
}

/// Reads a command and checks that its caller's role is enough: the control plane did so, and the edge does again.
fn request(message: EdgeCommandRequest, name: &str) -> Result<Request, Error> {
    let invalid = |reason: &'static str, message: &str| Error::new(Code::InvalidArgument, reason, message);
    let args = match message.args_json.as_slice() {
        [] => serde_json::Map::new(),
        bytes => {
            serde_json::from_slice(bytes).map_err(|_| invalid("ARGS", "args must be one JSON object"))?
        }
    };
    let metadata: BTreeMap<&str, &str> =
        message.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let length: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    if length > LARGEST_METADATA || metadata.keys().any(|key| !METADATA_KEYS.contains(key)) {
        return Err(invalid("METADATA", "metadata has keys that are not allowed, or is above 1 KiB"));
    }
    let get = |key: &str| metadata.get(key).copied().unwrap_or_default();
    let class = crate::shell::commands::class_of(&message.operation).unwrap_or(Class::Admin);
    let allowed = match get("role") {
        "admin" => Class::Admin,
        "operator" => Class::Operate,
        _ => Class::Read,
    };
    if class > allowed {
        let text = format!("{} needs a role of class {class}; the caller's is {allowed}", message.operation);
        return Err(Error::new(Code::PermissionDenied, "ROLE_TOO_LOW", text));
    }
    let actor = match get("actor") {
        "" => format!("control-plane:{name}"),
        actor => format!("{actor}@{name}"),
    };
    Ok(Request {
        command_id: message.command_id,
        operation: message.operation,
        selector: message.target_selector,
        args,
        reason: message.reason,
        dry_run: message.dry_run,
        confirm: message.confirm,
        actor,
        correlation_id: get("correlation_id").to_owned(),
        deadline: Duration::from_millis(message.deadline_ms.into()),
        origin: Some(name.to_owned()),
    })
}
