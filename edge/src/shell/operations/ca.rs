//! Operations on the site's certificate authority: what there is, and a change with overlap.
//!
//! Owns the order of a step: key on disk, row committed, in force, nodes told. Leaves the phases, and who would be left
//! behind, to `core/authority` and files to `shell/authority`. Invariant: one step at a time; a step that is refused or
//! cannot be stored has changed nothing that anybody sees, and one that is stored comes into force, now or later.

use std::sync::{Arc, PoisonError};

use serde_json::Value;
use umbel_contracts::objects::timestamp;
use umbel_contracts::operations::{
    CaLacking, CaObject, CaResult, CaRotate, CaRotateArgs, CaShow, CaStep, NoArgs, Operation,
};
use umbel_store::{Commit, CommitError};
use umbel_wire::ca::AuthorityError;
use umbel_wire::{Code, Error};

use super::{args, result, stored, unknown};
use crate::StartError;
use crate::core::authority::{self, AuthorityRow, lacking, next_step};
use crate::core::commands::Request;
use crate::core::registry::node::Node;
use crate::shell::authority::Held;
use crate::shell::commands::{Commands, Context, store_error};
use crate::shell::site::{AUTHORITY, SELF, Site};

/// Most nodes that a result lists.
const LISTED: usize = 1_000;

pub(super) async fn read(commands: &Arc<Commands>, request: &Request) -> Result<Value, Error> {
    match request.operation.as_str() {
        CaShow::NAME => {
            let NoArgs {} = args::<CaShow>(request)?;
            let site = &commands.site;
            result::<CaShow>(told(site, &site.authorities.held()))
        }
        other => Err(unknown(other)),
    }
}

/// What a step would do. `begin` makes its key only when it is done.
pub(super) async fn dry_run(commands: &Arc<Commands>, request: &Request) -> Result<Value, Error> {
    let step = args::<CaRotate>(request)?;
    let site = &commands.site;
    let held = site.authorities.held();
    if step.step == CaStep::Begin {
        held.row.begin(String::new())?;
        return result::<CaRotate>(told(site, &held));
    }
    let row = after(site, &held.row, &step, None)?;
    result::<CaRotate>(told(site, &look(site, row).await?))
}

pub(super) async fn start(context: &Context<'_>) -> Result<(), Error> {
    let step = args::<CaRotate>(context.request)?;
    let site = &context.commands.site;
    let _turn = site.authorities.turn().await;
    put_in_force(site).await?;
    let before = site.authorities.held().row.clone();
    let made = if step.step == CaStep::Begin {
        // Refused before a key is made.
        before.begin(String::new())?;
        Some(on_disk(site, |site| site.authorities.make().map_err(not_made)).await?)
    } else {
        None
    };
    let row = after(site, &before, &step, made)?;
    let value = result::<CaRotate>(told(site, &look(site, row.clone()).await?))?;
    let record = context.audit(format!("{:?}", step.step).to_lowercase());
    let commit = Commit::new().put_json(SELF, AUTHORITY, &row).audit(record);
    let commit = commit.and(context.outcome(&stored(&value)));
    site.store.commit(commit).await.map_err(|error| store_error(&error))?;
    site.authorities.stored(row);
    tracing::info!(step = ?step.step, "the change of the site's certificate authority went on");
    // It is done whatever becomes of its files: what cannot be put in force now is tried again by the clock.
    let _ = put_in_force(site).await;
    context.done(value);
    Ok(())
}

/// Goes on with a step that is stored and not in force, if there is one. Called by the clock, too.
pub(crate) async fn catch_up(site: &Arc<Site>) {
    let _turn = site.authorities.turn().await;
    let _ = put_in_force(site).await;
}

/// Puts the stored row in force. The caller has the turn.
async fn put_in_force(site: &Arc<Site>) -> Result<(), Error> {
    let Some(row) = site.authorities.not_in_force() else { return Ok(()) };
    let before = site.authorities.held().row.clone();
    let taken = row.clone();
    on_disk(site, move |site| {
        site.trip("authority");
        site.authorities.take_up(Some(taken)).map_err(unusable)?;
        let over = before.trusted().filter(|one| !row.trusted().any(|left| left == *one));
        over.for_each(|one| site.authorities.discard(one));
        Ok(())
    })
    .await?;
    site.change(|registry| registry.set_authority(site.authorities.held().row.clone()));
    site.rotations.now();
    Ok(())
}

/// The row after a step, or why it is refused.
fn after(
    site: &Site,
    row: &AuthorityRow,
    step: &CaRotateArgs,
    made: Option<String>,
) -> Result<AuthorityRow, Error> {
    let left = || {
        let tokens = site.tokens.lock().unwrap_or_else(PoisonError::into_inner).all();
        (site.nodes().1, tokens)
    };
    authority::after(row, step, made, left, site.wall())
}

fn told(site: &Site, held: &Held) -> CaResult {
    let row = &held.row;
    let authorities = row
        .trusted()
        .zip(held.trusted())
        .map(|(sha256, authority)| CaObject {
            sha256: sha256.clone(),
            signs: *sha256 == row.signing,
            not_before: timestamp(authority.not_before().unix_ms()),
            not_after: timestamp(authority.not_after().unix_ms()),
        })
        .collect();
    let lacking = lacking(row, site.nodes().1).iter().take(LISTED).map(|node| lacks(node)).collect();
    let (_, nodes) = site.nodes();
    let old =
        nodes.iter().filter(|node| node.row.admits() && row.is_old(&node.row.credential.issuer)).count();
    CaResult {
        phase: row.phase().name().to_owned(),
        authorities,
        lacking,
        old_certificates: u64::try_from(old).unwrap_or(u64::MAX),
        next_step: next_step(row.phase()).to_owned(),
    }
}

fn lacks(node: &Node) -> CaLacking {
    let seen = node.report.last_seen_at_unix_ms;
    CaLacking {
        node_id: node.id.to_string(),
        name: node.row.name.clone(),
        state: node.state().to_owned(),
        last_seen_at: (seen > 0).then(|| timestamp(seen)),
    }
}

async fn look(site: &Arc<Site>, row: AuthorityRow) -> Result<Held, Error> {
    on_disk(site, move |site| site.authorities.look(row).map_err(unusable)).await
}

async fn on_disk<T: Send + 'static>(
    site: &Arc<Site>,
    work: impl FnOnce(&Site) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let site = Arc::clone(site);
    tokio::task::spawn_blocking(move || work(&site)).await.map_err(failed)?
}

fn failed(error: impl std::fmt::Display) -> Error {
    // It names a path of this host, which goes into its log only.
    tracing::error!("an authority cannot be made or used: {error}");
    Error::new(
        Code::Internal,
        "CA_FILES",
        "the authority's files cannot be written or used; see the edge's log",
    )
}

/// Where there is no room for a key there is none for the audit either: the same answer as for every other change.
fn not_made(error: AuthorityError) -> Error {
    use std::io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    match &error {
        AuthorityError::File { error: cause, .. }
            if matches!(cause.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem) =>
        {
            store_error(&CommitError::ReadOnly(cause.to_string()))
        }
        _ => failed(error),
    }
}

fn unusable(error: StartError) -> Error {
    failed(error)
}

#[cfg(test)]
mod tests {
    use umbel_wire::Code;
    use umbel_wire::ca::AuthorityError;

    use super::not_made;

    #[test]
    fn a_key_that_finds_no_room_is_refused_as_every_change_on_a_full_disk() {
        let refused = |kind: std::io::ErrorKind| {
            let error = not_made(AuthorityError::File { path: "ca".into(), error: kind.into() });
            (error.code, error.reason.to_string())
        };
        let full = (Code::InsufficientStorage, "AUDIT_UNAVAILABLE".to_owned());
        assert_eq!(refused(std::io::ErrorKind::StorageFull), full);
        assert_eq!(refused(std::io::ErrorKind::PermissionDenied), (Code::Internal, "CA_FILES".to_owned()));
    }
}
