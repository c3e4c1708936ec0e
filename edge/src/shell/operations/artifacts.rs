//! `artifact.list`, `artifact.acquire`, `artifact.remove`.
//!
//! Owns the checks of what is asked, and which jobs come of it. Leaves beginning jobs to [`super::jobs`], and the work to nodes.
//! Invariant: a list of files that no node would take is refused here, by the path of what is wrong.

use serde_json::Value;
use umbel_contracts::artifact::{check_files, check_repository, check_revision, is_sha256};
use umbel_contracts::operations::{
    ArtifactAcquire, ArtifactAcquireArgs, ArtifactList, ArtifactListArgs, ArtifactListResult, ArtifactObject,
    ArtifactRemove, ArtifactRemoveArgs, JobsResult, LARGEST_RESULT, Operation,
};
use umbel_contracts::proto::node::{self, job_lease::Body};
use umbel_wire::Error;

use super::{args, invalid, jobs, result, select_any, unknown};
use crate::core::commands::Request;
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
    let nodes = match selector {
        "" => commands.site.nodes().1,
        text => select_any(commands, text)?,
    };
    let mut artifacts: Vec<ArtifactObject> = Vec::new();
    for node in nodes.iter().filter(|node| !node.is_tombstone()) {
        let wanted = node.report.artifacts.iter().filter(|artifact| {
            asked.repository.as_ref().is_none_or(|repository| *repository == artifact.repository)
        });
        artifacts.extend(wanted.map(|artifact| ArtifactObject {
            node_id: node.id.to_string(),
            node: node.row.name.clone(),
            repository: artifact.repository.clone(),
            revision: artifact.revision.clone(),
            digest: artifact.digest.clone(),
            bytes: artifact.bytes,
            files: artifact.files,
            root: artifact.root.clone(),
            folder: artifact.path.clone(),
        }));
    }
    artifacts.sort_by(|a, b| {
        let key = |one: &ArtifactObject| (one.repository.clone(), one.revision.clone(), one.node.clone());
        key(a).cmp(&key(b))
    });
    let mut bytes = 0;
    let all = artifacts.len();
    let artifacts: Vec<_> = artifacts
        .into_iter()
        .take_while(|artifact| {
            bytes += serde_json::to_vec(artifact).map_or(0, |text| text.len() + 1);
            bytes <= LIST_BYTES
        })
        .collect();
    let truncated = artifacts.len() < all;
    Ok(ArtifactListResult { artifacts, truncated })
}

pub(super) fn dry_run(commands: &Commands, request: &Request) -> Result<Value, Error> {
    match request.operation.as_str() {
        ArtifactAcquire::NAME | ArtifactRemove::NAME => {
            jobs::orders(commands, request, &body(request)?)?;
            result::<ArtifactAcquire>(JobsResult { jobs: Vec::new() })
        }
        other => Err(unknown(other)),
    }
}

pub(super) async fn start(context: &Context<'_>) -> Result<(), Error> {
    let orders = jobs::orders(context.commands, context.request, &body(context.request)?)?;
    jobs::begin(context, orders).await
}

/// What each node is to do.
fn body(request: &Request) -> Result<Body, Error> {
    match request.operation.as_str() {
        ArtifactAcquire::NAME => acquire(args::<ArtifactAcquire>(request)?),
        ArtifactRemove::NAME => remove(args::<ArtifactRemove>(request)?),
        other => Err(unknown(other)),
    }
}

fn acquire(asked: ArtifactAcquireArgs) -> Result<Body, Error> {
    let refused = |what: &str, says: String| invalid("ARGS", format!("{what}: {says}"));
    check_repository(&asked.repository).map_err(|says| refused("repository", says))?;
    check_revision(&asked.revision).map_err(|says| refused("revision", says))?;
    check_files(&asked.files).map_err(|fault| refused(&format!("files{}", fault.place()), fault.says))?;
    let total_bytes = asked.files.iter().map(|file| file.bytes).sum();
    let files = asked.files.into_iter().map(|file| node::ArtifactFile {
        // It was seen to be hexadecimal.
        sha256: data_encoding::HEXLOWER.decode(file.sha256.as_bytes()).unwrap_or_default(),
        path: file.path,
        bytes: file.bytes,
    });
    Ok(Body::ArtifactAcquire(node::ArtifactAcquire {
        files: files.collect(),
        repository: asked.repository,
        revision: asked.revision,
        source: asked.source,
        root: asked.root.unwrap_or_default(),
        reserve_bytes: asked.reserve_bytes.unwrap_or_default(),
        total_bytes,
    }))
}

fn remove(asked: ArtifactRemoveArgs) -> Result<Body, Error> {
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
        repository: asked.repository,
        revision: asked.revision,
        digest: asked.digest,
        root: asked.root.unwrap_or_default(),
    }))
}
