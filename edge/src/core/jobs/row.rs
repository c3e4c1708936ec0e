//! A job as it is stored: table `jobs`, a row each.
//!
//! Owns the row, the words for the kinds of work and the capability that each needs. Leaves the transitions to the table.
//! Invariant: a row of an older build reads; the body of a job is the message of the wire and is never taken apart.

use data_encoding::BASE64;
use prost::Message;
use serde::{Deserialize, Serialize};
use umbel_contracts::objects::{JobFailureObject, JobReportObject, JobState};
use umbel_contracts::proto::node::job_complete::Report;
use umbel_contracts::proto::node::job_lease::Body;
use umbel_contracts::proto::node::{JobComplete, JobFailure, JobLease};
use umbel_wire::Generation;

/// Table of the store.
pub(crate) const JOBS: &str = "jobs";

/// The kind of work that fetches files.
pub(crate) const ACQUIRE: &str = "artifact.acquire";

/// The lease under which a job was given to its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseRow {
    pub(crate) id: String,
    /// The process of the agent.
    pub(crate) instance: String,
    /// The connection.
    pub(crate) generation: u64,
}

/// Why the last attempt came to nothing, short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FailureRow {
    pub(crate) code: String,
    pub(crate) message: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) retry: bool,
}

/// Where files lie on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FilesAt {
    /// One of its artifact roots.
    pub(crate) root: String,
    /// The folder's name below the root.
    pub(crate) path: String,
}

/// A stored job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobRow {
    pub(crate) node: String,
    pub(crate) kind: String,
    pub(crate) subject: String,
    /// Whose work it is; empty: a person's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) owner: String,
    #[serde(default)]
    pub(crate) actor: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    /// `JobLease` with nothing but its body, base64. Of a job that has ended only on disk.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) body: String,
    pub(crate) state: JobState,
    /// Attempts that came to nothing.
    #[serde(default)]
    pub(crate) failures: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lease: Option<LeaseRow>,
    /// The last lease if nothing was heard before its end: its process may have gone with the run, which its node's next word
    /// says. No other process is given the job before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unheard: Option<LeaseRow>,
    /// The last lease whose end was taken: it may tell that end again.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) ended_lease: String,
    #[serde(default)]
    pub(crate) cancel_requested: bool,
    /// The operator who asked for its end last; `None` too where only the edge itself did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cancelled_by: Option<String>,
    /// When its end was asked for last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cancelled_at_unix_ms: Option<i64>,
    /// Its place in the queue: the order in which jobs were asked for.
    pub(crate) sequence: u64,
    pub(crate) submitted_at_unix_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) started_at_unix_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ended_at_unix_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<FailureRow>,
    /// `JobComplete` with nothing but its report, or `JobFailure`, base64; only on disk.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) told: String,
    /// Where the files are that it brought, of its report; only in memory.
    #[serde(skip)]
    pub(crate) brought: Option<FilesAt>,
}

impl JobRow {
    /// Its attempt, from 1.
    pub(crate) fn attempt(&self) -> u32 {
        if self.state.is_end() && self.state != JobState::Succeeded {
            return self.failures.max(1);
        }
        self.failures.saturating_add(1)
    }

    /// The last lease under which it was given over an older connection, if its end was not taken.
    pub(crate) fn given_before(&self, generation: Generation) -> Option<&LeaseRow> {
        let lease = self.lease.as_ref().or(self.unheard.as_ref());
        lease.filter(|lease| lease.generation < generation.0)
    }

    /// Whether another process of the agent than this one may have ended while it ran it.
    pub(crate) fn is_unheard_by(&self, instance: &str) -> bool {
        self.unheard.as_ref().is_some_and(|lease| lease.instance != instance)
    }

    /// What its node is to do; `None` if it is not kept here or of a newer build.
    pub(crate) fn work(&self) -> Option<Body> {
        let bytes = BASE64.decode(self.body.as_bytes()).ok()?;
        JobLease::decode(bytes.as_slice()).ok()?.body
    }

    /// What its node did, of a row as it is on disk.
    pub(crate) fn report(&self) -> Option<JobReportObject> {
        if self.state != JobState::Succeeded {
            return None;
        }
        let bytes = BASE64.decode(self.told.as_bytes()).ok()?;
        JobComplete::decode(bytes.as_slice()).ok()?.report.map(JobReportObject::from_proto)
    }

    /// Why its last attempt came to nothing: in full of a row as it is on disk, else in short.
    pub(crate) fn failure(&self) -> Option<JobFailureObject> {
        let short = self.failure.as_ref()?;
        let whole = BASE64.decode(self.told.as_bytes()).ok().filter(|bytes| !bytes.is_empty());
        if let Some(whole) = whole.and_then(|bytes| JobFailure::decode(bytes.as_slice()).ok())
            && self.state != JobState::Succeeded
        {
            return Some(JobFailureObject::from_proto(whole));
        }
        Some(JobFailureObject {
            code: short.code.clone(),
            message: short.message.clone(),
            path: Some(short.path.clone()).filter(|path| !path.is_empty()),
            retry: short.retry,
            ..JobFailureObject::default()
        })
    }

    /// As it is kept in memory: what only `job.show` needs stays on disk.
    pub(crate) fn in_memory(mut self) -> Self {
        if self.kind == ACQUIRE && self.brought.is_none() {
            let artifact = self.report().and_then(|report| report.artifact);
            self.brought = artifact.map(|one| FilesAt { root: one.root, path: one.folder });
        }
        self.told = String::new();
        if self.state.is_end() {
            self.body = String::new();
        }
        self
    }
}

/// A body as it is stored.
pub(crate) fn stored(body: Body) -> String {
    BASE64.encode(&JobLease { body: Some(body), ..JobLease::default() }.encode_to_vec())
}

/// A report as it is stored.
pub(crate) fn stored_report(report: Report) -> String {
    BASE64.encode(&JobComplete { report: Some(report), ..JobComplete::default() }.encode_to_vec())
}

/// A failure as it is stored.
pub(crate) fn stored_failure(failure: &JobFailure) -> String {
    BASE64.encode(&failure.encode_to_vec())
}

/// The word for a kind of work.
pub(crate) fn kind(body: &Body) -> &'static str {
    match body {
        Body::ArtifactAcquire(_) => ACQUIRE,
        Body::ArtifactRemove(_) => "artifact.remove",
        Body::RuntimeProbe(_) => "runtime.probe",
        Body::RuntimeHealth(_) => "runtime.health",
        Body::RuntimeUnload(_) => "runtime.unload",
        Body::DeploymentLoad(_) => "deployment.load",
        Body::DeploymentHealth(_) => "deployment.health",
        Body::DeploymentDrain(_) => "deployment.drain",
        Body::DeploymentUnload(_) => "deployment.unload",
    }
}

/// The word for the work that a report is of.
pub(crate) fn kind_of_report(report: &Report) -> &'static str {
    match report {
        Report::ArtifactAcquire(_) => "artifact.acquire",
        Report::ArtifactRemove(_) => "artifact.remove",
        Report::RuntimeProbe(_) => "runtime.probe",
        Report::RuntimeHealth(_) => "runtime.health",
        Report::RuntimeUnload(_) => "runtime.unload",
        Report::DeploymentLoad(_) => "deployment.load",
        Report::DeploymentHealth(_) => "deployment.health",
        Report::DeploymentDrain(_) => "deployment.drain",
        Report::DeploymentUnload(_) => "deployment.unload",
    }
}

/// What an agent names that can do it.
pub(crate) fn capability(kind: &str) -> String {
    format!("{kind}.v1")
}

/// What a job is about.
pub(crate) fn subject(body: &Body) -> String {
    let of = |repository: &str, revision: &str| format!("{repository}@{revision}");
    match body {
        Body::ArtifactAcquire(body) => of(&body.repository, &body.revision),
        Body::ArtifactRemove(body) => of(&body.repository, &body.revision),
        Body::RuntimeProbe(body) => {
            body.load.as_ref().map(|load| format!("{} {}", load.kind, load.model)).unwrap_or_default()
        }
        Body::RuntimeHealth(body) if body.engine.is_empty() => "every engine".to_owned(),
        Body::RuntimeHealth(body) => body.engine.clone(),
        Body::RuntimeUnload(body) => body.engine.clone(),
        Body::DeploymentLoad(body) => body.engine.clone(),
        Body::DeploymentHealth(body) => body.engine.clone(),
        Body::DeploymentDrain(body) => body.engine.clone(),
        Body::DeploymentUnload(body) => body.engine.clone(),
    }
}
