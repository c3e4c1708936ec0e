//! Commands of the running edge: begin, follow, end; over a control plane's link and the local socket alike.
//!
//! Owns the table of those that run, their steps, and the store's rows. Leaves what each operation does to
//! [`crate::shell::operations`]. Invariant: a mutation's id, digest and effect are one transaction; a caller that
//! goes away cancels nothing; whatever breaks off, its id is settled by what the store has of it.

mod context;
mod running;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use umbel_contracts::objects::{
    CommandErrorObject, CommandEventObject, CommandPhase, ProgressObject, timestamp,
};
use umbel_contracts::operations::{self, Class};
use umbel_store::{AuditRecord, Commit, CommitError, Owed};
use umbel_wire::{Broken, Code, Error, contained};

use crate::core::commands::{Begin, CommandRow, Commands as Table, Request};
use crate::shell::keys::Keys;
use crate::shell::operations as perform;
use crate::shell::owing;
use crate::shell::site::Site;

pub(crate) use context::Context;
pub(crate) use running::Running;

/// Table of the store.
pub(crate) const COMMANDS: &str = "commands";
/// A command that is done within this time is answered with its outcome.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(1);

/// Where a command stands, and whether an earlier request had started it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Standing {
    pub(crate) phase: CommandPhase,
    pub(crate) error: Option<CommandErrorObject>,
    pub(crate) result: Option<Value>,
    pub(crate) replayed: bool,
}

/// All commands of the site.
pub(crate) struct Commands {
    pub(crate) site: Arc<Site>,
    pub(crate) keys: Arc<Keys>,
    table: Mutex<Table>,
    running: Mutex<HashMap<String, Arc<Running>>>,
    // Outcomes that are not on disk yet, because that takes no writes.
    unwritten: Mutex<HashMap<String, CommandRow>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Commands {
    /// Takes up what is stored. A drain and a decommission go on; anything else that ran is `failed`, INTERRUPTED.
    pub(crate) async fn open(site: Arc<Site>, keys: Arc<Keys>) -> Result<Arc<Self>, Error> {
        let rows = site.store.load_json::<CommandRow>(COMMANDS).await.map_err(|error| {
            Error::new(Code::Internal, "STORE_UNREADABLE", format!("{error}; restore the last backup"))
        })?;
        let mut table = Table::default();
        let mut resumed = Vec::new();
        for (stored, row) in rows {
            table.apply(&stored.key, &row);
            if row.ended_at_unix_ms.is_none() {
                resumed.push((stored.key, row));
            }
        }
        let commands = Arc::new(Self {
            site,
            keys,
            table: Mutex::new(table),
            running: Mutex::default(),
            unwritten: Mutex::default(),
        });
        for (id, row) in resumed {
            let over = perform::resume(&commands, id, row, |id, row| commands.run(id, row));
            if let Some((id, row)) = over {
                let error = Error::new(
                    Code::Unavailable,
                    "INTERRUPTED",
                    "the edge was restarted while it ran; its outcome is unknown: look, then ask again with a new id",
                );
                commands.ended(&id, row, Err(error)).await;
            }
        }
        Ok(commands)
    }

    /// Runs a command, joins it or gives its stored outcome; waits at most `wait` for its end.
    ///
    /// # Errors
    /// A refusal: nothing was begun, nothing is stored.
    pub(crate) async fn ask(self: &Arc<Self>, request: Request, wait: Duration) -> Result<Standing, Error> {
        let class = perform::check(&request)?;
        if class == Class::Read {
            let result = perform::read(self, &request).await?;
            return Ok(Standing {
                phase: CommandPhase::Succeeded,
                error: None,
                result: Some(result),
                replayed: false,
            });
        }
        if perform::only_asks(&request) {
            let result = perform::dry_run(self, &request).await?;
            return Ok(Standing {
                phase: CommandPhase::Succeeded,
                error: None,
                result: Some(result),
                replayed: false,
            });
        }
        let origin = request.origin.clone();
        let begin = lock(&self.table).begin(&request, self.site.wall())?;
        let (running, replayed) = match begin {
            Begin::Replay => return self.stored(&request.command_id).await,
            Begin::Join => match self.running(&request.command_id) {
                Some(running) => (running, true),
                None => return self.stored(&request.command_id).await,
            },
            Begin::New { forget } => (self.begin(request.clone(), forget).await?, false),
        };
        self.follow(&running, origin);
        let end = running.end(wait).await;
        Ok(Standing { phase: end.phase, error: end.error, result: end.result, replayed })
    }

    // Begins in a task of its own, so that a caller who goes away leaves nothing half done.
    async fn begin(self: &Arc<Self>, request: Request, forget: Vec<String>) -> Result<Arc<Running>, Error> {
        let id = request.command_id.clone();
        let row = CommandRow {
            operation: request.operation.clone(),
            digest: request.digest(),
            actor: request.actor.clone(),
            reason: request.reason.clone(),
            selector: request.selector.clone(),
            phase: CommandPhase::Accepted,
            message: String::new(),
            error: None,
            result: None,
            accepted_at_unix_ms: self.site.wall().unix_ms(),
            ended_at_unix_ms: None,
            nodes: Vec::new(),
            until_unix_ms: None,
        };
        let running = self.run(&id, row);
        running.follow(request.origin.clone());
        let commands = Arc::clone(self);
        let begun = tokio::spawn(async move {
            let context = Context { commands: &commands, request: &request, forget };
            let begun = contained(async {
                commands.site.trip("command");
                perform::start(&context).await
            });
            match begun.await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => commands.settle(&request, error).await,
                Err(Broken) => commands.settle(&request, broke_off()).await,
            }
        });
        begun.await.unwrap_or_else(|_| Err(broke_off())).map(|()| running)
    }

    /// One that did not come to its end by itself: what the store has of it says what became of it.
    ///
    /// # Errors
    /// Nothing was stored: it is refused, and the same id may be asked again.
    async fn settle(&self, request: &Request, error: Error) -> Result<(), Error> {
        let id = &request.command_id;
        match self.site.store.get(COMMANDS, id).await.map(|row| row.map(|row| row.json::<CommandRow>())) {
            Ok(None) => {
                lock(&self.table).forget(id);
                if let Some(running) = lock(&self.running).remove(id) {
                    // Whoever joined it waits no longer.
                    running.step.send_modify(|event| {
                        event.phase = CommandPhase::Failed;
                        event.error = Some(error_object(&error));
                    });
                }
                self.refused(request, &error);
                Err(error)
            }
            Ok(Some(Ok(row))) if row.ended_at_unix_ms.is_some() => {
                tracing::error!(command = id, %error, "a command broke off after its change was stored");
                self.finish(id, row);
                Ok(())
            }
            Ok(Some(Ok(row))) => {
                self.ended(id, row, Err(error)).await;
                Ok(())
            }
            Ok(Some(Err(_))) | Err(_) => {
                let row = self.running(id).map(|running| lock(&running.row).clone());
                if let Some(row) = row {
                    self.ended(id, row, Err(error)).await;
                }
                Ok(())
            }
        }
    }

    /// Goes on with one that is stored, in a task of its own: one that breaks off there has failed.
    pub(crate) fn go_on<F: Future<Output = ()> + Send>(
        self: &Arc<Self>,
        id: String,
        row: CommandRow,
        work: impl FnOnce(Arc<Self>, String, CommandRow) -> F + Send + 'static,
    ) {
        let commands = Arc::clone(self);
        tokio::spawn(async move {
            let went = contained(async {
                commands.site.trip("command goes on");
                work(Arc::clone(&commands), id.clone(), row.clone()).await;
            });
            if went.await.is_err() && commands.running(&id).is_some() {
                commands.ended(&id, row, Err(broke_off())).await;
            }
        });
    }

    fn refused(&self, request: &Request, error: &Error) {
        let reason = request.reason.trim();
        let asked = if reason.is_empty() { String::new() } else { format!(" (asked for: {reason})") };
        let record =
            AuditRecord::new(&request.operation, request.about(), format!("refused: {}", error.code))
                .by(&request.actor)
                .of(&request.command_id, &request.correlation_id)
                .because(format!("{}{asked}", error.message));
        self.site.audit_soon(vec![record]);
    }

    /// One that runs now.
    pub(crate) fn running(&self, id: &str) -> Option<Arc<Running>> {
        lock(&self.running).get(id).cloned()
    }

    fn run(&self, id: &str, row: CommandRow) -> Arc<Running> {
        let first = CommandEventObject {
            command_id: id.to_owned(),
            sequence: 1,
            phase: row.phase,
            message: row.message.clone(),
            progress: None,
            error: None,
            result: None,
            at: timestamp(self.site.wall().unix_ms()),
        };
        let running = Arc::new(Running::new(first, row));
        lock(&self.running).insert(id.to_owned(), Arc::clone(&running));
        running
    }

    /// A stored command, whole.
    ///
    /// # Errors
    /// NOT_FOUND if it is not kept.
    pub(crate) async fn row(&self, id: &str) -> Result<CommandRow, Error> {
        if let Some(running) = self.running(id) {
            return Ok(lock(&running.row).clone());
        }
        if let Some(row) = lock(&self.unwritten).get(id) {
            return Ok(row.clone());
        }
        let stored = self
            .site
            .store
            .get(COMMANDS, id)
            .await
            .map_err(|error| Error::new(Code::Unavailable, "STORE_UNREADABLE", error.to_string()))?;
        let stored = stored.ok_or_else(|| {
            let message = "no command of this id is kept here; outcomes are kept for 7 days";
            Error::new(Code::NotFound, "COMMAND_UNKNOWN", message)
        })?;
        stored.json::<CommandRow>().map_err(|error| {
            tracing::error!(command = id, %error, "a stored command cannot be read");
            let message =
                "this command was stored, and its record is damaged: what came of it is in the audit";
            Error::new(Code::Internal, "COMMAND_UNREADABLE", message)
        })
    }

    async fn stored(&self, id: &str) -> Result<Standing, Error> {
        let row = self.row(id).await?;
        Ok(Standing { phase: row.phase, error: row.error, result: row.result, replayed: true })
    }

    /// The next step of one that runs, told to whoever follows it.
    pub(crate) fn step(
        &self,
        id: &str,
        phase: CommandPhase,
        message: &str,
        progress: Option<ProgressObject>,
    ) {
        if let Some(running) = self.running(id) {
            {
                let mut row = lock(&running.row);
                row.phase = phase;
                message.clone_into(&mut row.message);
            }
            self.tell(&running, |event| {
                event.phase = phase;
                message.clone_into(&mut event.message);
                event.progress = progress;
            });
        }
    }

    /// A control plane wants to know how it goes on: it is told where it stands now, and every further step.
    pub(crate) fn follow(&self, running: &Running, origin: Option<String>) {
        if let Some(name) = origin.clone()
            && running.follow(origin)
        {
            let event = running.step.borrow().clone();
            self.site.events.tell_command(&name, &crate::shell::control::command_event(&event));
        }
    }

    fn tell(&self, running: &Running, change: impl FnOnce(&mut CommandEventObject)) {
        let at = timestamp(self.site.wall().unix_ms());
        running.step.send_modify(|event| {
            event.sequence += 1;
            event.at = at;
            change(event);
        });
        let event = running.step.borrow().clone();
        let message = crate::shell::control::command_event(&event);
        for origin in lock(&running.origins).iter() {
            self.site.events.tell_command(origin, &message);
        }
    }

    /// The end of one that took longer than its first write: stored, then told.
    pub(crate) async fn ended(&self, id: &str, mut row: CommandRow, outcome: Result<Value, Error>) {
        close(&mut row, outcome, self.site.wall().unix_ms());
        let commit = Commit::new().put_json(COMMANDS, id, &owing::durable(&row));
        let kept = match self.site.store.commit(commit.clone()).await {
            Err(CommitError::ReadOnly(_)) => self.site.store.owe(Owed::new().with(commit)).map(drop),
            other => other.map(drop),
        };
        if let Err(error) = kept {
            tracing::error!(command = id, %error, "a command's outcome could not be stored");
        }
        self.finish(id, row);
    }

    /// The row of one that succeeds with a change that has yet to be made: both are one transaction, then
    /// [`Commands::finish`].
    pub(crate) fn ending(&self, row: &CommandRow, result: &Value) -> CommandRow {
        let mut row = row.clone();
        close(&mut row, Ok(result.clone()), self.site.wall().unix_ms());
        row
    }

    // What cannot be read from the store yet is read from here.
    fn keep_unwritten(&self, id: &str, row: &CommandRow) {
        let mut unwritten = lock(&self.unwritten);
        if self.site.store.owed() == 0 {
            unwritten.clear();
        } else if unwritten.len() < umbel_store::limits::OWED_OPERATIONS {
            unwritten.insert(id.to_owned(), row.clone());
        }
    }

    /// Its end is stored: it is told.
    pub(crate) fn finish(&self, id: &str, row: CommandRow) {
        self.keep_unwritten(id, &row);
        lock(&self.table).apply(id, &row);
        let running = lock(&self.running).remove(id);
        if let Some(running) = running {
            *lock(&running.row) = row.clone();
            self.tell(&running, |event| {
                event.phase = row.phase;
                event.message = row.message;
                event.progress = None;
                event.error = row.error;
                event.result = row.result;
            });
        }
    }
}

fn broke_off() -> Error {
    let message = "the operation broke off by a defect of the edge, whose log says where; its outcome is unknown: look, \
                   then ask again with a new id";
    Error::new(Code::Internal, "INTERNAL", message)
}

fn close(row: &mut CommandRow, outcome: Result<Value, Error>, now: i64) {
    row.ended_at_unix_ms = Some(now);
    match outcome {
        Ok(result) => {
            row.phase = CommandPhase::Succeeded;
            row.result = Some(result);
        }
        Err(error) => {
            row.phase = match error.code {
                Code::Cancelled => CommandPhase::Cancelled,
                Code::DeadlineExceeded => CommandPhase::TimedOut,
                _ => CommandPhase::Failed,
            };
            row.message.clone_from(&error.message);
            row.error = Some(error_object(&error));
        }
    }
}

/// An error as operators see it.
pub(crate) fn error_object(error: &Error) -> CommandErrorObject {
    CommandErrorObject {
        code: error.code.name().to_owned(),
        reason: error.reason.clone().into_owned(),
        message: error.message.clone(),
    }
}

/// A store's refusal as the caller of a command sees it.
pub(crate) fn store_error(error: &CommitError) -> Error {
    match error {
        CommitError::Conflict(_) => Error::new(
            Code::Conflict,
            "CHANGED_MEANWHILE",
            "what this is about changed in the same moment; look again and repeat",
        ),
        CommitError::TooLarge(what) => Error::new(Code::TooLarge, "TOO_LARGE", *what),
        _ => Error::new(
            Code::InsufficientStorage,
            "AUDIT_UNAVAILABLE",
            "the edge cannot write its store and so cannot audit this: nothing was done; the site serves. Free space on \
             its disk and repeat",
        ),
    }
}

/// The class of an operation of this build.
pub(crate) fn class_of(operation: &str) -> Option<Class> {
    operations::find(operation).map(|spec| spec.class)
}
