//! What an explanation says of one fleet.

use super::dice::{GIB, good_node, gpu};
use super::explain;
use crate::core::placement::candidate::{Candidate, Room, Standing};
use crate::core::placement::explain::Explanation;
use crate::core::placement::remedy::{Change, Freed, Named, Stocks};
use crate::core::placement::request::{ArtifactNeed, EngineNeed, GpuNeed, Memory, Request};

/// Five nodes, as in the study of what operators want to know.
fn fleet() -> Vec<Candidate> {
    let with = |number: usize, name: &str, gib: u64, capability: &str, count: usize| {
        let mut node = good_node(number);
        node.room = Some(Room { free_bytes: 900 * GIB, reserve_bytes: 50 * GIB });
        node.gpus = (0..count).map(|index| gpu(number, index, name, gib, capability)).collect();
        node
    };
    let mut fleet = vec![
        with(1, "NVIDIA A100-SXM4-80GB", 80, "8.0", 8),
        with(2, "NVIDIA H100 80GB HBM3", 80, "9.0", 8),
        with(3, "NVIDIA H200", 140, "9.0", 4),
        with(4, "NVIDIA H200", 140, "9.0", 4),
        with(5, "NVIDIA H200", 140, "9.0", 4),
    ];
    fleet[2].draining = true;
    fleet[2].gpus[0].holder = Some("gemma.r1".to_owned());
    fleet[3].gpus[0].holder = Some("qwen3-32b.r1".to_owned());
    fleet[3].gpus[1].holder = Some("qwen3-32b.r1".to_owned());
    fleet[3].gpus[2].holder = Some("llama".to_owned());
    fleet[3].gpus[3].foreign_bytes = 52 * GIB;
    fleet[4].standing = Standing::Silent("offline", Some(192_000));
    fleet
}

fn request() -> Request {
    Request {
        deployment: "qwen3-235b".to_owned(),
        gpus: GpuNeed {
            count: 4,
            memory_bytes: 92 * GIB,
            capability: "8.9".parse().ok(),
            driver: "550".parse().ok(),
            ..GpuNeed::default()
        },
        engine: Some(EngineNeed { kind: "vllm".to_owned(), version: "0.10".parse().ok() }),
        artifact: Some(ArtifactNeed {
            key: "k".to_owned(),
            name: "Qwen/Qwen3-235B@abc".to_owned(),
            bytes: 250 * GIB,
        }),
        ..Request::default()
    }
}

fn sentences(why: &Explanation, name: &str) -> Vec<String> {
    let view = why.nodes.iter().find(|view| view.name == name).unwrap();
    view.obstacles.iter().map(|obstacle| obstacle.sentence()).collect()
}

fn remedies(why: &Explanation) -> Vec<String> {
    let name = |id| why.nodes.iter().find(|view| view.id == id).unwrap().name.as_str();
    why.remedies
        .iter()
        .map(|remedy| {
            let steps: Vec<String> =
                remedy.steps.iter().map(|step| step.change.sentence(name(step.node))).collect();
            steps.join("; then ")
        })
        .collect()
}

#[test]
fn every_node_is_explained_with_its_numbers() {
    let why = explain(&request(), &fleet());
    assert_eq!(why.left, 0);
    let funnel: Vec<_> =
        why.funnel.iter().map(|(reason, names)| format!("{} {}", reason.words(), names.join(","))).collect();
    assert_eq!(
        funnel,
        [
            "not online node-5",
            "draining node-3",
            "GPUs too old node-1",
            "GPUs too small node-2",
            "GPU memory held by foreign processes node-4",
        ]
    );
    assert_eq!(sentences(&why, "node-5"), ["offline, last heard 3 min ago"]);
    assert_eq!(
        sentences(&why, "node-3"),
        ["draining: it takes no new work", "3 of 4 GPUs fit, 4 wanted: GPU 0 is held by gemma.r1"]
    );
    assert_eq!(
        sentences(&why, "node-4"),
        [
            "0 of 4 GPUs fit, 4 wanted: GPU 0 is held by qwen3-32b.r1, GPU 1 is held by qwen3-32b.r1, GPU 2 is held by \
             llama, GPU 3 has 88.0 GiB free < 92.0 GiB: foreign processes hold 52.0 GiB"
        ]
    );
    assert!(
        sentences(&why, "node-2")[0].starts_with("0 of 8 GPUs fit, 4 wanted: GPU 0 has 80.0 GiB < 92.0 GiB")
    );
    assert!(sentences(&why, "node-1")[0].contains("GPU 0 has capability 8.0 < 8.9"));
}

#[test]
fn the_changes_are_told_with_the_least_first() {
    let why = explain(&request(), &fleet());
    assert_eq!(
        remedies(&why),
        [
            "gpus.memory_bytes = 85899345920 (80.0 GiB instead of 92.0 GiB)",
            "bring node-5 back online (it is offline)",
            "stop llama (GPU 2), qwen3-32b.r1 (GPU 0, 1) and end the foreign processes on GPU 3 (52.0 GiB) on node-4: \
             frees 4 GPUs, 560.0 GiB",
        ]
    );
    let step = &why.remedies[2].steps[0];
    assert_eq!(
        step.change.commands("node-4", "qwen3-235b", &Stocks::new()),
        [
            "umbel ctl engine stop node-4/llama -m 'why'",
            "umbel ctl model unload qwen3-32b -m 'why'",
            "nvidia-smi   # on its host: the processes that are no engines",
        ]
    );
    let draining = why.nodes.iter().find(|view| view.name == "node-3").unwrap();
    let words: Vec<_> = draining.remedies[0].steps.iter().map(|step| step.change.word()).collect();
    assert_eq!(words, ["undrain", "free_gpus"]);
}

#[test]
fn what_speaks_for_a_node_is_told_too() {
    let mut request = request();
    request.gpus.memory_bytes = 70 * GIB;
    request.placed.insert(super::dice::id(1), 1);
    let why = explain(&request, &fleet());
    let best = &why.nodes[0];
    assert_eq!((best.name.as_str(), why.plan.is_some(), why.left), ("node-2", true, 1));
    let said: Vec<_> = best.favours.iter().map(|favour| favour.sentence()).collect();
    assert_eq!(
        said,
        [
            "8 of 8 GPUs fit",
            "vllm 0.11.0 is installed",
            "900.0 GiB free for the files, 50.0 GiB of it to stay so",
            "it has no replica yet"
        ]
    );
    assert!(why.remedies.is_empty());
}

#[test]
fn shards_are_explained_by_their_fabric() {
    let mut request = Request { nodes: 3, fabric_label: "ib".to_owned(), ..request() };
    request.gpus.memory_bytes = 0;
    request.gpus.count = 1;
    request.gpus.capability = None;
    let mut fleet = fleet();
    for (number, fabric) in [(0, "east"), (1, "east"), (2, "east"), (3, "west")] {
        fleet[number].fabric.insert("ib".to_owned(), fabric.to_owned());
    }
    fleet[3].gpus[3].holder = Some("x".to_owned());
    let why = explain(&request, &fleet);
    assert_eq!(sentences(&why, "node-1"), ["2 of 3 nodes with `ib=east` fit"]);
    assert_eq!(
        sentences(&why, "node-5")[1],
        "no fabric label `ib`: shards find each other only within one fabric"
    );
    assert_eq!(remedies(&why)[0], "take the drain of node-3 back");
    fleet[2].draining = false;
    assert!(explain(&request, &fleet).plan.is_some());
}

/// What a change takes of another deployment is said, and it is the least that a command can take.
#[test]
fn a_change_takes_no_more_replicas_than_it_has_to_or_says_how_many() {
    let freed = |holder: &str, index: u32| Freed {
        gpu: Named { uuid: format!("GPU-{index}"), index },
        holder: Some(holder.to_owned()),
        foreign_bytes: 0,
        memory_bytes: 80 * GIB,
    };
    let stocks = |order: &[&str]| -> Stocks {
        [("qwen".to_owned(), order.iter().map(|one| (*one).to_owned()).collect())].into()
    };
    let told = |holders: &[&str], stocks: &Stocks| {
        let freed = holders.iter().zip(0..).map(|(holder, index)| freed(holder, index));
        let change = Change::FreeGpus(freed.collect());
        let takes = change.takes(stocks);
        let figures: Vec<_> = takes.iter().map(|one| (one.needed, one.goes, one.of)).collect();
        (figures, change.commands("a", "m", stocks), takes.iter().map(|one| one.beside()).collect::<String>())
    };
    let unload = "umbel ctl model unload qwen -m 'why'".to_owned();
    // The only one.
    let one = stocks(&["qwen.r1"]);
    assert_eq!(told(&["qwen.r1"], &one), (vec![(1, 1, 1)], vec![unload.clone()], String::new()));
    // The one of three that would go if two were wanted: two GPUs of it are one replica.
    let three = stocks(&["qwen.r3", "qwen.r1", "qwen.r2"]);
    let fewer = "umbel ctl model apply FILE -m 'why'   # qwen with replicas = 2 instead of 3".to_owned();
    assert_eq!(told(&["qwen.r3", "qwen.r3"], &three), (vec![(1, 1, 3)], vec![fewer], String::new()));
    // Another one would go first: all of them go.
    let all = format!("{unload}   # all its 3 replicas go");
    let beside = "; 2 more of qwen go with it".to_owned();
    assert_eq!(told(&["qwen.r1"], &three), (vec![(1, 3, 3)], vec![all.clone()], beside));
    let beside = "; 1 more of qwen goes with it".to_owned();
    assert_eq!(told(&["qwen.r1", "qwen.r2"], &three), (vec![(2, 3, 3)], vec![all], beside));
    // Two of three, which are the first two to go; and an engine of the node's own file beside them.
    let fewer = "umbel ctl model apply FILE -m 'why'   # qwen with replicas = 1 instead of 3".to_owned();
    let (figures, commands, beside) = told(&["qwen.r1", "qwen.r3", "chat"], &three);
    assert_eq!((figures, beside), (vec![(2, 2, 3)], String::new()));
    assert_eq!(commands, ["umbel ctl engine stop a/chat -m 'why'".to_owned(), fewer]);
}

/// A model of which the weights are known is not told to fit where they do not, and one that is divided over its GPUs may take
/// more of smaller ones.
#[test]
fn weights_and_parts_decide_which_changes_make_sense() {
    let known = |weights: u64, divides: bool| {
        let memory = Memory { weights_bytes: Some(weights * GIB), divides, measured_bytes: None };
        Request { memory, ..request() }
    };
    let mut fleet = fleet();
    fleet.retain(|node| node.name == "node-2");
    // 59 GiB of weights on each of four GPUs: 80 GiB for each are enough of them.
    let lower = "gpus.memory_bytes = 85899345920 (80.0 GiB instead of 92.0 GiB)";
    assert_eq!(remedies(&explain(&known(236, false), &fleet)), [lower]);
    let raise = "gpus.count = 8 instead of 4, and gpus.memory_bytes = 49392123904 (46.0 GiB instead of 92.0 GiB): the same memory \
                 in more GPUs";
    assert_eq!(remedies(&explain(&known(236, true), &fleet)), [raise, lower]);
    // 85 GiB of weights on each: in 80 GiB there is no room for them, in twice as many GPUs there is.
    assert_eq!(remedies(&explain(&known(340, false), &fleet)), [] as [&str; 0]);
    assert_eq!(remedies(&explain(&known(340, true), &fleet)), [raise]);
    // One of the eight is held: it has to be freed first.
    fleet[0].gpus[0].holder = Some("chat".to_owned());
    let both = format!("{raise}; then stop chat (GPU 0) on node-2: frees 1 GPU, 80.0 GiB");
    assert_eq!(remedies(&explain(&known(340, true), &fleet)), [both.as_str()]);
}
