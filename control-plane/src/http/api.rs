//! The operator API's answers: the control plane as a fleet.

use std::sync::Arc;
use std::time::Duration;

use umbel_contracts::objects::{
    AuditObject, CommandEventObject, CommandObject, DeploymentObject, EdgeConnection, EdgeEnrollmentObject,
    EdgeEnrollmentRequest, EdgeObject, FleetNodes, FleetStatus, Freshness, JobObject, NodeObject,
    OperatorObject, OperatorRequest, Page, QueueObject, SiteNode, SiteStatus, SummaryObject, timestamp,
};
use umbel_contracts::operations::{
    AuditExportArgs, AuditExportResult, AuditVerifyResult, Class, EdgeBackupResult,
};
use umbel_contracts::serve::{
    AuditQuestion, Bearer, Caller, CommandCall, Feed, Fleet, Follow, StatusQuestion, Told,
};
use umbel_wire::error::{Code, Error};
use umbel_wire::ids::EdgeId;
use umbel_wire::token::{BearerKind, parse_bearer};
use umbel_wire::{BoxFuture, clock};

use super::{audit, edges, identities};
use crate::core::fleet::not_connected;
use crate::core::operators::unknown_token;
use crate::core::views::age_ms;
use crate::shell::plane::{Link, Plane, to_the_end};
use crate::shell::status::{Answer, Asked, ask_all};
use crate::shell::{relay, settle};

/// Nodes in one answer about the whole fleet; sites beyond it are named as missing.
const NODES_MAX: usize = 50_000;

/// The control plane as the operator API sees it.
#[derive(Clone)]
pub(crate) struct Api(pub(crate) Arc<Plane>);

impl Api {
    /// The links of the wanted edges, or of all.
    fn links(&self, only: Option<&EdgeId>) -> Vec<Link> {
        let fleet = self.0.fleet();
        fleet
            .slots
            .owners()
            .filter(|(edge_id, owner)| {
                only.is_none_or(|wanted| wanted == *edge_id) && !owner.handle.is_closed()
            })
            .map(|(edge_id, owner)| Link {
                edge_id: edge_id.clone(),
                generation: owner.generation,
                connection: owner.handle.clone(),
            })
            .collect()
    }

    /// Every enrolled site with what it answered, or what was known.
    async fn sites(&self, question: &StatusQuestion) -> Result<Vec<SiteStatus>, Error> {
        let deadline = question.deadline.unwrap_or(self.0.settings.status_deadline);
        let mut asked = ask_all(&self.0, self.links(None), question, deadline).await;
        // What the asker got wrong is his answer and no state of a site.
        for answer in asked.values() {
            if let Some(Err(error)) = answer
                && error.code == Code::InvalidArgument
            {
                return Err(error.clone());
            }
        }
        let enrolled: Vec<EdgeId> = {
            let fleet = self.0.fleet();
            fleet.edges.sorted().into_iter().map(|(edge_id, _)| edge_id.clone()).collect()
        };
        let sites = enrolled
            .into_iter()
            .map(|edge_id| {
                let answer = asked.remove(&edge_id);
                self.site(&edge_id, answer, question, deadline)
            })
            .collect();
        Ok(sites)
    }

    fn site(
        &self,
        edge_id: &EdgeId,
        answer: Option<Option<Asked>>,
        question: &StatusQuestion,
        deadline: Duration,
    ) -> SiteStatus {
        let now = clock::now();
        let fleet = self.0.fleet();
        let view = fleet.views.get(edge_id);
        let last = view.and_then(|view| view.summary.clone());
        let stored = fleet.edges.get(edge_id).map(|known| known.row.display_name.clone());
        let connected = fleet.slots.owner(edge_id).is_some_and(|owner| !owner.handle.is_closed());
        let silent = fleet.views.connection(edge_id) == EdgeConnection::Disconnected;
        let named = view.map(|view| view.display_name.clone()).filter(|name| !name.is_empty());
        let display_name =
            named.or(stored).filter(|name| !name.is_empty()).unwrap_or_else(|| edge_id.to_string());
        drop(fleet);
        let mut site = SiteStatus {
            edge_id: edge_id.to_string(),
            display_name,
            freshness: Freshness::Disconnected,
            age_ms: last.as_ref().map(|summary| age_ms(now, summary.received)),
            observed_at: last.as_ref().map(|summary| timestamp(summary.observed_at_unix_ms)),
            note: None,
            summary: last.map(|summary| SummaryObject::from_proto((*summary.said).clone())),
            nodes: None,
            queues: None,
            deployments: None,
            jobs: None,
        };
        let late = format!("The edge is connected and did not answer within {} ms.", deadline.as_millis());
        (site.freshness, site.note) = match answer {
            Some(Some(Ok(said))) => {
                site.age_ms = Some(0);
                site.observed_at = Some(timestamp(said.observed_at_unix_ms));
                if let Some(summary) = &said.summary {
                    site.summary = Some(SummaryObject::from_proto(summary.clone()));
                }
                detail(&mut site, &said, question);
                (Freshness::Fresh, None)
            }
            // Its socket may be open still, but nothing came of it for the offline time.
            Some(None | Some(Err(_))) if connected && silent => {
                (Freshness::Disconnected, Some("No heartbeat came for the offline time.".into()))
            }
            Some(None) => (Freshness::TimedOut, Some(late)),
            Some(Some(Err(error))) if error.code == Code::DeadlineExceeded => {
                (Freshness::TimedOut, Some(late))
            }
            // The selector chooses none of this site's nodes: that is an answer.
            Some(Some(Err(error))) if error.code == Code::NotFound => {
                site.nodes = Some(Vec::new());
                (Freshness::Fresh, Some(error.message))
            }
            Some(Some(Err(error))) if connected => (Freshness::Cached, Some(error.message)),
            None if connected => {
                (Freshness::Cached, Some("The edge has just connected and was not asked.".into()))
            }
            _ => (Freshness::Disconnected, Some(not_connected_note(site.summary.is_some()))),
        };
        site
    }

    fn find(&self, edge_id: &str) -> Result<EdgeId, Error> {
        self.0.fleet().edges.find(edge_id).map(|(edge_id, _)| edge_id)
    }
}

/// The sections that were asked for and answered.
fn detail(site: &mut SiteStatus, said: &Answer, question: &StatusQuestion) {
    let nodes = question.wants("nodes") || question.wants("node_detail");
    site.nodes = nodes.then(|| said.nodes.iter().cloned().map(NodeObject::from_proto).collect());
    let wants = |section: &str| question.wants(section);
    site.queues = wants("queues").then(|| said.queues.iter().cloned().map(QueueObject::from_proto).collect());
    let deployments = || said.deployments.iter().cloned().map(DeploymentObject::from_proto).collect();
    site.deployments = wants("deployments").then(deployments);
    site.jobs = wants("jobs").then(|| said.jobs.iter().cloned().map(JobObject::from_proto).collect());
}

fn not_connected_note(known: bool) -> String {
    let what = if known { "the figures are its last" } else { "nothing was heard of it since this start" };
    format!("The edge is not connected; {what}.")
}

impl Fleet for Api {
    async fn authenticate(&self, token: &str) -> Result<Bearer, Error> {
        let bearer = parse_bearer(token, BearerKind::OperatorToken).map_err(|_| unknown_token())?;
        let (actor, role) = self.0.operators().authenticate(&bearer.id, &bearer.secret)?;
        Ok(Bearer { actor, role, token_id: bearer.id })
    }

    fn shut_out(&self, caller: &Caller) -> BoxFuture<'static, ()> {
        if caller.token_id.is_empty() {
            return Box::pin(std::future::pending());
        }
        let (plane, operator_id) = (Arc::clone(&self.0), caller.token_id.clone());
        let mut changed = plane.operators_changed.subscribe();
        Box::pin(async move {
            // The sender lives as long as the plane.
            while plane.operators().is_active(&operator_id) && changed.changed().await.is_ok() {}
        })
    }

    async fn status(&self, deadline: Option<Duration>) -> Result<FleetStatus, Error> {
        let question =
            StatusQuestion { sections: vec!["facts".into()], deadline, ..StatusQuestion::default() };
        let sites = self.sites(&question).await?;
        let settings = &self.0.settings;
        let deadline = deadline.unwrap_or(settings.status_deadline);
        Ok(FleetStatus {
            fleet_name: settings.fleet_name.clone(),
            answered_by: settings.name.clone(),
            observed_at: timestamp(self.0.clock.now().unix_ms()),
            deadline_ms: u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX),
            sites,
        })
    }

    async fn edges(&self) -> Result<Vec<EdgeObject>, Error> {
        Ok(edges::all(&self.0))
    }

    async fn edge(&self, edge_id: &str) -> Result<EdgeObject, Error> {
        let edge_id = self.find(edge_id)?;
        edges::one(&self.0, &edge_id).ok_or_else(|| not_connected(&edge_id))
    }

    async fn edge_status(&self, edge_id: &str, question: StatusQuestion) -> Result<SiteStatus, Error> {
        let edge_id = self.find(edge_id)?;
        let deadline = question.deadline.unwrap_or(self.0.settings.status_deadline);
        let mut asked = ask_all(&self.0, self.links(Some(&edge_id)), &question, deadline).await;
        let answer = asked.remove(&edge_id);
        // What the asker got wrong is his answer and no state of the site.
        if let Some(Some(Err(error))) = &answer
            && matches!(error.code, Code::InvalidArgument | Code::NotFound)
        {
            return Err(error.clone());
        }
        Ok(self.site(&edge_id, answer, &question, deadline))
    }

    async fn nodes(&self, question: StatusQuestion) -> Result<FleetNodes, Error> {
        let mut items = Vec::new();
        let mut missing = Vec::new();
        for mut site in self.sites(&question).await? {
            match site.nodes.take() {
                Some(nodes) if items.len() + nodes.len() <= NODES_MAX => {
                    let edge_id = site.edge_id;
                    items.extend(nodes.into_iter().map(|node| SiteNode { edge_id: edge_id.clone(), node }));
                }
                Some(_) => {
                    site.note =
                        Some(format!("An answer has at most {NODES_MAX} nodes. Ask this site by itself."));
                    missing.push(site);
                }
                None => missing.push(site),
            }
        }
        Ok(FleetNodes { items, missing })
    }

    async fn operation_class(&self, edge_id: &str, operation: &str) -> Result<Class, Error> {
        let link = self.0.link(edge_id)?;
        let fleet = self.0.fleet();
        Ok(fleet.views.get(&link.edge_id).and_then(|view| view.class(operation)).unwrap_or(Class::Admin))
    }

    async fn command(
        &self,
        caller: &Caller,
        edge_id: &str,
        call: CommandCall,
    ) -> Result<CommandObject, Error> {
        let class = self.operation_class(edge_id, &call.body.operation).await?;
        relay::command(&self.0, caller, edge_id, class, call).await
    }

    async fn command_show(
        &self,
        _caller: &Caller,
        edge_id: &str,
        command_id: &str,
    ) -> Result<CommandObject, Error> {
        settle::show(&self.0, edge_id, command_id).await
    }

    async fn command_events(
        &self,
        _caller: &Caller,
        edge_id: &str,
        command_id: &str,
    ) -> Result<Feed<CommandEventObject>, Error> {
        settle::follow(&self.0, edge_id, command_id).await
    }

    async fn events(&self, follow: Follow) -> Result<Feed<Told>, Error> {
        Ok(self.0.events.follow(&follow))
    }

    async fn audit(&self, question: AuditQuestion) -> Result<Page<AuditObject>, Error> {
        audit::page(&self.0, question).await
    }

    async fn audit_export(&self, args: AuditExportArgs) -> Result<AuditExportResult, Error> {
        audit::export(&self.0, args).await
    }

    async fn audit_verify(&self) -> Result<AuditVerifyResult, Error> {
        audit::verify(&self.0).await
    }

    async fn backup(&self, caller: &Caller) -> Result<EdgeBackupResult, Error> {
        let (plane, caller) = (Arc::clone(&self.0), caller.clone());
        to_the_end(async move { audit::backup(&plane, &caller).await }).await
    }

    async fn edge_enrollment_create(
        &self,
        caller: &Caller,
        request: EdgeEnrollmentRequest,
    ) -> Result<EdgeEnrollmentObject, Error> {
        let (plane, caller) = (Arc::clone(&self.0), caller.clone());
        to_the_end(async move { identities::enrollment_create(&plane, &caller, request).await }).await
    }

    async fn edge_enrollments(&self) -> Result<Vec<EdgeEnrollmentObject>, Error> {
        identities::enrollments(&self.0).await
    }

    async fn edge_enrollment(&self, token_id: &str) -> Result<EdgeEnrollmentObject, Error> {
        identities::enrollment(&self.0, token_id).await
    }

    async fn edge_enrollment_revoke(
        &self,
        caller: &Caller,
        token_id: &str,
        reason: &str,
    ) -> Result<EdgeEnrollmentObject, Error> {
        let (plane, caller) = (Arc::clone(&self.0), caller.clone());
        let (token_id, reason) = (token_id.to_owned(), reason.to_owned());
        to_the_end(async move { identities::enrollment_revoke(&plane, &caller, &token_id, &reason).await })
            .await
    }

    async fn credential_revoke(
        &self,
        caller: &Caller,
        edge_id: &str,
        reason: &str,
    ) -> Result<EdgeObject, Error> {
        let edge_id = self.find(edge_id)?;
        let (plane, caller, reason) = (Arc::clone(&self.0), caller.clone(), reason.to_owned());
        to_the_end(async move { identities::credential_revoke(&plane, &caller, &edge_id, &reason).await })
            .await
    }

    async fn operators(&self) -> Result<Vec<OperatorObject>, Error> {
        Ok(self.0.operators().objects())
    }

    async fn operator_create(
        &self,
        caller: &Caller,
        request: OperatorRequest,
    ) -> Result<OperatorObject, Error> {
        let (plane, caller) = (Arc::clone(&self.0), caller.clone());
        to_the_end(async move { identities::operator_create(&plane, &caller, request).await }).await
    }

    async fn operator_revoke(
        &self,
        caller: &Caller,
        operator_id: &str,
        reason: &str,
    ) -> Result<OperatorObject, Error> {
        let (plane, caller) = (Arc::clone(&self.0), caller.clone());
        let (operator_id, reason) = (operator_id.to_owned(), reason.to_owned());
        to_the_end(async move { identities::operator_revoke(&plane, &caller, &operator_id, &reason).await })
            .await
    }
}
