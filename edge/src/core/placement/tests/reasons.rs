//! Each reason by itself: one node in the way of which one thing is, told with its words and its numbers.

use umbel_contracts::objects::{PlacementAgainstObject, PlacementReason, PlacementReason::*};

use super::dice::{GIB, good_node, gpu};
use super::explain;
use crate::core::placement::candidate::{Candidate, Condition, Room, Standing};
use crate::core::placement::explain::{funnel, sentence};
use crate::core::placement::remedy::Stocks;
use crate::core::placement::request::{ArtifactNeed, EngineNeed, GpuNeed, Request};
use crate::core::placement::told;

/// What stands in the way, and what is told of it.
struct Case {
    put: fn(&mut Request, &mut Candidate),
    message: &'static str,
    /// Wanted and found, as numbers.
    numbers: (Option<u64>, Option<u64>),
    /// Wanted and found, as versions.
    versions: (Option<&'static str>, Option<&'static str>),
    /// What is said of the first GPU.
    gpu: Option<&'static str>,
    /// In one word the change that is told, if one is.
    change: Option<&'static str>,
}

const PLAIN: Case = Case {
    put: |_, _| {},
    message: "",
    numbers: (None, None),
    versions: (None, None),
    gpu: None,
    change: None,
};

/// The case of a reason, if it is one that is still given, and the reason after it: a new one does not compile without its own.
#[allow(clippy::too_many_lines, reason = "a table: each reason has its line")]
fn case(reason: PlacementReason) -> (Option<Case>, Option<PlacementReason>) {
    let said = |message, change: &'static str, put: fn(&mut Request, &mut Candidate)| Case {
        put,
        message,
        change: (!change.is_empty()).then_some(change),
        ..PLAIN
    };
    let of_gpus = |gpu, message, usable, change: &'static str, put: fn(&mut Request, &mut Candidate)| Case {
        numbers: (Some(2), Some(usable)),
        gpu: Some(gpu),
        ..said(message, change, put)
    };
    let (case, next) = match reason {
        Disabled => (
            said("disabled: it may not connect", "enable", |_, node| node.standing = Standing::Disabled),
            NoCredential,
        ),
        NoCredential => (
            said("its credential is revoked", "new_credential", |_, node| {
                node.standing = Standing::NoCredential("credential_revoked");
            }),
            NotOnline,
        ),
        NotOnline => (
            said("offline, last heard 3 min ago", "bring_online", |_, node| {
                node.standing = Standing::Silent("offline", Some(192_000));
            }),
            SettingsRefused,
        ),
        SettingsRefused => (
            Case {
                numbers: (Some(7), None),
                ..said("refused settings version 7: no such key", "correct_settings", |_, node| {
                    node.settings_refused = Some((7, "no such key".to_owned()));
                })
            },
            NotEligible,
        ),
        // A remark now: engines run there.
        NotEligible => return (None, Some(Draining)),
        Draining => {
            (said("draining: it takes no new work", "undrain", |_, node| node.draining = true), Avoided)
        }
        Avoided => (
            said("left alone for now: a load failed there: out of memory", "try_again", |request, node| {
                request.avoid.insert(node.id, "a load failed there: out of memory".to_owned());
            }),
            NotSelected,
        ),
        NotSelected => (
            said("the selector asks for label:zone=a", "add_label", |request, _| {
                request.selector = umbel_contracts::selector::Selector::parse("label:zone=a").ok();
            }),
            AgentTooOld,
        ),
        AgentTooOld => (
            said("its agent cannot load deployments: too old", "update_agent", |_, node| node.loads = false),
            EngineMissing,
        ),
        EngineMissing => (
            said("vllm is not installed; it has sim", "install_engine", |_, node| {
                node.runtimes[0].kind = "sim".to_owned();
            }),
            EngineTooOld,
        ),
        EngineTooOld => (
            Case {
                versions: (Some("0.10"), Some("0.9.1")),
                ..said("vllm 0.10 wanted, 0.9.1 installed", "install_engine", |_, node| {
                    node.runtimes[0].version = "0.9.1".to_owned();
                })
            },
            FabricMissing,
        ),
        FabricMissing => (
            said(
                "no fabric label `ib`: shards find each other only within one fabric",
                // One node has nobody to share one with.
                "",
                |request, _| request.nodes = 2,
            ),
            NoInventory,
        ),
        NoInventory => (
            said("it has never said which GPUs it has", "", |_, node| {
                node.inventory = false;
                node.driver = None;
                node.gpus.clear();
            }),
            DriverTooOld,
        ),
        DriverTooOld => (
            Case {
                versions: (Some("550.0"), Some("535.1")),
                ..said("GPU driver 550.0 wanted, 535.1 there", "update_driver", |_, node| {
                    node.driver = "535.1".parse().ok();
                })
            },
            GpuCount,
        ),
        GpuCount => (
            Case {
                numbers: (Some(2), Some(1)),
                ..said("1 of 1 GPUs fit, 2 wanted", "lower_gpu_count", |_, node| node.gpus.truncate(1))
            },
            GpuName,
        ),
        GpuName => (
            of_gpus(
                "is a NVIDIA H200",
                "0 of 2 GPUs fit, 2 wanted: GPU 0 is a NVIDIA H200, GPU 1 is a NVIDIA H200",
                0,
                "allow_gpu_names",
                |request, _| request.gpus.names = vec!["*L40S*".to_owned()],
            ),
            GpuCapability,
        ),
        GpuCapability => (
            of_gpus(
                "has capability 8.0 < 8.9",
                "1 of 2 GPUs fit, 2 wanted: GPU 0 has capability 8.0 < 8.9",
                1,
                "lower_gpu_count",
                |_, node| node.gpus[0].capability = "8.0".parse().ok(),
            ),
            GpuGone,
        ),
        GpuGone => (
            of_gpus(
                "is gone from the host",
                "1 of 2 GPUs fit, 2 wanted: GPU 0 is gone from the host",
                1,
                "lower_gpu_count",
                |_, node| node.gpus[0].condition = Condition::Missing,
            ),
            GpuMig,
        ),
        GpuMig => (
            of_gpus(
                "is divided (MIG)",
                "1 of 2 GPUs fit, 2 wanted: GPU 0 is divided (MIG)",
                1,
                "lower_gpu_count",
                |_, node| node.gpus[0].condition = Condition::Mig,
            ),
            GpuSize,
        ),
        GpuSize => (
            of_gpus(
                "has 40.0 GiB < 92.0 GiB",
                "1 of 2 GPUs fit, 2 wanted: GPU 0 has 40.0 GiB < 92.0 GiB",
                1,
                "lower_gpu_count",
                |_, node| node.gpus[0].memory_bytes = 40 * GIB,
            ),
            GpuForeign,
        ),
        GpuForeign => (
            of_gpus(
                "has 88.0 GiB free < 92.0 GiB: foreign processes hold 52.0 GiB",
                "1 of 2 GPUs fit, 2 wanted: GPU 0 has 88.0 GiB free < 92.0 GiB: foreign processes hold 52.0 GiB",
                1,
                "free_gpus",
                |_, node| node.gpus[0].foreign_bytes = 52 * GIB,
            ),
            GpuHeld,
        ),
        GpuHeld => (
            of_gpus(
                "is held by chat.r1",
                "1 of 2 GPUs fit, 2 wanted: GPU 0 is held by chat.r1",
                1,
                "free_gpus",
                |_, node| node.gpus[0].holder = Some("chat.r1".to_owned()),
            ),
            EngineCount,
        ),
        EngineCount => (
            Case {
                numbers: (Some(32), Some(33)),
                ..said("has 33 engines, and a node has at most 32", "end_engines", |_, node| {
                    node.engines = (0..33).map(|number| format!("e{number}")).collect();
                })
            },
            Space,
        ),
        Space => (
            Case {
                numbers: (Some(300 * GIB), Some(120 * GIB)),
                ..said(
                    "250.0 GiB of files and 50.0 GiB to stay free wanted, 120.0 GiB free",
                    "free_space",
                    |_, node| {
                        node.room = Some(Room { free_bytes: 120 * GIB, reserve_bytes: 50 * GIB });
                    },
                )
            },
            FabricTooSmall,
        ),
        FabricTooSmall => (
            Case {
                numbers: (Some(2), Some(1)),
                ..said("1 of 2 nodes with `ib=east` fit", "lower_nodes_per_replica", |request, node| {
                    request.nodes = 2;
                    node.fabric.insert("ib".to_owned(), "east".to_owned());
                })
            },
            Unrecognized,
        ),
        Unrecognized => return (None, None),
    };
    (Some(case), Some(next))
}

fn wish() -> Request {
    Request {
        deployment: "m".to_owned(),
        gpus: GpuNeed {
            count: 2,
            memory_bytes: 92 * GIB,
            capability: "8.9".parse().ok(),
            driver: "550".parse().ok(),
            ..GpuNeed::default()
        },
        fabric_label: "ib".to_owned(),
        engine: Some(EngineNeed { kind: "vllm".to_owned(), version: "0.10".parse().ok() }),
        artifact: Some(ArtifactNeed { key: "k".to_owned(), name: "org/m@1".to_owned(), bytes: 250 * GIB }),
        ..Request::default()
    }
}

fn node() -> Candidate {
    let mut node = good_node(1);
    node.room = Some(Room { free_bytes: 900 * GIB, reserve_bytes: 50 * GIB });
    node.gpus = (0..2).map(|index| gpu(1, index, "NVIDIA H200", 140, "9.0")).collect();
    node
}

/// All numbers that a sentence holds, its GPUs' own ones left out: they are fields of these.
fn numbers_in(message: &str) -> Vec<String> {
    let head = message.split(": GPU").next().unwrap();
    let words = head.split(|c: char| !c.is_ascii_digit() && c != '.').map(|word| word.trim_matches('.'));
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// The numbers that the fields of a reason hold, as sentences write them.
fn numbers_of(against: &PlacementAgainstObject, gpus: usize) -> Vec<String> {
    let as_is = [against.wanted, against.found].into_iter().flatten().map(|number| number.to_string());
    let gib = |bytes: u64| format!("{}.0", bytes / GIB);
    // Of files and what stays free beside them the sum is one field.
    let parts = [Some(250 * GIB), Some(50 * GIB), against.found].into_iter().flatten().map(gib);
    let minutes = against.for_ms.map(|ms| (ms / 60_000).to_string());
    let versions = [&against.wanted_version, &against.found_version].into_iter().flatten().cloned();
    as_is.chain(parts).chain(minutes).chain(versions).chain([gpus.to_string()]).collect()
}

#[test]
fn each_reason_has_its_words_and_its_numbers() {
    assert!(explain(&wish(), &[node()]).plan.is_some(), "nothing is in the way");
    let mut reason = Some(Disabled);
    let mut told = 0;
    while let Some(at) = reason {
        let (case, next) = case(at);
        reason = next;
        let Some(case) = case else { continue };
        told += 1;
        let (mut request, mut node) = (wish(), node());
        (case.put)(&mut request, &mut node);
        let fleet = [node];
        let why = explain(&request, &fleet);
        let object = told::object(&why, &[], &fleet, &Stocks::new());
        assert!(!object.fits, "{at:?}");
        // It is the only thing against the node, counted where it belongs, and told beside the one node's name.
        assert_eq!(object.nodes[0].against.len(), 1, "{at:?}: {:?}", object.nodes[0].against);
        let against = &object.nodes[0].against[0];
        assert_eq!((against.reason, against.message.as_str()), (at, case.message));
        assert_eq!((against.wanted, against.found), case.numbers, "{at:?}");
        let versions = (against.wanted_version.as_deref(), against.found_version.as_deref());
        assert_eq!(versions, case.versions, "{at:?}");
        let step = &object.funnel[0];
        assert_eq!((step.reason, step.count, step.message.as_deref()), (at, 1, Some(case.message)));
        // A number in a sentence is a field too.
        let fields = numbers_of(against, fleet[0].gpus.len());
        for number in numbers_in(case.message) {
            assert!(
                fields.contains(&number),
                "{at:?}: {number} of \"{}\" is no field: {fields:?}",
                case.message
            );
        }
        assert_eq!(object.nodes[0].gpus.first().and_then(|gpu| gpu.message.as_deref()), case.gpu, "{at:?}");
        let change = object.remedies.first().map(|one| one.changes[0].change.as_str());
        assert_eq!(change, case.change, "{at:?}: {:?}", object.remedies);
        // In one line, as a deployment that waits says it.
        if request.nodes <= 1 {
            let line = sentence(&funnel(&request, &fleet), 1);
            assert_eq!(line, format!("0 of 1 node fits: {} 1", at.words()));
        }
    }
    assert_eq!(told, 24);
}
