//! `ctl ca`: a site's certificate authority, and the steps of changing it.
//!
//! Invariant: a step that shuts nodes out, or that cannot be taken back, is asked for first.

use umbel_contracts::operations::{CaResult, CaRotateArgs, CaStep};

use super::{Ctl, command};
use crate::{
    args::{CaVerb, Step},
    calls::Call,
    exit::Outcome,
    output::{Column, Format, Table, ago, count, details, put, utc, width},
};

pub(crate) async fn run(ctl: &Ctl, verb: Option<&CaVerb>) -> Outcome {
    match verb {
        None | Some(CaVerb::Show) => show(ctl).await,
        Some(CaVerb::Rotate { step, leave_behind }) => rotate(ctl, *step, *leave_behind).await,
    }
}

async fn show(ctl: &Ctl) -> Outcome {
    let site = ctl.one_site().await?;
    let told = ctl.client.ask(&site, &Call::new("ca.show")).await?;
    let raw = told.result_raw()?;
    if ctl.put_object(&raw) {
        return Ok(());
    }
    let ca: CaResult = told.result()?;
    if ctl.global.output == Format::Name {
        ctl.put_names(ca.authorities.iter().map(|authority| authority.sha256.as_str()));
        return Ok(());
    }
    put(&details(&[
        ("Site", site),
        ("Change", ca.phase.clone()),
        ("Old certificates", ca.old_certificates.to_string()),
        ("Next", ca.next_step.clone()),
    ]));
    let wide = ctl.global.output == Format::Wide;
    let mut table = Table::new(vec![
        Column::left("AUTHORITY (SHA-256)"),
        Column::state("SIGNS"),
        Column::left("FROM"),
        Column::left("UNTIL"),
    ]);
    for authority in &ca.authorities {
        table.row(vec![
            authority.sha256.clone(),
            if authority.signs { "yes" } else { "no" }.to_owned(),
            utc(Some(authority.not_before)),
            utc(Some(authority.not_after)),
        ]);
    }
    put(&format!("\n{}", table.render(wide, width(), ctl.style)));
    if ca.lacking.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(vec![
        Column::left("LACKS THE NEWEST"),
        Column::state("STATE"),
        Column::number("SEEN"),
        Column::left("ID"),
    ]);
    for node in &ca.lacking {
        table.row(vec![
            node.name.clone(),
            node.state.clone(),
            node.last_seen_at.map_or_else(|| "never".to_owned(), |at| ago(Some(at))),
            node.node_id.clone(),
        ]);
    }
    put(&format!("\n{}", table.render(wide, width(), ctl.style)));
    Ok(())
}

async fn rotate(ctl: &Ctl, step: Step, leave_behind: bool) -> Outcome {
    let site = ctl.one_site().await?;
    let (step, question, done) = match step {
        Step::Begin => (
            CaStep::Begin,
            None,
            "The new authority is made and told to the nodes. When none lacks it (umbel ctl ca): umbel ctl ca rotate switch",
        ),
        Step::Switch => (
            CaStep::Switch,
            None,
            "The new authority signs; nodes get new certificates. When none has an old one (umbel ctl ca): umbel ctl ca \
             rotate finish",
        ),
        Step::Finish => (
            CaStep::Finish,
            Some(format!("The old authority of {site} is trusted no more after this, for good. Go on?")),
            "Only the new authority is trusted.",
        ),
        Step::Abort => (CaStep::Abort, None, "The new authority is taken back."),
    };
    if leave_behind {
        let told = ctl.client.ask(&site, &Call::new("ca.show")).await?;
        let lacking = told.result::<CaResult>()?.lacking;
        if !lacking.is_empty() {
            let names: Vec<&str> = lacking.iter().map(|node| node.name.as_str()).collect();
            let many = count(lacking.len(), "node");
            ctl.confirm(&format!("{many} must be enrolled anew afterwards: {}. Go on?", names.join(", ")))?;
        }
    }
    if let Some(question) = question {
        ctl.confirm(&question)?;
    }
    let call = Call::new("ca.rotate")
        .args(&CaRotateArgs { step, leave_behind })?
        .reason(ctl.global.reason.as_deref())
        .dry_run(ctl.global.dry_run);
    if ctl.global.dry_run {
        return command::send(ctl, &site, &call, "Nothing was changed: this step can be taken now.").await;
    }
    command::send(ctl, &site, &call, done).await
}
