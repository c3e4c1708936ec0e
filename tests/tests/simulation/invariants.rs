//! What must be true after each step, each with a name.

use std::collections::{BTreeMap, BTreeSet};

use umbel_edge::simulation::{NodeView, OBSERVER, Operation, View, stored};
use umbel_store::AuditRecord;
use umbel_store::simulation::weight;

use super::history::Failure;
use super::world::World;

/// Faults of the program that can be switched on, and the invariant that finds each.
pub(crate) const MUTATIONS: &[(&str, &str)] = &[
    ("a late close ends the newest", "a stale close changes nothing"),
    ("a used token opens again", "a used token stays used"),
    ("a command is not stored with its effect", "what was answered is there"),
    ("a lease outlives its stream", "a lease ends with its stream"),
    ("generations begin anew", "generations only grow"),
    ("revisions begin anew", "revisions only grow"),
    ("an identity is forgotten", "an identity lasts"),
    ("a tombstone is read as a node", "a tombstone stays"),
    ("an evicted connection is not closed", "who is kept out is not in"),
    ("admission hears of nobody's silence", "no work for a node that is not online"),
    ("an answer is told twice", "a request has one answer"),
    ("a retired key still opens", "one credential a node"),
    ("a lost connection is not dialed again", "progress"),
    ("settings are in force before they are stored", "settings versions only grow"),
    ("slots are free before their streams ended", "an engine is never above its capacity"),
    ("a broken connection frees its slots", "an engine is never above its capacity"),
    ("an audit entry goes missing", "the audit's chain holds"),
    ("the audit is cut at a start", "the audit only grows"),
    ("a command is not audited", "what was answered is in the audit"),
    ("repeats are dropped", "an observation is told or counted"),
    ("a gap is not told", "a gap of the audit is told"),
    ("a stale close clears the new view", "a stale close changes nothing"),
    ("a command is queued for later", "what was unavailable never runs"),
    ("a view is kept over a restart", "a restart forgets the site"),
    ("a control plane's generations begin anew", "an edge's generations only grow"),
    ("a relayed command is not looked up", "a command runs once"),
    ("the site waits for its control plane", "the site serves without its control plane"),
];

/// What earlier steps have shown.
pub(crate) struct Judge {
    highest_generation: u64,
    revision: u64,
    settings_version: u64,
    /// By node: generation, cursors, observed telemetry; the last two since the edge started.
    nodes: BTreeMap<String, Seen>,
    tokens: BTreeMap<String, (String, String)>,
    judged_done: usize,
    /// At the control plane: the highest generation of the edge's connections.
    owned: u64,
    /// Commits, and the audit's last entry that was read.
    audited: (u64, u64),
    /// Of the edge's process: observations in the audit, and refusals that its gaps tell of.
    observed: u64,
    gaps: u64,
    /// What is in the audit now is an earlier process's.
    counts_anew: bool,
    /// Commands that ran.
    ran: BTreeSet<String>,
    fresh: bool,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    generation: u64,
    cursors: (u64, u64),
    observed: i64,
    last_seen: i64,
    gone: bool,
    /// The token of its host: another one's figures begin anew.
    host: String,
}

impl Judge {
    pub(crate) fn new() -> Self {
        Self {
            highest_generation: 0,
            revision: 0,
            settings_version: 0,
            nodes: BTreeMap::new(),
            tokens: BTreeMap::new(),
            judged_done: 0,
            owned: 0,
            audited: (0, 0),
            observed: 0,
            gaps: 0,
            counts_anew: false,
            ran: BTreeSet::new(),
            fresh: false,
        }
    }

    /// Another process of the edge: what it holds in memory only begins anew.
    pub(crate) fn restarted(&mut self) {
        self.fresh = true;
        self.counts_anew = true;
        for seen in self.nodes.values_mut() {
            (seen.cursors, seen.observed, seen.last_seen) = Default::default();
        }
    }
}

type Found = Result<(), (&'static str, String)>;

fn must(holds: bool, invariant: &'static str, what: impl FnOnce() -> String) -> Found {
    if holds { Ok(()) } else { Err((invariant, what())) }
}

impl World {
    /// Judges the world as it is now.
    pub(crate) fn look(&mut self) -> Result<(), Box<Failure>> {
        self.hand_out_tokens();
        self.judged().map_err(|(invariant, what)| self.history.failure(invariant, what))
    }

    /// Judges what only the control plane did.
    pub(crate) fn look_at_plane(&mut self) -> Result<(), Box<Failure>> {
        self.site_is_shown().map_err(|(invariant, what)| self.history.failure(invariant, what))
    }

    fn judged(&mut self) -> Found {
        must(self.people.strange.is_empty(), "a request has one answer", || {
            format!("{:?} were answered again", self.people.strange)
        })?;
        for (number, host) in self.hosts.iter().enumerate() {
            if let Some(node) = &host.process {
                let most = host.setup.capacity as usize;
                let work = node.work();
                must(work.len() <= most, "an engine is never above its capacity", || {
                    format!("node {number} works on {work:?}, at most {most}")
                })?;
            }
        }
        self.commands_ran()?;
        self.site_is_shown()?;
        let Some(edge) = &self.edge.process else { return Ok(()) };
        let view = edge.view(self.now(self.edge.clocks));
        growing(&mut self.judge, &view)?;
        views_agree(&view)?;
        for node in &view.nodes {
            of_node(&mut self.judge, node)?;
        }
        leases(&view)?;
        observed(&self.judge, &view)?;
        tokens(&mut self.judge, &view)?;
        self.hosts_are_known(&view)?;
        self.answers_are_there()
    }

    // Who was given an identity has it for ever, and a key that opens its door as long as people let it in.
    fn hosts_are_known(&self, view: &View) -> Found {
        for (number, host) in self.hosts.iter().enumerate() {
            let Some(node) = &host.process else { continue };
            let (Some(id), keys) = (node.identity(), node.keys()) else { continue };
            must(
                node.settings_version() <= view.settings_version,
                "nobody has settings that were never made",
                || {
                    format!(
                        "node {number} has {}, the newest is {}",
                        node.settings_version(),
                        view.settings_version
                    )
                },
            )?;
            let known = view.nodes.iter().find(|node| node.snapshot.node_id == id);
            must(known.is_some(), "an identity lasts", || {
                format!("node {number} is {id}, which is unknown")
            })?;
            // Unless people kept it out, copied its directory, or gave its place to another host.
            let own =
                |known: &&NodeView| known.admits && known.token_id == node.joined_with() && !host.copied;
            let Some(known) = known.filter(own) else { continue };
            let opens = keys.iter().any(|key| known.opening_keys.contains(key));
            must(opens, "one key on the node's disk is always accepted", || {
                format!("node {number} has {keys:?}, its edge takes {:?}", known.opening_keys)
            })?;
        }
        Ok(())
    }

    // Whichever way, and however often, it was asked for.
    fn commands_ran(&mut self) -> Found {
        let people = &self.people;
        must(people.contradicted.is_empty(), "a repeated command has the same answer", || {
            format!("{:?}", people.contradicted)
        })?;
        must(people.into_nothing.is_empty(), "who is not connected is unavailable at once", || {
            format!("{:?}", people.into_nothing)
        })?;
        must(people.held_up.is_empty(), "the site serves without its control plane", || {
            format!("{:?} got no slot", people.held_up)
        })?;
        self.audit_goes_on()
    }

    // Every entry follows from the one before, and none is taken back.
    fn audit_goes_on(&mut self) -> Found {
        let (commits, mut last) = self.judge.audited;
        if commits != self.edge.disk.commits() {
            let head = self.edge.disk.audit_head().unwrap_or_default();
            must(head.sequence >= last, "the audit only grows", || {
                format!("it ended at {last} and ends at {} now", head.sequence)
            })?;
            let broken = self.edge.disk.follow_audit();
            must(broken.is_none(), "the audit's chain holds", || format!("{broken:?}"))?;
            for entry in self.edge.disk.audit_after(last, 10_000).unwrap_or_default() {
                last = entry.sequence;
                self.entry(&entry.record)?;
            }
            self.judge.audited = (self.edge.disk.commits(), last);
        }
        if std::mem::take(&mut self.judge.counts_anew) {
            (self.judge.observed, self.judge.gaps) = (0, 0);
        }
        Ok(())
    }

    fn entry(&mut self, record: &AuditRecord) -> Found {
        if record.actor == OBSERVER {
            self.judge.observed += weight(record);
        }
        if record.action == "audit.gap" {
            let said =
                record.detail.split(" were refused").next().and_then(|before| before.rsplit(' ').next());
            self.judge.gaps += said.and_then(|number| number.parse::<u64>().ok()).unwrap_or_default();
        }
        let id = &record.command_id;
        if id.is_empty() {
            return Ok(());
        }
        must(!self.people.never.contains(id), "what was unavailable never runs", || format!("{id} ran"))?;
        must(!self.judge.ran.contains(id), "a command runs once", || format!("{id} ran again"))?;
        self.judge.ran.insert(id.clone());
        Ok(())
    }

    // What the control plane shows is what the edge said, as old as it is.
    fn site_is_shown(&mut self) -> Found {
        let Some(shown) = self.plane_shows() else { return Ok(()) };
        must(
            shown.accepted > 0 || (shown.never && shown.summary.is_none()),
            "a restart forgets the site",
            || format!("{shown:?}, and nobody has said hello"),
        )?;
        let (owner, viewer) = shown.owners;
        must(owner == viewer, "one owner connection an edge", || format!("{shown:?}"))?;
        must(shown.alive.is_none() || owner >= shown.alive, "a stale close changes nothing", || {
            format!("{shown:?}")
        })?;
        let highest = owner.unwrap_or(self.judge.owned);
        must(highest >= self.judge.owned, "an edge's generations only grow", || {
            format!("{shown:?} after {}", self.judge.owned)
        })?;
        self.judge.owned = highest;
        let Some((revision, at, age)) = shown.summary else { return Ok(()) };
        let said = (revision, at);
        let since = match self.plane.shows {
            Some((before, since)) if before == said => since,
            before => {
                let grows = before.is_none_or(|((before, _), _)| before <= revision);
                must(grows, "what is shown never goes back", || format!("{shown:?} after {before:?}"))?;
                self.plane.shows = Some((said, self.time));
                self.time
            }
        };
        let times = self.plane.said.get(&said).copied().unwrap_or(0);
        must(times > 0, "what is shown was said", || format!("{shown:?}"))?;
        let since = if times > 1 { self.plane.heard.max(since) } else { since };
        let least = (self.time.saturating_sub(since)).as_millis() as u64;
        must(age + 1 >= least, "an age is never understated", || format!("{shown:?}, {least} ms"))
    }

    fn answers_are_there(&mut self) -> Found {
        let done = self.people.done.len();
        let judge = &mut self.judge;
        if !std::mem::take(&mut judge.fresh) && judge.judged_done == done {
            return Ok(());
        }
        judge.judged_done = done;
        let on_disk = stored(&mut self.edge.disk);
        for (id, operation) in &self.people.done {
            let kept = on_disk.commands.contains(id);
            must(kept, "what was answered is there", || format!("{id}: {operation:?} is not on the disk"))?;
            let audited = judge.ran.contains(id);
            must(audited, "what was answered is in the audit", || format!("{id}: {operation:?} is not"))?;
            if let Operation::Mint { token_id, .. } = operation {
                must(
                    on_disk.tokens.iter().any(|(token, ..)| token == token_id),
                    "what was answered is there",
                    || format!("{token_id} is not on the disk"),
                )?;
            }
        }
        Ok(())
    }
}

fn growing(judge: &mut Judge, view: &View) -> Found {
    let highest = view.highest_generation;
    must(highest >= judge.highest_generation, "generations only grow", || {
        format!("{highest} after {}", judge.highest_generation)
    })?;
    must(view.revision >= judge.revision, "revisions only grow", || {
        format!("{} after {}", view.revision, judge.revision)
    })?;
    must(view.settings_version >= judge.settings_version, "settings versions only grow", || {
        format!("{} after {}", view.settings_version, judge.settings_version)
    })?;
    judge.settings_version = view.settings_version;
    judge.highest_generation = highest;
    judge.revision = view.revision;
    Ok(())
}

fn of_node(judge: &mut Judge, node: &NodeView) -> Found {
    let told = &node.snapshot;
    let name = &told.name;
    let seen = judge.nodes.entry(told.node_id.clone()).or_default();
    // A process that has not heard a node has no generation of it.
    let generation = told.generation.max(seen.generation);
    must(told.generation == 0 || told.generation >= seen.generation, "generations only grow", || {
        format!("{name}: {} after {}", told.generation, seen.generation)
    })?;
    if told.connected {
        must(node.owner == Some(told.generation), "one owner a node", || {
            format!("{name} is connected as {}, its slot is {:?}", told.generation, node.owner)
        })?;
    }
    must(node.admits || (node.owner.is_none() && !node.newest_lives), "who is kept out is not in", || {
        format!("{name} is {}, and its slot is {:?}", node.state, node.owner)
    })?;
    must(!node.newest_lives || node.owner == Some(told.generation), "a stale close changes nothing", || {
        format!("{name}: {} is alive, its slot is {:?}", told.generation, node.owner)
    })?;
    let both = node.opening_keys.iter().find(|key| node.retired_keys.contains(key));
    must(node.opening_keys.len() <= 2 && both.is_none(), "one credential a node", || {
        format!("{name}: {:?} open, {:?} are retired", node.opening_keys, node.retired_keys)
    })?;
    must(seen.gone <= (node.state == "decommissioned"), "a tombstone stays", || format!("{name} is back"))?;
    let (inventory, telemetry) = node.cursors;
    if node.state == "decommissioned" {
        // A tombstone has nothing to say any more.
        *seen = Seen { gone: true, ..Seen::default() };
        return Ok(());
    }
    must(inventory >= seen.cursors.0 && telemetry >= seen.cursors.1, "cursors only grow", || {
        format!("{name}: {:?} after {:?}", node.cursors, seen.cursors)
    })?;
    if seen.host != node.token_id {
        seen.host.clone_from(&node.token_id);
        seen.observed = 0;
    }
    let observed = node.telemetry_observed.unwrap_or(seen.observed);
    must(observed >= seen.observed, "the last good telemetry stays", || {
        format!("{name}: observed {observed} after {}", seen.observed)
    })?;
    must(told.last_seen_at_unix_ms >= seen.last_seen, "what was seen stays seen", || {
        format!("{name}: {} after {}", told.last_seen_at_unix_ms, seen.last_seen)
    })?;
    let last_seen = told.last_seen_at_unix_ms;
    *seen = Seen {
        generation,
        cursors: node.cursors,
        observed,
        last_seen,
        gone: false,
        host: node.token_id.clone(),
    };
    Ok(())
}

fn views_agree(view: &View) -> Found {
    let mut online = 0;
    for node in &view.nodes {
        let told = &node.snapshot;
        online += u32::from(node.state == "online");
        for (id, open, in_flight, capacity) in &node.dispatchable {
            let may = told.connected && told.eligible && !told.draining && node.state == "online";
            must(may || !open, "no work for a node that is not online", || {
                format!("{id} takes requests; connected {}, {}", told.connected, node.state)
            })?;
            must(in_flight <= capacity, "no lease above the capacity", || {
                format!("{id}: {in_flight} of {capacity}")
            })?;
            let provider = told.providers.iter().find(|one| one.provider_id == *id);
            let shown = provider.map_or(0, |one| one.in_flight);
            let expected = if told.connected { *in_flight } else { 0 };
            must(shown == expected, "views agree", || format!("{id}: {shown} told, {expected} held"))?;
        }
    }
    must(view.online_and_available.0 == online, "views agree", || {
        format!("{} online in the summary, {online} in the nodes", view.online_and_available.0)
    })
}

fn observed(judge: &Judge, view: &View) -> Found {
    let (told, held) = view.observations;
    must(told == judge.observed + held, "an observation is told or counted", || {
        format!("{told} were told, {} are in the audit, {held} are on their way", judge.observed)
    })?;
    let (refused, unsaid) = view.refusals;
    must(refused == judge.gaps + unsaid, "a gap of the audit is told", || {
        format!("{refused} were refused, gaps tell of {}, {unsaid} are not told yet", judge.gaps)
    })
}

fn leases(view: &View) -> Found {
    for lease in &view.leases {
        // One of an older connection ends with the naming of leases, if its node does not know it yet.
        must(lease.counted || !lease.current, "a lease ends with its stream", || {
            format!("{} ended before its stream", lease.lease)
        })?;
    }
    let open = view.leases.iter().filter(|lease| lease.counted).count();
    must(view.held.0 as usize == open + view.orphans, "a lease ends with its stream", || {
        format!("{} leases are held, {open} streams are open, {} are orphans", view.held.0, view.orphans)
    })?;
    must(view.held.1 as usize == view.waiting, "a request has one answer", || {
        format!("{} wait at admission, {} here", view.held.1, view.waiting)
    })
}

fn tokens(judge: &mut Judge, view: &View) -> Found {
    for token in &view.tokens {
        let Some(claim) = &token.claim else {
            must(!judge.tokens.contains_key(&token.token_id), "a used token stays used", || {
                format!("{} is open again", token.token_id)
            })?;
            continue;
        };
        let first = judge.tokens.entry(token.token_id.clone()).or_insert_with(|| claim.clone());
        must(first == claim, "a used token stays used", || {
            format!("{}: {claim:?} after {first:?}", token.token_id)
        })?;
    }
    Ok(())
}
