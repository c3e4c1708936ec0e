//! The operator API's calls, typed: commands to an edge, lists that come in pages, and new secrets.
//!
//! Owns paths, idempotency keys and the composing of tokens; leaves transport to the client and words to `ctl`.
//! Invariant: of a secret only id and SHA-256 leave this process.

use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, value::RawValue};
use umbel_contracts::objects::{
    CommandErrorObject, CommandObject, CommandPhase, CommandRequestBody, EdgeObject, Page,
};
use umbel_wire::Code;

use crate::{
    client::{Answer, Client, parse},
    exit::{Exit, Failure, Outcome},
};

/// Extra time for an answer that a server waits for: the way there and back.
const SLACK: Duration = Duration::from_secs(5);

/// How long a site may take to read something: one that is frozen shall not hold up the others' answers.
const READ: Duration = Duration::from_secs(5);

/// One command to one edge.
#[derive(Clone, Debug, Default)]
pub(crate) struct Call {
    pub(crate) operation: &'static str,
    pub(crate) selector: String,
    pub(crate) args: Map<String, Value>,
    pub(crate) reason: String,
    pub(crate) dry_run: bool,
    pub(crate) confirm: String,
}

impl Call {
    /// A command without target and arguments.
    pub(crate) fn new(operation: &'static str) -> Self {
        Call { operation, ..Call::default() }
    }

    /// To one node.
    #[must_use]
    pub(crate) fn node(mut self, node_id: &str) -> Self {
        self.selector = format!("node:{node_id}");
        self
    }

    /// With arguments, from the operation's own type.
    pub(crate) fn args<T: Serialize>(mut self, args: &T) -> Outcome<Self> {
        match serde_json::to_value(args) {
            Ok(Value::Object(map)) => self.args = map,
            _ => return Err(Failure::failed(format!("the arguments of {} are no object", self.operation))),
        }
        Ok(self)
    }

    /// With the caller's reason.
    #[must_use]
    pub(crate) fn reason(mut self, reason: Option<&str>) -> Self {
        self.reason = reason.unwrap_or_default().to_owned();
        self
    }

    /// With the name that was typed for what cannot be undone.
    #[must_use]
    pub(crate) fn confirm(mut self, name: &str) -> Self {
        self.confirm = name.to_owned();
        self
    }

    /// Whether to change nothing.
    #[must_use]
    pub(crate) fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }
}

/// A command's answer, and its text for `-o json`.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) command: CommandObject,
    raw: String,
}

impl Told {
    /// The command's object as the server wrote it.
    pub(crate) fn raw(&self) -> &str {
        &self.raw
    }

    /// The result as the server wrote it, when the command succeeded.
    pub(crate) fn result_raw(&self) -> Outcome<String> {
        #[derive(serde::Deserialize)]
        struct Result {
            result: Option<Box<RawValue>>,
        }
        self.check()?;
        let object: Result = parse(&self.raw)?;
        Ok(object.result.map_or_else(|| "{}".to_owned(), |raw| raw.get().to_owned()))
    }

    /// The result as the operation's own type.
    pub(crate) fn result<T: DeserializeOwned>(&self) -> Outcome<T> {
        parse(&self.result_raw()?)
    }

    /// A failure unless the command succeeded or still runs.
    pub(crate) fn check(&self) -> Outcome {
        check_end(self.command.phase, self.command.error.as_ref(), &self.command.command_id)
    }
}

/// A failure unless the phase is a good one.
pub(crate) fn check_end(
    phase: CommandPhase,
    error: Option<&CommandErrorObject>,
    command_id: &str,
) -> Outcome {
    let exit = match phase {
        CommandPhase::Accepted | CommandPhase::Running | CommandPhase::Succeeded => return Ok(()),
        CommandPhase::TimedOut => Exit::TimedOut,
        CommandPhase::Failed | CommandPhase::Cancelled => {
            let code = error.and_then(|error| Code::from_name(&error.code));
            code.map_or(Exit::Failed, Exit::of)
        }
    };
    let what = match error {
        Some(error) if error.reason.is_empty() => error.message.clone(),
        Some(error) => format!("{} ({})", error.message, error.reason),
        None => format!("command {command_id} ended as {}", phase.as_str()),
    };
    Err(Failure::new(exit, what))
}

impl Client {
    /// All edges that this server knows.
    pub(crate) async fn edges(&self) -> Outcome<Vec<EdgeObject>> {
        Ok(self.get("/api/v1/edges").await?.parse::<Page<EdgeObject>>()?.items)
    }

    /// Sends a command under `command_id`, waiting on the server up to `wait` for its end.
    pub(crate) async fn command(
        &self,
        edge: &str,
        command_id: &str,
        call: &Call,
        wait: Duration,
    ) -> Outcome<Told> {
        let body = CommandRequestBody {
            operation: call.operation.to_owned(),
            target_selector: call.selector.clone(),
            args: Some(call.args.clone()),
            reason: call.reason.clone(),
            dry_run: call.dry_run,
            confirm: call.confirm.clone(),
            deadline_ms: None,
            client: concat!("umbel ctl ", env!("CARGO_PKG_VERSION")).to_owned(),
        };
        let seconds = wait.as_secs();
        let path = match seconds {
            0 => format!("/api/v1/edges/{}/commands", segment(edge)),
            _ => format!("/api/v1/edges/{}/commands?wait={seconds}s", segment(edge)),
        };
        let headers = [("idempotency-key", command_id.to_owned())];
        let extra = if seconds == 0 { Duration::ZERO } else { wait + SLACK };
        told(&self.post(&path, &headers, &body, extra).await?)
    }

    /// Sends a reading operation, which is done at once, and returns its end.
    pub(crate) async fn ask(&self, edge: &str, call: &Call) -> Outcome<Told> {
        let told = self.command(edge, &new_command_id(), call, READ).await?;
        told.check()?;
        if !told.command.phase.is_end() {
            let id = &told.command.command_id;
            return Err(Failure::new(
                Exit::TimedOut,
                format!("{} at {edge} has not ended yet", call.operation),
            )
            .remedy(format!("umbel ctl command watch {id} --site {edge}")));
        }
        Ok(told)
    }

    /// How a command stands.
    pub(crate) async fn command_show(&self, edge: &str, command_id: &str) -> Outcome<Told> {
        told(&self.get(&command_path(edge, command_id)).await?)
    }
}

fn told(answer: &Answer) -> Outcome<Told> {
    Ok(Told { command: answer.parse()?, raw: answer.raw()?.to_owned() })
}

/// The path of one command at one edge.
pub(crate) fn command_path(edge: &str, command_id: &str) -> String {
    format!("/api/v1/edges/{}/commands/{}", segment(edge), segment(command_id))
}

/// A new idempotency key.
pub(crate) fn new_command_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// `text` as one segment of a path.
pub(crate) fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
