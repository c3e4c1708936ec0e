//! One reading operation asked of several sites at once, each answering for itself.
//!
//! Invariant: a site that does not answer hides nothing of the others and is always named.

use futures_util::StreamExt as _;
use serde_json::{Map, Value, value::RawValue};

use super::{Ctl, with_site};
use crate::{
    calls::Call,
    exit::{Exit, Failure, Outcome},
    output::{members, say},
};

/// Sites asked at the same time.
const AT_ONCE: usize = 16;
/// Entries on one page.
const PAGE: u32 = 1000;

/// What the sites said.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// Each entry with its site, as the site wrote it.
    pub(crate) items: Vec<(String, Box<RawValue>)>,
    /// Sites that did not answer.
    pub(crate) silent: Vec<String>,
}

impl Gathered {
    /// The entries for `-o json`, each with its site.
    pub(crate) fn raws(&self) -> Outcome<Vec<Box<RawValue>>> {
        self.items.iter().map(|(site, raw)| with_site(site, raw)).collect()
    }

    /// What is not found is not known to be missing while a site is silent.
    pub(crate) fn or_silent(&self, failure: Failure, wanted: &str, what: &str) -> Failure {
        if self.silent.is_empty() || failure.exit() != Exit::NotFound || failure.is_ambiguous() {
            return failure;
        }
        let said = format!("no site that answers has the {what} `{wanted}`; silent are");
        Failure::new(Exit::Unreachable, said).candidates(self.silent.clone()).remedy("umbel ctl status")
    }

    /// A failure that names the sites which did not answer, after everything else was printed.
    pub(crate) fn complete(self, what: &str) -> Outcome {
        silent(&self.silent, what)
    }
}

/// A failure that names sites which did not answer.
pub(crate) fn silent(sites: &[String], what: &str) -> Outcome {
    if sites.is_empty() {
        return Ok(());
    }
    say(&format!("note: the {what} of {} are not known now", sites.join(", ")));
    Err(Failure::new(Exit::Unreachable, "not every site answered").remedy("umbel ctl status"))
}

/// Asks the selected sites for the list that stands under `key` in the operation's result.
pub(crate) async fn gather(ctl: &Ctl, operation: &'static str, key: &str) -> Outcome<Gathered> {
    gather_with(ctl, operation, key, "", &Map::new()).await
}

/// As [`gather`], of chosen nodes, with more arguments than those of a page.
pub(crate) async fn gather_with(
    ctl: &Ctl,
    operation: &'static str,
    key: &str,
    selector: &str,
    more: &Map<String, Value>,
) -> Outcome<Gathered> {
    let sites: Vec<String> = ctl.sites().await?.into_iter().map(|edge| edge.edge_id).collect();
    let only = sites.len() == 1;
    let mut answers = futures_util::stream::iter(sites)
        .map(|site| async move { (pages(ctl, &site, operation, key, selector, more).await, site) })
        .buffered(AT_ONCE);
    let mut gathered = Gathered::default();
    while let Some((answer, site)) = answers.next().await {
        match answer {
            Ok(items) => gathered.items.extend(items.into_iter().map(|item| (site.clone(), item))),
            Err(failure) if !only && matches!(failure.exit(), Exit::Unreachable | Exit::TimedOut) => {
                gathered.silent.push(site);
            }
            Err(failure) => return Err(failure.during(&site)),
        }
    }
    Ok(gathered)
}

/// All pages of one site's list.
pub(crate) async fn pages(
    ctl: &Ctl,
    site: &str,
    operation: &'static str,
    key: &str,
    selector: &str,
    more: &Map<String, Value>,
) -> Outcome<Vec<Box<RawValue>>> {
    #[derive(serde::Deserialize)]
    struct Next {
        next_cursor: Option<String>,
    }
    let mut items = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let mut args = more.clone();
        args.insert("limit".to_owned(), PAGE.into());
        if let Some(cursor) = &cursor {
            args.insert("cursor".to_owned(), cursor.as_str().into());
        }
        let call = Call { selector: selector.to_owned(), ..Call::new(operation) }.args(&args)?;
        let told = ctl.client.ask(site, &call).await?;
        let raw = told.result_raw()?;
        items.extend(members(&raw, key));
        let next: Next = told.result()?;
        if next.next_cursor.is_none() || next.next_cursor == cursor {
            return Ok(items);
        }
        cursor = next.next_cursor;
    }
}
