//! Commands that were relayed and what is known of them: so that the same id joins or replays and never runs
//! twice, and so that each one's end is audited once.
//!
//! The edge stores commands and their outcomes; this index only spares it questions and remembers who asked.
//! Operations of class read are not in it. Invariant: at most [`COMMANDS_MAX`] records, each of bounded size, and
//! a record's end is told ([`Ended`]) exactly once.
//!
//! ```text
//!   asked (in flight) --answer--> accepted, running --event--> succeeded, failed, cancelled, timed_out
//!        `--connection lost--> unknown: the same id asks again, and the edge replays
//! ```

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use umbel_contracts::objects::{
    CommandErrorObject, CommandEventObject, CommandObject, CommandPhase, CommandRequestBody,
};
use umbel_store::Commit;
use umbel_wire::error::{Code, Error};
use umbel_wire::ids::EdgeId;

use super::audit::{Deed, Detail};

/// Table of [`PendingRow`]s: commands whose end is not audited yet, keyed by `EDGE/COMMAND`.
pub(crate) const PENDING: &str = "pending_commands";
/// Records kept: about 30 MiB if all have the largest result.
pub(crate) const COMMANDS_MAX: usize = 2_048;
/// Steps kept of a command; the first is dropped for a later one.
const STEPS_MAX: usize = 64;
/// Bytes of a result that are kept: what an edge stores, too.
const RESULT_MAX: usize = 8 * 1024;

/// Names one command.
pub(crate) type Key = (EdgeId, String);

/// Who asked for a command: what the audit of its end needs. Stored until then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PendingRow {
    pub(crate) edge_id: String,
    pub(crate) command_id: String,
    pub(crate) operation: String,
    /// SHA-256 of the content, in hexadecimal.
    pub(crate) digest: String,
    pub(crate) actor: String,
    pub(crate) correlation_id: String,
    pub(crate) asked_at_unix_ms: i64,
    pub(crate) detail: Detail,
}

impl PendingRow {
    pub(crate) fn key(&self) -> String {
        format!("{}/{}", self.edge_id, self.command_id)
    }

    fn deed(&self, action: &'static str, outcome: &str, detail: Detail) -> Deed {
        Deed {
            actor: self.actor.clone(),
            action,
            subject: self.operation.clone(),
            outcome: outcome.to_owned(),
            command_id: self.command_id.clone(),
            correlation_id: self.correlation_id.clone(),
            detail,
        }
    }

    /// What is written before it is sent.
    pub(crate) fn requested(&self) -> Commit {
        let deed = self.deed("command.requested", "requested", self.detail.clone());
        Commit::new().put_json(PENDING, self.key(), self).audit(deed.record())
    }
}

#[derive(Clone, Debug)]
struct Record {
    row: PendingRow,
    /// When it was asked; `None` if an earlier process did.
    asked: Option<Instant>,
    in_flight: bool,
    /// Followers who are asking the edge where it stands.
    asking: usize,
    phase: Option<CommandPhase>,
    error: Option<CommandErrorObject>,
    result: Option<serde_json::Value>,
    replayed: bool,
    steps: VecDeque<CommandEventObject>,
}

/// A command has come to its end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ended {
    pub(crate) row: PendingRow,
    pub(crate) outcome: String,
    pub(crate) took: Option<Duration>,
}

impl Ended {
    /// What is written of it: its end is audited, and it is pending no more.
    pub(crate) fn finished(&self) -> Commit {
        let detail = self.row.detail.clone();
        let detail = self.took.map_or_else(|| detail.clone(), |took| detail.clone().took(took));
        let deed = self.row.deed("command.finished", &self.outcome, detail);
        Commit::new().remove(PENDING, self.row.key()).audit(deed.record())
    }
}

/// What to do with a request for a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// Send it to the edge, after this row was stored with the audit of the request.
    Send(Box<PendingRow>),
    /// Send it to the edge again, which joins or replays the first one.
    Again,
    /// The same one is on its way: wait for its answer.
    Join,
}

/// Why a call has no answer.
#[derive(Clone, Debug)]
pub(crate) enum Broken {
    /// The edge said no, or nothing was sent to it.
    Refused(Error),
    /// Whether the edge did anything is not known.
    Unknown(Error),
}

impl Broken {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Refused(error) | Self::Unknown(error) => error,
        }
    }

    /// An END with an error: a refusal, unless this side's own giving up came back.
    pub(crate) fn ended(error: Error) -> Self {
        match error.code {
            Code::Cancelled | Code::DeadlineExceeded => Self::Unknown(error),
            _ => Self::Refused(error),
        }
    }
}

/// The connection was lost while a call was under way.
pub(crate) fn lost() -> Error {
    Error::new(
        Code::Unavailable,
        "OUTCOME_UNKNOWN",
        "The connection to the edge was lost before its answer came. Ask again with the same command id: the edge \
         does nothing twice.",
    )
}

/// The records, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    records: HashMap<Key, Record>,
    order: VecDeque<Key>,
}

/// What makes two requests with one id the same command.
pub(crate) fn digest(body: &CommandRequestBody) -> String {
    // serde_json's map is sorted by key, so that the spelling of the arguments does not matter.
    let content =
        serde_json::json!([body.operation, body.target_selector, body.args, body.dry_run, body.confirm]);
    data_encoding::HEXLOWER.encode(&Sha256::digest(content.to_string().as_bytes()))
}

impl Commands {
    /// A request. CONFLICT if the id was used for another content, RESOURCE_EXHAUSTED at the bound.
    pub(crate) fn begin(&mut self, now: Instant, key: &Key, row: PendingRow) -> Result<Begin, Error> {
        if let Some(record) = self.records.get_mut(key) {
            if !record.row.digest.is_empty() && record.row.digest != row.digest {
                return Err(Error::new(
                    Code::Conflict,
                    "COMMAND_ID_REUSED",
                    "This command id was already used for another command. Use a new UUID for a new command.",
                ));
            }
            if record.in_flight {
                return Ok(Begin::Join);
            }
            record.in_flight = true;
            if record.told() {
                return Ok(Begin::Again);
            }
            // So far it was only followed: from now on it is this audit's.
            record.asked = Some(now);
            record.row = row;
            return Ok(Begin::Send(Box::new(record.row.clone())));
        }
        self.make_room()?;
        self.insert(key.clone(), row.clone(), Some(now), true);
        Ok(Begin::Send(Box::new(row)))
    }

    /// A command that somebody begins to follow: what its edge tells of it is kept from now on. `true`: nobody asked
    /// for it here, so that its edge is to be asked where it stands, and [`Commands::asked`] afterwards. One that is only
    /// followed has an end that is not this audit's.
    pub(crate) fn follow(&mut self, key: &Key) -> Result<bool, Error> {
        if let Some(record) = self.records.get_mut(key) {
            let to_ask = !record.told() && record.phase.is_none();
            record.asking += usize::from(to_ask);
            return Ok(to_ask);
        }
        self.make_room()?;
        let row = PendingRow {
            edge_id: key.0.to_string(),
            command_id: key.1.clone(),
            operation: String::new(),
            digest: String::new(),
            actor: String::new(),
            correlation_id: String::new(),
            asked_at_unix_ms: 0,
            detail: Detail::default(),
        };
        self.insert(key.clone(), row, None, false);
        if let Some(record) = self.records.get_mut(key) {
            record.asking = 1;
        }
        Ok(true)
    }

    /// The edge was asked where a followed command stands, or whoever wanted to know went away. One of which nothing was
    /// learnt is no longer kept.
    pub(crate) fn asked(&mut self, key: &Key) {
        let Some(record) = self.records.get_mut(key) else { return };
        record.asking = record.asking.saturating_sub(1);
        if record.asking == 0 && !record.told() && record.phase.is_none() {
            self.forget(key);
        }
    }

    /// A command of an earlier process whose end is not known.
    pub(crate) fn restore(&mut self, row: PendingRow) {
        if let Ok(edge_id) = EdgeId::parse(&row.edge_id) {
            let key = (edge_id, row.command_id.clone());
            if !self.records.contains_key(&key) && self.make_room().is_ok() {
                self.insert(key, row, None, false);
            }
        }
    }

    fn insert(&mut self, key: Key, row: PendingRow, asked: Option<Instant>, in_flight: bool) {
        self.order.push_back(key.clone());
        self.records.insert(
            key,
            Record {
                row,
                asked,
                in_flight,
                asking: 0,
                phase: None,
                error: None,
                result: None,
                replayed: false,
                steps: VecDeque::new(),
            },
        );
    }

    fn make_room(&mut self) -> Result<(), Error> {
        if self.records.len() < COMMANDS_MAX {
            return Ok(());
        }
        let over = |record: &Record| !record.in_flight && record.phase.is_some_and(CommandPhase::is_end);
        let oldest = self.order.iter().position(|key| self.records.get(key).is_none_or(over));
        match oldest.and_then(|place| self.order.remove(place)) {
            Some(key) => {
                self.records.remove(&key);
                Ok(())
            }
            None => Err(Error::new(
                Code::ResourceExhausted,
                "TOO_MANY_COMMANDS",
                format!("{COMMANDS_MAX} commands have not ended, which is the most. Wait for some, or cancel some."),
            )
            .with_retry_after(Duration::from_secs(5))),
        }
    }

    /// What came of a command that was sent.
    pub(crate) fn came(
        &mut self,
        now: Instant,
        key: &Key,
        answer: &Result<CommandObject, Broken>,
    ) -> Option<Ended> {
        match answer {
            Ok(answer) => self.answered(now, key, answer),
            Err(Broken::Refused(error)) => self.refused(now, key, error.code),
            Err(Broken::Unknown(_)) => {
                self.lost(key);
                None
            }
        }
    }

    /// The edge answered.
    pub(crate) fn answered(&mut self, now: Instant, key: &Key, answer: &CommandObject) -> Option<Ended> {
        let record = self.records.get_mut(key)?;
        record.in_flight = false;
        record.replayed = answer.replayed;
        if let (true, Some(operation)) = (record.row.operation.is_empty(), &answer.operation) {
            record.row.operation.clone_from(operation);
        }
        record.progress(now, answer.phase, answer.error.as_ref(), answer.result.as_ref())
    }

    /// It was not sent after all.
    pub(crate) fn forget(&mut self, key: &Key) {
        self.records.remove(key);
        self.order.retain(|one| one != key);
    }

    /// The edge does not know a command whose answer was lost: it never arrived, or was forgotten since.
    pub(crate) fn vanished(&mut self, now: Instant, key: &Key) -> Option<Ended> {
        let record = self.records.get(key).filter(|record| !record.in_flight && record.phase.is_none())?;
        let told = record.told();
        let took = record.asked.map(|asked| now.saturating_duration_since(asked));
        let row = record.row.clone();
        self.forget(key);
        told.then(|| Ended { row, outcome: "lost: the edge does not know it".into(), took })
    }

    /// The edge refused it before any work: nothing is to be remembered.
    pub(crate) fn refused(&mut self, now: Instant, key: &Key, code: Code) -> Option<Ended> {
        let record = self.records.get(key)?;
        // One that an earlier request had the edge accept is not undone by a later refusal.
        if record.phase.is_some() {
            self.lost(key);
            return None;
        }
        let record = record.clone();
        self.forget(key);
        let outcome = format!("refused: {}", code.name());
        let took = record.asked.map(|asked| now.saturating_duration_since(asked));
        record.told().then_some(Ended { row: record.row, outcome, took })
    }

    /// The answer did not come: nothing is known, and the same id may be asked again.
    pub(crate) fn lost(&mut self, key: &Key) {
        if let Some(record) = self.records.get_mut(key) {
            record.in_flight = false;
        }
    }

    /// A step that the edge told.
    pub(crate) fn step(&mut self, now: Instant, key: &Key, mut step: CommandEventObject) -> Option<Ended> {
        let record = self.records.get_mut(key)?;
        if record.steps.back().is_some_and(|last| last.sequence >= step.sequence) {
            return None;
        }
        step.message = super::views::clip(&step.message);
        step.result = step.result.filter(small);
        if record.steps.len() == STEPS_MAX {
            record.steps.pop_front();
        }
        let ended = record.progress(now, step.phase, step.error.as_ref(), step.result.as_ref());
        record.steps.push_back(step);
        ended
    }

    /// Whether the same id is on its way to the edge.
    pub(crate) fn in_flight(&self, key: &Key) -> bool {
        self.records.get(key).is_some_and(|record| record.in_flight)
    }

    /// What is known of a command; `None` while nothing is.
    pub(crate) fn show(&self, key: &Key) -> Option<CommandObject> {
        let record = self.records.get(key)?;
        Some(CommandObject {
            command_id: record.row.command_id.clone(),
            edge_id: record.row.edge_id.clone(),
            operation: Some(record.row.operation.clone()),
            phase: record.phase?,
            error: record.error.clone(),
            result: record.result.clone(),
            replayed: record.replayed,
        })
    }

    /// The operation of a command that was relayed.
    pub(crate) fn operation(&self, key: &Key) -> Option<&str> {
        self.records.get(key).map(|record| record.row.operation.as_str())
    }

    /// The steps after a sequence.
    pub(crate) fn steps_after(&self, key: &Key, sequence: u64) -> Vec<CommandEventObject> {
        let steps = self.records.get(key).map(|record| &record.steps);
        steps.into_iter().flatten().filter(|step| step.sequence > sequence).cloned().collect()
    }

    /// Commands of an edge whose end is not known: to be asked for when it is back.
    pub(crate) fn open(&self, edge_id: &EdgeId) -> Vec<String> {
        let open = |record: &Record| !record.in_flight && !record.phase.is_some_and(CommandPhase::is_end);
        self.records
            .iter()
            .filter(|((edge, _), record)| edge == edge_id && open(record))
            .map(|((_, command), _)| command.clone())
            .collect()
    }

    /// How many have not ended.
    pub(crate) fn running(&self) -> usize {
        self.records.values().filter(|record| !record.phase.is_some_and(CommandPhase::is_end)).count()
    }
}

impl Record {
    /// Whether its end belongs into this control plane's audit.
    fn told(&self) -> bool {
        !self.row.digest.is_empty()
    }

    fn progress(
        &mut self,
        now: Instant,
        phase: CommandPhase,
        error: Option<&CommandErrorObject>,
        result: Option<&serde_json::Value>,
    ) -> Option<Ended> {
        if self.phase.is_some_and(CommandPhase::is_end) {
            return None;
        }
        // An answer that overtook its own steps does not take them back.
        self.phase = Some(self.phase.map_or(phase, |before| later(before, phase)));
        self.error = error.cloned();
        self.result = result.cloned().filter(small);
        if !phase.is_end() {
            return None;
        }
        let outcome = match (&self.error, phase) {
            (Some(error), _) => format!("{}: {}", phase.as_str(), super::views::clip(&error.code)),
            (None, phase) => phase.as_str().to_owned(),
        };
        let took = self.asked.map(|asked| now.saturating_duration_since(asked));
        self.told().then(|| Ended { row: self.row.clone(), outcome, took })
    }
}

/// The later of two phases that are told out of order.
fn later(before: CommandPhase, told: CommandPhase) -> CommandPhase {
    if before == CommandPhase::Running && told == CommandPhase::Accepted { before } else { told }
}

fn small(result: &serde_json::Value) -> bool {
    serde_json::to_vec(result).is_ok_and(|json| json.len() <= RESULT_MAX)
}

#[cfg(test)]
mod tests;
