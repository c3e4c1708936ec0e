//! `ctl events`: what happens at the sites, the latest first few and then, with `-f`, as it happens.
//!
//! Invariant: a gap is told, never hidden; after a lost connection it goes on after the last event seen.

use std::{collections::BTreeMap, time::Duration};

use umbel_contracts::objects::{EventGap, EventObject, FleetNodes};

use super::{Ctl, pick};
use crate::{
    args::EventsArgs,
    client::{Event, parse},
    exit::{Exit, Failure, Outcome},
    output::{Column, Format, Table, clock, line, put, say, width},
};

const AGAIN: Duration = Duration::from_secs(1);

pub(crate) async fn run(ctl: &Ctl, args: &EventsArgs) -> Outcome {
    let sites = match ctl.global.site.as_deref() {
        None | Some("all") => None,
        Some(wanted) => {
            let names: Vec<String> = ctl.client.edges().await?.into_iter().map(|edge| edge.edge_id).collect();
            Some(pick::sites(&names, wanted)?)
        }
    };
    let mut after = args.after.clone();
    let mut recent = args.recent;
    let mut reader = Reader::new(ctl, sites);
    loop {
        let path = format!("/api/v1/events?recent={recent}&follow={}", args.follow);
        let lost = match ctl.client.events(&path, after.as_deref()).await {
            Ok(mut events) => loop {
                let next = tokio::select! {
                    next = events.next() => next,
                    _ = tokio::signal::ctrl_c() => return reader.end(true),
                };
                match next {
                    Ok(Some(event)) => {
                        after = event.id.clone().or(after);
                        reader.take(&event).await?;
                    }
                    Ok(None) => break None,
                    Err(failure) => break Some(failure),
                }
            },
            Err(failure) if args.follow && reader.began && failure.exit() == Exit::Unreachable => {
                Some(failure)
            }
            Err(failure) => return Err(failure),
        };
        if !args.follow {
            return match lost {
                None => reader.end(false),
                Some(failure) => Err(failure),
            };
        }
        reader.broke_off(after.as_deref());
        recent = 0;
        tokio::select! {
            () = tokio::time::sleep(AGAIN) => {}
            _ = tokio::signal::ctrl_c() => return reader.end(true),
        }
    }
}

struct Reader<'a> {
    ctl: &'a Ctl,
    sites: Option<Vec<String>>,
    began: bool,
    told_loss: bool,
    json: Vec<String>,
    /// Names of nodes by id, asked for when an unknown one turns up.
    names: BTreeMap<String, String>,
}

impl<'a> Reader<'a> {
    fn new(ctl: &'a Ctl, sites: Option<Vec<String>>) -> Self {
        Reader { ctl, sites, began: false, told_loss: false, json: Vec::new(), names: BTreeMap::new() }
    }

    async fn take(&mut self, event: &Event) -> Outcome {
        self.told_loss = false;
        if event.name == "gap" {
            let gap: EventGap = parse(&event.data)?;
            let many =
                gap.lost.map_or("an unknown number of events".to_owned(), |lost| format!("{lost} events"));
            say(&format!("-- {many} were missed --"));
            return Ok(());
        }
        let object: EventObject = parse(&event.data)?;
        if self.sites.as_ref().is_some_and(|sites| !sites.contains(&object.edge_id)) {
            return Ok(());
        }
        match self.ctl.global.output {
            Format::Jsonl => put(&line(&with_id(event))),
            // An endless array would never be valid JSON, so a followed list is one object a line.
            Format::Json | Format::Yaml => self.json.push(with_id(event)),
            Format::Name => put(event.id.as_deref().unwrap_or_default()),
            Format::Table | Format::Wide => self.row(&object).await,
        }
        self.began = true;
        Ok(())
    }

    /// What an event is about, as people call it: a node's name, or NODE/ENGINE, or a deployment.
    async fn about(&mut self, event: &EventObject) -> String {
        let Some(node_id) = &event.node_id else { return event.deployment.clone().unwrap_or_default() };
        if !self.names.contains_key(node_id) {
            // Once an id: a node that nobody names any more keeps the end of its id, which no other has.
            let end = node_id.rsplit('-').next().unwrap_or_default();
            self.names.insert(node_id.clone(), end.to_owned());
            if let Ok(nodes) = self.nodes().await {
                self.names.extend(nodes.items.into_iter().map(|item| (item.node.node_id, item.node.name)));
            }
        }
        let name = self.names.get(node_id).cloned().unwrap_or_default();
        match event.provider_id.as_deref().and_then(|id| id.strip_prefix(node_id.as_str())) {
            Some(engine) => format!("{name}{engine}"),
            None => name,
        }
    }

    async fn nodes(&self) -> Outcome<FleetNodes> {
        self.ctl.client.get("/api/v1/nodes").await?.parse()
    }

    async fn row(&mut self, event: &EventObject) {
        let about = self.about(event).await;
        let mut table = Table::new(vec![
            Column::left("TIME"),
            Column::left("SITE"),
            Column::left("KIND"),
            Column::left("ABOUT"),
            Column::text("MESSAGE").kept(),
        ]);
        // Rows come one by one: the widths cannot wait for all.
        table.row(vec![
            clock(event.at),
            format!("{:<10}", event.edge_id),
            format!("{:<18}", event.kind),
            format!("{about:<14}"),
            event.message.clone(),
        ]);
        let text = table.render(self.ctl.global.output == Format::Wide, width(), self.ctl.style);
        let rows = if self.began { text.split_once('\n').map_or("", |(_, rows)| rows) } else { &text };
        put(rows);
    }

    fn broke_off(&mut self, after: Option<&str>) {
        if !std::mem::replace(&mut self.told_loss, true) {
            say(&format!("-- the connection was lost, resuming after {} --", after.unwrap_or("now")));
        }
    }

    fn end(self, interrupted: bool) -> Outcome {
        if let Format::Json | Format::Yaml = self.ctl.global.output {
            self.ctl.put_object(&format!("[{}]", self.json.join(",")));
        } else if !self.began && !interrupted {
            say("No events yet. Follow what comes: umbel ctl events -f");
        }
        if interrupted { Err(Failure::new(Exit::Interrupted, "")) } else { Ok(()) }
    }
}

/// The event's object with the id that `--after` takes.
fn with_id(event: &Event) -> String {
    let Some(id) = &event.id else { return event.data.clone() };
    let Some(rest) = event.data.trim_start().strip_prefix('{') else { return event.data.clone() };
    let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
    format!("{{\"id\":{}{comma}{rest}", serde_json::Value::from(id.as_str()))
}
