//! What a server of the operator API answers with. A method that only a control plane can answer says NOT_FOUND
//! here, so that an edge writes only what it has.
//!
//! Roles are not checked here: the router has done so when a method is called, with the class that
//! [`Fleet::operation_class`] names. What a method changes it also audits, since only it knows the outcome.

use std::future::{Future, pending, ready};
use std::time::Duration;

use umbel_wire::BoxFuture;
use umbel_wire::error::{Code, Error};

use super::{Bearer, Caller, Feed, Told};
use crate::names::moves_text;
use crate::objects::{
    AuditObject, CommandEventObject, CommandObject, CommandRequestBody, EdgeEnrollmentObject,
    EdgeEnrollmentRequest, EdgeObject, FleetNodes, FleetStatus, OperatorObject, OperatorRequest, Page,
    SiteNode, SiteStatus,
};
use crate::operations::{
    AuditExportArgs, AuditExportResult, AuditQueryArgs, AuditVerifyResult, Class, EdgeBackupResult,
};

/// The sections of a site's status. `node_detail` says more of each node and is only there where it is named.
pub const SECTIONS: [&str; 6] = ["facts", "nodes", "node_detail", "queues", "deployments", "jobs"];

/// What is asked of a site's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StatusQuestion {
    /// Selector of nodes; empty means all.
    pub nodes: String,
    /// Some of [`SECTIONS`]; empty means all but `node_detail`.
    pub sections: Vec<String>,
    /// Time for the answer; the server's default if absent. Between 50 ms and 30 s.
    pub deadline: Option<Duration>,
}

impl StatusQuestion {
    /// Whether a section is asked for.
    #[must_use]
    pub fn wants(&self, section: &str) -> bool {
        wants_section(&self.sections, section)
    }
}

/// Whether a section is among those asked for.
#[must_use]
pub fn wants_section(sections: &[String], section: &str) -> bool {
    let named = sections.iter().any(|one| one == section);
    named || (sections.is_empty() && section != "node_detail")
}

/// One request for a command.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandCall {
    /// A UUID in its usual spelling, lower case.
    pub command_id: String,
    /// What is asked.
    pub body: CommandRequestBody,
    /// How long to wait for the end; zero answers at once. At most 10 minutes.
    pub wait: Duration,
}

/// Where a reader of events begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Follow {
    /// The `Last-Event-ID` that the reader saw.
    pub after: Option<String>,
    /// Without `after`: how many of the latest to tell first.
    pub recent: usize,
    /// Whether to go on with what comes.
    pub live: bool,
}

/// Which entries of the audit are asked for: the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditQuestion {
    /// 1 to 1,000.
    pub limit: usize,
    /// Entries older than this sequence only: the `next_cursor` of the page before.
    pub before: Option<u64>,
    /// Entries newer than this sequence only, and the oldest first: whoever follows the audit. The answer's
    /// `next_cursor` is then the newest that was looked at. Not with `before`.
    pub after: Option<u64>,
    /// Entries about this edge only.
    pub edge_id: Option<String>,
    /// What else must hold; its `limit` and `before` are not used here.
    pub filter: AuditQueryArgs,
}

impl AuditQuestion {
    /// Whether an entry is asked for.
    #[must_use]
    pub fn matches(&self, entry: &AuditObject) -> bool {
        (self.edge_id.is_none() || self.edge_id == entry.edge_id) && self.filter.matches(entry)
    }
}

fn not_here<T>(what: &str) -> impl Future<Output = Result<T, Error>> + Send
where
    T: Send,
{
    ready(Err(Error::new(
        Code::NotFound,
        "CONTROL_PLANE_ONLY",
        format!("{what} are kept by a control plane; this is an edge. Ask the control plane."),
    )))
}

/// The fleet behind an operator API. All futures are cancelled when the client goes away, so that work that must
/// go on is spawned.
pub trait Fleet: Send + Sync + 'static {
    /// Whom a bearer token belongs to. UNAUTHENTICATED for every token that opens nothing, without saying why.
    fn authenticate(&self, token: &str) -> impl Future<Output = Result<Bearer, Error>> + Send {
        let _ = token;
        ready(Err(Error::new(
            Code::Unauthenticated,
            "TOKEN_UNKNOWN",
            "This server takes no operator tokens.",
        )))
    }

    /// Returns once the token that this caller showed opens nothing any more; never for one without. What was opened
    /// with a token and stays open ends then.
    fn shut_out(&self, caller: &Caller) -> BoxFuture<'static, ()> {
        let _ = caller;
        Box::pin(pending())
    }

    /// The status of every site by the deadline, without nodes and queues.
    fn status(&self, deadline: Option<Duration>) -> impl Future<Output = Result<FleetStatus, Error>> + Send;

    /// Every enrolled edge, by name.
    fn edges(&self) -> impl Future<Output = Result<Vec<EdgeObject>, Error>> + Send;

    /// One edge. NOT_FOUND if it is not enrolled.
    fn edge(&self, edge_id: &str) -> impl Future<Output = Result<EdgeObject, Error>> + Send;

    /// One site in detail. A site that does not answer is not an error: its freshness says so.
    fn edge_status(
        &self,
        edge_id: &str,
        question: StatusQuestion,
    ) -> impl Future<Output = Result<SiteStatus, Error>> + Send;

    /// The nodes of all sites that answer by the deadline; the sites that do not are named.
    fn nodes(&self, question: StatusQuestion) -> impl Future<Output = Result<FleetNodes, Error>> + Send;

    /// One node by id, name, or a unique beginning of either, at any site or at `edge_id`. NOT_FOUND, or CONFLICT
    /// `AMBIGUOUS` naming the candidates.
    fn node(
        &self,
        name_or_id: &str,
        edge_id: Option<&str>,
    ) -> impl Future<Output = Result<SiteNode, Error>> + Send {
        async move {
            let found =
                self.nodes(StatusQuestion { sections: vec!["nodes".into()], ..Default::default() }).await?;
            pick_node(found, name_or_id, edge_id)
        }
    }

    /// The class of an operation at that edge; [`Class::Admin`] for one that nobody knows. NOT_FOUND for an edge
    /// that is not enrolled, UNAVAILABLE for one that is not connected.
    fn operation_class(
        &self,
        edge_id: &str,
        operation: &str,
    ) -> impl Future<Output = Result<Class, Error>> + Send;

    /// Relays a command, or joins or replays the one with the same id. Answers with the end if it comes within
    /// the call's waiting time, else with the phase so far.
    fn command(
        &self,
        caller: &Caller,
        edge_id: &str,
        call: CommandCall,
    ) -> impl Future<Output = Result<CommandObject, Error>> + Send;

    /// Where a command stands.
    fn command_show(
        &self,
        caller: &Caller,
        edge_id: &str,
        command_id: &str,
    ) -> impl Future<Output = Result<CommandObject, Error>> + Send;

    /// The steps of a command from its first known one; the feed ends after its end.
    fn command_events(
        &self,
        caller: &Caller,
        edge_id: &str,
        command_id: &str,
    ) -> impl Future<Output = Result<Feed<CommandEventObject>, Error>> + Send;

    /// What happens in the fleet.
    fn events(&self, follow: Follow) -> impl Future<Output = Result<Feed<Told>, Error>> + Send;

    /// Entries of the audit, newest first.
    fn audit(&self, question: AuditQuestion)
    -> impl Future<Output = Result<Page<AuditObject>, Error>> + Send;

    /// The audit as it is chained.
    fn audit_export(
        &self,
        args: AuditExportArgs,
    ) -> impl Future<Output = Result<AuditExportResult, Error>> + Send;

    /// Checks the chain of the audit.
    fn audit_verify(&self) -> impl Future<Output = Result<AuditVerifyResult, Error>> + Send;

    /// Copies the server's own store while it runs.
    fn backup(&self, caller: &Caller) -> impl Future<Output = Result<EdgeBackupResult, Error>> + Send;

    /// Mints an edge's enrollment token.
    fn edge_enrollment_create(
        &self,
        caller: &Caller,
        request: EdgeEnrollmentRequest,
    ) -> impl Future<Output = Result<EdgeEnrollmentObject, Error>> + Send {
        let _ = (caller, request);
        not_here("Edge enrollments")
    }

    /// Every edge enrollment that is kept, newest first.
    fn edge_enrollments(&self) -> impl Future<Output = Result<Vec<EdgeEnrollmentObject>, Error>> + Send {
        not_here("Edge enrollments")
    }

    /// One edge enrollment.
    fn edge_enrollment(
        &self,
        token_id: &str,
    ) -> impl Future<Output = Result<EdgeEnrollmentObject, Error>> + Send {
        let _ = token_id;
        not_here("Edge enrollments")
    }

    /// Ends an enrollment token before its use. CONFLICT if it was used.
    fn edge_enrollment_revoke(
        &self,
        caller: &Caller,
        token_id: &str,
        reason: &str,
    ) -> impl Future<Output = Result<EdgeEnrollmentObject, Error>> + Send {
        let _ = (caller, token_id, reason);
        not_here("Edge enrollments")
    }

    /// Revokes an edge's credential and closes its connection.
    fn credential_revoke(
        &self,
        caller: &Caller,
        edge_id: &str,
        reason: &str,
    ) -> impl Future<Output = Result<EdgeObject, Error>> + Send {
        let _ = (caller, edge_id, reason);
        not_here("Edges' credentials")
    }

    /// Every operator, revoked ones included.
    fn operators(&self) -> impl Future<Output = Result<Vec<OperatorObject>, Error>> + Send {
        not_here("Operators")
    }

    /// Adds an operator.
    fn operator_create(
        &self,
        caller: &Caller,
        request: OperatorRequest,
    ) -> impl Future<Output = Result<OperatorObject, Error>> + Send {
        let _ = (caller, request);
        not_here("Operators")
    }

    /// Revokes an operator's token.
    fn operator_revoke(
        &self,
        caller: &Caller,
        operator_id: &str,
        reason: &str,
    ) -> impl Future<Output = Result<OperatorObject, Error>> + Send {
        let _ = (caller, operator_id, reason);
        not_here("Operators")
    }
}

/// Picks one node by id or name, or by a beginning that only one has.
fn pick_node(found: FleetNodes, name_or_id: &str, edge_id: Option<&str>) -> Result<SiteNode, Error> {
    let here = |site: &str| edge_id.is_none_or(|wanted| wanted == site);
    let missing: Vec<String> =
        found.missing.iter().filter(|site| here(&site.edge_id)).map(|site| site.edge_id.clone()).collect();
    let mut exact = Vec::new();
    let mut begin = Vec::new();
    for node in found.items.into_iter().filter(|node| here(&node.edge_id)) {
        if node.node.node_id == name_or_id || node.node.name == name_or_id {
            exact.push(node);
        } else if !name_or_id.is_empty()
            && (node.node.node_id.starts_with(name_or_id) || node.node.name.starts_with(name_or_id))
        {
            begin.push(node);
        }
    }
    let mut candidates = if exact.is_empty() { begin } else { exact };
    if candidates.len() > 1 {
        let mut names: Vec<String> = candidates
            .iter()
            .take(10)
            .map(|node| format!("{} at {}", node.node.name, node.edge_id))
            .collect();
        if candidates.len() > names.len() {
            names.push(format!("{} more", candidates.len() - names.len()));
        }
        return Err(Error::new(
            Code::Conflict,
            "AMBIGUOUS",
            format!("`{}` could be {}. Give the id, or the edge too.", clip(name_or_id), names.join(", ")),
        ));
    }
    candidates.pop().ok_or_else(|| {
        let note = if missing.is_empty() {
            String::from("List the nodes to see which there are.")
        } else {
            format!("It may be at a site that did not answer: {}.", missing.join(", "))
        };
        Error::new(
            Code::NotFound,
            "NODE_UNKNOWN",
            format!("No node is called `{}`. {note}", clip(name_or_id)),
        )
    })
}

/// What a caller wrote, short enough to be repeated to him.
pub(super) fn clip(text: &str) -> String {
    let mut clipped: String = text.chars().filter(|letter| !moves_text(*letter)).take(80).collect();
    if clipped.len() < text.len() {
        clipped.push('…');
    }
    clipped
}
