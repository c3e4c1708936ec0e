//! Bringing a fleet up: set-up steps that were not done yet, daemons, credentials, and the wait until it serves.
//!
//! Owns the order: control plane, then each site with its nodes at the same time. Invariant: a step is recorded
//! as done only after it was, so that an interrupted start goes on where it stopped.

use std::{ffi::OsString, path::Path, time::Duration};

use serde::Deserialize;
use tokio::time::{Instant, sleep};
use umbel_contracts::objects::SiteStatus;

use super::{
    child::{Daemon, set_up},
    files::{self, ControlPlaneRecord, EdgeRecord, NodeRecord, Record},
    plan::{Made, Node, Plan, Site},
};
use crate::{
    client::{Client, Server},
    exit::{Exit, Failure, Outcome},
    mint::{self, Manner, NodeTokenWish},
};

/// Between two looks at a socket or a status.
const LOOK: Duration = Duration::from_millis(25);
/// How long a daemon may take to answer on its socket.
const SOCKET: Duration = Duration::from_secs(30);
/// How long a token of this fleet may be used: it is used at once.
const TOKEN_LIFE: Duration = Duration::from_secs(300);

/// Starts everything; on an error the caller ends what is in `daemons`.
pub(crate) async fn bring_up(plan: &mut Plan, daemons: &mut Vec<Daemon>) -> Outcome {
    make_states(plan).await?;
    let control_plane = start_control_plane(plan, daemons).await?;
    for index in 0..plan.sites.len() {
        let Some(site) = plan.sites.get(index).cloned() else { break };
        start_site(plan, index, &site, &control_plane, daemons).await?;
    }
    for site in &plan.sites {
        let edge = local(&plan.edge_socket(site));
        wait_for_socket(&edge, &site.name, daemons).await?;
        make_key(plan, site, &edge).await?;
    }
    for index in 0..plan.nodes.len() {
        let Some(node) = plan.nodes.get(index).cloned() else { break };
        start_node(plan, index, &node, daemons).await?;
    }
    wait_until_serving(plan, &control_plane, daemons).await
}

/// Folders and files of every tier; a CA and a store where there is none. All at the same time.
async fn make_states(plan: &mut Plan) -> Outcome {
    write_files(plan)?;
    let planned: &Plan = plan;
    let control_plane = async {
        if planned.control_plane.made.is_some() {
            return Ok(None);
        }
        let config = planned.control_plane_dir().join("control-plane.toml");
        let args = words(&["control-plane", "init", "--output", "json", "--config"], &config);
        let said = set_up("control-plane init", &args, None).await?;
        crate::client::parse::<Made>(&said).map(Some)
    };
    let sites = planned.sites.iter().filter(|site| !site.made).map(|site| async move {
        let config = planned.site_dir(site).join("edge.toml");
        let what = format!("edge init of {}", site.name);
        set_up(&what, &words(&["edge", "init", "--config"], &config), None).await
    });
    let (made, _) = futures_util::try_join!(control_plane, futures_util::future::try_join_all(sites))?;
    if made.is_some() {
        plan.control_plane.made = made;
    }
    plan.sites.iter_mut().for_each(|site| site.made = true);
    plan.save()
}

fn write_files(plan: &Plan) -> Outcome {
    for dir in [plan.control_plane_dir()].into_iter().chain(plan.sites.iter().map(|site| plan.site_dir(site)))
    {
        files::make_dir(&dir)?;
    }
    for node in &plan.nodes {
        files::make_dir(&plan.node_dir(node))?;
        files::node(plan, node)?;
    }
    files::control_plane(plan)?;
    for site in &plan.sites {
        files::edge(plan, site)?;
    }
    Ok(())
}

async fn start_control_plane(plan: &Plan, daemons: &mut Vec<Daemon>) -> Outcome<Client> {
    let config = plan.control_plane_dir().join("control-plane.toml");
    let name = "control-plane";
    daemons.push(Daemon::start(name, "control-plane", &config, &plan.log_file(name))?);
    let client = local(&plan.control_plane_socket());
    wait_for_socket(&client, name, daemons).await?;
    Ok(client)
}

async fn start_site(
    plan: &mut Plan,
    index: usize,
    site: &Site,
    control_plane: &Client,
    daemons: &mut Vec<Daemon>,
) -> Outcome {
    let config = plan.site_dir(site).join("edge.toml");
    if !site.enrolled {
        let token = mint::edge_token(control_plane, &site.name, TOKEN_LIFE).await?;
        let what = format!("edge enroll of {}", site.name);
        let mut args = words(&["edge", "enroll", "--config"], &config);
        args.push("-".into());
        set_up(&what, &args, Some(token.text.expose())).await?;
        if let Some(site) = plan.sites.get_mut(index) {
            site.enrolled = true;
        }
        plan.save()?;
    }
    daemons.push(Daemon::start(&site.name, "edge", &config, &plan.log_file(&site.name))?);
    Ok(())
}

async fn make_key(plan: &Plan, site: &Site, edge: &Client) -> Outcome {
    let file = plan.key_file(site);
    if file.exists() {
        return Ok(());
    }
    let wish = mint::KeyWish { name: "dev".to_owned(), ..mint::KeyWish::default() };
    let key = mint::api_key(edge, &site.name, wish, &Manner::default()).await?;
    let key = key.ok_or_else(|| Failure::failed("the edge made no key"))?;
    files::write_private(&file, key.text.expose().as_bytes())
}

async fn start_node(plan: &mut Plan, index: usize, node: &Node, daemons: &mut Vec<Daemon>) -> Outcome {
    let config = plan.node_dir(node).join("node.toml");
    if node.node_id.is_none() {
        let site = plan.sites.iter().find(|site| site.name == node.site);
        let site = site.ok_or_else(|| Failure::failed(format!("{} has no site", node.name)))?;
        let wish = NodeTokenWish {
            name: node.name.clone(),
            labels: [("fleet".to_owned(), "dev".to_owned())].into(),
            expires: TOKEN_LIFE,
            eligible: true,
            replace: None,
        };
        let edge = local(&plan.edge_socket(site));
        let token = mint::node_token(&edge, &site.name, &wish, &Manner::default()).await?;
        let token = token.ok_or_else(|| Failure::failed("the edge made no token"))?;
        let mut args = words(&["node", "enroll", "--config"], &config);
        args.extend(["-".into(), "--output".into(), "json".into()]);
        let said = set_up(&format!("node enroll of {}", node.name), &args, Some(token.text.expose())).await?;
        let enrolled: Enrolled = crate::client::parse(&said)?;
        if let Some(node) = plan.nodes.get_mut(index) {
            node.node_id = Some(enrolled.node_id);
        }
        plan.save()?;
    }
    daemons.push(Daemon::start(&node.name, "node", &config, &plan.log_file(&node.name))?);
    Ok(())
}

/// What `umbel node enroll -o json` prints.
#[derive(Deserialize)]
struct Enrolled {
    node_id: String,
}

/// A client of a local socket.
fn local(socket: &Path) -> Client {
    Client::new(Server::Socket(socket.to_owned()), Duration::from_secs(15))
}

fn words(words: &[&str], path: &Path) -> Vec<OsString> {
    words.iter().map(OsString::from).chain([path.into()]).collect()
}

async fn wait_for_socket(client: &Client, name: &str, daemons: &mut [Daemon]) -> Outcome {
    let deadline = Instant::now() + SOCKET;
    loop {
        match client.get("/api/v1/edges").await {
            Ok(_) => return Ok(()),
            Err(failure) if failure.exit() != Exit::Unreachable => return Err(failure.during(name)),
            Err(failure) if Instant::now() >= deadline => return Err(failure.during(name)),
            Err(_) => {}
        }
        mourn(daemons)?;
        sleep(LOOK).await;
    }
}

/// Waits until the control plane sees every site fresh, every node ready and a provider available on each.
async fn wait_until_serving(plan: &Plan, control_plane: &Client, daemons: &mut [Daemon]) -> Outcome {
    for site in &plan.sites {
        let path = format!("/api/v1/edges/{}/status", site.name);
        let wanted: Vec<&str> =
            plan.nodes.iter().filter(|node| node.site == site.name).map(|node| node.name.as_str()).collect();
        loop {
            let status: SiteStatus = control_plane.get(&path).await?.parse()?;
            if serves(&status, &wanted) {
                break;
            }
            mourn(daemons)?;
            sleep(LOOK * 2).await;
        }
    }
    Ok(())
}

fn serves(status: &SiteStatus, wanted: &[&str]) -> bool {
    use umbel_contracts::objects::Freshness;
    if status.freshness != Freshness::Fresh {
        return false;
    }
    let nodes = status.nodes.as_deref().unwrap_or_default();
    wanted.iter().all(|name| {
        nodes.iter().any(|node| {
            let available = |status: &str| status == "available";
            node.name == **name
                && node.connected
                && node.providers.iter().any(|p| available(p.status.as_str()))
        })
    })
}

/// Fails when a process of the fleet has ended.
fn mourn(daemons: &mut [Daemon]) -> Outcome {
    for daemon in daemons {
        if let Some(status) = daemon.poll() {
            return Err(Failure::failed(daemon.epitaph(status)));
        }
    }
    Ok(())
}

/// The record for scripts: where everything is.
pub(crate) fn record<'a>(plan: &'a Plan, daemons: &[Daemon]) -> Record<'a> {
    let pid = |name: &str| daemons.iter().find(|daemon| daemon.name() == name).map_or(0, Daemon::pid);
    let text = |path: std::path::PathBuf| path.display().to_string();
    let made = plan.control_plane.made.as_ref();
    Record {
        control_plane: ControlPlaneRecord {
            pid: pid("control-plane"),
            api_url: format!("https://127.0.0.1:{}", plan.control_plane.api_port),
            ca_file: made.map_or_else(String::new, |made| text(made.ca_file.clone())),
            token_file: made.map_or_else(String::new, |made| text(made.token_file.clone())),
            socket: text(plan.control_plane_socket()),
        },
        edges: plan
            .sites
            .iter()
            .map(|site| EdgeRecord {
                edge_id: site.name.clone(),
                pid: pid(&site.name),
                api_url: format!("http://127.0.0.1:{}", site.api_port),
                socket: text(plan.edge_socket(site)),
                key_file: text(plan.key_file(site)),
            })
            .collect(),
        nodes: plan
            .nodes
            .iter()
            .map(|node| NodeRecord {
                name: node.name.clone(),
                node_id: node.node_id.clone().unwrap_or_default(),
                edge_id: node.site.clone(),
                pid: pid(&node.name),
                state_dir: text(plan.node_dir(node).join("state")),
                socket: text(plan.node_socket(node)),
            })
            .collect(),
        model: &plan.model,
    }
}
