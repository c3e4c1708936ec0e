//! `backup` and `restore` of a daemon's store: by the daemon while it runs, by this process while it does not.
//!
//! Leaves copying to the tiers. Invariant: a store that stood there is never overwritten, only moved aside, and nothing is
//! put in its place before somebody said so.

use std::{
    io::{BufRead as _, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Serialize;
use umbel_contracts::operations::EdgeBackupResult;

use super::report::print_object;
use crate::{
    args::{BackupFlags, RestoreFlags},
    block_on,
    client::{Client, Server},
    exit::{Exit, Failure, Outcome},
    output::{bytes, count, say, utc},
};

/// How long a running daemon may take to copy its store.
const COPYING: Duration = Duration::from_secs(600);

/// A copy that was made.
#[derive(Debug, Serialize)]
pub(super) struct Copied {
    pub(super) file: PathBuf,
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

/// A store that was put in place.
#[derive(Debug, Serialize)]
pub(super) struct Replaced {
    pub(super) incarnation: String,
    pub(super) made_at: jiff::Timestamp,
    pub(super) voided: u64,
    pub(super) kept: Option<PathBuf>,
}

/// Asks the daemon at its socket; where none answers, `stopped` copies.
pub(super) fn backup(
    flags: &BackupFlags,
    socket: &Path,
    stopped: impl FnOnce(Option<&Path>) -> Outcome<Copied>,
) -> Outcome {
    if flags.to.is_none() {
        let client = Client::new(Server::Socket(socket.to_owned()), COPYING);
        let mut told: Option<EdgeBackupResult> = None;
        let asked = block_on(async {
            let body = serde_json::json!({});
            told = Some(client.post("/api/v1/backup", &[], &body, Duration::ZERO).await?.parse()?);
            Ok(())
        });
        match (asked, told) {
            (Ok(()), Some(made)) => {
                if flags.output.is_object() {
                    return print_object(&made, flags.output);
                }
                let file = PathBuf::from(made.file);
                return tell(
                    &Copied { file, bytes: made.bytes, sha256: made.sha256 },
                    " in its backup directory",
                );
            }
            (Err(failure), _) if failure.exit() != Exit::Unreachable => return Err(failure),
            _ => {}
        }
    }
    let made = stopped(flags.to.as_deref())?;
    if flags.output.is_object() {
        return print_object(&made, flags.output);
    }
    tell(&made, "")
}

fn tell(made: &Copied, place: &str) -> Outcome {
    say(&format!(
        "The store is in {}{place} ({}).\n  sha256:{}\nIt holds hashes of secrets, no secret; keep the CA's directory in a place of its own.",
        made.file.display(),
        bytes(made.bytes),
        made.sha256
    ));
    Ok(())
}

/// Puts a backup in the store's place, once it was said that it is meant.
pub(super) fn restore(
    flags: &RestoreFlags,
    config: &Path,
    tier: &str,
    put: impl FnOnce(&Path) -> Outcome<Replaced>,
) -> Outcome {
    confirm(flags, tier)?;
    let done = put(&flags.file)?;
    if flags.output.is_object() {
        return print_object(&done, flags.output);
    }
    let tokens = count(usize::try_from(done.voided).unwrap_or(usize::MAX), "open token");
    let kept = done.kept.map_or_else(String::new, |kept| format!("\nThe store before is {}", kept.display()));
    say(&format!(
        "The store is as it was at {}. {tokens} are void: mint new ones.{kept}\nNext: umbel {tier} --config {}",
        utc(Some(done.made_at)),
        config.display()
    ));
    Ok(())
}

fn confirm(flags: &RestoreFlags, tier: &str) -> Outcome {
    let question = format!(
        "What the {tier} stored since {} was made will be gone, and open tokens are void.",
        flags.file.display()
    );
    if flags.yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(format!("{question} Nobody is here to answer")).remedy("add --yes"));
    }
    let mut err = std::io::stderr().lock();
    write!(err, "{question} Go on? [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if matches!(answer.trim(), "y" | "Y" | "yes") { Ok(()) } else { Err(Failure::failed("not done")) }
}
