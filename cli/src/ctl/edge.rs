//! `ctl edge`: sites and their edges, the tokens with which an edge joins, and revoking one's credential.

use umbel_contracts::objects::{
    CredentialState, EdgeConnection, EdgeEnrollmentObject, EdgeObject, EnrollmentState, Page, ReasonBody,
};

use super::{Ctl, pick};
use crate::{
    args::{EdgeTokenVerb, EdgeVerb},
    calls::segment,
    exit::{Exit, Failure, Outcome},
    mint,
    output::{
        Column, Format, Table, Tone, age_ms, ago, count, members, printable, put, say, state_tone, utc,
    },
    secrets::Handover,
};

const PATH: &str = "/api/v1/edges";
const TOKENS: &str = "/api/v1/edge-enrollments";
const LIST: &str = "umbel ctl edge";

pub(crate) async fn run(ctl: &Ctl, name: Option<&str>, verb: Option<&EdgeVerb>) -> Outcome {
    match (verb, name) {
        (None | Some(EdgeVerb::List), None) => list(ctl).await,
        (None | Some(EdgeVerb::List), Some(name)) => show(ctl, name).await,
        (Some(EdgeVerb::Show { name }), _) => show(ctl, name).await,
        (Some(EdgeVerb::Revoke { name, confirm }), _) => revoke(ctl, name, confirm.as_deref()).await,
        (Some(EdgeVerb::Token { verb }), _) => match verb {
            None | Some(EdgeTokenVerb::List) => tokens(ctl).await,
            Some(EdgeTokenVerb::Revoke { id }) => revoke_token(ctl, id).await,
            Some(EdgeTokenVerb::Create { site, expires, out }) => {
                if ctl.global.dry_run {
                    say(&format!(
                        "Would make a token with which the edge of {site} joins this control plane."
                    ));
                    return Ok(());
                }
                let handover = Handover::open(out.as_deref(), false)?;
                let made = mint::edge_token(&ctl.client, site, *expires).await?;
                if ctl.global.output.is_object() && out.is_none() {
                    ctl.put_object(&made.with_secret("token")?);
                    return Ok(());
                }
                handover.give(made.text.expose(), "enrollment token")?;
                say(&format!(
                    "For the edge of {site}, once, until {}. Id {}.\nOn its host: umbel edge enroll, and paste it.\n\
                     Undo: umbel ctl edge token revoke {} -m 'why'",
                    utc(made.expires_at),
                    made.id,
                    made.id
                ));
                Ok(())
            }
        },
    }
}

/// The word for a connection, in the API's spelling.
fn connection(edge: &EdgeObject) -> &'static str {
    match (edge.credential.state, edge.connection) {
        (CredentialState::Revoked, _) => "revoked",
        (_, EdgeConnection::Connected) => "connected",
        (_, EdgeConnection::Stale) => "stale",
        (_, EdgeConnection::Disconnected) => "disconnected",
        (_, EdgeConnection::Never) => "never",
    }
}

async fn list(ctl: &Ctl) -> Outcome {
    let answer = ctl.client.get(PATH).await?;
    let wanted: Vec<String> = ctl.sites().await?.into_iter().map(|edge| edge.edge_id).collect();
    let mut items = members(answer.raw()?, "items");
    let mut edges: Vec<EdgeObject> = answer.parse::<Page<EdgeObject>>()?.items;
    if ctl.global.site.is_some() {
        let mut keep =
            edges.iter().map(|edge| wanted.contains(&edge.edge_id)).collect::<Vec<_>>().into_iter();
        items.retain(|_| keep.next().unwrap_or(false));
        edges.retain(|edge| wanted.contains(&edge.edge_id));
    }
    if ctl.put_list(&items) {
        return Ok(());
    }
    if ctl.global.output == Format::Name {
        ctl.put_names(edges.iter().map(|edge| edge.edge_id.as_str()));
        return Ok(());
    }
    let mut table = Table::new(vec![
        Column::left("SITE"),
        Column::state("STATE"),
        Column::number("HEARD"),
        Column::left("VERSION"),
        Column::left("CERTIFICATE"),
        Column::left("NAME").wide(),
        Column::number("RTT").wide(),
        Column::left("ENROLLED").wide(),
        Column::text("PROBLEMS"),
    ]);
    for edge in &edges {
        table.row(vec![
            edge.edge_id.clone(),
            connection(edge).to_owned(),
            age_ms(edge.last_heard_ms),
            edge.software_version.clone().unwrap_or_default(),
            certificate(edge),
            edge.display_name.clone(),
            edge.round_trip_us.map_or_else(String::new, |us| format!("{}.{}ms", us / 1000, us % 1000 / 100)),
            utc(Some(edge.enrolled_at)),
            edge.problems.iter().map(|problem| problem.message.as_str()).collect::<Vec<_>>().join("; "),
        ]);
    }
    ctl.put_table(&table, "No site yet. Make a token for one: umbel ctl edge token create SITE");
    Ok(())
}

fn certificate(edge: &EdgeObject) -> String {
    let end = edge.credential.not_after;
    let word = if end < jiff::Timestamp::now() { "ended" } else { "until" };
    format!("{word} {}", end.strftime("%Y-%m-%d"))
}

async fn show(ctl: &Ctl, name: &str) -> Outcome {
    let edges = ctl.client.edges().await?;
    let picked = pick::one(edges, name, "site", |edge| vec![edge.edge_id.clone()], LIST)?;
    let answer = ctl.client.get(&format!("{PATH}/{}", segment(&picked.item.edge_id))).await?;
    if ctl.put_object(answer.raw()?) {
        return Ok(());
    }
    let edge: EdgeObject = answer.parse()?;
    if ctl.global.output == Format::Name {
        put(&edge.edge_id);
        return Ok(());
    }
    let state = connection(&edge);
    let mut lines = vec![
        ("Site", edge.edge_id.clone()),
        ("Name", edge.display_name.clone()),
        ("State", ctl.style.paint(state_tone(state), state)),
        ("Heard", edge.last_heard_ms.map_or("never".to_owned(), |ms| format!("{} ago", age_ms(Some(ms))))),
        ("Version", edge.software_version.clone().unwrap_or_else(|| "-".to_owned())),
        ("Protocol", edge.protocol.map_or("-".to_owned(), |protocol| protocol.to_string())),
        // An edge asked on its own socket did not enroll anywhere.
        ("Enrolled", utc(Some(edge.enrolled_at).filter(|at| at.as_second() > 0))),
        ("Credential", format!("{}, key sha256:{}", certificate(&edge), short(&edge.credential.key_sha256))),
    ];
    if let (CredentialState::Revoked, at) = (edge.credential.state, edge.credential.revoked_at) {
        let why = edge.credential.revoked_reason.clone().unwrap_or_default();
        lines.push(("Revoked", format!("{} ago: {why}", ago(at))));
    }
    if edge.events_lost > 0 {
        lines.push(("Events", format!("{} lost", edge.events_lost)));
    }
    if let Some(summary) = &edge.last_summary {
        let age = age_ms(edge.last_summary_age_ms);
        let nodes = summary.nodes_total;
        lines.push(("Nodes", format!("{} of {nodes} online ({age} ago)", summary.nodes_online)));
        let (run, wait) = (summary.requests_in_flight, summary.requests_queued);
        lines.push(("Requests", format!("{run} running, {wait} waiting")));
        if let Some(figures) = &summary.deployments {
            let whole = figures.total.saturating_sub(figures.short);
            let (ready, wanted) = (figures.replicas_ready, figures.replicas_wanted);
            let failed = figures.replicas_failed;
            let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
            let total = figures.total;
            lines.push((
                "Models",
                format!("{whole} of {total} have all they want, {ready} of {wanted} replicas ready{failed} ({age} ago)"),
            ));
            if let Some(held) = &figures.held {
                lines.push(("Held", held.clone()));
            }
        }
        if let Some(jobs) = summary.jobs {
            lines.push(("Jobs", format!("{} running, {} waiting", jobs.running, jobs.queued)));
        }
    }
    let operations: Vec<&str> = edge.operations.iter().map(|operation| operation.name.as_str()).collect();
    if ctl.global.output == Format::Wide && !operations.is_empty() {
        lines.push(("Operations", operations.join(" ")));
    }
    put(&crate::output::details(&lines));
    for problem in &edge.problems {
        put(&format!("{}  {}", ctl.style.paint(Tone::Bad, &problem.code), printable(&problem.message)));
    }
    say(&format!(
        "Its nodes: umbel ctl node --site {0}; its models: umbel ctl model --site {0}",
        edge.edge_id
    ));
    Ok(())
}

fn short(digest: &str) -> &str {
    digest.get(..16).unwrap_or(digest)
}

async fn revoke(ctl: &Ctl, name: &str, confirm: Option<&str>) -> Outcome {
    let reason = ctl.reason_for("revoking a site's credential")?;
    let edges = ctl.client.edges().await?;
    if !edges.iter().any(|edge| edge.edge_id == name) {
        return Err(Failure::new(
            Exit::NotFound,
            format!("there is no site `{name}`; its whole name is needed here"),
        )
        .remedy(LIST));
    }
    if ctl.global.dry_run {
        say(&format!(
            "Would revoke the credential of {name} at this control plane and close its connection."
        ));
        return Ok(());
    }
    let what = format!("revoking ends the connection of {name}; its edge must enroll anew to come back");
    ctl.confirm_name(confirm, name, &what)?;
    let body = ReasonBody { reason: reason.to_owned() };
    let path = format!("{PATH}/{}/credential:revoke", segment(name));
    let answer = ctl.client.post(&path, &[], &body, std::time::Duration::ZERO).await?;
    if !ctl.put_object(answer.raw()?) {
        say(&format!(
            "The credential of {name} is revoked here; the site keeps serving.\n\
             To let it back: umbel ctl edge token create {name}, then umbel edge enroll on its host"
        ));
    }
    Ok(())
}

fn token_state(state: EnrollmentState) -> &'static str {
    match state {
        EnrollmentState::Open => "open",
        EnrollmentState::Used => "used",
        EnrollmentState::Revoked => "revoked",
        EnrollmentState::Expired => "expired",
    }
}

async fn tokens(ctl: &Ctl) -> Outcome {
    let answer = ctl.client.get(TOKENS).await?;
    if ctl.put_list(&members(answer.raw()?, "items")) {
        return Ok(());
    }
    let tokens = answer.parse::<Page<EdgeEnrollmentObject>>()?.items;
    if ctl.global.output == Format::Name {
        ctl.put_names(tokens.iter().map(|token| token.token_id.as_str()));
        return Ok(());
    }
    let mut table = Table::new(vec![
        Column::left("ID"),
        Column::left("SITE"),
        Column::state("STATE"),
        Column::left("EXPIRES"),
        Column::number("AGE"),
        Column::left("BY"),
        Column::left("USED").wide(),
    ]);
    for token in tokens {
        table.row(vec![
            token.token_id,
            token.edge_id,
            token_state(token.state).to_owned(),
            utc(Some(token.expires_at)),
            ago(Some(token.created_at)),
            token.created_by,
            utc(token.used_at),
        ]);
    }
    ctl.put_table(&table, "No token. Make one: umbel ctl edge token create SITE");
    Ok(())
}

async fn revoke_token(ctl: &Ctl, id: &str) -> Outcome {
    let reason = ctl.reason_for("revoking a token")?;
    let tokens = ctl.client.get(TOKENS).await?.parse::<Page<EdgeEnrollmentObject>>()?.items;
    let what = "token";
    let picked = pick::placed(
        tokens,
        id,
        what,
        |t| vec![t.token_id.clone()],
        |t| t.edge_id.clone(),
        "umbel ctl edge token list",
    )?;
    let id = picked.item.token_id;
    if !picked.exact {
        ctl.confirm(&format!("Revoke the token {id} for {}?", picked.item.edge_id))?;
    }
    if ctl.global.dry_run {
        say(&format!("Would revoke {}.", count(1, "token")));
        return Ok(());
    }
    let path = format!("{TOKENS}/{}", segment(&id));
    let answer = ctl.client.delete(&path, &ReasonBody { reason: reason.to_owned() }).await?;
    if !ctl.put_object(answer.raw()?) {
        say(&format!("The token {id} for {} is revoked.", picked.item.edge_id));
    }
    Ok(())
}
