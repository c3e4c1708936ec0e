//! `edge.backup`: a consistent copy of the store while it is written.
//!
//! The command is stored before the copy begins; it takes as long as the disk needs. Invariant: it needs a store that
//! can be written, since a copy of everything is a thing to be audited.

use std::sync::Arc;

use serde_json::Value;
use umbel_contracts::objects::CommandPhase;
use umbel_contracts::operations::{EdgeBackup, Operation};
use umbel_wire::{Code, Error};

use super::{args, result, unknown};
use crate::core::commands::{CommandRow, Request};
use crate::shell::backups;
use crate::shell::commands::{Commands, Context, store_error};

/// What a change would do.
pub(super) async fn dry_run(_commands: &Arc<Commands>, request: &Request) -> Result<Value, Error> {
    match request.operation.as_str() {
        EdgeBackup::NAME => {
            args::<EdgeBackup>(request)?;
            let message = "how a backup comes out shows only when it is made; it changes nothing else";
            Err(Error::new(Code::Unprocessable, "NO_DRY_RUN", message))
        }
        other => Err(unknown(other)),
    }
}

pub(super) async fn start(context: &Context<'_>) -> Result<(), Error> {
    let request = context.request;
    if request.operation != EdgeBackup::NAME {
        return Err(unknown(&request.operation));
    }
    args::<EdgeBackup>(request)?;
    let commands = context.commands;
    let row = CommandRow { phase: CommandPhase::Running, ..context.begun() };
    let also = context.storing(&row).audit(context.audit("store"));
    commands.site.store.commit(also).await.map_err(|error| store_error(&error))?;
    context.stored(&row);
    commands.go_on(request.command_id.clone(), row, |commands, id, row| async move {
        let site = &commands.site;
        let made = backups::make(&site.backups, &site.store, &site.edge_id).await;
        let ended = made.and_then(result::<EdgeBackup>);
        commands.ended(&id, row, ended).await;
    });
    Ok(())
}
