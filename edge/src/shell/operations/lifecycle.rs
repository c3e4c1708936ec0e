//! Operations on nodes' identities: name, labels, who is kept out, whose credential is ended, readiness.
//!
//! Owns their arguments and what each is told as. Leaves the transitions to `core/registry/identity.rs`, cutting off
//! to the registry, decommission to its own file. Invariant: what keeps somebody out takes force in memory even when
//! the store cannot be written, and says so.

use std::sync::Arc;

use serde_json::Value;
use umbel_contracts::objects::{NodeObject, timestamp};
use umbel_contracts::operations::{
    CredentialOutcome, CredentialRevoke, CredentialsResult, NodeLabelArgs, NodeReadiness, NodeReadinessCheck,
    NodeReadinessResult, NodeRenameArgs,
};
use umbel_wire::Error;

use super::nodes::{self, Deed, Full, check_labels, check_node_name, only_here};
use super::{invalid, one, result, select_any};
use crate::core::commands::Request;
use crate::core::registry::node::{Decision, Node, NodeRow};
use crate::shell::commands::{Commands, Context};
use crate::shell::names::Name;
use crate::shell::site::Site;
use crate::shell::status;

const UNDRAINED: Deed = Deed { kind: "node_undrained", what: "takes requests again", full: Full::TakeBack };
const DISABLED: Deed = Deed { kind: "node_disabled", what: "is kept out", full: Full::InForce };
const ENABLED: Deed = Deed { kind: "node_enabled", what: "may come in again", full: Full::TakeBack };
const RENAMED: Deed = Deed { kind: "node_renamed", what: "is its name now", full: Full::Refuse };
const LABELLED: Deed = Deed { kind: "node_labelled", what: "has other labels", full: Full::Refuse };
const REVOKED: Deed =
    Deed { kind: "credential_revoked", what: "its credential opens nothing any more", full: Full::InForce };

/// Changes that take nothing but a selector and the reason.
pub(super) fn set(
    operation: Simple,
    site: &Site,
    request: &Request,
) -> impl Fn(&mut NodeRow) + Clone + Send + 'static {
    let now = site.wall().unix_ms();
    let decision = Decision { at_unix_ms: now, by: request.actor.clone(), reason: request.reason.clone() };
    move |row: &mut NodeRow| match operation {
        Simple::Undrain => row.draining = false,
        Simple::Disable => row.disable(decision.clone()),
        Simple::Enable => row.enable(),
        Simple::Revoke => row.revoke(now),
    }
}

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Simple {
    Undrain,
    Disable,
    Enable,
    Revoke,
}

impl Simple {
    fn shape(self) -> nodes::Shape {
        if self == Self::Revoke { credentials } else { nodes::outcomes }
    }

    fn deed(self) -> Deed {
        match self {
            Self::Undrain => UNDRAINED,
            Self::Disable => DISABLED,
            Self::Enable => ENABLED,
            Self::Revoke => REVOKED,
        }
    }
}

pub(super) fn preview(commands: &Commands, request: &Request, what: Simple) -> Result<Value, Error> {
    nodes::preview(commands, request, set(what, &commands.site, request), what.shape())
}

pub(super) async fn start(context: &Context<'_>, what: Simple) -> Result<(), Error> {
    let set = set(what, &context.commands.site, context.request);
    nodes::change(context, what.deed(), set, what.shape()).await
}

/// What eligible says is told by its own word.
pub(super) async fn eligible(context: &Context<'_>, eligible: bool) -> Result<(), Error> {
    let (kind, what) = if eligible {
        ("node_eligible", "may get application traffic")
    } else {
        ("node_not_eligible", "gets no application traffic")
    };
    let deed = Deed { kind, what, full: Full::Refuse };
    nodes::change(context, deed, move |row: &mut NodeRow| row.eligible = eligible, nodes::outcomes).await
}

/// The result of operations on credentials.
pub(super) fn credentials(
    _site: &Site,
    changes: &[(Arc<Node>, NodeRow)],
    in_memory: bool,
) -> Result<Value, Error> {
    let outcome = |(node, row): &(Arc<Node>, NodeRow)| CredentialOutcome {
        disabled: false,
        node_id: node.id.to_string(),
        name: row.name.clone(),
        changed: node.row != *row,
        rotating: row.pending.is_some() || row.rotate.is_some(),
        revoked_at: row.credential.revoked_at_unix_ms.map(timestamp),
        not_after: timestamp(row.credential.not_after_unix_ms),
        not_durable: in_memory && only_here(node, row),
    };
    result::<CredentialRevoke>(CredentialsResult { nodes: changes.iter().map(outcome).collect() })
}

/// A new name, checked against all others: two renames at once cannot both take one.
pub(super) async fn rename(context: &Context<'_>, args: NodeRenameArgs) -> Result<(), Error> {
    let site = &context.commands.site;
    let node = one(context.commands, context.request)?;
    check_node_name(&args.name)?;
    let reserved = Name::reserve(site, node.id, &args.name)?;
    let name = args.name;
    let done =
        nodes::change(context, RENAMED, move |row: &mut NodeRow| row.name.clone_from(&name), nodes::outcomes)
            .await;
    drop(reserved);
    done
}

pub(super) fn preview_rename(
    commands: &Commands,
    request: &Request,
    args: &NodeRenameArgs,
) -> Result<Value, Error> {
    let node = one(commands, request)?;
    check_node_name(&args.name)?;
    let site = &commands.site;
    site.read(|registry| registry.name_free(node.id, &args.name))?;
    nodes::preview(commands, request, |row| row.name.clone_from(&args.name), nodes::outcomes)
}

fn labels(args: NodeLabelArgs) -> Result<impl Fn(&mut NodeRow) + Clone + Send + 'static, Error> {
    if args.set.is_empty() && args.remove.is_empty() {
        return Err(invalid("ARGS", "name labels to set or keys to remove"));
    }
    check_labels(&args.set)?;
    if let Some(both) = args.remove.iter().find(|key| args.set.contains_key(*key)) {
        return Err(invalid("ARGS", format!("label {both} is both set and removed")));
    }
    Ok(move |row: &mut NodeRow| {
        for key in &args.remove {
            row.labels.remove(key);
        }
        row.labels.extend(args.set.clone());
    })
}

pub(super) async fn label(context: &Context<'_>, args: NodeLabelArgs) -> Result<(), Error> {
    nodes::change(context, LABELLED, labels(args)?, nodes::outcomes).await
}

pub(super) fn preview_label(
    commands: &Commands,
    request: &Request,
    args: NodeLabelArgs,
) -> Result<Value, Error> {
    nodes::preview(commands, request, labels(args)?, nodes::outcomes)
}

/// Every check of exactly the chosen nodes, tombstones too when they are named.
pub(super) fn readiness(commands: &Commands, request: &Request) -> Result<Value, Error> {
    let chosen = select_any(commands, &request.selector)?;
    let nodes = chosen.iter().map(|node| NodeObject::from_proto(status::node(&commands.site, node)));
    let nodes = nodes.map(|node| NodeReadiness {
        node_id: node.node_id,
        name: node.name,
        state: node.state,
        ready: node.ready,
        checks: node.readiness,
        problems: node.problems,
    });
    result::<NodeReadinessCheck>(NodeReadinessResult { nodes: nodes.collect() })
}
