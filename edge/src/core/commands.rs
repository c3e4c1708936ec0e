//! Commands: which ones this edge has seen, what came of them, and whether one may begin.
//!
//! Owns idempotency by command id, the stored row and the bound on how many are kept. Leaves doing them to the
//! shell. Invariant: an id with another content never runs; an id with the same content never runs twice.
//!
//! ```text
//!   (new) --begin--> running --> succeeded | failed | cancelled | timed_out
//!                       `-- restart without a stored effect --> failed, INTERRUPTED
//! ```

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use umbel_contracts::objects::{CommandErrorObject, CommandPhase};
use umbel_wire::clock::Wall;
use umbel_wire::text::beginning;
use umbel_wire::{Code, Error};

/// Outcomes kept.
pub(crate) const KEPT: usize = 10_000;
/// An outcome is readable for so long.
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// When there is no room, finished ones older than this are forgotten first.
pub(crate) const FORGET_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Commands that run at once.
pub(crate) const RUNNING: usize = 256;
/// Bytes of a name that a refused command brought.
const LONGEST_NAME: usize = 256;
/// Operations that pass where others are refused for want of room: what ends harm must always work.
const ALWAYS: [&str; 6] = [
    "apikey.revoke",
    "enrollment.revoke",
    "node.credential.revoke",
    "node.drain",
    "node.disable",
    "command.cancel",
];

/// A stored command: table `commands`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CommandRow {
    pub(crate) operation: String,
    /// Of everything that makes it this command.
    pub(crate) digest: String,
    pub(crate) actor: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    #[serde(default)]
    pub(crate) selector: String,
    pub(crate) phase: CommandPhase,
    #[serde(default)]
    pub(crate) message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<CommandErrorObject>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) result: Option<Value>,
    pub(crate) accepted_at_unix_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ended_at_unix_ms: Option<i64>,
    /// Nodes that a running drain waits for: what a restart goes on with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) nodes: Vec<String>,
    /// End of a running drain's patience.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) until_unix_ms: Option<i64>,
}

/// What is asked, as it arrived; validated before anything is done with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Request {
    pub(crate) command_id: String,
    pub(crate) operation: String,
    pub(crate) selector: String,
    pub(crate) args: serde_json::Map<String, Value>,
    pub(crate) reason: String,
    pub(crate) dry_run: bool,
    pub(crate) confirm: String,
    pub(crate) actor: String,
    pub(crate) correlation_id: String,
    /// Time for the whole of it; zero: the operation's own.
    pub(crate) deadline: Duration,
    /// The control plane's link that it came over; `None` for the local socket.
    pub(crate) origin: Option<String>,
}

impl Request {
    /// SHA-256 over operation, selector, arguments, dry_run and confirm, in hexadecimal. The order of keys in the
    /// arguments does not count.
    pub(crate) fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for part in [&self.operation, &self.selector, &self.confirm] {
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part.as_bytes());
        }
        hash.update([u8::from(self.dry_run)]);
        let args = Value::Object(self.args.clone());
        hash.update(canonical(&args).as_bytes());
        data_encoding::HEXLOWER.encode(&hash.finalize())
    }

    /// What it is about, for the audit: nodes as they are selected, and what its arguments name. Of those no other is told.
    pub(crate) fn about(&self) -> String {
        const NAMES: [&str; 7] =
            ["name", "deployment", "engine", "repository", "job_id", "key_id", "token_id"];
        let document = self.args.get("document").and_then(|document| document.get("name"));
        let named = NAMES.iter().find_map(|key| self.args.get(*key)).or(document).and_then(Value::as_str);
        let named = named.map_or("", |name| beginning(name, LONGEST_NAME));
        format!("{} {named}", self.selector).trim().to_owned()
    }
}

// Keys sorted, no spaces: the same object however its sender wrote it.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<_> = map.iter().collect();
            keys.sort_by_key(|(key, _)| key.as_str());
            let fields: Vec<_> = keys
                .into_iter()
                .map(|(key, value)| format!("{}:{}", Value::from(key.as_str()), canonical(value)))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        other => other.to_string(),
    }
}

/// Whether a command may begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// It is new. These finished ones have to go with its first write.
    New { forget: Vec<String> },
    /// It runs.
    Join,
    /// It has ended.
    Replay,
}

#[derive(Clone, Debug)]
struct Known {
    digest: String,
    ended_at: Option<i64>,
}

/// Every command that is kept, by id; only what deciding needs.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    known: HashMap<String, Known>,
    running: usize,
}

impl Commands {
    /// A stored row, at start-up or after its commit.
    pub(crate) fn apply(&mut self, id: &str, row: &CommandRow) {
        let known = Known { digest: row.digest.clone(), ended_at: row.ended_at_unix_ms };
        let runs = known.ended_at.is_none();
        let ran = self.known.insert(id.to_owned(), known).is_some_and(|old| old.ended_at.is_none());
        self.running = self.running + usize::from(runs) - usize::from(ran);
    }

    /// A row that was removed, or a command that came to nothing before its first write.
    pub(crate) fn forget(&mut self, id: &str) {
        if self.known.remove(id).is_some_and(|old| old.ended_at.is_none()) {
            self.running -= 1;
        }
    }

    /// Decides, and reserves the id of a new one: whoever asks again meanwhile joins it.
    pub(crate) fn begin(&mut self, request: &Request, now: Wall) -> Result<Begin, Error> {
        let digest = request.digest();
        if let Some(known) = self.known.get(&request.command_id) {
            if known.digest != digest {
                let message = "this command id was used for another command; make a new id for a new command";
                return Err(Error::new(Code::Conflict, "COMMAND_ID_REUSED", message));
            }
            return Ok(if known.ended_at.is_some() { Begin::Replay } else { Begin::Join });
        }
        let always = ALWAYS.contains(&request.operation.as_str());
        if self.running >= RUNNING && !always {
            let message = format!("{RUNNING} commands run already; wait for some to end");
            let error = Error::new(Code::ResourceExhausted, "TOO_MANY_COMMANDS", message);
            return Err(error.with_retry_after(Duration::from_secs(5)));
        }
        let forget = self.overdue(now);
        if self.known.len() - forget.len() >= KEPT && !always {
            let message =
                format!("{KEPT} commands of the last day are kept; no more fit until some are older");
            let error = Error::new(Code::ResourceExhausted, "TOO_MANY_COMMANDS", message);
            return Err(error.with_retry_after(Duration::from_secs(600)));
        }
        self.known.insert(request.command_id.clone(), Known { digest, ended_at: None });
        self.running += 1;
        Ok(Begin::New { forget })
    }

    // A bounded number a call, so that one write never carries thousands of removals.
    fn overdue(&self, now: Wall) -> Vec<String> {
        const A_CALL: usize = 100;
        let age = |known: &Known| known.ended_at.map(|ended| now.unix_ms().saturating_sub(ended));
        let week = i64::try_from(KEPT_FOR.as_millis()).unwrap_or(i64::MAX);
        let day = i64::try_from(FORGET_AFTER.as_millis()).unwrap_or(i64::MAX);
        let limit = if self.known.len() >= KEPT { day } else { week };
        let old = self.known.iter().filter(|(_, known)| age(known).is_some_and(|age| age > limit));
        old.take(A_CALL).map(|(id, _)| id.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn request(id: &str, operation: &str) -> Request {
        Request { command_id: id.into(), operation: operation.into(), ..Request::default() }
    }

    fn row(request: &Request, ended: Option<i64>) -> CommandRow {
        CommandRow {
            operation: request.operation.clone(),
            digest: request.digest(),
            actor: "a".into(),
            reason: String::new(),
            selector: String::new(),
            phase: CommandPhase::Running,
            message: String::new(),
            error: None,
            result: None,
            accepted_at_unix_ms: 0,
            ended_at_unix_ms: ended,
            nodes: Vec::new(),
            until_unix_ms: None,
        }
    }

    /// Row 71: the same again joins or replays, another content is refused.
    #[test]
    fn an_id_stands_for_one_content() {
        let mut commands = Commands::default();
        let first = request("c1", "node.drain");
        assert_eq!(commands.begin(&first, Wall(0)).unwrap(), Begin::New { forget: vec![] });
        assert_eq!(commands.begin(&first, Wall(0)).unwrap(), Begin::Join);
        commands.apply("c1", &row(&first, Some(5)));
        assert_eq!(commands.begin(&first, Wall(9)).unwrap(), Begin::Replay);
        let other = Request { dry_run: true, ..first };
        assert_eq!(commands.begin(&other, Wall(9)).unwrap_err().reason, "COMMAND_ID_REUSED");
    }

    #[test]
    fn key_order_does_not_make_another_command() {
        let parse = |text: &str| serde_json::from_str(text).unwrap();
        let one = Request { args: parse(r#"{"a":1,"b":{"x":1,"y":[1,2]}}"#), ..request("c", "o") };
        let two = Request { args: parse(r#"{ "b":{"y":[1,2],"x":1}, "a":1 }"#), ..request("c", "o") };
        let three = Request { args: parse(r#"{"a":1,"b":{"x":1,"y":[2,1]}}"#), ..request("c", "o") };
        assert_eq!(one.digest(), two.digest());
        assert_ne!(one.digest(), three.digest());
        let joined = Request { operation: "ab".into(), selector: "c".into(), ..Request::default() };
        let split = Request { operation: "a".into(), selector: "bc".into(), ..Request::default() };
        assert_ne!(joined.digest(), split.digest());
    }

    #[test]
    fn the_number_kept_is_bounded_and_what_ends_harm_passes() {
        let mut commands = Commands::default();
        for n in 0..KEPT {
            let one = request(&n.to_string(), "node.eligible");
            commands.apply(&one.command_id, &row(&one, Some(1_000)));
        }
        let soon = Wall(2_000);
        assert_eq!(
            commands.begin(&request("new", "node.eligible"), soon).unwrap_err().code,
            Code::ResourceExhausted
        );
        assert!(commands.begin(&request("drain", "node.drain"), soon).is_ok());
        let tomorrow = soon + FORGET_AFTER;
        match commands.begin(&request("new", "node.eligible"), tomorrow).unwrap() {
            Begin::New { forget } => assert_eq!(forget.len(), 100),
            other => unreachable!("{other:?}"),
        }
    }
}
