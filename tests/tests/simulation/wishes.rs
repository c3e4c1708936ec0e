//! What must be true of jobs, deployments and the engines that come of them, after each step and at the end.
//!
//! Owns a memory of its own, of what was begun and how it ended. Leaves what people want to `crews`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use umbel_edge::simulation::{JobView, Operation, RoundView, Wish, stored_wishes};
use umbel_store::simulation::Disk;

use super::crews::{NAMES, document};
use super::history::Failure;
use super::invariants::{Found, must};
use super::world::World;

/// Nodes that are lost within this time are lost together.
const TOGETHER: Duration = Duration::from_secs(300);
/// Once nothing breaks, all that is wanted is there within this.
const BOUND: Duration = Duration::from_secs(900);
/// Rows are compared with the disk at each so many changes, and after a start.
const SELDOM: u64 = 12;
/// Attempts of a job.
const ATTEMPTS: u32 = 3;

/// What is known.
#[derive(Default)]
pub(crate) struct Wishes {
    /// Of the edge's rows that were looked at, and starts of the edge until then.
    seen: (u64, u64),
    jobs: BTreeMap<String, JobView>,
    /// By job and attempt: the host, and which of its agents.
    begun: BTreeMap<(String, u32), (usize, u64)>,
    /// Since when the edge's process knows a node to be lost.
    lost: BTreeMap<String, Instant>,
    held: bool,
    starts: u64,
    /// What an edge that starts finds on its disk, until it is looked at.
    found: Option<BTreeMap<String, JobView>>,
}

impl Wishes {
    /// The edge's store is an older one.
    pub(crate) fn restored(&mut self) {
        *self = Self { starts: self.starts, ..Self::default() };
    }

    /// The edge starts on this disk.
    pub(crate) fn starts_on(&mut self, disk: &mut Disk) {
        self.found = Some(stored_wishes(disk).jobs);
    }
}

impl World {
    /// Engines and jobs of hosts that did something.
    pub(crate) fn hosts_run_what_they_shall(&mut self, touched: &BTreeSet<usize>) -> Found {
        for number in touched {
            let Some(host) = self.hosts.get(*number) else { continue };
            let now = self.now(host.clocks);
            let Some(node) = &host.process else { continue };
            let (mut names, mut gpus) = (BTreeSet::new(), BTreeSet::new());
            for process in node.runs().living(now) {
                must(names.insert(&process.name), "a host has one engine of a name", || {
                    format!("{} runs twice on node {number}", process.name)
                })?;
                for gpu in &process.gpus {
                    must(gpus.insert(gpu), "a GPU has one engine", || {
                        format!("{gpu} of node {number} is used by {} and another", process.name)
                    })?;
                }
            }
            let spoiled = node.spoiled();
            must(spoiled.is_empty(), "what is in place is what was wanted", || {
                format!("node {number} has {spoiled:?}")
            })?;
            self.host_did(*number)?;
        }
        Ok(())
    }

    fn host_did(&mut self, number: usize) -> Found {
        let host = &mut self.hosts[number];
        let (copied, agent) = (host.copied, host.starts);
        let Some(node) = &mut host.process else { return Ok(()) };
        let identity = node.identity().unwrap_or_default();
        let (begun, ended) = (node.begun(), node.engines_ended());
        for (name, ready, kept) in ended {
            must(!ready || !kept, "an engine ends only by an order", || {
                format!("{name} on node {number} was ready, and stands in its list")
            })?;
        }
        for one in begun {
            let job = self.edge.process.as_ref().and_then(|edge| edge.job(&one.job));
            self.history.tell(
                self.time,
                format!(
                    "node {number} begins {:?} of {}, attempt {}",
                    job.as_ref().map(|job| (&job.kind, &job.subject)),
                    one.job,
                    one.attempt
                ),
            );
            if let Some(job) = job {
                must(job.node == identity || copied, "a node does its own jobs", || {
                    format!("node {number} is {identity} and works on {}: {job:?}", one.job)
                })?;
                must(
                    job.ended.as_deref() != Some("succeeded"),
                    "a completed attempt is not run again",
                    || format!("node {number} begins {}, attempt {}: {job:?}", one.job, one.attempt),
                )?;
            }
            if copied {
                continue;
            }
            let here = (number, agent);
            let before = self.wishes.begun.insert((one.job.clone(), one.attempt), here);
            must(before != Some(here), "an attempt is begun once", || {
                format!("node {number} begins {}, attempt {}, again", one.job, one.attempt)
            })?;
        }
        Ok(())
    }

    /// What the edge heard of jobs and ordered for deployments.
    pub(crate) fn jobs_go_right(&mut self) -> Found {
        for word in std::mem::take(&mut self.job_words) {
            must(
                !word.changed || word.in_force.as_ref() == Some(&word.lease),
                "an old lease changes nothing",
                || format!("{word:?}"),
            )?;
        }
        if self.wishes.starts != self.edge.starts {
            (self.wishes.starts, self.wishes.held) = (self.edge.starts, false);
            self.wishes.lost.clear();
        }
        for round in std::mem::take(&mut self.rounds) {
            self.wishes.is_held(&round)?;
            orders_are_wished(&round)?;
            gpus_are_held_once(&round)?;
        }
        let Some(edge) = &self.edge.process else { return Ok(()) };
        let (version, starts) = (edge.wishes_version(), self.edge.starts);
        if self.wishes.seen.1 == starts && version < self.wishes.seen.0 + SELDOM {
            return Ok(());
        }
        let wishes = edge.wishes();
        if !wishes.rests || edge.wants_disk() {
            return Ok(());
        }
        self.wishes.seen = (version, starts);
        if let Some(found) = self.wishes.found.take() {
            self.wishes.jobs_only_grow(&found)?;
        }
        self.wishes.jobs_only_grow(&wishes.jobs)?;
        let stored = stored_wishes(&mut self.edge.disk);
        let same = stored.deployments == wishes.deployments
            && stored.replicas == wishes.replicas
            && stored.jobs == wishes.jobs;
        must(same, "rows in memory are those on the disk", || format!("{wishes:?} and {stored:?}"))
    }

    /// Everything that broke is whole: what is wanted comes true, and what is deleted goes.
    pub(crate) fn wishes_come_true(&mut self) -> Result<(), Box<Failure>> {
        self.ask(Operation::Settings("agents.default.shutdown.drain".to_owned(), "4s".to_owned()), None);
        for name in NAMES {
            for wish in [Wish::Pause(false), Wish::Load] {
                self.ask(Operation::Deployment(name.to_owned(), wish), None);
            }
            self.ask(Operation::Apply(last_document(name)), None);
        }
        self.run_until(self.time + Duration::from_secs(2))?;
        if let Some(what) = self.comes_to_pass(Self::want, Self::wishes_wait_for)? {
            return Err(self.history.failure("deployments come to what is wanted", what));
        }
        match self.comes_to_pass(Self::delete, Self::deleted_is_left)? {
            Some(what) => Err(self.history.failure("what is deleted is gone", what)),
            None => Ok(()),
        }
    }

    // Asks for what was refused because something was in its way: a deployment that was being deleted, another's change.
    fn want(&mut self) {
        let Some(edge) = &self.edge.process else { return };
        let (rows, view) = (edge.wishes().deployments, edge.view(self.now(self.edge.clocks)));
        for name in NAMES.into_iter().filter(|name| !rows.contains_key(*name)) {
            self.ask(Operation::Apply(last_document(name)), None);
        }
        // A node that refused its settings is no place for anything.
        let refuses = view.nodes.iter().filter(|node| {
            let config = node.snapshot.config.clone().unwrap_or_default();
            config.refused_version == config.desired_version
                && config.refused_version > config.applied_version
        });
        let nodes: Vec<_> = refuses.map(|node| node.snapshot.node_id.clone()).collect();
        for node in nodes {
            self.ask(
                Operation::Settings(format!("agents.nodes.{node}.shutdown.drain"), "4s".to_owned()),
                None,
            );
        }
    }

    fn delete(&mut self) {
        let rows = self.edge.process.as_ref().map(|edge| edge.wishes().deployments).unwrap_or_default();
        for (name, _) in rows.iter().filter(|(_, row)| row["deleting"] != true) {
            self.ask(Operation::Deployment(name.clone(), Wish::Delete), None);
        }
    }

    // What is still waited for when the time is over.
    fn comes_to_pass(
        &mut self,
        ask: fn(&mut Self),
        waits: fn(&Self) -> Option<String>,
    ) -> Result<Option<String>, Box<Failure>> {
        let end = self.time + BOUND;
        loop {
            ask(self);
            self.run_until(self.time + Duration::from_secs(10))?;
            match waits(self) {
                Some(_) if self.time < end => {}
                what => return Ok(what),
            }
        }
    }

    fn engines(&self) -> Vec<(usize, String)> {
        let hosts = self.hosts.iter().enumerate();
        let of = |(number, host): (usize, &super::world::Host)| {
            let now = self.now(host.clocks);
            let living = host.process.as_ref().into_iter().flat_map(move |node| node.runs().living(now));
            living.map(move |process| (number, process.name.clone())).collect::<Vec<_>>()
        };
        hosts.flat_map(of).collect()
    }

    fn wishes_wait_for(&self) -> Option<String> {
        let edge = self.edge.process.as_ref()?;
        let (wishes, view) = (edge.wishes(), edge.view(self.now(self.edge.clocks)));
        let mut engines: Vec<String> = self.engines().into_iter().map(|(_, name)| name).collect();
        engines.sort_unstable();
        let mut rows: Vec<String> = wishes.replicas.keys().cloned().collect();
        rows.sort_unstable();
        for name in NAMES {
            let wanted = wishes.deployments.get(name).map(|row| row["spec"]["replicas"].as_u64());
            let of = |engine: &&String| engine.starts_with(&format!("{name}."));
            let there = rows.iter().filter(of).count() as u64;
            let open = view.nodes.iter().flat_map(|node| &node.dispatchable);
            let open = open.filter(|one| one.open && one.id.contains(&format!("/{name}."))).count() as u64;
            if wanted != Some(Some(there)) || wanted != Some(Some(open)) {
                return Some(format!(
                    "{name} wants {wanted:?}, has {there} rows and {open} that take requests: {:#?}, why: {:?}",
                    wishes.replicas,
                    edge.unplaced(name)
                ));
            }
        }
        (engines != rows).then(|| format!("{engines:?} run, rows are {rows:?}"))
    }

    fn deleted_is_left(&self) -> Option<String> {
        let edge = self.edge.process.as_ref()?;
        let (wishes, view) = (edge.wishes(), edge.view(self.now(self.edge.clocks)));
        let engines = self.engines();
        let jobs: Vec<_> = wishes.jobs.iter().filter(|(_, job)| job.ended.is_none()).collect();
        // Of a node that nobody is any more its last words stay.
        let here = view.nodes.iter().filter(|node| node.snapshot.connected);
        let providers = here.flat_map(|node| &node.snapshot.providers);
        let providers: Vec<_> = providers.filter(|one| one.provider_id.contains("/d")).collect();
        let rows = (&wishes.deployments, &wishes.replicas);
        let nothing = engines.is_empty()
            && jobs.is_empty()
            && providers.is_empty()
            && rows.0.is_empty()
            && rows.1.is_empty();
        (!nothing).then(|| format!("{engines:?} run, {jobs:?} are open, {providers:?}, {rows:#?}"))
    }
}

impl Wishes {
    fn jobs_only_grow(&mut self, jobs: &BTreeMap<String, JobView>) -> Found {
        let mut loads = BTreeMap::new();
        for (id, job) in jobs {
            if let Some(before) = self.jobs.get(id) {
                must(job.failures >= before.failures, "attempts only grow", || {
                    format!("{id}: {job:?} after {before:?}")
                })?;
                must(before.ended.is_none() || before.ended == job.ended, "a job ends once", || {
                    format!("{id}: {job:?} after {before:?}")
                })?;
            }
            must(job.failures <= ATTEMPTS, "a job has three attempts", || format!("{id}: {job:?}"))?;
            if job.kind == "deployment.load" && job.ended.is_none() && !job.cancelled {
                let other = loads.insert(job.subject.clone(), id);
                must(other.is_none(), "a replica is loaded once at a time", || {
                    format!("{id} and {other:?} load {}", job.subject)
                })?;
            }
        }
        self.jobs.clone_from(jobs);
        Ok(())
    }

    // Many nodes that are lost together are a cut, and nothing is replaced until it is over.
    fn is_held(&mut self, round: &RoundView) -> Found {
        let lost = round.lost();
        self.lost.retain(|node, _| lost.contains(node));
        for node in &lost {
            self.lost.entry(node.clone()).or_insert(round.now);
        }
        let of = round.nodes.values().filter(|(_, gone, _)| !gone).count();
        let many = |count: usize| count >= 2 && count * 3 > of;
        let together = self
            .lost
            .values()
            .filter(|since| round.now.saturating_duration_since(**since) < TOGETHER)
            .count();
        self.held = if self.held { many(lost.len()) } else { many(together) };
        if !self.held {
            return Ok(());
        }
        for engine in &round.begun {
            let name = engine.split('.').next().unwrap_or_default();
            let (wanted, _) = round.wanted.get(name).copied().unwrap_or_default();
            // What people take away is made up for all the same.
            let stays = round.replicas.iter().filter(|(engine, _)| !round.ended.contains(engine));
            let rows: Vec<_> =
                stays.map(|(_, row)| row).filter(|row| row.deployment == name && !row.goes).collect();
            let replaces = rows.len() >= wanted as usize
                && rows.iter().any(|row| row.lost)
                && rows.iter().all(|row| !row.unwanted);
            must(!replaces, "nothing is replaced while many are lost", || {
                format!("{engine} is begun, {lost:?} of {of} are lost: {rows:?}")
            })?;
        }
        Ok(())
    }
}

fn last_document(name: &str) -> String {
    document(name, if name == NAMES[0] { 2 } else { 1 }, 1, 2, 5)
}

// An engine that does its work is taken away only where somebody wants that, or nobody wants it.
fn orders_are_wished(round: &RoundView) -> Found {
    for order in &round.orders {
        let Some(row) = round.replicas.get(&order.engine).filter(|row| row.node == order.node) else {
            continue;
        };
        let healthy = row.ready && round.ready.contains(&(order.node.clone(), order.engine.clone()));
        let (wanted, _) = round.wanted.get(&row.deployment).copied().unwrap_or_default();
        let live =
            round.replicas.values().filter(|one| one.deployment == row.deployment && !one.goes).count();
        let (lost, gone, draining) = round.nodes.get(&row.node).copied().unwrap_or_default();
        let wished = row.goes || row.unwanted || draining || lost || gone || live > wanted as usize;
        must(!healthy || wished, "a healthy engine ends only by a wish", || {
            format!("{order:?}: {row:?}, {live} of {wanted} are there")
        })?;
    }
    Ok(())
}

fn gpus_are_held_once(round: &RoundView) -> Found {
    let mut held = BTreeMap::new();
    for (engine, row) in &round.replicas {
        for gpu in &row.gpus {
            let other = held.insert(gpu, engine);
            must(other.is_none(), "a replica holds its GPUs alone", || {
                format!("{gpu} is held by {engine} and {other:?}")
            })?;
        }
    }
    Ok(())
}
