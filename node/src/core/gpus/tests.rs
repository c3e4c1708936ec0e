//! GPUs over sweeps. Rows are those of the fault catalogue.

use umbel_contracts::proto::node::MigInstance;

use super::*;

const INTERVAL: Duration = Duration::from_secs(5);

fn gpu(number: u32, index: u32) -> Seen {
    let uuid = format!("GPU-{number}");
    Seen {
        facts: Gpu {
            uuid: uuid.clone(),
            name: "H200".into(),
            memory_bytes: 100,
            pci_address: format!("0:{number}"),
            index,
            ..Gpu::default()
        },
        figures: GpuTelemetry {
            utilization_percent: Some(7),
            memory_used_bytes: Some(5),
            ..GpuTelemetry::default()
        },
        ..Seen::default()
    }
}

fn sweep(numbers: &[u32]) -> Sweep {
    Sweep {
        seen: (0..).zip(numbers).map(|(index, number)| gpu(*number, index)).collect(),
        ..Sweep::default()
    }
}

fn uuids(gpus: &Gpus) -> Vec<String> {
    gpus.facts().gpus.iter().map(|gpu| gpu.uuid.clone()).collect()
}

/// Row 96: the others go on, the lost one has no made-up figures and is named, and comes back.
#[test]
fn row_96_one_of_four_falls_off_the_bus() {
    let (mut gpus, now) = (Gpus::default(), Instant::now());
    assert!(gpus.swept(now, 1, sweep(&[1, 2, 3, 4])).kept);
    let mut three = sweep(&[1, 2, 3, 4]);
    three.seen.remove(1);
    three.unreadable = vec!["GPU 1: lost".into()];
    let changed = gpus.swept(now, 2, three.clone());
    assert_eq!(changed, Changed { lost: true, kept: false });
    let facts = gpus.facts();
    assert_eq!((facts.gpus.len(), facts.incomplete), (4, None));
    assert_eq!(gpus.lost(), ["GPU-2"]);
    let told = gpus.telemetry(now, INTERVAL);
    let lost = told.iter().find(|gpu| gpu.uuid == "GPU-2").unwrap();
    assert!(lost.lost && lost.utilization_percent.is_none() && lost.memory_used_bytes.is_none());
    assert_eq!(told.iter().filter(|gpu| gpu.utilization_percent == Some(7)).count(), 3);
    let shown = gpus.shown(now, INTERVAL);
    let shown = shown.iter().find(|gpu| gpu.facts.uuid == "GPU-2").unwrap();
    assert_eq!((shown.seen_unix_ms, shown.lost_since_unix_ms), (1, Some(2)));
    // Still lost: nothing changed, and since when stays.
    assert_eq!(gpus.swept(now, 3, three), Changed::default());
    assert_eq!(gpus.shown(now, INTERVAL)[1].lost_since_unix_ms, Some(2));
    assert!(gpus.swept(now, 4, sweep(&[1, 2, 3, 4])).lost);
    assert!(gpus.lost().is_empty() && gpus.telemetry(now, INTERVAL).iter().all(|gpu| !gpu.lost));
}

/// After a restart of the agent the lost one is still known by name.
#[test]
fn a_lost_one_is_named_after_a_restart() {
    let mut before = Gpus::default();
    before.swept(Instant::now(), 1, sweep(&[1, 2]));
    let mut gpus = Gpus::after_start(before.kept());
    let one = Sweep { unreadable: vec!["GPU 1".into()], ..sweep(&[1]) };
    gpus.swept(Instant::now(), 2, one.clone());
    assert_eq!(gpus.lost(), ["GPU-2"]);
    assert_eq!(gpus.facts().incomplete, None);
    // Without that knowledge the list is not whole, and says so.
    let mut fresh = Gpus::default();
    fresh.swept(Instant::now(), 2, one);
    assert_eq!(
        (uuids(&fresh), fresh.facts().incomplete),
        (vec!["GPU-1".to_owned()], Some("GPU 1".to_owned()))
    );
}

/// Missing is only what a whole list leaves out; of two absent ones behind one silent place none is judged.
#[test]
fn missing_and_lost_are_told_apart() {
    let (mut gpus, now) = (Gpus::default(), Instant::now());
    gpus.swept(now, 1, sweep(&[1, 2, 3]));
    gpus.swept(now, 2, Sweep { unreadable: vec!["GPU 1".into()], ..sweep(&[1]) });
    assert_eq!((gpus.facts().gpus.len(), gpus.lost().len()), (3, 0));
    assert!(gpus.facts().incomplete.is_some());
    // The driver still knows one of them by name: then the other is gone.
    let silent = BTreeSet::from(["GPU-3".to_owned()]);
    gpus.swept(now, 3, Sweep { unreadable: vec!["GPU 1".into()], silent, ..sweep(&[1]) });
    assert_eq!(
        (uuids(&gpus).len(), gpus.lost(), gpus.facts().incomplete),
        (2, vec!["GPU-3".to_owned()], None)
    );
    gpus.swept(now, 4, sweep(&[1]));
    assert_eq!(uuids(&gpus), ["GPU-1"]);
}

/// Indexes change with a boot or a visible-devices list: UUIDs name GPUs.
#[test]
fn the_order_of_indexes_means_nothing() {
    let (mut gpus, now) = (Gpus::default(), Instant::now());
    gpus.swept(now, 1, sweep(&[1, 2]));
    let changed = gpus.swept(now, 2, sweep(&[2, 1]));
    assert!(!changed.lost);
    assert_eq!(uuids(&gpus), ["GPU-2", "GPU-1"]);
}

/// Rows 97 and 98: while the driver hangs, figures grow old and go away after three intervals; then they come back.
#[test]
fn rows_97_98_figures_age_and_go_away() {
    let (mut gpus, start) = (Gpus::default(), Instant::now());
    gpus.swept(start, 1, sweep(&[1]));
    let at = |gpus: &Gpus, seconds| gpus.telemetry(start + Duration::from_secs(seconds), INTERVAL).remove(0);
    assert_eq!((at(&gpus, 0).age_ms, at(&gpus, 0).utilization_percent), (0, Some(7)));
    assert!(gpus.failed(2, "hangs".into()) && !gpus.failed(9, "hangs".into()));
    assert_eq!((at(&gpus, 10).age_ms, at(&gpus, 10).utilization_percent), (10_000, Some(7)));
    assert_eq!((at(&gpus, 16).age_ms, at(&gpus, 16).utilization_percent), (16_000, None));
    let facts = gpus.facts();
    assert_eq!((facts.gpus.len(), facts.incomplete.as_deref()), (1, Some("hangs")));
    let problems = gpus.problems(start);
    assert_eq!((problems[0].code.as_str(), problems[0].since_unix_ms), ("GPU_UNAVAILABLE", 2));
    assert!(gpus.lost().is_empty(), "a driver that does not answer says nothing of one GPU");
    gpus.swept(start + Duration::from_secs(20), 3, sweep(&[1]));
    assert_eq!(at(&gpus, 20).utilization_percent, Some(7));
    assert!(gpus.problems(start).is_empty() && gpus.facts().incomplete.is_none());
}

/// Row 98: the flag goes, the count stays; an error of a program is counted and no problem.
#[test]
fn row_98_an_xid_is_a_problem_for_a_time_and_counted_for_ever() {
    let (mut gpus, now) = (Gpus::default(), Instant::now());
    gpus.swept(now, 1, sweep(&[1]));
    assert_eq!(
        (gpus.telemetry(now, INTERVAL)[0].xid_count, gpus.telemetry(now, INTERVAL)[0].xid_last),
        (Some(0), None)
    );
    let raised = |number| Sweep { xids: vec![("GPU-1".into(), number)], ..sweep(&[1]) };
    gpus.swept(now, 2, raised(31));
    assert!(gpus.problems(now).is_empty());
    gpus.swept(now, 3, raised(79));
    assert_eq!(gpus.problems(now)[0].code, "GPU_XID");
    let later = now + XID_SHOWN;
    gpus.swept(later, 4, sweep(&[1]));
    assert!(gpus.problems(later).is_empty());
    let told = gpus.telemetry(later, INTERVAL).remove(0);
    assert_eq!((told.xid_count, told.xid_last), (Some(2), Some(79)));
}

#[test]
fn memory_is_summed_by_engine_and_stays_with_a_lost_gpu() {
    let (mut gpus, now) = (Gpus::default(), Instant::now());
    let holder = |pid, bytes| Holder { pid, bytes };
    let mut two = sweep(&[1]);
    two.seen[0].processes = vec![holder(7, Some(3)), holder(8, Some(4)), holder(9, Some(5)), holder(8, None)];
    gpus.swept(now, 1, two);
    assert_eq!(gpus.said().holders, BTreeSet::from([7, 8, 9]));
    gpus.attribute(&BTreeMap::from([(7, "chat".to_owned()), (8, "chat".to_owned())]));
    let chat = EngineMemory { engine: "chat".into(), bytes: 7 };
    assert_eq!(gpus.telemetry(now, INTERVAL)[0].engines, std::slice::from_ref(&chat));
    gpus.swept(now, 2, Sweep { unreadable: vec!["GPU 0".into()], ..Sweep::default() });
    gpus.attribute(&BTreeMap::new());
    assert_eq!(gpus.telemetry(now, INTERVAL)[0].engines, [chat]);
}

#[test]
fn gpus_behind_one_switch_are_one_group() {
    let linked = |number, peers: &[&str]| Seen {
        peers: peers.iter().map(|peer| (*peer).to_owned()).collect(),
        ..gpu(number, number)
    };
    let seen = [
        linked(1, &["sw1"]),
        linked(4, &["0:5"]),
        linked(2, &["sw2"]),
        linked(3, &["sw1", "sw2"]),
        linked(5, &["0:4"]),
        gpu(6, 6),
    ];
    let groups = nvlink_groups(&seen);
    assert_eq!(groups.len(), 5);
    assert!(["GPU-1", "GPU-2", "GPU-3"].iter().all(|uuid| groups[*uuid] == "nvlink:GPU-1"));
    assert!(["GPU-4", "GPU-5"].iter().all(|uuid| groups[*uuid] == "nvlink:GPU-4"));
}

/// More than a node may have are left out, and the inventory says so.
#[test]
fn there_is_an_end_to_gpus() {
    let mut gpus = Gpus::default();
    gpus.swept(Instant::now(), 1, sweep(&(0..70).collect::<Vec<_>>()));
    let facts = gpus.facts();
    assert!(facts.gpus.len() == GPUS && facts.incomplete.unwrap().starts_with("6 GPUs"));
}

/// Memory that nobody has is what is used less what processes have; where one does not say how much, nothing is known. Parts of a
/// GPU answer with it.
#[test]
fn row_101_what_nobody_has_is_told() {
    let (mut gpus, now) = (Gpus::default(), Instant::now());
    let mut pass = sweep(&[1, 2, 3, 4]);
    let holder = |bytes| Holder { pid: 7, bytes };
    for (seen, processes) in pass.seen.iter_mut().zip([vec![], vec![Some(2), Some(2)], vec![None], vec![]]) {
        seen.processes = processes.into_iter().map(holder).collect();
    }
    pass.seen[3].figures.memory_used_bytes = None;
    pass.seen[0].facts.mig_instances = vec![MigInstance { uuid: "MIG-1".into(), ..MigInstance::default() }];
    gpus.swept(now, 1, pass.clone());
    let said = gpus.said();
    assert_eq!(said.unowned, BTreeMap::from([("GPU-1".into(), 5), ("GPU-2".into(), 1)]));
    assert_eq!(said.holders, BTreeSet::from([7]));
    assert!(said.answering.contains("MIG-1") && said.answering.len() == 5);
    pass.seen.remove(0);
    pass.unreadable = vec!["GPU 0: lost".into()];
    gpus.swept(now, 2, pass);
    let said = gpus.said();
    assert!(!said.answering.contains("MIG-1") && !said.unowned.contains_key("GPU-1"), "{said:?}");
}
