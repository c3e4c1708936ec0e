//! A site for the reconciler's tests: nodes with GPUs that carry out jobs, or fail them, or are lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use umbel_contracts::deployment::DeploymentSpec;
use umbel_wire::NodeId;

use crate::core::deployments::{
    Deployments, EngineFact, EngineWord, Facts, JobFact, NodeFact, Order, Outcome, Place, Places, ReplicaRow,
    ReplicaState, Standing, Wanted, Work,
};
use crate::core::jobs::FilesAt;

pub(super) const SHA: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// A node of the world.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) gpus: u32,
    pub(super) standing: Standing,
    pub(super) draining: bool,
    pub(super) eligible: bool,
    /// GPUs that it had and cannot use.
    pub(super) absent: BTreeSet<String>,
    /// Documents let replicas run there.
    pub(super) selected: bool,
    pub(super) engines: BTreeMap<String, EngineWord>,
    /// What it says of its engines; else "CUDA error" of those that failed.
    pub(super) says: BTreeMap<String, String>,
    /// What runs there under a name, as its engine's digest: it is not loaded as another one before it is unloaded.
    pub(super) runs: BTreeMap<String, String>,
    pub(super) artifacts: BTreeSet<String>,
    /// It has more than it can tell.
    pub(super) tells_nothing: bool,
}

impl Host {
    fn told(&self) -> impl Iterator<Item = &String> {
        self.artifacts.iter().filter(|_| !self.tells_nothing)
    }
}

/// A site in which time passes when the test says.
pub(super) struct World {
    pub(super) deployments: Deployments,
    pub(super) hosts: BTreeMap<NodeId, Host>,
    pub(super) jobs: BTreeMap<String, (Order, JobFact)>,
    pub(super) told: Vec<(&'static str, String)>,
    /// Loads that fail, by engine, with how often they do yet.
    pub(super) failing: BTreeMap<String, u32>,
    /// What they fail for would fail again.
    pub(super) lasting: bool,
    /// Loads that were refused, since something else ran under the name.
    pub(super) differed: u32,
    pub(super) start: Instant,
    pub(super) elapsed: Duration,
    /// What the wall clock says, whatever time passes.
    pub(super) stands_at: Option<i64>,
    ids: u64,
}

pub(super) fn node(number: u8) -> NodeId {
    NodeId::parse(&format!("00000000-0000-4000-8000-0000000000{number:02x}")).unwrap()
}

pub(super) fn spec(name: &str, more: Value) -> DeploymentSpec {
    let mut document = json!({
        "name": name,
        "engine": { "kind": "sim" },
        "gpus": { "count": 1 },
        "artifact": {
            "repository": "a/b", "revision": "r1", "source": "hub",
            "files": [{ "path": "m", "bytes": 1, "sha256": SHA }]
        },
    });
    for (key, value) in more.as_object().unwrap() {
        document[key] = value.clone();
    }
    DeploymentSpec::from_value(document).unwrap()
}

/// One GPU a replica; the emptiest node first. And nodes that documents do not let replicas run on.
struct Gpus(BTreeMap<NodeId, BTreeMap<String, String>>, BTreeSet<NodeId>);

impl Places for Gpus {
    fn place(&mut self, wanted: &Wanted<'_>) -> Result<Place, String> {
        let mut best: Option<(u32, NodeId, String)> = None;
        for (node, gpus) in self.0.iter().filter(|(node, _)| !wanted.avoid.contains_key(node)) {
            let free = |holder: &String| holder.is_empty() || wanted.displaces.contains(holder);
            let Some(gpu) = gpus.iter().find(|(_, holder)| free(holder)).map(|(gpu, _)| gpu) else {
                continue;
            };
            let placed = wanted.placed.get(node).copied().unwrap_or(0);
            if best.as_ref().is_none_or(|(least, _, _)| placed < *least) {
                best = Some((placed, *node, gpu.clone()));
            }
        }
        let (_, node, gpu) = best.ok_or_else(|| "no GPU is free".to_owned())?;
        Ok(Place { node, gpus: vec![gpu] })
    }

    fn selects(&self, _: &DeploymentSpec, node: &NodeId) -> bool {
        !self.1.contains(node)
    }

    fn take(&mut self, place: &Place, wanted: &Wanted<'_>) {
        for gpu in &place.gpus {
            *self.0.get_mut(&place.node).unwrap().get_mut(gpu).unwrap() = wanted.engine.clone();
        }
    }
}

impl World {
    /// Nodes 1, 2, ... with so many GPUs each.
    pub(super) fn new(gpus: &[u32]) -> Self {
        let host = |(index, gpus): (usize, &u32)| {
            let host = Host {
                gpus: *gpus,
                standing: Standing::Here,
                draining: false,
                eligible: true,
                absent: BTreeSet::new(),
                selected: true,
                says: BTreeMap::new(),
                runs: BTreeMap::new(),
                engines: BTreeMap::new(),
                artifacts: BTreeSet::new(),
                tells_nothing: false,
            };
            (node(u8::try_from(index + 1).unwrap()), host)
        };
        Self {
            deployments: Deployments::default(),
            hosts: gpus.iter().enumerate().map(host).collect(),
            jobs: BTreeMap::new(),
            told: Vec::new(),
            failing: BTreeMap::new(),
            lasting: false,
            differed: 0,
            start: Instant::now(),
            elapsed: Duration::ZERO,
            stands_at: None,
            ids: 0,
        }
    }

    pub(super) fn host(&mut self, number: u8) -> &mut Host {
        self.hosts.get_mut(&node(number)).unwrap()
    }

    pub(super) fn wall(&self) -> i64 {
        self.stands_at.unwrap_or_else(|| i64::try_from(self.elapsed.as_millis()).unwrap())
    }

    pub(super) fn apply(&mut self, spec: DeploymentSpec) {
        let change = self.deployments.propose(spec, None, "ada", self.wall()).unwrap();
        self.take(change);
    }

    /// A change as the shell takes it.
    pub(super) fn take(&mut self, change: crate::core::deployments::change::Change) {
        let mut outcome = Outcome::default();
        outcome.replicas.extend(change.replicas.into_iter().map(|row| (row.key(), Some(row))));
        self.deployments.apply(change.row);
        self.deployments.applied(&outcome);
    }

    fn facts(&self) -> Facts {
        let fact = |(id, host): (&NodeId, &Host)| {
            let engine = |(name, state): (&String, &EngineWord)| {
                let cause = if *state == EngineWord::Failed { "CUDA error" } else { "" };
                let cause = host.says.get(name).cloned().unwrap_or_else(|| cause.to_owned());
                (name.clone(), EngineFact { state: *state, cause, passes: !self.lasting })
            };
            let fact = NodeFact {
                name: id.to_string(),
                standing: host.standing,
                draining: host.draining,
                eligible: host.eligible,
                absent_gpus: host.absent.iter().map(|gpu| (gpu.clone(), format!("GPU {gpu}"))).collect(),
                engines: host.engines.iter().map(engine).collect(),
                artifacts: host.told().map(|key| (key.clone(), FilesAt::default())).collect(),
            };
            (*id, fact)
        };
        let brought = |(id, (order, fact)): (&String, &(Order, JobFact))| {
            let Work::Acquire { artifact } = &order.work else { return None };
            let at = FilesAt { root: "models".to_owned(), path: artifact.key() };
            (*fact == JobFact::Done).then(|| (id.clone(), at))
        };
        let mut facts = Facts::new(
            self.hosts.iter().map(fact).collect(),
            self.jobs.iter().map(|(id, (_, fact))| (id.clone(), fact.clone())).collect(),
            self.start + self.elapsed,
            self.wall(),
        );
        facts.brought = self.jobs.iter().filter_map(brought).collect();
        facts
    }

    fn gpus(&self) -> Gpus {
        let holdings = self.deployments.holdings();
        let usable = |host: &Host| host.standing == Standing::Here && !host.draining && host.selected;
        let usable = self.hosts.iter().filter(|(_, host)| usable(host));
        let left_out = self.hosts.iter().filter(|(_, host)| !host.selected).map(|(id, _)| *id);
        Gpus(
            usable
                .map(|(id, host)| {
                    let gpu = |index| format!("{id}/{index}");
                    let holder = |gpu: &str| holdings.get(gpu).cloned().unwrap_or_default();
                    let free = (0..host.gpus).map(gpu).filter(|gpu| !host.absent.contains(gpu));
                    (*id, free.map(|gpu| (gpu.clone(), holder(&gpu))).collect())
                })
                .collect(),
            left_out.collect(),
        )
    }

    fn decide(&mut self) -> Outcome {
        let (facts, mut gpus) = (self.facts(), self.gpus());
        let mut next = self.ids;
        let mut ids = || {
            next += 1;
            format!("job-{next}")
        };
        let outcome = self.deployments.decide(&facts, &mut gpus, &mut ids);
        self.ids = next;
        outcome
    }

    fn carry_out(&mut self, order: &Order) {
        self.jobs.entry(order.id.clone()).or_insert_with(|| (order.clone(), JobFact::Open));
    }

    /// One round, committed and carried out. Whether anything was different.
    pub(super) fn round(&mut self) -> bool {
        let outcome = self.decide();
        self.deployments.applied(&outcome);
        for order in &outcome.orders {
            self.carry_out(order);
        }
        for id in &outcome.cancels {
            if let Some((_, fact)) = self.jobs.get_mut(id).filter(|(_, fact)| *fact == JobFact::Open) {
                *fact = JobFact::Ending;
            }
        }
        self.told.extend(outcome.told.iter().map(|told| (told.kind, told.subject.clone())));
        !outcome.is_empty()
    }

    /// The edge is killed in a round: before its commit, or after it with so many of its jobs asked for and nothing cancelled.
    pub(super) fn killed(&mut self, done: Option<usize>) {
        let outcome = self.decide();
        if let Some(done) = done {
            self.deployments.applied(&outcome);
            for order in outcome.orders.iter().take(done) {
                self.carry_out(order);
            }
        }
        self.restart();
    }

    /// A round that is stored, and none of whose jobs is taken.
    pub(super) fn decide_and_drop_orders(&mut self) -> Outcome {
        let outcome = self.decide();
        self.deployments.applied(&outcome);
        outcome
    }

    /// A round that the store does not take.
    pub(super) fn refused(&mut self) {
        let before = self.deployments.clone();
        self.decide();
        let round = std::mem::replace(&mut self.deployments, before);
        self.deployments.saw(round);
    }

    /// Rounds until nothing is different.
    pub(super) fn settle(&mut self) {
        for _ in 0..50 {
            if !self.round() {
                return;
            }
        }
        panic!("rounds do not come to rest: {:?}", self.deployments.replicas);
    }

    /// One job that its node can work on is done; false if there is none.
    pub(super) fn work(&mut self, which: usize) -> bool {
        let open: Vec<String> = self
            .jobs
            .iter()
            .filter(|(_, (order, fact))| {
                matches!(fact, JobFact::Open | JobFact::Ending)
                    && self.hosts[&order.node].standing == Standing::Here
            })
            .map(|(id, _)| id.clone())
            .collect();
        if open.is_empty() {
            return false;
        }
        let id = &open[which % open.len()];
        let (order, fact) = self.jobs[id].clone();
        let cancelled =
            || JobFact::Failed { message: "cancelled".to_owned(), retryable: true, differs: false };
        let fact = if fact == JobFact::Ending { cancelled() } else { self.done(&order) };
        self.jobs.get_mut(id).unwrap().1 = fact;
        true
    }

    fn done(&mut self, order: &Order) -> JobFact {
        let host = self.hosts.get_mut(&order.node).unwrap();
        match &order.work {
            Work::Acquire { artifact } => drop(host.artifacts.insert(artifact.key())),
            Work::Load { spec, number, .. } => {
                let engine = spec.engine_name(*number, None);
                assert!(spec.artifact.as_ref().is_none_or(|one| host.artifacts.contains(&one.key())));
                let digest = spec.engine_digest();
                if host.runs.get(&engine).is_some_and(|runs| *runs != digest) {
                    self.differed += 1;
                    return JobFact::Failed {
                        message: "runs as another".to_owned(),
                        retryable: true,
                        differs: true,
                    };
                }
                host.runs.insert(engine.clone(), digest);
                if let Some(times) = self.failing.get_mut(&engine).filter(|times| **times > 0) {
                    *times -= 1;
                    host.engines.insert(engine, EngineWord::Failed);
                    let message = "out of memory".to_owned();
                    return JobFact::Failed { message, retryable: !self.lasting, differs: false };
                }
                host.engines.insert(engine, EngineWord::Ready);
            }
            Work::Drain { engine, .. } => drop(host.engines.insert(engine.clone(), EngineWord::Ending)),
            Work::Unload { engine } => {
                host.engines.remove(engine);
                host.runs.remove(engine);
            }
        }
        JobFact::Done
    }

    /// All goes its way until nothing is left to do.
    pub(super) fn run(&mut self) {
        for _ in 0..300 {
            self.settle();
            if self.work(0) {
                continue;
            }
            // What has just gone is told free a little later.
            let now = self.start + self.elapsed;
            if self.deployments.gone_at.is_none_or(|at| now - at >= Duration::from_secs(15)) {
                return;
            }
            self.pass(20);
        }
        panic!("it does not come to an end: {:?}", self.deployments.replicas);
    }

    pub(super) fn pass(&mut self, seconds: u64) {
        self.elapsed += Duration::from_secs(seconds);
    }

    pub(super) fn replicas(&self, name: &str) -> Vec<&ReplicaRow> {
        self.deployments.replicas_of(name).collect()
    }

    /// Number, node and state of each.
    pub(super) fn shown(&self, name: &str) -> Vec<(u32, u8, ReplicaState)> {
        let number = |id: NodeId| (1..=99).find(|number| node(*number) == id).unwrap();
        self.deployments.replicas_of(name).map(|row| (row.number, number(row.node), row.state)).collect()
    }

    pub(super) fn was_told(&self, kind: &str) -> bool {
        self.told.iter().any(|(told, _)| *told == kind)
    }

    /// Rows as a new process reads them; what was only in memory is gone.
    pub(super) fn restart(&mut self) {
        let rows: Vec<_> = self.deployments.rows.values().cloned().collect();
        let replicas: Vec<_> = self.deployments.replicas.values().cloned().collect();
        let again = |row: &ReplicaRow| serde_json::from_str(&serde_json::to_string(row).unwrap()).unwrap();
        self.deployments = Deployments::of(rows, replicas.iter().map(again));
    }
}
