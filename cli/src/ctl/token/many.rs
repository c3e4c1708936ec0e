//! `ctl token create --names-file`: tokens for many nodes, a single-use one each.
//!
//! Owns reading the names and what is printed. Leaves making tokens to `mint`. Invariant: nothing is made unless the site
//! takes every name; what was made before something broke is handed over all the same.

use std::{
    collections::BTreeSet,
    io::Read as _,
    path::{Path, PathBuf},
};

use serde_json::value::RawValue;
use umbel_contracts::{
    objects::{EnrollmentState, NodeObject},
    operations::{EnrollmentObject, TOKENS_AT_ONCE},
};
use zeroize::Zeroizing;

use super::super::{Ctl, gather::gather};
use crate::{
    client::parse,
    exit::{Failure, Outcome},
    mint::{self, Minted, NodeTokenWish},
    output::{say, utc},
    secrets::Handover,
};

/// Largest list of names, in bytes: 10,000 of the longest, which is also what a site keeps of tokens.
const LARGEST_LIST: u64 = 10_000 * 64;
/// Names that a warning repeats.
const NAMED: usize = 5;

/// Makes one for each name; all else is as `wish` says.
pub(super) async fn create(
    ctl: &Ctl,
    site: &str,
    wish: &NodeTokenWish,
    list: &Path,
    out: Option<&Path>,
) -> Outcome {
    let names = read(list)?;
    if names.len() > TOKENS_AT_ONCE && ctl.global.command_id.is_some() {
        return Err(Failure::usage(format!(
            "more than {TOKENS_AT_ONCE} tokens are more than one command: leave out --command-id"
        )));
    }
    let handover = Handover::open(out, ctl.global.dry_run)?;
    // With several commands a bad name in a later one would be found too late.
    let mut manner = ctl.manner();
    manner.dry_run = true;
    if ctl.global.dry_run || names.len() > TOKENS_AT_ONCE {
        for part in names.chunks(TOKENS_AT_ONCE) {
            mint::node_tokens(&ctl.client, site, wish, part, &manner).await?;
        }
    }
    if ctl.global.dry_run {
        say(&format!("Would make a token for each of {} nodes of {site}.", names.len()));
        return Ok(());
    }
    let mut made = Vec::new();
    let mut failed = None;
    for part in names.chunks(TOKENS_AT_ONCE) {
        match mint::node_tokens(&ctl.client, site, wish, part, &ctl.manner()).await {
            Ok(tokens) => made.extend(tokens),
            Err(failure) => {
                failed = Some(failure);
                break;
            }
        }
    }
    if !made.is_empty() {
        give(ctl, handover, &names, &made, out)?;
        tell(site, wish, &made);
        namesakes(ctl, site, &names, &made).await;
    }
    match failed {
        Some(failure) if made.is_empty() => Err(failure),
        Some(failure) => Err(failure.during(&format!("{} of {} tokens were made", made.len(), names.len()))),
        None => Ok(()),
    }
}

/// The names of a list, one a line, in its order.
fn read(list: &Path) -> Outcome<Vec<String>> {
    let from = if list == Path::new("-") { PathBuf::from("/dev/stdin") } else { list.to_owned() };
    let wrong = |why: String| Failure::usage(format!("cannot read names from {}: {why}", list.display()));
    let file = std::fs::File::open(&from).map_err(|error| wrong(error.to_string()))?;
    let mut text = String::new();
    file.take(LARGEST_LIST + 1).read_to_string(&mut text).map_err(|error| wrong(error.to_string()))?;
    if text.len() as u64 > LARGEST_LIST {
        return Err(wrong(format!("it has more than {LARGEST_LIST} bytes")));
    }
    let names: Vec<String> =
        text.lines().map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if names.is_empty() {
        return Err(wrong("there is none; write one a line".to_owned()));
    }
    let mut seen = BTreeSet::new();
    match names.iter().find(|name| !seen.insert(name.as_str())) {
        Some(twice) => Err(wrong(format!("{twice:?} stands there twice"))),
        None => Ok(names),
    }
}

/// Hands all of them over at once, a line each.
fn give(ctl: &Ctl, handover: Handover<'_>, names: &[String], made: &[Minted], out: Option<&Path>) -> Outcome {
    if ctl.global.output.is_object() && out.is_none() {
        let objects = made.iter().zip(names).map(|(one, name)| {
            let text = one.with_secret_for(name)?;
            RawValue::from_string(text).map_err(|error| Failure::failed(error.to_string()))
        });
        ctl.put_list(&objects.collect::<Outcome<Vec<_>>>()?);
        return Ok(());
    }
    let mut lines = Zeroizing::new(String::with_capacity(made.len() * 512));
    for (one, name) in made.iter().zip(names) {
        if !lines.is_empty() {
            lines.push('\n');
        }
        lines.push_str(name);
        lines.push(' ');
        lines.push_str(one.text.expose());
    }
    handover.give(&lines, "names with their enrollment tokens")
}

fn tell(site: &str, wish: &NodeTokenWish, made: &[Minted]) {
    let eligible = if wish.eligible {
        "They get requests as soon as they are ready."
    } else {
        "They get requests after: umbel ctl node eligible NODE"
    };
    let until = made.last().and_then(|one| one.expires_at);
    say(&format!(
        "{} tokens for nodes at {site}, each once, until {}.\nOn each host: umbel node enroll, and paste its own. \
         {eligible}\nUndo: umbel ctl token lists them; umbel ctl token revoke ID -m 'why'",
        made.len(),
        utc(until),
    ));
}

/// As for one: nodes of one name are told apart by their ids only.
async fn namesakes(ctl: &Ctl, site: &str, names: &[String], made: &[Minted]) {
    let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let made: BTreeSet<&str> = made.iter().map(|one| one.id.as_str()).collect();
    let mut there = BTreeSet::new();
    // The tokens are there; that their neighbours cannot be listed now changes nothing.
    if let Ok(gathered) = gather(ctl, "node.list", "nodes").await {
        let nodes = gathered.items.iter().filter(|(of, _)| of == site);
        let nodes = nodes.filter_map(|(_, raw)| parse::<NodeObject>(raw.get()).ok());
        there.extend(nodes.map(|node| node.name).filter(|name| names.contains(name.as_str())));
    }
    warn(site, &there, "are of nodes that are there already; nodes of one name are told apart by id only");
    let mut open = BTreeSet::new();
    if let Ok(gathered) = gather(ctl, "enrollment.list", "enrollments").await {
        let tokens = gathered.items.iter().filter(|(of, _)| of == site);
        let tokens = tokens.filter_map(|(_, raw)| parse::<EnrollmentObject>(raw.get()).ok());
        let others = tokens
            .filter(|token| token.state == EnrollmentState::Open && !made.contains(token.token_id.as_str()));
        open.extend(others.map(|token| token.name).filter(|name| names.contains(name.as_str())));
    }
    warn(site, &open, "have another open token; each host that uses one is a node of its own");
}

fn warn(site: &str, names: &BTreeSet<String>, what: &str) {
    if names.is_empty() {
        return;
    }
    let some: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
    let more = if names.len() > NAMED { ", ..." } else { "" };
    say(&format!("warning: {} of these names {what} at {site}: {}{more}", names.len(), some.join(", ")));
}
