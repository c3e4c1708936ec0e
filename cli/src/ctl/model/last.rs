//! What silent sites last said of their deployments, as their control plane keeps it.
//!
//! Owns how that is marked. Invariant: nothing of it is taken for what is so now: people see a `?` and the age, programs
//! `freshness` and `age_ms`, which what a site said itself does not have.

use serde_json::{json, value::RawValue};
use umbel_contracts::objects::{DeploymentSummaryObject, EdgeConnection};

use crate::{
    ctl::Ctl,
    exit::{Exit, Failure, Outcome},
    output::{age_ms, details, say},
};

/// A deployment in a line, its site, and since when that is not known to be so.
pub(super) struct Last {
    site: String,
    freshness: &'static str,
    age_ms: Option<u64>,
    one: DeploymentSummaryObject,
}

/// Of those sites that did not answer; what had no room in their last word is said.
pub(super) async fn said(ctl: &Ctl, silent: &[String]) -> Outcome<Vec<Last>> {
    let mut all = Vec::new();
    if silent.is_empty() {
        return Ok(all);
    }
    for edge in ctl.sites().await?.into_iter().filter(|edge| silent.contains(&edge.edge_id)) {
        let Some(figures) = edge.last_summary.and_then(|summary| summary.deployments) else { continue };
        let freshness = match edge.connection {
            EdgeConnection::Connected | EdgeConnection::Stale => "timed_out",
            EdgeConnection::Disconnected | EdgeConnection::Never => "disconnected",
        };
        let left = usize::try_from(figures.total).unwrap_or(0).saturating_sub(figures.listed.len());
        if left > 0 {
            say(&format!(
                "note: of {left} deployments of {} not even the last state is known here",
                edge.edge_id
            ));
        }
        let last =
            |one| Last { site: edge.edge_id.clone(), freshness, age_ms: edge.last_summary_age_ms, one };
        all.extend(figures.listed.into_iter().map(last));
    }
    Ok(all)
}

impl Last {
    /// One row of the list.
    pub(super) fn row(&self) -> Vec<String> {
        let unknown = || "?".to_owned();
        vec![
            self.one.name.clone(),
            self.site.clone(),
            self.one.model.clone(),
            unknown(),
            format!("{} ?", self.one.state.as_str()),
            format!("{}/{} ?", self.one.ready, self.one.wanted),
            unknown(),
            unknown(),
            unknown(),
            format!("as its site last said, {} ago", age_ms(self.age_ms)),
        ]
    }

    /// For programs.
    pub(super) fn raw(&self) -> Outcome<Box<RawValue>> {
        let object = json!({
            "edge_id": self.site, "name": self.one.name, "model": self.one.model, "state": self.one.state.as_str(),
            "wanted": self.one.wanted, "ready": self.one.ready, "freshness": self.freshness, "age_ms": self.age_ms,
        });
        RawValue::from_string(object.to_string()).map_err(|error| Failure::failed(error.to_string()))
    }
}

/// Shows the one of that name that a silent site has, if there is one, and ends as what cannot be asked.
pub(super) async fn show(ctl: &Ctl, silent: &[String], name: &str) -> Outcome {
    let all = said(ctl, silent).await?;
    let unknown = || {
        Failure::new(Exit::Unreachable, format!("no site that answers has a deployment `{name}`; silent are"))
    };
    let Some(last) = all.iter().find(|last| last.one.name == name) else {
        return Err(unknown().candidates(silent.to_vec()).remedy("umbel ctl status"));
    };
    let age = age_ms(last.age_ms);
    if !ctl.put_object(last.raw()?.get()) {
        crate::output::put(&details(&[
            ("Name", last.one.name.clone()),
            ("Site", last.site.clone()),
            ("Model", last.one.model.clone()),
            ("State", format!("{} ?", last.one.state.as_str())),
            ("Ready", format!("{} of {} ?", last.one.ready, last.one.wanted)),
            ("Known", format!("as its site last said, {age} ago")),
        ]));
    }
    Err(Failure::new(
        Exit::Unreachable,
        format!("{} does not answer: this is what it last said, {age} ago", last.site),
    )
    .remedy("umbel ctl status"))
}
