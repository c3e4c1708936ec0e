//! `artifact.list`, `artifact.acquire`, `artifact.remove`.
//!
//! Owns the checks of what is asked, and which jobs come of it. Leaves beginning jobs to [`super::jobs`], and the work to nodes.
//! Invariants: a list of files that no node would take is refused here, by the path of what is wrong; files that a replica needs
//! stay where they are.

use std::sync::Arc;

use serde_json::Value;
use umbel_contracts::artifact::{check_repository, check_revision, is_sha256};
use umbel_contracts::operations::{
    ArtifactAcquire, ArtifactAcquireArgs, ArtifactList, ArtifactListArgs, ArtifactListResult, ArtifactObject,
    ArtifactRemove, ArtifactRemoveArgs, JobsResult, LARGEST_RESULT, Operation,
};
use umbel_contracts::proto::node::{self, job_lease::Body};
use umbel_wire::{Code, Error};

use super::reading::{PAGE_MAX, place};
use super::{args, invalid, jobs, result, select, select_any, unknown};
use crate::core::commands::Request;
use crate::core::deployments::{NeededFiles, bodies};
use crate::core::jobs::Order;
use crate::core::registry::node::Node;
use crate::shell::commands::{Commands, Context};

/// The artifacts of an answer end at this size.
const LIST_BYTES: usize = LARGEST_RESULT - LARGEST_RESULT / 8;

/// Operations of class read.
pub(super) fn read(commands: &Commands, request: &Request) -> Result<Value, Error> {
    match request.operation.as_str() {
        ArtifactList::NAME => {
            let asked = args::<ArtifactList>(request)?;
            result::<ArtifactList>(list(commands, &request.selector, &asked)?)
        }
        other => Err(unknown(other)),
    }
}

fn list(commands: &Commands, selector: &str, asked: &ArtifactListArgs) -> Result<ArtifactListResult, Error> {
    let limit = asked.limit.unwrap_or(PAGE_MAX);
    if limit == 0 || limit > PAGE_MAX {
        return Err(invalid("ARGS", format!("limit must be 1 to {PAGE_MAX}")));
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut nodes = match selector {
        "" => commands.site.nodes().1,
        text => select_any(commands, text)?,
    };
    let key = |node: &Arc<Node>| place(&node.row.name, node.id);
    nodes.retain(|node| !node.is_tombstone() && asked.cursor.as_ref().is_none_or(|after| key(node) > *after));
    nodes.sort_by_cached_key(key);
    let needed = commands.site.deployments.read(|table| table.needed_files());
    let mut told = ArtifactListResult { artifacts: Vec::new(), truncated: false, next_cursor: None };
    let (mut bytes, mut last) = (0, None);
    for node in &nodes {
        let own = of_node(node, &needed, asked.repository.as_deref());
        bytes += serde_json::to_vec(&own).map_or(0, |text| text.len());
        let full = told.artifacts.len() + own.len() > limit || bytes > LIST_BYTES;
        if full && last.is_some() {
            (told.truncated, told.next_cursor) = (true, last);
            break;
        }
        told.artifacts.extend(own);
        last = Some(key(node));
    }
    Ok(told)
}

/// What one node has, as it said last: at most as much as fits one event.
fn of_node(node: &Node, needed: &NeededFiles, repository: Option<&str>) -> Vec<ArtifactObject> {
    let wanted = |of: &str| repository.is_none_or(|repository| repository == of);
    let mut artifacts: Vec<_> = node
        .report
        .artifacts
        .iter()
        .filter(|artifact| wanted(&artifact.repository))
        .map(|artifact| ArtifactObject {
            node_id: node.id.to_string(),
            node: node.row.name.clone(),
            repository: artifact.repository.clone(),
            revision: artifact.revision.clone(),
            digest: artifact.digest.clone(),
            bytes: artifact.bytes,
            files: artifact.files,
            root: artifact.root.clone(),
            folder: artifact.path.clone(),
            used_by: needed.by(node.id, &artifact.repository, &artifact.revision, &artifact.digest),
        })
        .collect();
    artifacts
        .sort_by(|a, b| (&a.repository, &a.revision, &a.root).cmp(&(&b.repository, &b.revision, &b.root)));
    artifacts
}

pub(super) fn dry_run(commands: &Commands, request: &Request) -> Result<Value, Error> {
    orders(commands, request)?;
    result::<ArtifactAcquire>(JobsResult { jobs: Vec::new() })
}

pub(super) async fn start(context: &Context<'_>) -> Result<(), Error> {
    jobs::begin(context, orders(context.commands, context.request)?).await
}

/// What each node is to do.
fn orders(commands: &Commands, request: &Request) -> Result<Vec<Order>, Error> {
    match request.operation.as_str() {
        ArtifactAcquire::NAME => {
            let body = acquire(args::<ArtifactAcquire>(request)?)?;
            jobs::orders(commands, request, |_| Ok(body.clone()))
        }
        ArtifactRemove::NAME => {
            let asked = args::<ArtifactRemove>(request)?;
            let body = remove(&asked)?;
            let needed = commands.site.deployments.read(|table| table.needed_files());
            let chosen = select(commands, &request.selector)?;
            chosen.iter().try_for_each(|node| unneeded(&needed, node, &asked))?;
            jobs::orders_of(&asked_of(chosen, &asked), request, |_| Ok(body.clone()))
        }
        other => Err(unknown(other)),
    }
}

fn acquire(asked: ArtifactAcquireArgs) -> Result<Body, Error> {
    let ArtifactAcquireArgs { artifact, root, reserve_bytes } = asked;
    artifact.check().map_err(|faults| invalid("ARGS", faults.to_string()))?;
    let body = bodies::acquire(&artifact).map_err(|why| invalid("ARGS", why))?;
    Ok(Body::ArtifactAcquire(node::ArtifactAcquire {
        root: root.unwrap_or_default(),
        reserve_bytes: reserve_bytes.unwrap_or_default(),
        ..body
    }))
}

fn remove(asked: &ArtifactRemoveArgs) -> Result<Body, Error> {
    let refused = |what: &str, says: String| invalid("ARGS", format!("{what}: {says}"));
    check_repository(&asked.repository).map_err(|says| refused("repository", says))?;
    check_revision(&asked.revision).map_err(|says| refused("revision", says))?;
    if !is_sha256(&asked.digest) {
        return Err(refused(
            "digest",
            "must be 64 lower-case hexadecimal digits, as artifact.list has it".into(),
        ));
    }
    Ok(Body::ArtifactRemove(node::ArtifactRemove {
        repository: asked.repository.clone(),
        revision: asked.revision.clone(),
        digest: asked.digest.clone(),
        root: asked.root.clone().unwrap_or_default(),
    }))
}

/// The nodes that say they have it; where none does, each looks.
fn asked_of(mut chosen: Vec<Arc<Node>>, asked: &ArtifactRemoveArgs) -> Vec<Arc<Node>> {
    let holds = |node: &Arc<Node>| {
        node.report.artifacts.iter().any(|one| {
            (&one.repository, &one.revision, &one.digest)
                == (&asked.repository, &asked.revision, &asked.digest)
        })
    };
    if chosen.iter().any(holds) {
        chosen.retain(holds);
    }
    chosen
}

/// That no replica needs it there. Of engines of the node's own file the node knows, and refuses.
fn unneeded(needed: &NeededFiles, node: &Node, asked: &ArtifactRemoveArgs) -> Result<(), Error> {
    let users = needed.by(node.id, &asked.repository, &asked.revision, &asked.digest);
    let Some(first) = users.first() else { return Ok(()) };
    let deployment = first.rsplit_once('.').map_or(first.as_str(), |(name, _)| name);
    let message = format!(
        "{}@{} on {} is used by {}: umbel ctl model unload {deployment} first",
        asked.repository,
        asked.revision,
        node.row.name,
        users.join(", ")
    );
    Err(Error::new(Code::Conflict, "ARTIFACT_IN_USE", message))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use umbel_contracts::operations::JOBS_AT_ONCE;
    use umbel_wire::NodeId;
    use umbel_wire::clock::Wall;

    use super::*;
    use crate::core::registry::node::{Credential, NodeRow, ReportRow};

    /// What all nodes of a large site are asked for is work only for those that have it.
    #[test]
    fn what_few_nodes_have_is_taken_away_by_whoever_names_all() {
        let asked = ArtifactRemoveArgs {
            repository: "org/m".to_owned(),
            revision: "r1".to_owned(),
            digest: "0".repeat(64),
            root: None,
        };
        let mut nodes: Vec<_> = (0..=JOBS_AT_ONCE)
            .map(|number| {
                let row = NodeRow::enrolled(&format!("gpu-{number}"), "t", Credential::default(), Wall(1));
                Node::new(NodeId::random(), row, Default::default(), ReportRow::default())
            })
            .collect();
        nodes[7].report.artifacts = vec![
            node::Artifact {
                repository: "org/m".to_owned(),
                revision: "r1".to_owned(),
                digest: "0".repeat(64),
                ..node::Artifact::default()
            }
            .into(),
        ];
        let nodes: Vec<_> = nodes.into_iter().map(Arc::new).collect();
        let request = Request { operation: ArtifactRemove::NAME.to_owned(), ..Request::default() };
        let body = |_: &Arc<Node>| remove(&asked);
        let orders = jobs::orders_of(&asked_of(nodes.clone(), &asked), &request, body).unwrap();
        assert_eq!(orders.iter().map(|order| order.node).collect::<Vec<_>>(), [nodes[7].id]);
        let refused = jobs::orders_of(&nodes, &request, body).unwrap_err();
        assert!(
            refused.message.contains("65 nodes") && refused.message.contains("choose fewer"),
            "{refused:?}"
        );
    }
}
