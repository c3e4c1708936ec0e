//! Operations on nodes' credentials: rotate. Leaves the rotation to the node and `shell/nodes/rotation.rs`, and
//! ending a credential to [`super::lifecycle`].

use std::sync::Arc;

use serde_json::Value;
use umbel_contracts::operations::{CredentialApprove, CredentialRotate, NoArgs, Operation};
use umbel_wire::{Code, Error};

use super::approve;
use super::lifecycle::credentials;
use super::nodes::{self, Deed, Full};
use super::{args, select, unknown};
use crate::core::commands::Request;
use crate::core::registry::node::{NodeRow, Wanted};
use crate::shell::commands::{Commands, Context};

const ROTATING: Deed = Deed {
    kind: "credential_rotating",
    what: "is asked for a new certificate; one that is away gets it when it connects",
    full: Full::Refuse,
};

/// What a change would do.
pub(super) async fn dry_run(commands: &Arc<Commands>, request: &Request) -> Result<Value, Error> {
    match request.operation.as_str() {
        CredentialRotate::NAME => {
            let NoArgs {} = args::<CredentialRotate>(request)?;
            possible(commands, request)?;
            nodes::preview(commands, request, wanting(commands, request), credentials)
        }
        CredentialApprove::NAME => approve::preview(commands, &args::<CredentialApprove>(request)?),
        other => Err(unknown(other)),
    }
}

pub(super) async fn start(context: &Context<'_>) -> Result<(), Error> {
    let (commands, request) = (context.commands, context.request);
    match request.operation.as_str() {
        CredentialRotate::NAME => {
            let NoArgs {} = args::<CredentialRotate>(request)?;
            possible(commands, request)?;
            nodes::change(context, ROTATING, wanting(commands, request), credentials).await?;
            commands.site.rotations.now();
            Ok(())
        }
        CredentialApprove::NAME => approve::start(context, &args::<CredentialApprove>(request)?).await,
        other => Err(unknown(other)),
    }
}

/// A node that is kept out or whose credential was ended has none that could be renewed.
fn possible(commands: &Commands, request: &Request) -> Result<(), Error> {
    if select(commands, &request.selector)?.iter().any(|node| node.row.admits()) {
        return Ok(());
    }
    let message = "a node that is disabled, or whose credential was revoked, has none to rotate: enable it, or enroll \
                   its host with a token that replaces it";
    Err(Error::new(Code::Unprocessable, "NOTHING_TO_ROTATE", message))
}

fn wanting(commands: &Commands, request: &Request) -> impl Fn(&mut NodeRow) + Clone + Send + 'static {
    let wanted = Wanted { at_unix_ms: commands.site.wall().unix_ms(), by: request.actor.clone() };
    move |row: &mut NodeRow| {
        if row.admits() {
            row.rotate.get_or_insert_with(|| wanted.clone());
        }
    }
}
