//! What must be true after each step, each with a name.

mod audit;

use std::collections::{BTreeMap, BTreeSet};

use umbel_contracts::proto::control::ProviderStatus;
use umbel_control_plane::simulation::Shown;
use umbel_edge::simulation::{NodeView, Operation, ProviderView, View, stored};
use umbel_store::simulation::Disk;

use super::history::Failure;
use super::world::World;
use audit::commands_in_audit;

/// What earlier steps have shown.
pub(crate) struct Judge {
    /// An entry that the control plane was told and that is another since, and the last cut that it knew then.
    outgrown: Option<(u64, Option<(u64, u64)>)>,
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
    /// Tokens that were open when the edge was restored.
    void: BTreeSet<String>,
    /// Nodes that a restored edge did not know.
    lost: BTreeSet<String>,
    /// The highest version of the settings that was ever made.
    settings_made: u64,
    /// At the control plane: commits that were looked at, and who used which token.
    plane_commits: u64,
    edge_tokens: BTreeMap<String, String>,
    /// Commands that ran.
    ran: BTreeSet<String>,
    /// Of those, the ones whose entries somebody cut off.
    cut_off: BTreeSet<String>,
    fresh: bool,
    /// Leases of each engine when it was looked at last.
    held: BTreeMap<String, u32>,
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
            outgrown: None,
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
            void: BTreeSet::new(),
            lost: BTreeSet::new(),
            settings_made: 0,
            plane_commits: 0,
            edge_tokens: BTreeMap::new(),
            ran: BTreeSet::new(),
            cut_off: BTreeSet::new(),
            fresh: false,
            held: BTreeMap::new(),
        }
    }

    /// Somebody cut the audit: that it goes back is not the program's fault.
    pub(crate) fn cut(&mut self, disk: &mut Disk) {
        let (last, left) = commands_in_audit(disk);
        self.audited.1 = last;
        self.cut_off.extend(self.ran.difference(&left).cloned());
    }

    /// The edge's store is an older one.
    fn restored(&mut self, disk: &mut Disk, known_before: BTreeSet<String>) {
        let on_disk = stored(disk);
        let used: BTreeSet<_> = on_disk.tokens.iter().filter(|(_, claim, _)| claim.is_some()).collect();
        let used: BTreeSet<&String> = used.into_iter().map(|(id, ..)| id).collect();
        self.void =
            on_disk.tokens.iter().map(|(id, ..)| id.clone()).filter(|id| !used.contains(id)).collect();
        self.tokens.retain(|id, _| used.contains(id));
        for seen in self.nodes.values_mut() {
            *seen = Seen { generation: seen.generation, ..Seen::default() };
        }
        self.settings_version = 0;
        self.audited = (0, 0);
        (self.audited.1, self.ran) = commands_in_audit(disk);
        let known = on_disk.commands.iter().filter(|id| self.cut_off.contains(*id));
        self.ran.extend(known.cloned());
        let known: BTreeSet<_> = on_disk.nodes.iter().map(|(id, ..)| id.clone()).collect();
        self.lost.extend(known_before);
        self.lost.retain(|id| !known.contains(id));
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

pub(crate) type Found = Result<(), (&'static str, String)>;

pub(crate) fn must(holds: bool, invariant: &'static str, what: impl FnOnce() -> String) -> Found {
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
        let touched = std::mem::take(&mut self.touched);
        for number in &touched {
            let Some(host) = self.hosts.get(*number) else { continue };
            if let Some(node) = &host.process {
                let most = host.setup.capacity as usize;
                let work = node.work();
                must(work.len() <= most, "an engine is never above its capacity", || {
                    format!("node {number} works on {work:?}, at most {most}")
                })?;
            }
        }
        self.hosts_run_what_they_shall(&touched)?;
        self.jobs_go_right()?;
        self.commands_ran()?;
        let Some(edge) = &self.edge.process else { return self.site_is_shown() };
        // The edge is looked at again only after it did something: else only the hosts are that did.
        let anew = self.viewed.is_none();
        let view = self.viewed.take().unwrap_or_else(|| edge.view(self.now(self.edge.clocks)));
        let found = if anew { self.edge_is_right(&view) } else { Ok(()) };
        let hosts: Vec<usize> =
            if anew { (0..self.hosts.len()).collect() } else { touched.into_iter().collect() };
        let found = found.and_then(|()| self.hosts_are_known(&view, &hosts));
        let found = found.and_then(|()| self.strangers_wait(&view));
        self.viewed = Some(view);
        found?;
        self.answers_are_there()
    }

    fn edge_is_right(&mut self, view: &View) -> Found {
        self.site_is_shown()?;
        growing(&mut self.judge, view)?;
        views_agree(&mut self.judge, view)?;
        for node in &view.nodes {
            of_node(&mut self.judge, node)?;
        }
        leases(view)?;
        self.turns_are_fair(view)?;
        observed(&self.judge, view)?;
        tokens(&mut self.judge, view)?;
        self.authority_changes()
    }

    /// The edge's store is that of its backup; before, it knew these nodes.
    pub(crate) fn restored(&mut self, mut known_before: BTreeSet<String>) {
        let ids = |host: &super::world::Host| {
            let process = host.process.as_ref().and_then(|node| node.identity());
            process.or_else(|| host.disk.as_ref().and_then(|disk| disk.node_id()))
        };
        known_before.extend(self.hosts.iter().filter_map(ids));
        self.keepers.restored();
        self.judge.restored(&mut self.edge.disk, known_before);
        let commands = stored(&mut self.edge.disk).commands.into_iter().collect();
        self.people.restored(&commands);
        self.wishes.restored();
        self.hosts.iter_mut().for_each(|host| host.unknown = true);
    }

    // Nobody is let in again but by people.
    fn strangers_wait(&mut self, view: &View) -> Found {
        if self.judge.lost.is_empty() && !self.hosts.iter().any(|host| host.unknown) {
            return Ok(());
        }
        for node in &view.nodes {
            let id = &node.snapshot.node_id;
            if !self.judge.lost.contains(id) {
                continue;
            }
            let asked = node
                .opening_keys
                .iter()
                .chain(&node.retired_keys)
                .any(|key| self.people.approved.contains(key));
            must(asked, "who a restored edge does not know waits for people", || {
                format!("{id} is in again")
            })?;
            self.judge.lost.remove(id);
        }
        let in_again: Vec<_> = self
            .hosts
            .iter()
            .map(|host| {
                let Some(node) = &host.process else { return false };
                let known =
                    node.identity().and_then(|id| view.nodes.iter().find(|one| one.snapshot.node_id == id));
                known.is_some_and(|known| node.keys().iter().any(|key| known.opening_keys.contains(key)))
            })
            .collect();
        for (host, is_in) in self.hosts.iter_mut().zip(in_again) {
            host.unknown &= !is_in;
        }
        Ok(())
    }

    // Who was given an identity has it for ever, and a key that opens its door as long as people let it in.
    fn hosts_are_known(&self, view: &View, hosts: &[usize]) -> Found {
        for &number in hosts {
            let Some(host) = self.hosts.get(number) else { continue };
            let Some(node) = &host.process else { continue };
            let (Some(id), keys) = (node.identity(), node.keys()) else { continue };
            must(
                node.settings_version() <= self.judge.settings_made,
                "nobody has settings that were never made",
                || {
                    format!(
                        "node {number} has {}, the newest is {}",
                        node.settings_version(),
                        self.judge.settings_made
                    )
                },
            )?;
            let known = view.nodes.iter().find(|node| node.snapshot.node_id == id);
            must(known.is_some() || self.judge.lost.contains(&id), "an identity lasts", || {
                format!("node {number} is {id}, which is unknown")
            })?;
            // Unless people kept it out, copied its directory, or gave its place to another host.
            let own = |known: &&NodeView| {
                known.admits && known.token_id == node.joined_with() && !host.copied && !host.unknown
            };
            let Some(known) = known.filter(own) else { continue };
            let opens = keys.iter().any(|key| known.opening_keys.contains(key));
            must(opens, "one key on the node's disk is always accepted", || {
                format!("node {number} has {keys:?}, its edge takes {:?}", known.opening_keys)
            })?;
            self.is_not_locked_out(number, &id)?;
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

    // What admins were told is so, on the disk and at the door.
    fn admins_are_served(&mut self, shown: &Shown) -> Found {
        let admins = &self.plane.admins;
        must(admins.let_in.is_empty(), "a revoked operator does nothing", || format!("{:?}", admins.let_in))?;
        must(admins.kept_out.is_empty(), "an operator's token opens until it is revoked", || {
            format!("{:?}", admins.kept_out)
        })?;
        must(admins.not_there.is_empty(), "what the control plane answered is there", || {
            format!("{:?}", admins.not_there)
        })?;
        let in_it = shown.owners.0.or(shown.alive);
        must(!shown.revoked || in_it.is_none(), "a revoked edge is not in", || format!("{shown:?}"))?;
        let commits = self.plane.disk.commits();
        if self.judge.plane_commits == commits {
            return self.edge_key_opens(shown);
        }
        self.judge.plane_commits = commits;
        let broken = self.plane.disk.follow_audit();
        must(broken.is_none(), "the audit's chain holds", || format!("at the control plane: {broken:?}"))?;
        for (token, claim, _) in umbel_control_plane::simulation::stored(&mut self.plane.disk).tokens {
            let before = self.judge.edge_tokens.get(&token);
            must(before.is_none() || before == claim.as_ref(), "a used token stays used", || {
                format!("{token}: {claim:?} after {before:?}")
            })?;
            if let Some(claim) = claim {
                self.judge.edge_tokens.insert(token, claim);
            }
        }
        self.edge_key_opens(shown)
    }

    fn edge_key_opens(&self, shown: &Shown) -> Found {
        let (token, opening) = &shown.opening;
        let own = self.edge.process.as_ref().map(|edge| edge.membership());
        if let Some(own) = own.filter(|own| own.token_id() == token && !shown.revoked && !token.is_empty()) {
            let keys = own.keys();
            let opens = keys.iter().any(|key| opening.contains(key));
            must(opens, "one key on the edge's disk is always accepted", || {
                format!("it has {keys:?}, its control plane takes {opening:?}")
            })?;
        }
        Ok(())
    }

    // What the control plane shows is what the edge said, as old as it is.
    fn site_is_shown(&mut self) -> Found {
        self.audit_is_witnessed()?;
        let Some(shown) = self.plane_shows() else { return Ok(()) };
        self.admins_are_served(&shown)?;
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
    judge.settings_made = judge.settings_made.max(view.settings_version);
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

fn views_agree(judge: &mut Judge, view: &View) -> Found {
    let mut online = 0;
    let held = std::mem::take(&mut judge.held);
    for node in &view.nodes {
        let told = &node.snapshot;
        online += u32::from(node.state == "online");
        for provider in &node.dispatchable {
            let ProviderView { id, open, slots: (capacity, in_flight), .. } = provider;
            let may = told.connected && told.eligible && !told.draining && node.state == "online";
            must(may || !open, "no work for a node that is not online", || {
                format!("{id} takes requests; connected {}, {}", told.connected, node.state)
            })?;
            // What a document takes back is given to nobody again; who has it keeps it to the end.
            let before = held.get(id).copied().unwrap_or_default();
            must(in_flight <= capacity || *in_flight <= before, "no lease above the capacity", || {
                format!("{id}: {in_flight} of {capacity}, {before} before")
            })?;
            judge.held.insert(id.clone(), *in_flight);
            let provider = told.providers.iter().find(|one| one.provider_id == *id);
            let ready = provider.is_some_and(|one| one.status() == ProviderStatus::Available);
            must(ready || !open, "capacity is of ready engines", || {
                format!("{id} takes requests and is {:?}", provider.map(|one| one.status()))
            })?;
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
    let (in_force, wanted) = &view.own;
    must(Ok(*in_force) == *wanted, "settings in force are the newest", || {
        format!("{in_force:?} are in force, {wanted:?} wanted")
    })?;
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
    must(view.held.1 as usize == view.waiting.len(), "a request has one answer", || {
        format!("{} wait at admission, {:?} here", view.held.1, view.waiting)
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
        must(!judge.void.contains(&token.token_id), "an open token is void after a restore", || {
            format!("{} was used", token.token_id)
        })?;
        let first = judge.tokens.entry(token.token_id.clone()).or_insert_with(|| claim.clone());
        must(first == claim, "a used token stays used", || {
            format!("{}: {claim:?} after {first:?}", token.token_id)
        })?;
    }
    Ok(())
}
