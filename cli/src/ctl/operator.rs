//! `ctl operator`: who may use the control plane's API, and their tokens.

use umbel_contracts::objects::{OperatorObject, Page, ReasonBody};

use super::{Ctl, pick};
use crate::{
    args::{OperatorVerb, Role},
    calls::segment,
    exit::Outcome,
    mint,
    output::{Column, Format, Table, ago, details, members, put, say, utc},
    secrets::Handover,
};

const PATH: &str = "/api/v1/operators";
const LIST: &str = "umbel ctl operator";

pub(crate) async fn run(ctl: &Ctl, id: Option<&str>, verb: Option<&OperatorVerb>) -> Outcome {
    match (verb, id) {
        (None | Some(OperatorVerb::List), None) => list(ctl).await,
        (None | Some(OperatorVerb::List), Some(id)) => show(ctl, id).await,
        (Some(OperatorVerb::Revoke { id }), _) => revoke(ctl, id).await,
        (Some(OperatorVerb::Create { name, role, out }), _) => {
            let role = match role {
                Role::Viewer => umbel_contracts::objects::Role::Viewer,
                Role::Operator => umbel_contracts::objects::Role::Operator,
                Role::Admin => umbel_contracts::objects::Role::Admin,
            };
            if ctl.global.dry_run {
                say(&format!("Would make a token for {name} with the role {}.", role.as_str()));
                return Ok(());
            }
            let handover = Handover::open(out.as_deref(), false)?;
            let made = mint::operator(&ctl.client, name, role).await?;
            if ctl.global.output.is_object() && out.is_none() {
                ctl.put_object(&made.with_secret("token")?);
                return Ok(());
            }
            handover.give(made.text.expose(), "operator token")?;
            say(&format!(
                "For {name}, role {}. Id {}.\nUse: --token-file FILE. Undo: umbel ctl operator revoke {} -m 'why'",
                role.as_str(),
                made.id,
                made.id
            ));
            Ok(())
        }
    }
}

fn state(operator: &OperatorObject) -> &'static str {
    if operator.revoked_at.is_some() { "revoked" } else { "ok" }
}

async fn list(ctl: &Ctl) -> Outcome {
    let answer = ctl.client.get(PATH).await?;
    if ctl.put_list(&members(answer.raw()?, "items")) {
        return Ok(());
    }
    let operators = answer.parse::<Page<OperatorObject>>()?.items;
    if ctl.global.output == Format::Name {
        ctl.put_names(operators.iter().map(|operator| operator.operator_id.as_str()));
        return Ok(());
    }
    let mut table = Table::new(vec![
        Column::left("ID"),
        Column::left("NAME"),
        Column::left("ROLE"),
        Column::state("STATE"),
        Column::number("AGE"),
        Column::left("BY"),
    ]);
    for operator in &operators {
        table.row(vec![
            operator.operator_id.clone(),
            operator.name.clone(),
            operator.role.as_str().to_owned(),
            state(operator).to_owned(),
            ago(Some(operator.created_at)),
            operator.created_by.clone(),
        ]);
    }
    ctl.put_table(
        &table,
        "No operator: the API refuses everybody. Make one: umbel ctl operator create NAME --role admin",
    );
    Ok(())
}

async fn find(ctl: &Ctl, id: &str) -> Outcome<pick::Picked<OperatorObject>> {
    let operators = ctl.client.get(PATH).await?.parse::<Page<OperatorObject>>()?.items;
    pick::one(operators, id, "operator", |o| vec![o.name.clone(), o.operator_id.clone()], LIST)
}

async fn show(ctl: &Ctl, id: &str) -> Outcome {
    let operator = find(ctl, id).await?.item;
    let raw = serde_json::to_string(&operator).unwrap_or_default();
    if ctl.put_object(&raw) {
        return Ok(());
    }
    if ctl.global.output == Format::Name {
        put(&operator.operator_id);
        return Ok(());
    }
    let mut lines = vec![
        ("Id", operator.operator_id.clone()),
        ("Name", operator.name.clone()),
        ("Role", operator.role.as_str().to_owned()),
        ("State", state(&operator).to_owned()),
        ("Made", format!("{} by {}", utc(Some(operator.created_at)), operator.created_by)),
    ];
    if operator.revoked_at.is_some() {
        lines.push(("Revoked", utc(operator.revoked_at)));
    }
    put(&details(&lines));
    Ok(())
}

async fn revoke(ctl: &Ctl, id: &str) -> Outcome {
    let reason = ctl.reason_for("revoking an operator's token")?;
    let picked = find(ctl, id).await?;
    let operator = picked.item;
    if !picked.exact {
        ctl.confirm_half(&format!("Revoke the token of {} ({})?", operator.name, operator.operator_id))?;
    }
    if ctl.global.dry_run {
        say(&format!("Would revoke the token of {} ({}).", operator.name, operator.operator_id));
        return Ok(());
    }
    let path = format!("{PATH}/{}", segment(&operator.operator_id));
    let answer = ctl.client.delete(&path, &ReasonBody { reason: reason.to_owned() }).await?;
    if !ctl.put_object(answer.raw()?) {
        say(&format!("The token of {} ({}) opens nothing any more.", operator.name, operator.operator_id));
    }
    Ok(())
}
