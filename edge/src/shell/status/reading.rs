//! A status question and its answer, in parts.
//!
//! Owns the reading: nodes are shared under the registry's lock at one revision, deployments are read together under theirs,
//! each model's figures under admission's. Invariant: all parts of one answer are of one reading, and none exceeds its bound.

use std::sync::Arc;

use prost::Message;
use umbel_contracts::proto::control::{
    DeploymentSnapshot, EdgeStatusRequest, EdgeStatusResponse, JobSnapshot, Revision,
};
use umbel_contracts::selector::Selector;
use umbel_contracts::serve::{SECTIONS, wants_section};
use umbel_wire::{Code, Error};

use super::{node, node_in_detail, queues, revision_of, summary_of};
use crate::core::registry::node::{Lifecycle, Node};
use crate::shell::operations::matches;
use crate::shell::site::Site;
use crate::shell::{deployments, jobs};

/// Nodes, deployments and jobs in one message of a status, each.
const A_PART: usize = 256;
/// A message is closed at this size, well below its bound, whatever its last entry adds.
const PART_BYTES: usize = 128 * 1024;
/// Jobs of a status: `job.list` pages through all.
const JOBS: usize = 1_000;

/// What a status question asks for, validated.
pub(crate) struct Question {
    selector: Selector,
    sections: Vec<String>,
    decommissioned: bool,
    known: Option<Revision>,
    request_id: String,
}

impl Question {
    /// INVALID_ARGUMENT for a malformed selector or an unknown section.
    pub(crate) fn check(request: EdgeStatusRequest) -> Result<Self, Error> {
        let selector = match request.node_selector.as_str() {
            "" => Selector::all(),
            text => Selector::parse(text)
                .map_err(|error| Error::new(Code::InvalidArgument, "SELECTOR", error.to_string()))?,
        };
        let sections = request.sections;
        if let Some(bad) = sections.iter().find(|section| !SECTIONS.contains(&section.as_str())) {
            let message = format!("`{bad}` is no section; there are {}", SECTIONS.join(", "));
            return Err(Error::new(Code::InvalidArgument, "SECTION_UNKNOWN", message));
        }
        Ok(Self {
            sections,
            selector,
            decommissioned: request.include_decommissioned,
            known: request.known_revision,
            request_id: request.request_id,
        })
    }

    fn wants(&self, section: &str) -> bool {
        wants_section(&self.sections, section)
    }
}

/// One consistent reading, in parts that are made as they are sent: a site of 5,000 nodes is never whole in
/// memory twice.
pub(crate) struct Reading {
    first: Option<EdgeStatusResponse>,
    deployments: std::vec::IntoIter<DeploymentSnapshot>,
    jobs: std::vec::IntoIter<JobSnapshot>,
    nodes: std::vec::IntoIter<Arc<Node>>,
    detail: bool,
}

impl Reading {
    /// Reads the site now.
    pub(crate) async fn new(site: &Site, question: Question) -> Self {
        let (revision, mut nodes) = site.nodes();
        let revision_now = revision_of(site, revision);
        let unchanged = question.known.as_ref() == Some(&revision_now);
        let mut first = EdgeStatusResponse {
            request_id: question.request_id.clone(),
            edge_id: site.edge_id.to_string(),
            revision: Some(revision_now),
            observed_at_unix_ms: site.wall().unix_ms(),
            unchanged,
            ..EdgeStatusResponse::default()
        };
        let (mut deployments, mut jobs) = (Vec::new(), Vec::new());
        if unchanged {
            nodes.clear();
        } else {
            if question.wants("deployments") {
                deployments = all_deployments(site);
            }
            if question.wants("jobs") {
                jobs = site.jobs.open(None, JOBS).iter().map(|view| jobs::snapshot(site, view)).collect();
            }
            if question.wants("queues") {
                first.queues = queues(site);
            }
            if question.wants("facts") {
                first.summary = Some(summary_of(site, revision, &nodes).await);
            }
        }
        let detail = question.wants("node_detail");
        nodes.retain(|node| {
            (question.wants("nodes") || detail)
                && (question.decommissioned || node.row.lifecycle != Lifecycle::Decommissioned)
                && matches(&question.selector, node)
        });
        Self {
            first: Some(first),
            deployments: deployments.into_iter(),
            jobs: jobs.into_iter(),
            nodes: nodes.into_iter(),
            detail,
        }
    }

    /// The next part; `None` at the end. The first one has what is no long list.
    pub(crate) fn next(&mut self, site: &Site) -> Option<EdgeStatusResponse> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        let mut part = EdgeStatusResponse::default();
        let mut bytes = 0;
        take(&mut bytes, &mut part.deployments, || self.deployments.next());
        take(&mut bytes, &mut part.jobs, || self.jobs.next());
        let shape = if self.detail { node_in_detail } else { node };
        take(&mut bytes, &mut part.nodes, || self.nodes.next().map(|one| shape(site, &one)));
        if bytes == 0 { None } else { Some(part) }
    }
}

/// Entries until the message is full.
fn take<M: Message>(bytes: &mut usize, into: &mut Vec<M>, mut next: impl FnMut() -> Option<M>) {
    while *bytes < PART_BYTES && into.len() < A_PART {
        let Some(one) = next() else { break };
        *bytes += one.encoded_len();
        into.push(one);
    }
}

/// Every deployment of the site, by name.
fn all_deployments(site: &Site) -> Vec<DeploymentSnapshot> {
    site.deployments
        .read(|table| table.rows.values().map(|row| deployments::snapshot(site, table, row)).collect())
}
