//! Whether other sites could run now what one cannot: a hint below its explanation.
//!
//! Owns which sites are asked and the words. Leaves the judgement to each site. Invariant: nothing fails by it; a site that is not
//! connected is not asked, and one that does not answer is counted.

use futures_util::StreamExt as _;
use serde_json::{Map, Value};
use umbel_contracts::objects::{DeploymentObject, EdgeConnection, PlacementObject, PlacementShardObject};
use umbel_contracts::operations::{DeploymentArgs, PlacementExplainArgs};

use crate::{
    calls::Call,
    ctl::Ctl,
    exit::Outcome,
    output::{printable, put},
};

/// Sites that are asked: the first by name.
const SITES: usize = 16;
/// Of these at the same time.
const AT_ONCE: usize = 8;

/// Of a deployment of `site`: its document is asked of the others.
pub(super) async fn say_of(ctl: &Ctl, site: &str, name: &str) {
    let others = others(ctl, site).await;
    if others.is_empty() {
        return;
    }
    if let Ok(Some(document)) = document(ctl, site, name).await {
        put(&words(&ask(ctl, others, document).await));
    }
}

/// Of a document.
pub(super) async fn say(ctl: &Ctl, site: &str, document: Map<String, Value>) {
    let others = others(ctl, site).await;
    if !others.is_empty() {
        put(&words(&ask(ctl, others, document).await));
    }
}

async fn others(ctl: &Ctl, site: &str) -> Vec<String> {
    let edges = ctl.client.edges().await.unwrap_or_default();
    let connected = edges.into_iter().filter(|edge| edge.connection == EdgeConnection::Connected);
    connected.map(|edge| edge.edge_id).filter(|other| other != site).take(SITES).collect()
}

async fn document(ctl: &Ctl, site: &str, name: &str) -> Outcome<Option<Map<String, Value>>> {
    let call = Call::new("deployment.show").args(&DeploymentArgs { name: name.to_owned() })?;
    let object: DeploymentObject = ctl.client.ask(site, &call).await?.result()?;
    Ok(object.document)
}

/// What each site says; `None`: it does not answer.
type Answers = Vec<(String, Option<PlacementObject>)>;

async fn ask(ctl: &Ctl, sites: Vec<String>, document: Map<String, Value>) -> Answers {
    let args = PlacementExplainArgs { deployment: None, document: Some(document), limit: Some(0) };
    let Ok(call) = Call::new("placement.explain").args(&args) else { return Vec::new() };
    let call = &call;
    let one = |site: String| async move {
        let told = ctl.client.ask(&site, call).await.and_then(|told| told.result()).ok();
        (site, told)
    };
    futures_util::stream::iter(sites).map(one).buffered(AT_ONCE).collect().await
}

fn place(shard: &PlacementShardObject) -> String {
    let indexes: Vec<String> = shard.gpu_indexes.iter().map(ToString::to_string).collect();
    match indexes.is_empty() {
        true => shard.node.clone(),
        false => format!("{} (GPU {})", shard.node, indexes.join(",")),
    }
}

fn words(answers: &Answers) -> String {
    let silent = answers.iter().filter(|(_, told)| told.is_none()).count();
    let mut fitting = answers.iter().filter_map(|(site, told)| {
        let told = told.as_ref().filter(|told| told.fits)?;
        let shards = told.plan.first().map(|replica| replica.shards.as_slice()).unwrap_or_default();
        let places: Vec<String> = shards.iter().map(place).collect();
        Some(printable(&format!("{site} could place it now on {}", places.join(" and "))).into_owned())
    });
    let asked = answers.len() - silent;
    let mut text = match fitting.next() {
        Some(first) => std::iter::once(first).chain(fitting).collect::<Vec<_>>().join("\n             "),
        None if asked == 1 => "the other one could not place it either".to_owned(),
        None if asked > 1 => format!("none of the {asked} asked could place it now"),
        None => String::new(),
    };
    if silent > 0 {
        let gap = if text.is_empty() { "" } else { "; " };
        text.push_str(&format!("{gap}{silent} did not answer"));
    }
    format!("\nOther sites: {text}\n")
}
