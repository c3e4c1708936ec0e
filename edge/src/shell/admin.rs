//! The local socket: the operator API for a fleet of one, for whoever may open the file.
//!
//! Owns the answers. Leaves the socket's file to `umbel_contracts::daemon`, routes and objects to
//! `umbel_contracts::serve` and operations to the same code that control planes reach. Invariant: it works with every
//! control plane gone.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use umbel_contracts::objects::{
    AuditObject, CommandEventObject, CommandObject, CredentialObject, CredentialState, DeploymentObject,
    EdgeConnection, EdgeObject, FleetNodes, FleetStatus, Freshness, JobObject, NodeObject, OperationObject,
    Page, QueueObject, SiteNode, SiteStatus, SummaryObject, timestamp,
};
use umbel_contracts::operations::{
    self, AuditExportArgs, AuditExportResult, AuditVerifyResult, Class, EdgeBackup, EdgeBackupResult,
    Operation,
};
use umbel_contracts::proto::control::EdgeStatusRequest;
use umbel_contracts::serve::{AuditQuestion, Caller, CommandCall, Feed, Fleet, Follow, StatusQuestion, Told};
use umbel_wire::{Code, Error};

use crate::core::commands::Request;
use crate::shell::commands::Commands;
use crate::shell::operations::audit;
use crate::shell::site::Site;
use crate::shell::status::{self, Question, Reading};

/// How long whoever asks for a backup waits for it.
const BACKUP: Duration = Duration::from_secs(600);

/// All parts of a reading, as one object.
fn whole(site: &Site, mut reading: Reading, question: &StatusQuestion) -> SiteStatus {
    let mut summary = None;
    let (mut nodes, mut queues, mut deployments, mut jobs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut observed_at = None;
    while let Some(part) = reading.next(site) {
        if part.observed_at_unix_ms > 0 {
            observed_at = Some(timestamp(part.observed_at_unix_ms));
        }
        summary = summary.or(part.summary.map(SummaryObject::from_proto));
        queues.extend(part.queues.into_iter().map(QueueObject::from_proto));
        nodes.extend(part.nodes.into_iter().map(NodeObject::from_proto));
        deployments.extend(part.deployments.into_iter().map(DeploymentObject::from_proto));
        jobs.extend(part.jobs.into_iter().map(JobObject::from_proto));
    }
    SiteStatus {
        edge_id: site.edge_id.to_string(),
        display_name: site.name.clone(),
        freshness: Freshness::Fresh,
        age_ms: Some(0),
        observed_at,
        note: None,
        summary,
        nodes: (question.wants("nodes") || question.wants("node_detail")).then_some(nodes),
        queues: question.wants("queues").then_some(queues),
        deployments: question.wants("deployments").then_some(deployments),
        jobs: question.wants("jobs").then_some(jobs),
    }
}

/// The site behind its local socket.
pub(crate) struct Admin {
    pub(crate) commands: Arc<Commands>,
}

impl Admin {
    fn here(&self, edge_id: &str) -> Result<(), Error> {
        let own = self.commands.site.edge_id.as_str();
        if edge_id == own {
            return Ok(());
        }
        let message =
            format!("this is the edge of site {own}, and it knows no other site; ask a control plane");
        Err(Error::new(Code::NotFound, "EDGE_UNKNOWN", message))
    }

    async fn read(&self, question: &StatusQuestion) -> Result<SiteStatus, Error> {
        let site = &self.commands.site;
        let request = EdgeStatusRequest {
            node_selector: question.nodes.clone(),
            sections: question.sections.clone(),
            ..EdgeStatusRequest::default()
        };
        let reading = Reading::new(site, Question::check(request)?).await;
        let (site, question) = (Arc::clone(site), question.clone());
        // A whole site takes long, and the runtime's thread serves it meanwhile.
        let read = tokio::task::spawn_blocking(move || whole(&site, reading, &question)).await;
        read.map_err(|_| Error::new(Code::Internal, "INTERNAL", "the site could not be read"))
    }

    async fn itself(&self) -> EdgeObject {
        let site = &self.commands.site;
        let held = site.authorities.held();
        let operations = operations::ALL
            .iter()
            .map(|spec| OperationObject { name: spec.name.to_owned(), class: spec.class.as_str().to_owned() })
            .collect();
        EdgeObject {
            edge_id: site.edge_id.to_string(),
            display_name: site.name.clone(),
            connection: EdgeConnection::Connected,
            last_heard_ms: Some(0),
            generation: None,
            round_trip_us: None,
            software_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            protocol: None,
            operations,
            events_lost: 0,
            // Its own authority's: an edge asked directly shows whom its nodes trust.
            credential: CredentialObject {
                state: CredentialState::Active,
                key_sha256: held.sha256(),
                not_after: timestamp(held.signing().not_after().unix_ms()),
                revoked_at: None,
                revoked_reason: None,
            },
            enrolled_at: timestamp(held.signing().not_before().unix_ms()),
            last_summary: Some(SummaryObject::from_proto(status::summary(site).await)),
            last_summary_age_ms: Some(0),
            problems: Vec::new(),
        }
    }
}

impl Fleet for Admin {
    async fn status(&self, deadline: Option<Duration>) -> Result<FleetStatus, Error> {
        let question = StatusQuestion { sections: vec!["facts".to_owned()], ..StatusQuestion::default() };
        let site = &self.commands.site;
        Ok(FleetStatus {
            fleet_name: site.edge_id.to_string(),
            answered_by: site.name.clone(),
            observed_at: timestamp(site.wall().unix_ms()),
            deadline_ms: deadline.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            sites: vec![self.read(&question).await?],
        })
    }

    async fn edges(&self) -> Result<Vec<EdgeObject>, Error> {
        Ok(vec![self.itself().await])
    }

    async fn edge(&self, edge_id: &str) -> Result<EdgeObject, Error> {
        self.here(edge_id)?;
        Ok(self.itself().await)
    }

    async fn edge_status(&self, edge_id: &str, question: StatusQuestion) -> Result<SiteStatus, Error> {
        self.here(edge_id)?;
        self.read(&question).await
    }

    async fn nodes(&self, question: StatusQuestion) -> Result<FleetNodes, Error> {
        let read = self.read(&StatusQuestion { sections: vec!["nodes".to_owned()], ..question }).await?;
        let edge_id = read.edge_id;
        let items = read.nodes.unwrap_or_default().into_iter();
        let items = items.map(|node| SiteNode { edge_id: edge_id.clone(), node }).collect();
        Ok(FleetNodes { items, missing: Vec::new() })
    }

    async fn operation_class(&self, edge_id: &str, operation: &str) -> Result<Class, Error> {
        self.here(edge_id)?;
        Ok(operations::find(operation).map_or(Class::Admin, |spec| spec.class))
    }

    async fn command(
        &self,
        caller: &Caller,
        edge_id: &str,
        call: CommandCall,
    ) -> Result<CommandObject, Error> {
        self.here(edge_id)?;
        let CommandCall { command_id, body, wait } = call;
        let operation = body.operation.clone();
        let request = Request {
            command_id: command_id.clone(),
            operation: body.operation,
            selector: body.target_selector,
            args: body.args.unwrap_or_default(),
            reason: body.reason,
            dry_run: body.dry_run,
            confirm: body.confirm,
            actor: caller.actor.clone(),
            correlation_id: caller.correlation_id.clone(),
            deadline: Duration::from_millis(body.deadline_ms.unwrap_or(0).into()),
            origin: None,
        };
        let standing = self.commands.ask(request, wait).await?;
        Ok(CommandObject {
            command_id,
            edge_id: edge_id.to_owned(),
            operation: Some(operation),
            phase: standing.phase,
            error: standing.error,
            result: standing.result,
            replayed: standing.replayed,
        })
    }

    async fn command_show(
        &self,
        _: &Caller,
        edge_id: &str,
        command_id: &str,
    ) -> Result<CommandObject, Error> {
        self.here(edge_id)?;
        let row = self.commands.row(command_id).await?;
        Ok(CommandObject {
            command_id: command_id.to_owned(),
            edge_id: edge_id.to_owned(),
            operation: Some(row.operation),
            phase: row.phase,
            error: row.error,
            result: row.result,
            replayed: true,
        })
    }

    async fn command_events(
        &self,
        _: &Caller,
        edge_id: &str,
        command_id: &str,
    ) -> Result<Feed<CommandEventObject>, Error> {
        self.here(edge_id)?;
        if let Some(running) = self.commands.running(command_id) {
            let steps = Some((running.steps(), true));
            return Ok(Box::pin(stream::unfold(steps, |state| async move {
                let (mut steps, first) = state?;
                if !first {
                    steps.changed().await.ok()?;
                }
                let event = steps.borrow_and_update().clone();
                let next = (!event.phase.is_end()).then_some((steps, false));
                Some((event, next))
            })));
        }
        let row = self.commands.row(command_id).await?;
        let end = CommandEventObject {
            command_id: command_id.to_owned(),
            sequence: 1,
            phase: row.phase,
            message: row.message,
            progress: None,
            error: row.error,
            result: row.result,
            at: timestamp(row.ended_at_unix_ms.unwrap_or(row.accepted_at_unix_ms)),
        };
        Ok(Box::pin(stream::iter([end])))
    }

    async fn events(&self, follow: Follow) -> Result<Feed<Told>, Error> {
        Ok(self.commands.site.events.ring().follow(&follow))
    }

    async fn audit(&self, question: AuditQuestion) -> Result<Page<AuditObject>, Error> {
        if let Some(edge_id) = &question.edge_id {
            self.here(edge_id)?;
        }
        audit::page(&self.commands.site, question).await
    }

    async fn audit_export(&self, args: AuditExportArgs) -> Result<AuditExportResult, Error> {
        audit::export(&self.commands.site.store, args).await
    }

    async fn audit_verify(&self) -> Result<AuditVerifyResult, Error> {
        audit::verify(&self.commands.site.store).await
    }

    async fn backup(&self, caller: &Caller) -> Result<EdgeBackupResult, Error> {
        let request = Request {
            command_id: uuid::Uuid::new_v4().to_string(),
            operation: EdgeBackup::NAME.to_owned(),
            actor: caller.actor.clone(),
            correlation_id: caller.correlation_id.clone(),
            ..Request::default()
        };
        let command_id = request.command_id.clone();
        let standing = self.commands.ask(request, BACKUP).await?;
        if let Some(error) = standing.error {
            // Known codes only: this edge made it.
            let code = Code::from_name(&error.code).unwrap_or(Code::Internal);
            return Err(Error::new(code, error.reason, error.message));
        }
        let made = standing.result.and_then(|result| serde_json::from_value(result).ok());
        made.ok_or_else(|| {
            let message = format!("it takes long and goes on; command {command_id} tells its end");
            Error::new(Code::DeadlineExceeded, "STILL_RUNNING", message)
        })
    }
}
