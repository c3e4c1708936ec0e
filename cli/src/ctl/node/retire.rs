//! `ctl node decommission`: what is lost is shown first, then the node's name is typed, then it is done for good.
//!
//! Invariant: nothing is sent that ends a node before the preview was shown and the name was typed.

use std::time::Duration;

use umbel_contracts::objects::SiteNode;
use umbel_contracts::operations::{NodeDecommissionArgs, NodeDecommissionResult};

use super::whole;
use crate::{
    calls::{Call, new_command_id},
    ctl::{Ctl, command},
    exit::Outcome,
    output::{count, details, put, say},
};

/// How long the edge may take to say what would be lost.
const PREVIEW: Duration = Duration::from_secs(5);

pub(super) async fn run(
    ctl: &Ctl,
    name: &str,
    preview: bool,
    deadline: Option<Duration>,
    confirm: Option<&str>,
) -> Outcome {
    let only = preview || ctl.global.dry_run;
    let reason = if only { None } else { Some(ctl.reason_for("retiring a node")?) };
    let node = whole(ctl, name).await?;
    let lost = lost(ctl, &node, only).await?;
    let Some(reason) = reason else { return Ok(()) };
    let name = &node.node.name;
    if !ctl.global.output.is_object() {
        say(&words(&lost));
    }
    ctl.confirm_name(
        confirm,
        name,
        &format!("retiring {name} cannot be undone: its identity never comes back"),
    )?;
    let args = NodeDecommissionArgs {
        preview: false,
        deadline_seconds: deadline.map(|deadline| deadline.as_secs()),
    };
    let call = Call::new("node.decommission")
        .node(&node.node.node_id)
        .args(&args)?
        .reason(Some(reason))
        .confirm(name);
    let done = format!(
        "{name} at {} is retired for good. Its host can join as a new node: umbel ctl token create {name}",
        node.edge_id
    );
    command::send(ctl, &node.edge_id, &call, &done).await
}

/// Asks what would be lost, and prints it where nothing else was asked for.
async fn lost(ctl: &Ctl, node: &SiteNode, print: bool) -> Outcome<NodeDecommissionResult> {
    let args = NodeDecommissionArgs { preview: true, deadline_seconds: None };
    let call = Call::new("node.decommission").node(&node.node.node_id).args(&args)?;
    let told = ctl.client.command(&node.edge_id, &new_command_id(), &call, PREVIEW).await?;
    let raw = told.result_raw()?;
    let lost: NodeDecommissionResult = crate::client::parse(&raw)?;
    if print && !ctl.put_object(&raw) {
        put(&words(&lost));
    }
    Ok(lost)
}

/// Each with its replicas that run there.
fn deployments(lost: &NodeDecommissionResult) -> String {
    if lost.deployments.is_empty() {
        return "none".to_owned();
    }
    let of = |name: &String| {
        let own = |replica: &&String| {
            replica.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with(".r"))
        };
        let replicas: Vec<&str> = lost.replicas.iter().filter(own).map(String::as_str).collect();
        if replicas.is_empty() { name.clone() } else { format!("{name} loses {}", replicas.join(" and ")) }
    };
    lost.deployments.iter().map(of).collect::<Vec<_>>().join(", ")
}

fn words(lost: &NodeDecommissionResult) -> String {
    let none = |list: &[String]| if list.is_empty() { "none".to_owned() } else { list.join(", ") };
    let mut lines = vec![
        ("Node", format!("{}  {}", lost.name, lost.node_id)),
        ("Requests", format!("{} run there", lost.leases)),
        ("Jobs", lost.jobs.to_string()),
        ("Engines", none(&lost.providers)),
        ("Deployments", deployments(lost)),
    ];
    for model in &lost.models {
        let left = match model.available_elsewhere {
            0 => "served nowhere else".to_owned(),
            n => format!("{} elsewhere", count(n as usize, "engine")),
        };
        lines.push(("Model", format!("{}: {left}", model.model)));
    }
    details(&lines)
}
