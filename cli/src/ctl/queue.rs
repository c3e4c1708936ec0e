//! `ctl queue`: requests that wait and run, a model each, as every site last said.

use umbel_contracts::objects::SiteStatus;

use super::Ctl;
use crate::{
    calls::segment,
    exit::{Exit, Failure, Outcome},
    output::{Column, Format, Table, duration_ms, members},
};

pub(crate) async fn run(ctl: &Ctl, model: Option<&str>) -> Outcome {
    let mut raws = Vec::new();
    let mut silent = Vec::new();
    let mut table = Table::new(vec![
        Column::left("SITE"),
        Column::left("MODEL"),
        Column::number("WAITING"),
        Column::number("OLDEST"),
        Column::number("RUNNING"),
        Column::number("ADMITTED"),
        Column::number("SHED"),
    ]);
    let mut names = Vec::new();
    for edge in ctl.sites().await? {
        let path = format!("/api/v1/edges/{}/status?sections=queues", segment(&edge.edge_id));
        let answer = match ctl.client.get(&path).await {
            Ok(answer) => answer,
            Err(failure) if matches!(failure.exit(), Exit::Unreachable | Exit::TimedOut) => {
                silent.push(edge.edge_id);
                continue;
            }
            Err(failure) => return Err(failure),
        };
        let status: SiteStatus = answer.parse()?;
        let Some(queues) = status.queues else {
            silent.push(edge.edge_id);
            continue;
        };
        for (queue, raw) in queues.into_iter().zip(members(answer.raw()?, "queues")) {
            if model.is_some_and(|model| !queue.model.starts_with(model)) {
                continue;
            }
            raws.push(super::with_site(&edge.edge_id, &raw)?);
            table.row(vec![
                edge.edge_id.clone(),
                queue.model.clone(),
                queue.depth.to_string(),
                if queue.depth == 0 { String::new() } else { duration_ms(queue.oldest_age_ms) },
                queue.in_flight.to_string(),
                queue.admitted_total.to_string(),
                queue.shed_total.to_string(),
            ]);
            names.push(queue.model);
        }
    }
    if let (Some(model), true, true) = (model, names.is_empty(), silent.is_empty()) {
        return Err(
            Failure::new(Exit::NotFound, format!("no model `{model}` is served")).remedy("umbel ctl queue")
        );
    }
    if ctl.global.output == Format::Name {
        ctl.put_names(names.iter().map(String::as_str));
    } else if !ctl.put_list(&raws) {
        // A site that did not answer may well serve: then the note below is all that is known.
        if silent.is_empty() || !names.is_empty() {
            ctl.put_table(&table, "No model is served. See: umbel ctl node");
        }
    }
    super::gather::silent(&silent, "queues")
}
