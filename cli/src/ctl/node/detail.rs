//! `ctl node NAME`, its last part: what the node can run, which files it has, and what it does now.
//!
//! Invariant: a version that is not known is not made up, and an older edge that says none of this shows nothing.

use umbel_contracts::objects::{NodeDetailObject, NodeObject};

use crate::{
    ctl::{Ctl, job},
    output::{Column, Format, Table, ago, bytes, details, put, short, short_subject, width},
};

pub(super) fn show(ctl: &Ctl, node: &NodeObject) {
    let Some(detail) = &node.detail else { return };
    put(&format!("\n{}", details(&[("Can run", runtimes(detail))])));
    let wide = ctl.global.output == Format::Wide;
    for table in [artifacts(detail), jobs(detail)].into_iter().filter(|table| !table.is_empty()) {
        put(&format!("\n{}", table.render(wide, width(), ctl.style)));
    }
}

fn runtimes(detail: &NodeDetailObject) -> String {
    let each = detail.runtimes.iter().map(|one| {
        let installed = one.engine_version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
        // An older agent tells a number there that says nothing about the engine.
        let options = one.adapter_version.as_deref().filter(|version| version.len() > 2);
        let options = options.map(|version| format!(" (options of {version})")).unwrap_or_default();
        format!("{}{installed}{options}", one.kind)
    });
    let all: Vec<String> = each.collect();
    if all.is_empty() { "no engine".to_owned() } else { all.join(", ") }
}

fn artifacts(detail: &NodeDetailObject) -> Table {
    let mut table = Table::new(vec![
        Column::left("ARTIFACT"),
        Column::left("REVISION"),
        Column::number("SIZE"),
        Column::number("FILES"),
        Column::left("ROOT"),
        Column::left("DIGEST").wide(),
        Column::left("FOLDER").wide(),
    ]);
    for one in &detail.artifacts {
        table.row(vec![
            one.repository.clone(),
            short(&one.revision),
            bytes(one.bytes),
            one.files.to_string(),
            one.root.clone(),
            one.digest.clone(),
            one.folder.clone(),
        ]);
    }
    table
}

fn jobs(detail: &NodeDetailObject) -> Table {
    let mut table = Table::new(vec![
        Column::left("JOB"),
        Column::number("AGE"),
        Column::state("STATE"),
        Column::left("KIND"),
        Column::text("SUBJECT"),
        Column::text("NOW"),
    ]);
    for one in &detail.jobs {
        table.row(vec![
            one.job_id.clone(),
            ago(Some(one.submitted_at)),
            one.state.as_str().to_owned(),
            one.kind.clone(),
            short_subject(&one.subject),
            job::now(one),
        ]);
    }
    table
}
