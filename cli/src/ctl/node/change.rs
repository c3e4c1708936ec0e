//! What changes one node and can be undone: drain, eligible, name, labels, disable, and its credential.
//!
//! Invariant: each says what it did and how to undo it; what ends requests or shuts a host out needs a reason.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use umbel_contracts::objects::SiteNode;
use umbel_contracts::operations::{
    CredentialApproveArgs, CredentialsResult, NodeDrainArgs, NodeEligibleArgs, NodeLabelArgs, NodeRenameArgs,
};

use super::{find, running, whole};
use crate::{
    args::NodeVerb,
    calls::Call,
    ctl::{Ctl, command},
    exit::{Exit, Failure, Outcome},
    output::count,
};

/// What is said of a change: when it was done, in a dry run, and how it is undone.
struct Words {
    done: &'static str,
    would: &'static str,
    then: String,
}

pub(super) async fn run(ctl: &Ctl, verb: &NodeVerb) -> Outcome {
    match verb {
        NodeVerb::Drain { name, deadline } => {
            let call = Call::new("node.drain").reason(Some(ctl.reason_for("draining a node")?));
            let node = write_to(ctl, name, "Drain").await?;
            let args = NodeDrainArgs { deadline_seconds: deadline.map(|deadline| deadline.as_secs()) };
            let then = format!("It gets no more requests. Undo: umbel ctl node undrain {}", node.node.name);
            send(ctl, &node, call.args(&args)?, Words { done: "is drained", would: "would be drained", then })
                .await
        }
        NodeVerb::Undrain { name } => {
            let node = write_to(ctl, name, "Undrain").await?;
            let words = Words {
                done: "is not draining any more",
                would: "would not be draining any more",
                then: String::new(),
            };
            send(ctl, &node, with_reason(ctl, "node.undrain"), words).await
        }
        NodeVerb::Eligible { name, value } => eligible(ctl, name, value == "yes").await,
        NodeVerb::Rename { name, new } => {
            let node = to_rename(ctl, name, new).await?;
            let call = with_reason(ctl, "node.rename").args(&NodeRenameArgs { name: new.clone() })?;
            let then = format!("Undo: umbel ctl node rename {new} {}", undo_name(name, new, &node));
            send(ctl, &node, call, Words { done: "is renamed", would: "would be renamed", then }).await
        }
        NodeVerb::Label { name, labels } => {
            let args = labels_of(labels)?;
            let node = write_to(ctl, name, "Label").await?;
            let call = with_reason(ctl, "node.label").args(&args)?;
            let words = Words {
                done: "has its labels changed",
                would: "would have its labels changed",
                then: String::new(),
            };
            send(ctl, &node, call, words).await
        }
        NodeVerb::Disable { name } => disable(ctl, name).await,
        NodeVerb::Enable { name } => {
            let node = write_to(ctl, name, "Enable").await?;
            let then = match super::is_revoked(&node.node) {
                true => format!(
                    "But its credential is revoked: it does not connect before it has a new one. To let it back: {}",
                    super::comes_back(&node.node)
                ),
                false => "It connects by itself within a minute.".to_owned(),
            };
            let words = Words { done: "is enabled", would: "would be enabled", then };
            send(ctl, &node, with_reason(ctl, "node.enable"), words).await
        }
        NodeVerb::Rotate { name } => {
            let node = write_to(ctl, name, "Rotate the credential of").await?;
            let then = if node.node.connected {
                "Its streams go on.".to_owned()
            } else {
                "It is away: it does so when it connects.".to_owned()
            };
            let words = Words {
                done: "makes a new key and gets a new certificate",
                would: "would make a new key and get a new certificate",
                then,
            };
            send(ctl, &node, with_reason(ctl, "node.credential.rotate"), words).await
        }
        NodeVerb::Revoke { name, confirm } => revoke(ctl, name, confirm.as_deref()).await,
        NodeVerb::Approve { key_sha256 } => approve(ctl, key_sha256).await,
        NodeVerb::List { .. }
        | NodeVerb::Show { .. }
        | NodeVerb::Why { .. }
        | NodeVerb::Decommission { .. } => Err(Failure::usage("this changes nothing")),
    }
}

fn with_reason(ctl: &Ctl, operation: &'static str) -> Call {
    Call::new(operation).reason(ctl.global.reason.as_deref())
}

/// The node that a write is about; one that was not named in full is asked for.
async fn write_to(ctl: &Ctl, name: &str, act: &str) -> Outcome<SiteNode> {
    let picked = find(ctl, name).await?;
    let (node, _) = picked.item;
    if !picked.exact {
        ctl.confirm_half(&format!("{act} {} at {}?", node.node.name, node.edge_id))?;
    }
    Ok(node)
}

/// The node to rename. A command that is repeated under its id finds it by its new name: that is what it did.
async fn to_rename(ctl: &Ctl, name: &str, new: &str) -> Outcome<SiteNode> {
    match write_to(ctl, name, "Rename").await {
        Err(failure) if failure.exit() == Exit::NotFound && ctl.global.command_id.is_some() => {
            whole(ctl, new).await.map_err(|_| failure)
        }
        found => found,
    }
}

/// The name before: a node that has the new one already is not called so.
fn undo_name<'a>(name: &'a str, new: &str, node: &'a SiteNode) -> &'a str {
    if node.node.name == new { name } else { &node.node.name }
}

async fn send(ctl: &Ctl, node: &SiteNode, call: Call, words: Words) -> Outcome {
    let call = call.node(&node.node.node_id).dry_run(ctl.global.dry_run);
    let (name, site) = (&node.node.name, &node.edge_id);
    let text = if ctl.global.dry_run {
        format!("{name} at {site} {}.", words.would)
    } else {
        format!("{name} at {site} {}. {}", words.done, words.then)
    };
    command::send(ctl, site, &call, text.trim_end()).await
}

async fn eligible(ctl: &Ctl, name: &str, eligible: bool) -> Outcome {
    let node = write_to(ctl, name, "Change").await?;
    let call = with_reason(ctl, "node.eligible").args(&NodeEligibleArgs { eligible })?;
    let (done, would, undo) = if eligible {
        ("may get requests", "could get requests", "no")
    } else {
        ("gets no requests", "would get no requests", "yes")
    };
    let then = format!("Undo: umbel ctl node eligible {} {undo}", node.node.name);
    send(ctl, &node, call, Words { done, would, then }).await
}

/// `KEY=VALUE` sets, `KEY-` takes away.
fn labels_of(words: &[String]) -> Outcome<NodeLabelArgs> {
    let mut args = NodeLabelArgs { set: BTreeMap::new(), remove: Vec::new() };
    for word in words {
        match (word.split_once('='), word.strip_suffix('-')) {
            (Some((key, value)), _) if !key.is_empty() => {
                drop(args.set.insert(key.to_owned(), value.to_owned()))
            }
            (None, Some(key)) if !key.is_empty() => args.remove.push(key.to_owned()),
            _ => {
                return Err(Failure::usage(format!(
                    "{word}: write KEY=VALUE to set a label, KEY- to take it away"
                )));
            }
        }
    }
    Ok(args)
}

async fn disable(ctl: &Ctl, name: &str) -> Outcome {
    let call = Call::new("node.disable").reason(Some(ctl.reason_for("disabling a node")?));
    let node = write_to(ctl, name, "Disable").await?;
    let runs = running(&node.node);
    if runs > 0 {
        let runs = count(usize::try_from(runs).unwrap_or(usize::MAX), "request");
        let name = &node.node.name;
        ctl.confirm(&format!(
            "{name} runs {runs}, which end with an error; a drain lets them finish. Disable it?"
        ))?;
    }
    let then = format!("It keeps its identity. Undo: umbel ctl node enable {}", node.node.name);
    send(ctl, &node, call, Words { done: "is disabled", would: "would be disabled", then }).await
}

async fn revoke(ctl: &Ctl, name: &str, confirm: Option<&str>) -> Outcome {
    let reason = ctl.reason_for("revoking a node's credential")?;
    let node = whole(ctl, name).await?;
    let name = &node.node.name;
    if !ctl.global.dry_run {
        let what = format!("revoking shuts {name} out until it is enrolled with a new token");
        ctl.confirm_name(confirm, name, &what)?;
    }
    let then = format!("To let it back as the same node: umbel ctl token create --replace {name}");
    let words = Words { done: "opens nothing any more", would: "would open nothing any more", then };
    send(ctl, &node, Call::new("node.credential.revoke").reason(Some(reason)), words).await
}

async fn approve(ctl: &Ctl, key_sha256: &str) -> Outcome {
    let site = ctl.one_site().await?;
    let args = CredentialApproveArgs { key_sha256: key_sha256.to_owned() };
    let call = with_reason(ctl, "node.credential.approve").args(&args)?.dry_run(ctl.global.dry_run);
    command::send_saying(ctl, &site, &call, |result| approved(result, ctl.global.dry_run)).await
}

/// What an approval means for its node: one whose row was lost stays out until somebody enables it.
fn approved(result: Option<&Value>, dry_run: bool) -> String {
    let result = result.and_then(|result| CredentialsResult::deserialize(result).ok());
    let node = result.as_ref().and_then(|result| result.nodes.first());
    let name = node.map_or("The node with that key", |node| &node.name);
    match (node.is_some_and(|node| node.disabled), dry_run) {
        (false, false) => format!("{name} connects by itself within a minute."),
        (false, true) => format!("{name} could connect."),
        (true, false) => format!(
            "{name} is known again, and disabled, since what was decided about it is lost. Once you know that it may: \
             umbel ctl node enable {name}"
        ),
        (true, true) => format!("{name} would be known again, and stay out until it is enabled."),
    }
}

#[cfg(test)]
mod tests {
    use super::{approved, labels_of};

    #[test]
    fn an_approved_node_that_stays_disabled_is_not_said_to_connect() {
        let result = |disabled: bool| {
            serde_json::json!({ "nodes": [{ "node_id": "i", "name": "recovered-1", "changed": true, "disabled": disabled,
                "rotating": false, "not_after": "2027-01-01T00:00:00Z" }] })
        };
        assert_eq!(approved(Some(&result(false)), false), "recovered-1 connects by itself within a minute.");
        let told = approved(Some(&result(true)), false);
        assert!(!told.contains("connects") && told.ends_with("umbel ctl node enable recovered-1"), "{told}");
        assert!(approved(Some(&result(true)), true).contains("stay out"));
        assert_eq!(approved(None, true), "The node with that key could connect.");
    }

    #[test]
    fn labels_are_set_and_taken_away() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let args = labels_of(&words(&["rack=r1", "note=", "spare-", "a=b-"]));
        assert!(args.is_ok_and(|args| args.set.len() == 3
            && args.set.get("a").is_some_and(|value| value == "b-")
            && args.remove == ["spare"]));
        for wrong in ["rack", "=x", "-", ""] {
            assert!(labels_of(&words(&[wrong])).is_err(), "{wrong}");
        }
    }
}
