//! Operations on deployments: what operators want served.
//!
//! Owns their objects and which commits they are. Leaves the rules of a change to `core/deployments`, and making it come true
//! to `shell/deployments`. Invariant: a wish is stored with its audit entry and its command, and is answered when it is
//! stored; replicas follow.

use std::sync::Arc;

use serde_json::{Map, Value};
use umbel_contracts::deployment::DeploymentSpec;
use umbel_contracts::objects::DeploymentObject;
use umbel_contracts::operations::{
    DeploymentApply, DeploymentApplyArgs, DeploymentDelete, DeploymentDrain, DeploymentList,
    DeploymentListResult, DeploymentLoad, DeploymentPause, DeploymentRestart, DeploymentShow,
    DeploymentUnload, ListArgs, Operation,
};
use umbel_store::Commit;
use umbel_wire::Error;

use super::reading::page;
use super::{args, invalid, result, stored, unknown};
use crate::core::commands::Request;
use crate::core::deployments::change::{Ask, AskReplica, Change};
use crate::core::deployments::{DeploymentRow, Deployments as Table};
use crate::shell::commands::{Commands, Context};
use crate::shell::deployments;
use crate::shell::site::Site;

/// Longest patience with running requests.
const LONGEST_SECONDS: u64 = 86_400;

pub(super) fn read(commands: &Arc<Commands>, request: &Request) -> Result<Value, Error> {
    let site = &commands.site;
    match request.operation.as_str() {
        DeploymentList::NAME => result::<DeploymentList>(list(site, &args::<DeploymentList>(request)?)?),
        DeploymentShow::NAME => {
            let name = args::<DeploymentShow>(request)?.name;
            let object = site.deployments.read(|table| {
                let row = table.existing(&name)?;
                Ok::<_, Error>(deployments::object(site, table, row, true))
            });
            result::<DeploymentShow>(object?)
        }
        other => Err(unknown(other)),
    }
}

fn list(site: &Site, list: &ListArgs) -> Result<DeploymentListResult, Error> {
    site.deployments.read(|table| {
        let rows: Vec<&DeploymentRow> = table.rows.values().collect();
        let (rows, next_cursor) = page(rows, list, |row| row.spec.name.clone())?;
        let objects = rows.iter().map(|row| deployments::object(site, table, row, false));
        Ok(DeploymentListResult {
            deployments: objects.collect(),
            held: table.held().map(crate::core::deployments::Held::sentence),
            next_cursor,
        })
    })
}

/// What an operation asks of which deployment.
enum Asked {
    Apply(Box<DeploymentSpec>, Option<u64>),
    Whole(String, Ask),
    Replica(String, u32, AskReplica),
}

impl Asked {
    fn of(request: &Request) -> Result<Self, Error> {
        Ok(match request.operation.as_str() {
            DeploymentApply::NAME => {
                let DeploymentApplyArgs { document, if_version } = args::<DeploymentApply>(request)?;
                Self::Apply(Box::new(spec(document)?), if_version)
            }
            DeploymentLoad::NAME => Self::Whole(args::<DeploymentLoad>(request)?.name, Ask::Load),
            DeploymentDelete::NAME => {
                let name = args::<DeploymentDelete>(request)?.name;
                if request.confirm != name && !request.dry_run {
                    let message =
                        format!("it cannot be undone: confirm it with the deployment's name, {name}");
                    return Err(invalid("CONFIRM", message));
                }
                Self::Whole(name, Ask::Delete)
            }
            DeploymentPause::NAME => {
                let asked = args::<DeploymentPause>(request)?;
                Self::Whole(asked.name, Ask::Pause(asked.paused))
            }
            DeploymentRestart::NAME => {
                let asked = args::<DeploymentRestart>(request)?;
                match asked.replica {
                    None => Self::Whole(asked.name, Ask::Restart),
                    Some(number) => Self::Replica(asked.name, number, AskReplica::Restart),
                }
            }
            DeploymentUnload::NAME => {
                let asked = args::<DeploymentUnload>(request)?;
                Self::leave(asked.name, asked.replica, Some(0))
            }
            DeploymentDrain::NAME => {
                let asked = args::<DeploymentDrain>(request)?;
                if asked.deadline_seconds.is_some_and(|seconds| seconds > LONGEST_SECONDS) {
                    return Err(invalid(
                        "ARGS",
                        format!("deadline_seconds must be at most {LONGEST_SECONDS}"),
                    ));
                }
                Self::leave(asked.name, asked.replica, asked.deadline_seconds.map(|seconds| seconds * 1_000))
            }
            other => return Err(unknown(other)),
        })
    }

    fn leave(name: String, replica: Option<u32>, leave_ms: Option<u64>) -> Self {
        match replica {
            None => Self::Whole(name, Ask::Unload { leave_ms }),
            Some(number) => Self::Replica(name, number, AskReplica::Leave { leave_ms }),
        }
    }

    fn change(self, site: &Site, table: &Table, author: &str) -> Result<Change, Error> {
        let wall = site.wall().unix_ms();
        let wanted = matches!(&self, Self::Apply(..) | Self::Whole(_, Ask::Load));
        let mut change = match self {
            Self::Apply(spec, if_version) => table.propose(*spec, if_version, author, wall),
            Self::Whole(name, ask) => table.ask(&name, ask, wall),
            Self::Replica(name, number, ask) => table.ask_replica(&name, number, ask, wall),
        }?;
        if wanted {
            let cancelled = |id: &str| site.jobs.view(id).is_some_and(|view| view.row.cancelled_by.is_some());
            table.wanted_again(&mut change, wall, cancelled);
        }
        Ok(change)
    }
}

/// A document that passes its check.
fn spec(document: Map<String, Value>) -> Result<DeploymentSpec, Error> {
    DeploymentSpec::from_value(Value::Object(document))
        .map_err(|faults| invalid("DOCUMENT", format!("the document is refused: {faults}")))
}

/// A deployment as it is after a change, with its document where that is what changed.
fn after(site: &Site, table: &Table, change: &Change) -> DeploymentObject {
    deployments::object(site, table, &change.row, change.before.as_ref() != Some(&change.row))
}

pub(super) fn dry_run(commands: &Arc<Commands>, request: &Request) -> Result<Value, Error> {
    let site = &commands.site;
    let asked = Asked::of(request)?;
    let object = site.deployments.read(|table| {
        let change = asked.change(site, table, &request.actor)?;
        Ok::<_, Error>(after(site, table, &change))
    });
    // All of them give the same.
    result::<DeploymentApply>(object?)
}

pub(super) async fn start(context: &Context<'_>) -> Result<(), Error> {
    let (site, request) = (&context.commands.site, context.request);
    let asked = Asked::of(request)?;
    let decide = |table: &Table| {
        let change = asked.change(site, table, &request.actor)?;
        let value = result::<DeploymentApply>(after(site, table, &change))?;
        Ok((change, value))
    };
    let also = |change: &Change, value: &Value| {
        let audit = context.audit_of(change.row.spec.name.clone(), &change.sentence);
        Ok::<Commit, Error>(context.outcome(&stored(value)).audit(audit))
    };
    let (change, value) = deployments::change(site, decide, also).await?;
    deployments::tell_change(site, &request.operation, &change);
    context.done(value);
    Ok(())
}
