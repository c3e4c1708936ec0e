//! `umbel ctl`: the operator's client.
//!
//! Owns which server is asked, which sites are meant, and what every noun has in common. Leaves the words of each
//! noun to its own file. Invariant: what a write is about is one thing, named in full or confirmed.

mod artifact;
mod audit;
mod away;
mod ca;
mod command;
mod edge;
mod engine;
mod events;
mod gather;
mod job;
mod key;
mod model;
mod node;
mod operator;
mod pick;
mod progress;
mod queue;
mod request;
mod settings;
mod status;
mod token;

use std::{
    io::{BufRead as _, IsTerminal as _, Write as _},
    time::Duration,
};

use serde_json::value::RawValue;
use umbel_contracts::objects::EdgeObject;

use crate::{
    args::{ArtifactVerb, CtlArgs, Global, Noun},
    client::{Client, find_server, interactive},
    exit::{Exit, Failure, Outcome},
    mint::Manner,
    output::{Format, Style, Table, line, put, say, width},
};

/// What every command of `ctl` works with.
#[derive(Debug)]
pub(crate) struct Ctl {
    pub(crate) client: Client,
    pub(crate) global: Global,
    pub(crate) style: Style,
}

/// Runs one command of `ctl`.
pub(crate) async fn run(args: CtlArgs) -> Outcome {
    if args.global.output == Format::Name && !has_names(&args.noun) {
        return Err(Failure::usage("this prints no list of names: use -o table, json or yaml"));
    }
    // It asks no server of ours.
    if let Noun::Artifact { verb: Some(ArtifactVerb::Resolve(resolve)), .. } = &args.noun {
        return artifact::resolve(&args.global, resolve).await;
    }
    let server = find_server(&args.global)?;
    let style = Style::stdout(args.global.color);
    let ctl = Ctl { client: Client::new(server, args.global.timeout), global: args.global, style };
    let Some(every) = ctl.global.watch else { return ctl.once(&args.noun).await };
    if !is_list(&args.noun) {
        return Err(Failure::usage(
            "--watch repeats lists and details; this command changes something or follows by itself",
        ));
    }
    loop {
        if interactive() {
            // Home, then clear what is below: the screen does not flicker.
            put("\u{1b}[H\u{1b}[2J");
        }
        match ctl.once(&args.noun).await {
            Ok(()) => {}
            // A server that restarts is part of what one watches.
            Err(failure) if matches!(failure.exit(), Exit::Unreachable | Exit::TimedOut) => {
                say(&failure.to_string())
            }
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(every.max(Duration::from_millis(200))).await;
    }
}

/// Whether there is something that `-o name` could print; where nothing is printed anyway, nothing is wrong with it.
fn has_names(noun: &Noun) -> bool {
    use crate::args::{AuditVerb, KeyVerb, ModelVerb, NodeVerb, SettingsVerb};
    !matches!(
        noun,
        Noun::Key { verb: Some(KeyVerb::Usage(_)), .. }
            | Noun::Artifact { verb: Some(ArtifactVerb::Resolve(_)), .. }
            | Noun::Node { verb: Some(NodeVerb::Why { .. }), .. }
            | Noun::Model { verb: Some(ModelVerb::Why { .. } | ModelVerb::Plan { .. }), .. }
            | Noun::Engine { verb: Some(crate::args::EngineVerb::Logs { .. }), .. }
            | Noun::Audit { verb: Some(AuditVerb::Verify { .. }), .. }
            | Noun::Settings { verb: Some(SettingsVerb::Status { .. } | SettingsVerb::Diff { .. }) }
    )
}

/// Whether the command only reads and ends by itself.
fn is_list(noun: &Noun) -> bool {
    use crate::args::{
        CaVerb, CommandVerb, EdgeTokenVerb, EdgeVerb, EngineVerb, KeyVerb, ModelVerb, NodeVerb, OperatorVerb,
        SettingsVerb, TokenVerb,
    };
    match noun {
        Noun::Status { .. } | Noun::Queue { .. } | Noun::Audit { verb: None, .. } => true,
        Noun::Model { verb, .. } => matches!(
            verb,
            None | Some(
                ModelVerb::List | ModelVerb::Show { .. } | ModelVerb::Why { .. } | ModelVerb::Plan { .. }
            )
        ),
        Noun::Engine { verb, .. } => matches!(verb, None | Some(EngineVerb::List | EngineVerb::Show { .. })),
        Noun::Audit { .. } => false,
        Noun::Ca { verb } => matches!(verb, None | Some(CaVerb::Show)),
        Noun::Settings { verb } => matches!(
            verb,
            None | Some(
                SettingsVerb::Show { .. } | SettingsVerb::Status { .. } | SettingsVerb::History { .. }
            )
        ),
        Noun::Job { verb, .. } => {
            matches!(verb, None | Some(crate::args::JobVerb::List { .. } | crate::args::JobVerb::Show { .. }))
        }
        Noun::Request { verb, .. } => !matches!(verb, Some(crate::args::RequestVerb::Release { .. })),
        Noun::Artifact { verb, .. } => matches!(verb, None | Some(ArtifactVerb::List { .. })),
        Noun::Events(_) => false,
        Noun::Edge { verb, .. } => matches!(
            verb,
            None | Some(
                EdgeVerb::List
                    | EdgeVerb::Show { .. }
                    | EdgeVerb::Token { verb: None | Some(EdgeTokenVerb::List) }
            )
        ),
        Noun::Node { verb, .. } => {
            matches!(verb, None | Some(NodeVerb::List { .. } | NodeVerb::Show { .. } | NodeVerb::Why { .. }))
        }
        Noun::Command { verb, .. } => matches!(verb, None | Some(CommandVerb::Show { .. })),
        Noun::Token { verb, .. } => matches!(verb, None | Some(TokenVerb::List)),
        Noun::Key { verb, .. } => {
            matches!(verb, None | Some(KeyVerb::List | KeyVerb::Show { .. } | KeyVerb::Usage(_)))
        }
        Noun::Operator { verb, .. } => matches!(verb, None | Some(OperatorVerb::List)),
    }
}

impl Ctl {
    async fn once(&self, noun: &Noun) -> Outcome {
        match noun {
            Noun::Status { check } => status::run(self, *check).await,
            Noun::Edge { name, verb } => edge::run(self, name.as_deref(), verb.as_ref()).await,
            Noun::Node { name, verb } => node::run(self, name.as_deref(), verb.as_ref()).await,
            Noun::Command { id, verb } => command::run(self, id.as_deref(), verb.as_ref()).await,
            Noun::Events(args) => events::run(self, args).await,
            Noun::Token { id, verb } => token::run(self, id.as_deref(), verb.as_ref()).await,
            Noun::Key { id, verb } => key::run(self, id.as_deref(), verb.as_ref()).await,
            Noun::Operator { id, verb } => operator::run(self, id.as_deref(), verb.as_ref()).await,
            Noun::Model { name, verb } => model::run(self, name.as_deref(), verb.as_ref()).await,
            Noun::Engine { name, verb } => engine::run(self, name.as_deref(), verb.as_ref()).await,
            Noun::Queue { model } => queue::run(self, model.as_deref()).await,
            Noun::Job { id, filter, verb } => job::run(self, id.as_deref(), filter, verb.as_ref()).await,
            Noun::Request { id, filter, verb } => {
                request::run(self, id.as_deref(), filter, verb.as_ref()).await
            }
            Noun::Artifact { filter, verb } => artifact::run(self, filter, verb.as_ref()).await,
            Noun::Settings { verb } => settings::run(self, verb.as_ref()).await,
            Noun::Audit { filter, limit, verb } => audit::run(self, filter, *limit, verb.as_ref()).await,
            Noun::Ca { verb } => ca::run(self, verb.as_ref()).await,
        }
    }

    /// The sites that `--site` means; all of them without it.
    pub(crate) async fn sites(&self) -> Outcome<Vec<EdgeObject>> {
        let edges = self.client.edges().await?;
        let Some(wanted) = self.global.site.as_deref() else { return Ok(edges) };
        let names: Vec<String> = edges.iter().map(|edge| edge.edge_id.clone()).collect();
        let meant = pick::sites(&names, wanted)?;
        Ok(edges.into_iter().filter(|edge| meant.contains(&edge.edge_id)).collect())
    }

    /// The one site that a write goes to: `--site`, or the only one there is.
    pub(crate) async fn one_site(&self) -> Outcome<String> {
        let mut names: Vec<String> = self.sites().await?.into_iter().map(|edge| edge.edge_id).collect();
        match names.len() {
            0 => Err(Failure::new(Exit::NotFound, "there is no site yet")
                .remedy("umbel ctl edge token create SITE, then on its host: umbel edge enroll")),
            1 => Ok(names.remove(0)),
            _ => Err(Failure::usage("which site? name one with --site").candidates(names)),
        }
    }

    /// How a write is sent.
    pub(crate) fn manner(&self) -> Manner {
        Manner {
            reason: self.global.reason.clone(),
            dry_run: self.global.dry_run,
            command_id: self.global.command_id.map(|id| id.to_string()),
        }
    }

    /// The reason, where one is required.
    pub(crate) fn reason_for(&self, act: &str) -> Outcome<&str> {
        let reason = self.global.reason.as_deref().map(str::trim).filter(|reason| !reason.is_empty());
        reason.ok_or_else(|| {
            Failure::usage(format!("{act} needs a reason: it is kept in the audit and shown to others"))
                .remedy("-m 'why'")
        })
    }

    /// Asks before something that was not named in full; on no terminal the flag must say it.
    pub(crate) fn confirm(&self, question: &str) -> Outcome {
        if self.global.yes || self.global.dry_run {
            return Ok(());
        }
        if !std::io::stdin().is_terminal() {
            return Err(Failure::usage(format!("{question} Nobody is here to answer"))
                .remedy("name it in full, or add --yes"));
        }
        let mut err = std::io::stderr().lock();
        write!(err, "{question} [y/N] ")?;
        err.flush()?;
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        if matches!(answer.trim(), "y" | "Y" | "yes") { Ok(()) } else { Err(Failure::failed("not done")) }
    }

    /// Asks before something is changed of which only the start of the name was said. A script that says --yes to everything
    /// has not seen what it means today: `k5`, gone since, would be `k50`.
    pub(crate) fn confirm_half(&self, question: &str) -> Outcome {
        if self.global.dry_run {
            return Ok(());
        }
        if self.global.yes || !std::io::stdin().is_terminal() {
            let says =
                format!("{question} Only the start of its name was said, and nobody is here to answer");
            return Err(Failure::usage(says).remedy("name it in full"));
        }
        self.confirm(question)
    }

    /// Has the name of what is ended for good typed once more: with the flag, or where somebody can be asked.
    pub(crate) fn confirm_name(&self, typed: Option<&str>, name: &str, what: &str) -> Outcome {
        let matches = |typed: &str| {
            if typed == name {
                return Ok(());
            }
            Err(Failure::usage(format!("`{}` is not {name}: nothing was done", typed.trim())))
        };
        if let Some(typed) = typed {
            return matches(typed);
        }
        if !std::io::stdin().is_terminal() {
            return Err(Failure::usage(what).remedy(format!("add --confirm {name}")));
        }
        let mut err = std::io::stderr().lock();
        write!(err, "{what}. Type its name to go on: ")?;
        err.flush()?;
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        matches(answer.trim_end_matches(['\r', '\n']))
    }

    /// Prints one object for programs, if that is the format.
    pub(crate) fn put_object(&self, raw: &str) -> bool {
        self.global.output.object(raw).inspect(|text| put(text)).is_some()
    }

    /// Prints a list for programs, if that is the format: one list, or one object a line.
    pub(crate) fn put_list(&self, items: &[Box<RawValue>]) -> bool {
        match self.global.output {
            Format::Jsonl => items.iter().for_each(|item| put(&line(item.get()))),
            format => {
                let all: Vec<&str> = items.iter().map(|item| item.get()).collect();
                let Some(text) = format.object(&format!("[{}]", all.join(","))) else { return false };
                put(&text);
            }
        }
        true
    }

    /// Prints a table, or what to do when it is empty.
    pub(crate) fn put_table(&self, table: &Table, empty: &str) {
        if table.is_empty() {
            say(empty);
            return;
        }
        put(&table.render(self.global.output == Format::Wide, width(), self.style));
    }

    /// Prints names, one a line.
    pub(crate) fn put_names<'a>(&self, names: impl Iterator<Item = &'a str>) {
        for name in names {
            put(&crate::output::printable(name));
        }
    }
}

/// A selector of nodes: one name alone is that node's.
pub(crate) fn nodes(text: &str) -> String {
    if text.is_empty() || text == "all" || text.contains(':') {
        text.to_owned()
    } else {
        format!("node:{text}")
    }
}

/// An object with the site it came from in front: lists of several sites hold both.
pub(crate) fn with_site(site: &str, raw: &RawValue) -> Outcome<Box<RawValue>> {
    let text = raw.get().trim();
    let has = serde_json::from_str::<std::collections::BTreeMap<&str, &RawValue>>(text);
    let has = has.is_ok_and(|members| members.is_empty() || members.contains_key("edge_id"));
    let joined = match text.strip_prefix('{') {
        Some(_) if has => text.to_owned(),
        Some(rest) => format!("{{\"edge_id\":{},{rest}", serde_json::Value::from(site)),
        None => text.to_owned(),
    };
    RawValue::from_string(joined).map_err(|error| Failure::failed(error.to_string()))
}
