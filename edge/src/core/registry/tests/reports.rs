//! Inventories, telemetry and heartbeats in wrong order, at wrong times and of broken hardware.

use crate::core::registry::node::ProviderState;
use std::time::{Duration, Instant};

use umbel_contracts::proto::control::{
    CheckResult, EdgeNodeSnapshot, GpuState, ProviderHealth, ProviderStatus,
};
use umbel_contracts::proto::node::{
    EngineMemory, EngineState, EngineStatus, Gpu, GpuTelemetry, MigInstance, NodeHeartbeat, NodeInventory,
    NodeProblem, NodeTelemetry,
};
use umbel_store::Position;
use umbel_wire::{Generation, NodeId};

use super::super::node::ReportRow;
use super::super::{Moment, snapshot};
use super::{SKEW_MS, Site, connect, engine, hello, problems, row, site};

const WALL: i64 = 1_700_000_000_000;

/// One connected node with the engine `e`, and a clock that a report a second moves.
struct One {
    site: Site,
    id: NodeId,
    generation: Generation,
    now: Instant,
    wall: i64,
    sequence: u64,
}

impl One {
    fn new() -> Self {
        let now = Instant::now();
        let mut site = site(now);
        let id = NodeId::random();
        site.insert(id, row("a"), Position(1), ReportRow::default());
        let generation = connect(&mut site, id, 1, hello(vec![engine("e", "m", 0)]), now, WALL);
        Self { site, id, generation, now, wall: WALL, sequence: 0 }
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.wall += i64::try_from(seconds).unwrap() * 1_000;
    }

    fn inventory(&mut self, complete: bool, gpus: &[&str]) {
        self.pass(1);
        self.sequence += 1;
        let gpus = gpus.iter().enumerate().map(|(index, uuid)| gpu(uuid, u32::try_from(index).unwrap()));
        let report = NodeInventory {
            sequence: self.sequence,
            observed_at_unix_ms: self.wall,
            complete,
            incomplete_reason: if complete { String::new() } else { "the driver hangs".into() },
            driver_version: "570.1".into(),
            gpus: gpus.collect(),
            ..NodeInventory::default()
        };
        self.site.inventory(self.id, self.generation, report, self.now, self.wall).unwrap();
    }

    fn telemetry(&mut self, gpus: Vec<GpuTelemetry>) {
        self.pass(1);
        self.sequence += 1;
        let report = NodeTelemetry {
            sequence: self.sequence,
            observed_at_unix_ms: self.wall,
            gpus,
            ..NodeTelemetry::default()
        };
        self.site.telemetry(self.id, self.generation, report, self.now, self.wall).unwrap();
    }

    fn beat(&mut self, lost: &[&str], state: EngineState) {
        self.pass(1);
        let mut status = engine("e", "m", 0).status.unwrap();
        status.set_state(state);
        let beat = NodeHeartbeat {
            sequence: 7,
            health: 1,
            observed_at_unix_ms: self.wall,
            engines: vec![status],
            lost_gpus: lost.iter().map(|uuid| (*uuid).to_owned()).collect(),
            ..NodeHeartbeat::default()
        };
        self.site.heartbeat(self.id, self.generation, beat, self.now, self.wall).unwrap();
    }

    fn snapshot(&self) -> EdgeNodeSnapshot {
        let moment = Moment { now: self.now, wall: self.wall };
        snapshot::node(self.site.node(&self.id).unwrap(), moment, &|_| None)
    }

    fn gpus(&self) -> Vec<(String, GpuState)> {
        let gpus = self.snapshot().inventory.unwrap().gpus;
        gpus.into_iter().map(|gpu| (gpu.uuid.clone(), gpu.state())).collect()
    }

    fn codes(&self) -> Vec<String> {
        self.snapshot().problems.into_iter().map(|problem| problem.code).collect()
    }

    fn told(&mut self) -> Vec<(&'static str, bool)> {
        self.site.take_notices().into_iter().map(|notice| (notice.kind, notice.audited)).collect()
    }

    fn provider(&self) -> (ProviderStatus, ProviderHealth) {
        let provider = self.snapshot().providers.remove(0);
        (provider.status(), provider.health())
    }

    fn check(&self, name: &str) -> (CheckResult, String, String) {
        let check = self.snapshot().readiness.into_iter().find(|check| check.name == name).unwrap();
        (check.result(), check.message, check.next_step)
    }
}

fn gpu(uuid: &str, index: u32) -> Gpu {
    Gpu { uuid: uuid.into(), index, name: "H100".into(), memory_bytes: 80 << 30, ..Gpu::default() }
}

fn figures(uuid: &str, engine: Option<&str>) -> GpuTelemetry {
    let engines = engine.map(|name| EngineMemory { engine: name.into(), bytes: 1 });
    GpuTelemetry {
        uuid: uuid.into(),
        utilization_percent: Some(0),
        engines: engines.into_iter().collect(),
        ..GpuTelemetry::default()
    }
}

/// Row 96: an engine that was given a GPU by its UUID is benched with it, whether or not its processes were ever seen there,
/// and also where it was started again since; one on a part of a GPU (MIG) is on that GPU.
#[test]
fn row_96_an_engine_is_benched_with_the_gpu_that_it_was_given() {
    for given in ["GPU-1", "MIG-1b"] {
        benched_with_its_gpu(given);
    }
}

fn benched_with_its_gpu(given: &str) {
    let now = Instant::now();
    let mut site = site(now);
    let id = NodeId::random();
    site.insert(id, row("a"), Position(1), ReportRow::default());
    let mut pinned = engine("e", "m", 0);
    pinned.gpu_uuids = vec![given.into()];
    let parts = ["MIG-1a", "MIG-1b"].map(|uuid| MigInstance { uuid: uuid.into(), ..MigInstance::default() });
    pinned.status.as_mut().unwrap().set_state(EngineState::Ready);
    let mut said = hello(vec![pinned]);
    said.inventory = Some(NodeInventory {
        sequence: 1,
        complete: true,
        gpus: vec![Gpu { mig_instances: parts.to_vec(), ..gpu("GPU-1", 0) }, gpu("GPU-2", 1)],
        ..NodeInventory::default()
    });
    let generation = connect(&mut site, id, 1, said, now, 1);
    let state = |site: &Site| site.node(&id).unwrap().engine_state("e").0;
    assert_eq!(state(&site), ProviderState::Available);
    let beat = |lost: &[&str], sequence| NodeHeartbeat {
        sequence,
        health: 1,
        observed_at_unix_ms: 1,
        lost_gpus: lost.iter().map(|uuid| (*uuid).to_owned()).collect(),
        ..NodeHeartbeat::default()
    };
    site.heartbeat(id, generation, beat(&["GPU-2"], 1), now, 1).unwrap();
    assert_eq!(state(&site), ProviderState::Available, "another one's");
    site.heartbeat(id, generation, beat(&["GPU-1", "GPU-2"], 2), now, 1).unwrap();
    let (benched, why) = site.node(&id).unwrap().engine_state("e");
    assert_eq!(benched, ProviderState::Unavailable);
    assert!(why.contains("GPU 0") && why.ends_with("does not answer"), "{why}");
    site.started_again(id, &["e".to_owned()]);
    assert_eq!(state(&site), ProviderState::Unavailable);
    site.heartbeat(id, generation, beat(&[], 3), now, 1).unwrap();
    assert_eq!(state(&site), ProviderState::Available);
}

#[test]
fn an_incomplete_inventory_takes_no_gpu_away() {
    let mut now = Instant::now();
    let mut site = site(now);
    let id = NodeId::random();
    site.insert(id, row("a"), Position(1), ReportRow::default());
    let generation = connect(&mut site, id, 1, hello(vec![]), now, 1);
    let gpu = |uuid: &str| Gpu { uuid: uuid.into(), ..Gpu::default() };
    let report =
        |sequence, complete, gpus| NodeInventory { sequence, complete, gpus, ..NodeInventory::default() };
    let mut tell = |site: &mut Site, report| {
        now += Duration::from_secs(1);
        site.inventory(id, generation, report, now, 1).unwrap();
    };
    tell(&mut site, report(1, true, vec![gpu("1"), gpu("2")]));
    tell(&mut site, report(2, false, vec![gpu("2")]));
    let gpus = |site: &Site| site.node(&id).unwrap().inventory().unwrap().gpus.len();
    assert_eq!(gpus(&site), 2);
    tell(&mut site, report(3, true, vec![gpu("2")]));
    assert_eq!(gpus(&site), 1);
}

/// Row 17: a clock that goes back or far ahead changes nothing but shows; the node stays online.
#[test]
fn a_wrong_clock_is_shown_and_not_believed() {
    let mut now = Instant::now();
    let mut site = site(now);
    let id = NodeId::random();
    site.insert(id, row("a"), Position(1), ReportRow::default());
    let wall = 1_000_000_000;
    let generation = connect(&mut site, id, 1, hello(vec![]), now, wall);
    let report = |sequence, observed_at_unix_ms, memory_used_bytes| NodeTelemetry {
        sequence,
        observed_at_unix_ms,
        memory_used_bytes,
        ..NodeTelemetry::default()
    };
    let used = |site: &Site| site.node(&id).unwrap().telemetry().unwrap().memory_used_bytes;
    let codes = |site: &Site| -> Vec<&str> {
        site.node(&id).unwrap().problems.keys().map(|(code, _)| *code).collect()
    };
    let mut tell = |site: &mut Site, report| {
        now += Duration::from_secs(1);
        site.telemetry(id, generation, report, now, wall)
    };
    tell(&mut site, report(1, wall, 1)).unwrap();
    tell(&mut site, report(2, wall - 3 * 3_600_000, 2)).unwrap();
    assert_eq!((used(&site), codes(&site)), (1, vec![problems::CLOCK_BEHIND]));
    tell(&mut site, report(3, wall + SKEW_MS + 1, 3)).unwrap();
    assert!(codes(&site).contains(&problems::CLOCK_AHEAD));
    assert_eq!(used(&site), 1);
    tell(&mut site, report(4, wall + 5, 4)).unwrap();
    assert_eq!((used(&site), codes(&site)), (4, vec![]));
    let replayed = tell(&mut site, report(4, wall + 6, 5)).unwrap_err();
    assert_eq!(replayed.reason, "REPLAYED");
    assert!(site.node(&id).unwrap().connected());
}

/// Row 96: one of two GPUs falls off the bus. The other stays, the lost one is shown with the time it was seen last and no
/// figures, and the provider on it takes no work until its engine was started again.
#[test]
fn a_lost_gpu_benches_its_provider() {
    let mut one = One::new();
    one.inventory(true, &["g0", "g1"]);
    one.telemetry(vec![figures("g0", None), figures("g1", Some("e"))]);
    one.beat(&[], EngineState::Ready);
    let seen = one.wall;
    one.told();
    assert_eq!(one.provider(), (ProviderStatus::Available, ProviderHealth::Ok));

    one.beat(&["g1"], EngineState::Ready);
    assert_eq!(one.told(), [("gpu_lost", true), ("provider_unavailable", false)]);
    assert_eq!(one.gpus(), [("g0".into(), GpuState::Ok), ("g1".into(), GpuState::Lost)]);
    let shown = one.snapshot().inventory.unwrap().gpus;
    assert_eq!((shown[1].last_seen_at_unix_ms, &shown[1].figures), (seen, &None));
    assert_eq!(shown[0].figures.as_ref().unwrap().utilization_percent, Some(0));
    assert_eq!(one.codes(), [problems::GPU_LOST]);
    assert_eq!(one.provider(), (ProviderStatus::Unavailable, ProviderHealth::Offline));
    let (result, message, next) = one.check("inventory");
    assert_eq!(result, CheckResult::Failed);
    assert!(message.contains("g1") && next.contains("dmesg"), "{message} {next}");

    one.beat(&["g1"], EngineState::Loading);
    one.beat(&["g1"], EngineState::Ready);
    assert_eq!(one.provider().0, ProviderStatus::Available, "it was started again, on what is left");
    one.told();
    one.beat(&[], EngineState::Ready);
    assert_eq!(one.told(), [("gpu_returned", true)]);
    assert_eq!((one.codes(), one.check("inventory").0), (vec![], CheckResult::Passed));
}

/// A GPU is missing only when a complete inventory omits it; it is shown as missing, also after a restart of the edge, and
/// its return is told.
#[test]
fn a_gpu_is_missing_only_by_a_complete_inventory() {
    let mut one = One::new();
    one.inventory(true, &["g0", "g1"]);
    one.telemetry(vec![figures("g1", Some("e"))]);
    one.told();
    one.inventory(false, &["g0"]);
    assert_eq!(one.gpus(), [("g0".into(), GpuState::Ok), ("g1".into(), GpuState::Ok)]);
    let (result, message, _) = one.check("inventory");
    assert!(result == CheckResult::Failed && message.contains("the driver hangs"), "{message}");
    assert_eq!(one.told(), [("inventory_changed", true)]);

    one.inventory(true, &["g0"]);
    assert_eq!(
        one.told(),
        [("gpu_missing", true), ("provider_unavailable", false), ("inventory_changed", true)]
    );
    assert_eq!(one.gpus(), [("g0".into(), GpuState::Ok), ("g1".into(), GpuState::Missing)]);
    assert_eq!(one.codes(), [problems::GPU_MISSING]);
    // What lasts lasts over the row as it is stored.
    let stored = one.site.take_unsaved(9).remove(0).1;
    let text = serde_json::to_string(&stored).unwrap();
    let again: ReportRow = serde_json::from_str(&text).unwrap();
    assert_eq!(again.absent, stored.absent);
    assert_eq!(again.inventory.unwrap().report(), stored.inventory.unwrap().report());

    one.inventory(true, &["g0", "g1"]);
    assert_eq!(one.told(), [("gpu_returned", true), ("provider_available", false)]);
    assert_eq!((one.gpus()[1].1, one.codes()), (GpuState::Ok, vec![]));
    // Index and bus are facts that change; they are no news.
    one.inventory(true, &["g1", "g0"]);
    assert_eq!(one.told(), []);
}

/// Rows 97, 98 and 99: figures carry their age and go after three intervals; what the driver does not give stays absent;
/// a driver that hangs is a failed check with its next step while heartbeats go on.
#[test]
fn figures_age_and_go_away() {
    let mut one = One::new();
    one.inventory(true, &["g0"]);
    one.beat(&[], EngineState::Ready);
    let mut hung = figures("g0", None);
    one.telemetry(vec![hung.clone()]);
    let shown = |one: &One| one.snapshot().inventory.unwrap().gpus.remove(0).figures;
    one.pass(5);
    let fresh = shown(&one).unwrap();
    assert_eq!((fresh.age_ms, fresh.utilization_percent, fresh.power_milliwatts), (5_000, Some(0), None));
    one.pass(11);
    assert!(shown(&one).is_none());
    assert_eq!(one.snapshot().telemetry.unwrap().age_ms, 16_000);

    hung.age_ms = 16_000;
    one.telemetry(vec![hung]);
    assert!(shown(&one).is_none(), "the report is new and its values are not");
    let (result, message, next) = one.check("telemetry");
    assert!(result == CheckResult::Failed && message.contains("16 s") && next.contains("dmesg"), "{message}");
    one.telemetry(vec![figures("g0", None)]);
    assert!(shown(&one).is_some());
    assert_eq!(one.check("telemetry").0, CheckResult::Passed);
}

/// Row 73: cursors outlive the edge's process and never go back, though telemetry is not written with each report.
#[test]
fn cursors_only_grow_over_a_restart() {
    let mut one = One::new();
    for _ in 0..300 {
        one.telemetry(vec![]);
        // The shell writes with its next sweep.
        let rows = one.site.take_unsaved(9);
        let Some((_, stored)) = rows.into_iter().next() else { continue };
        assert!(stored.telemetry_sequence >= one.sequence, "{} {}", stored.telemetry_sequence, one.sequence);
    }
    let on_disk = one.site.node(&one.id).unwrap().telemetry_on_disk;
    assert!(on_disk >= one.sequence && on_disk <= one.sequence + 512, "{on_disk} {}", one.sequence);
    let mut restarted = site(one.now);
    let report = ReportRow { telemetry_sequence: on_disk, ..ReportRow::default() };
    restarted.insert(one.id, row("a"), Position(1), report);
    let mut said = hello(vec![]);
    said.telemetry_sequence = 3;
    let generation = connect(&mut restarted, one.id, 1, said, one.now, one.wall);
    let old = NodeTelemetry { sequence: one.sequence, ..NodeTelemetry::default() };
    let error = restarted.telemetry(one.id, generation, old, one.now, one.wall).unwrap_err();
    assert_eq!(error.reason, "REPLAYED");
    let next = NodeTelemetry { sequence: on_disk + 1, ..NodeTelemetry::default() };
    restarted.telemetry(one.id, generation, next, one.now, one.wall).unwrap();
    let node = restarted.node(&one.id).unwrap();
    assert_eq!((node.streams.telemetry.refused, node.streams.telemetry.missed), (1, 0));
}

/// Row 17: a node whose clock is a day ahead from its first report on is shown, with the measured skew and the remedy; what
/// it said then stands in nobody's way once its clock is right.
#[test]
fn a_clock_that_was_never_right_poisons_nothing() {
    let day = 24 * 3_600 * 1_000;
    let mut ahead = One::new();
    let tell = |one: &mut One, by: i64| {
        one.pass(1);
        one.sequence += 1;
        let (now, wall, sequence) = (one.now, one.wall, one.sequence);
        let observed_at_unix_ms = wall + by;
        let inventory = NodeInventory {
            sequence,
            observed_at_unix_ms,
            complete: true,
            gpus: vec![gpu("g0", 0)],
            ..NodeInventory::default()
        };
        one.site.inventory(one.id, one.generation, inventory, now, wall).unwrap();
        let telemetry = NodeTelemetry {
            sequence,
            observed_at_unix_ms,
            memory_used_bytes: sequence,
            ..NodeTelemetry::default()
        };
        one.site.telemetry(one.id, one.generation, telemetry, now, wall).unwrap();
    };
    tell(&mut ahead, day);
    let snapshot = ahead.snapshot();
    assert_eq!((snapshot.clock_skew_ms, ahead.codes()), (Some(day), vec![problems::CLOCK_AHEAD.into()]));
    assert_eq!(snapshot.inventory.unwrap().gpus.len(), 1);
    for name in ["inventory", "telemetry"] {
        let (result, message, next) = ahead.check(name);
        assert_eq!(result, CheckResult::Failed, "{name}");
        assert!(message.contains("86400 s ahead") && next.contains("timedatectl"), "{message} {next}");
    }
    tell(&mut ahead, 0);
    assert_eq!((ahead.snapshot().clock_skew_ms, ahead.codes()), (None, vec![]));
    assert_eq!(ahead.check("inventory").0, CheckResult::Passed);
    // It goes back within what is allowed: the last good state stays until the clock is past it.
    tell(&mut ahead, -2_000);
    assert_eq!(ahead.codes(), [problems::CLOCK_BEHIND]);
    assert_eq!(ahead.snapshot().telemetry.unwrap().memory_used_bytes, 2);
    ahead.pass(2);
    tell(&mut ahead, -2_000);
    assert_eq!((ahead.codes(), ahead.snapshot().telemetry.unwrap().memory_used_bytes), (vec![], 4));
    // A heartbeat shows a clock that is hours behind although no report is older than the last.
    ahead.beat(&[], EngineState::Ready);
    ahead.wall += 3 * 3_600 * 1_000;
    let beat =
        NodeHeartbeat { observed_at_unix_ms: ahead.wall - 3 * 3_600 * 1_000, ..NodeHeartbeat::default() };
    ahead.site.heartbeat(ahead.id, ahead.generation, beat, ahead.now, ahead.wall).unwrap();
    assert_eq!(
        (ahead.codes(), ahead.snapshot().clock_skew_ms),
        (vec![problems::CLOCK_BEHIND.into()], Some(-10_800_000))
    );
    // What is allowed is a setting.
    ahead.site.set_allowed_skew(Duration::from_secs(4 * 3_600));
    let beat =
        NodeHeartbeat { observed_at_unix_ms: ahead.wall - 3 * 3_600 * 1_000, ..NodeHeartbeat::default() };
    ahead.site.heartbeat(ahead.id, ahead.generation, beat, ahead.now, ahead.wall).unwrap();
    assert_eq!(ahead.codes(), Vec::<String>::new());
}

/// A host that was enrolled anew after its old identity was retired has its GPUs for itself, also after a restart.
#[test]
fn a_tombstone_claims_no_gpu() {
    let mut one = One::new();
    one.inventory(true, &["g0"]);
    let other = NodeId::random();
    one.site.insert(other, row("b"), Position(2), ReportRow::default());
    let generation = connect(&mut one.site, other, 1, hello(vec![]), one.now, one.wall);
    let same = NodeInventory {
        sequence: 1,
        observed_at_unix_ms: one.wall,
        complete: true,
        gpus: vec![gpu("g0", 0)],
        ..NodeInventory::default()
    };
    one.site.inventory(other, generation, same, one.now, one.wall).unwrap();
    let problem = one.snapshot().problems.remove(0);
    assert_eq!((problem.code.as_str(), problem.subject.as_str()), (problems::SAME_HARDWARE, "g0"));
    assert!(problem.message.contains("a, b") || problem.message.contains("b, a"), "{}", problem.message);
    let mut retired = row("a");
    retired.lifecycle = super::super::node::Lifecycle::Decommissioned;
    let report = one.site.node(&one.id).unwrap().report.clone();
    one.site.apply(one.id, retired.clone(), Position(3));
    assert!(one.site.node(&other).unwrap().problems.is_empty());
    let mut restarted = site(one.now);
    restarted.insert(one.id, retired, Position(3), report.clone());
    restarted.insert(other, row("b"), Position(2), report);
    assert!(restarted.node(&other).unwrap().problems.is_empty());
    assert!(restarted.node(&one.id).unwrap().report.inventory.is_none());
}

/// A lost machine is replaced by another under the same node_id: its GPUs are others, and nobody misses the old ones.
#[test]
fn a_replaced_host_misses_no_gpu() {
    let mut one = One::new();
    one.inventory(true, &["g0", "g1"]);
    one.beat(&["g1"], EngineState::Ready);
    one.site.moved_host(one.id, row("a"), Position(2), Vec::new());
    assert_eq!(one.codes(), Vec::<String>::new());
    assert!(one.snapshot().inventory.is_none());
    one.generation = connect(&mut one.site, one.id, 2, hello(vec![engine("e", "m", 0)]), one.now, one.wall);
    one.told();
    one.inventory(true, &["g7"]);
    assert_eq!((one.gpus(), one.codes()), (vec![("g7".into(), GpuState::Ok)], vec![]));
    assert_eq!(one.told(), []);
}

/// Since when something is so is told by the node's clock, whatever that says: an age counts on one clock.
#[test]
fn what_a_node_says_it_is_since_when_is_as_old_here_as_there() {
    for ahead in [0, 90_000, -90_000, 3 * 3_600_000] {
        let mut one = One::new();
        one.wall += 10_000_000;
        let theirs = one.wall + ahead;
        let failed = EngineStatus {
            name: "e".to_owned(),
            state: EngineState::Failed.into(),
            since_unix_ms: theirs - 42_000,
            ..EngineStatus::default()
        };
        let problem = NodeProblem {
            code: "DIRECTORY_MISSING".to_owned(),
            since_unix_ms: theirs - 7_000,
            ..NodeProblem::default()
        };
        let beat = NodeHeartbeat {
            sequence: 1,
            observed_at_unix_ms: theirs,
            engines: vec![failed],
            problems: vec![problem],
            ..NodeHeartbeat::default()
        };
        one.site.heartbeat(one.id, one.generation, beat, one.now, one.wall).unwrap();
        let node = one.site.node(&one.id).unwrap();
        assert_eq!(node.age_ms(theirs - 42_000, one.wall), Some(42_000), "{ahead}");
        assert_eq!(node.age_ms(0, one.wall), None);
        assert_eq!(node.reported[0].since_unix_ms, one.wall - 7_000, "{ahead}");
        let told = one.snapshot().problems.into_iter().find(|problem| problem.code == "ENGINE_FAILED");
        assert_eq!(told.unwrap().since_unix_ms, one.wall - 42_000, "{ahead}");
    }
}
