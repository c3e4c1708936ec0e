//! Commands and questions on their way to an edge, as steps.
//!
//! Owns the order that `shell/relay.rs` and `shell/status.rs` have. Leaves ids, ends and what a broken call means to
//! `core/commands`. Invariant: a caller without a connected edge has its answer before anything is kept.

use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message;
use umbel_contracts::method;
use umbel_contracts::objects::{CommandObject, CommandRequestBody};
use umbel_contracts::proto::control::{
    EdgeCommandRequest, EdgeCommandResponse, EdgeStatusRequest, EdgeStatusResponse,
};
use umbel_store::simulation::Disk;
use umbel_wire::clock::Wall;
use umbel_wire::error::{Code, Error};
use umbel_wire::simulation::Outgoing;
use umbel_wire::{EdgeId, Terminal};

use super::{LinkId, Plane};
use crate::core::audit::Detail;
use crate::core::commands::{Begin, Broken, Key, PendingRow, digest, lost};

const ANSWER_WITHIN: Duration = Duration::from_secs(15);
const STATUS_WITHIN: Duration = Duration::from_secs(2);

pub(super) enum Call {
    Command(Key, Vec<u8>),
    Status(EdgeId, Vec<u8>),
}

/// What the caller of a command is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relayed {
    /// The edge did it.
    Done,
    /// The edge said no, with this reason.
    Refused(String),
    /// It was not sent: the edge is not connected.
    Unavailable,
    /// The same one is on its way already.
    Joined,
    /// Whether the edge did it is not known.
    Unknown,
}

impl Plane {
    /// An operator's command for an edge. Its answer comes with [`Plane::answers`], at once if it is not sent.
    #[expect(clippy::too_many_arguments, reason = "a command and where it happens")]
    pub fn relay(
        &mut self,
        edge_id: &str,
        id: &str,
        operation: &str,
        args_json: &[u8],
        disk: &mut Disk,
        now: Instant,
        wall: Wall,
    ) {
        let link = self.open_link(edge_id);
        let (edge_id, link) = match link {
            Ok(found) => found,
            Err(_) => {
                if self.is("a command waits for its edge") {
                    return;
                }
                if self.is("a command is queued for later") {
                    self.later.push((id.to_owned(), operation.to_owned(), args_json.to_vec()));
                }
                return self.answers.push((id.to_owned(), Relayed::Unavailable));
            }
        };
        let args = serde_json::from_slice(args_json).ok();
        let body = CommandRequestBody {
            operation: operation.to_owned(),
            target_selector: String::new(),
            args,
            reason: String::new(),
            dry_run: false,
            confirm: String::new(),
            deadline_ms: None,
            client: String::new(),
        };
        let row = PendingRow {
            edge_id: edge_id.to_string(),
            command_id: id.to_owned(),
            operation: operation.to_owned(),
            digest: digest(&body),
            actor: "operator".to_owned(),
            correlation_id: String::new(),
            asked_at_unix_ms: wall.unix_ms(),
            detail: Detail { edge: edge_id.to_string(), ..Detail::default() },
        };
        let key: Key = (edge_id, id.to_owned());
        match self.commands.begin(now, &key, row) {
            Err(error) => return self.answers.push((id.to_owned(), Relayed::Refused(error.reason.into()))),
            Ok(Begin::Join) => return self.answers.push((id.to_owned(), Relayed::Joined)),
            Ok(Begin::Again) => {}
            Ok(Begin::Send(row)) => {
                if disk.commit(&row.requested(), wall.unix_ms()).is_err() {
                    self.commands.forget(&key);
                    let reason = "AUDIT_UNAVAILABLE".to_owned();
                    return self.answers.push((id.to_owned(), Relayed::Refused(reason)));
                }
            }
        }
        let request = EdgeCommandRequest {
            command_id: id.to_owned(),
            operation: operation.to_owned(),
            args_json: args_json.to_vec(),
            ..EdgeCommandRequest::default()
        };
        let opened = self
            .links
            .get_mut(&link)
            .map(|entry| entry.end.open(now, method::EDGE_COMMAND, request.encode_to_vec(), ANSWER_WITHIN));
        match opened {
            Some(Ok(stream)) => drop(self.calls.insert((link, stream), Call::Command(key, Vec::new()))),
            Some(Err(error)) => self.came(&key, Err(Broken::Refused(error)), disk, now, wall),
            None => self.came(&key, Err(Broken::Unknown(lost())), disk, now, wall),
        }
    }

    fn open_link(&self, edge_id: &str) -> Result<(EdgeId, LinkId), Error> {
        let open = |link: &LinkId| self.links.get(link).is_some_and(|entry| !entry.end.is_over());
        self.fleet.link(edge_id, open).map(|(edge_id, _, link)| (edge_id, link))
    }

    // The mutation: what could not be sent is sent when the edge is back.
    pub(super) fn send_later(&mut self, edge_id: &EdgeId, disk: &mut Disk, now: Instant, wall: Wall) {
        for (id, operation, args) in std::mem::take(&mut self.later) {
            self.relay(edge_id.as_str(), &id, &operation, &args, disk, now, wall);
        }
    }

    /// Asks an edge how it is. False if it is not connected.
    pub fn ask(&mut self, edge_id: &str, now: Instant) -> bool {
        let Ok((edge_id, link)) = self.open_link(edge_id) else { return false };
        let request = EdgeStatusRequest { request_id: "question".to_owned(), ..EdgeStatusRequest::default() };
        let opened = self
            .links
            .get_mut(&link)
            .map(|entry| entry.end.open(now, method::EDGE_STATUS, request.encode_to_vec(), STATUS_WITHIN));
        if let Some(Ok(stream)) = opened {
            self.calls.insert((link, stream), Call::Status(edge_id, Vec::new()));
        }
        true
    }

    /// What callers are told, oldest first.
    pub fn answers(&mut self) -> Vec<(String, Relayed)> {
        std::mem::take(&mut self.answers)
    }

    pub(super) fn data(&mut self, link: LinkId, stream: Outgoing, data: &Bytes) {
        if let Some(Call::Command(_, read) | Call::Status(_, read)) = self.calls.get_mut(&(link, stream)) {
            read.extend_from_slice(data);
        }
    }

    pub(super) fn terminal(
        &mut self,
        link: LinkId,
        stream: Outgoing,
        terminal: &Terminal,
        disk: &mut Disk,
        now: Instant,
        wall: Wall,
    ) {
        let Some(call) = self.calls.remove(&(link, stream)) else { return };
        let ended = match terminal {
            Terminal::Ended { error: None, .. } => Ok(()),
            Terminal::Ended { error: Some(error), .. } => Err(Broken::ended(error.clone())),
            Terminal::Lost(_) => Err(Broken::Unknown(lost())),
        };
        match call {
            Call::Command(key, read) => {
                let malformed = || Broken::Unknown(Error::new(Code::BadGateway, "ANSWER_MALFORMED", ""));
                let answer = ended.and_then(|()| {
                    EdgeCommandResponse::decode_length_delimited(&*read)
                        .ok()
                        .and_then(|answer| CommandObject::from_proto(key.0.as_str(), answer))
                        .ok_or_else(malformed)
                });
                self.came(&key, answer, disk, now, wall);
            }
            Call::Status(edge_id, read) => self.status(link, &edge_id, ended, &read, now),
        }
    }

    fn status(
        &mut self,
        link: LinkId,
        edge_id: &EdgeId,
        ended: Result<(), Broken>,
        read: &[u8],
        now: Instant,
    ) {
        let Some(serving) = self.serving(link) else { return };
        let said = EdgeStatusResponse::decode_length_delimited(read);
        match (ended, said) {
            (Ok(()), Ok(said)) => {
                self.fleet.views.heard(now, edge_id, serving.generation);
                let (at, summary) = (said.observed_at_unix_ms, said.summary.unwrap_or_default());
                let _ = self.fleet.views.summary(now, edge_id, serving.generation, at, summary);
            }
            (Err(error), _) if error.clone().into_error().code == Code::DeadlineExceeded => {
                self.fleet.views.slow(edge_id, serving.generation);
            }
            _ => {}
        }
    }

    fn came(
        &mut self,
        key: &Key,
        answer: Result<CommandObject, Broken>,
        disk: &mut Disk,
        now: Instant,
        wall: Wall,
    ) {
        let ended = self.commands.came(now, key, &answer);
        let told = match answer {
            Ok(_) => Relayed::Done,
            // It may have been sent before: only the edge's own no says that nothing was done.
            Err(Broken::Refused(error)) if error.code != Code::Unavailable => {
                Relayed::Refused(error.reason.into())
            }
            Err(Broken::Refused(_) | Broken::Unknown(_)) => Relayed::Unknown,
        };
        self.answers.push((key.1.clone(), told));
        if let Some(ended) = ended {
            // If that fails it is pending still, and the next answer ends it.
            let _ = disk.commit(&ended.finished(), wall.unix_ms());
        }
    }
}
