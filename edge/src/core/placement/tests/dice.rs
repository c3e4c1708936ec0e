//! Small fleets and wishes from a seed: most things are well, and everything that can be wrong is so now and then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use umbel_contracts::release::Release;
use umbel_contracts::selector::Selector;
use umbel_wire::NodeId;

use crate::core::placement::Plan;
use crate::core::placement::candidate::{Candidate, Condition, Gpu, Room, Runtime, Standing};
use crate::core::placement::request::{ArtifactNeed, EngineNeed, GpuNeed, Request, Strategy};

pub(super) const GIB: u64 = 1 << 30;
const KINDS: [(&str, u64, &str); 3] =
    [("NVIDIA H100 80GB HBM3", 80, "9.0"), ("NVIDIA A100-SXM4-40GB", 40, "8.0"), ("NVIDIA L4", 23, "8.9")];

/// A stream of numbers.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    fn roll(&mut self) -> u64 {
        // splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.roll() % bound.max(1) as u64) as usize
    }

    /// Once in so many times.
    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }

    pub(super) fn fleet(&mut self) -> Vec<Candidate> {
        let count = 1 + self.below(5);
        (0..count).map(|number| self.node(number)).collect()
    }

    fn node(&mut self, number: usize) -> Candidate {
        let mut node = good_node(number);
        let (name, gib, capability) = KINDS[self.below(KINDS.len())];
        for index in 0..self.below(5) {
            let mut gpu = gpu(number, index, name, gib, capability);
            self.spoil_gpu(&mut gpu);
            node.gpus.push(gpu);
        }
        node.room = [None, Some(10), Some(33), Some(100)][self.below(4)]
            .map(|gib| Room { free_bytes: gib * GIB, reserve_bytes: [0, 5 * GIB][self.below(2)] });
        node.fabric = match self.below(4) {
            0 => BTreeMap::new(),
            at => BTreeMap::from([("fabric".to_owned(), ["ib0", "ib1", "ib1"][at - 1].to_owned())]),
        };
        if self.once_in(3) {
            node.labels.insert("zone".to_owned(), ["a", "b"][self.below(2)].to_owned());
        }
        if self.once_in(4) {
            node.artifacts.insert("m@1".to_owned());
        }
        for engine in ["old.r1", "other.r1", "chat"].into_iter().take(self.below(4)) {
            node.engines.insert(engine.to_owned());
        }
        if self.once_in(20) {
            node.engines.extend((0..30 + self.below(3)).map(|number| format!("e{number}")));
        }
        node.free_memory_bytes = [None, Some(64 * GIB), Some(512 * GIB)][self.below(3)];
        self.spoil_node(&mut node);
        node
    }

    fn spoil_gpu(&mut self, gpu: &mut Gpu) {
        match self.below(9) {
            0 => gpu.holder = Some(["other.r1", "old.r1", "llama", "m.r7"][self.below(4)].to_owned()),
            1 => gpu.foreign_bytes = self.roll() % gpu.memory_bytes,
            2 => gpu.condition = [Condition::Lost, Condition::Missing, Condition::Mig][self.below(3)],
            3 => {
                gpu.holder = Some("other.r1".to_owned());
                gpu.foreign_bytes = 3 * GIB;
            }
            4 => gpu.capability = None,
            _ => {}
        }
    }

    fn spoil_node(&mut self, node: &mut Candidate) {
        let times = 1 + self.below(2);
        for _ in 0..times {
            match self.below(28) {
                0 => node.standing = Standing::Disabled,
                1 => node.standing = Standing::Silent("offline", Some(90_000)),
                2 => node.standing = Standing::NotComplete,
                3 => node.standing = Standing::NoCredential("credential_revoked"),
                4 => node.eligible = false,
                5 => node.draining = true,
                6 => node.settings_refused = Some((3, "no".to_owned())),
                7 => node.loads = false,
                8 => node.acquires = false,
                9 => node.runtimes.clear(),
                10 => node.runtimes[0].version = "0.9.1".to_owned(),
                11 => node.inventory = false,
                12 => node.driver = None,
                13 => node.driver = Some("535.9".parse().unwrap()),
                _ => {}
            }
            if node.runtimes.is_empty() {
                break;
            }
        }
    }

    pub(super) fn request(&mut self) -> Request {
        let mut request = self.plain_request();
        request.gpus.count = self.below(5) as u32;
        request.gpus.memory_bytes = [0, 20 * GIB, 39 * GIB, 70 * GIB][self.below(4)];
        if self.once_in(4) {
            request.gpus.names = vec![["*H100*", "*A100*", "NVIDIA ?4"][self.below(3)].to_owned()];
        }
        request.gpus.capability = self.once_in(4).then(|| "8.9".parse().unwrap());
        request.gpus.driver = self.once_in(3).then(|| "550.54".parse().unwrap());
        request.selector = match self.below(8) {
            0 => Some(Selector::parse("label:zone=a").unwrap()),
            1 => Some(Selector::parse("node:node-1").unwrap()),
            2 => Some(Selector::parse("all").unwrap()),
            3 => Some(Selector::parse("gpu:*l4,label:zone=b").unwrap()),
            _ => None,
        };
        request.nodes = [0, 1, 1, 1, 2, 3][self.below(6)];
        request.engine = (!self.once_in(4)).then(|| EngineNeed {
            kind: "vllm".to_owned(),
            version: self.once_in(2).then(|| "0.10".parse().unwrap()),
        });
        request.artifact = (!self.once_in(3)).then(|| ArtifactNeed {
            key: "m@1".to_owned(),
            name: "org/m@1".to_owned(),
            bytes: 30 * GIB,
        });
        if self.once_in(4) {
            request.avoid.insert(id(self.below(4)), "a load failed there".to_owned());
        }
        if self.once_in(3) {
            request.displaces.insert("old.r1".to_owned());
        }
        if self.once_in(3) {
            request.placed.insert(id(self.below(4)), 1);
        }
        request
    }

    /// A wish for GPUs of any kind, and nothing else.
    pub(super) fn plain_request(&mut self) -> Request {
        Request {
            deployment: "m".to_owned(),
            gpus: GpuNeed { count: 1 + self.below(3) as u32, ..GpuNeed::default() },
            fabric_label: "fabric".to_owned(),
            nodes: 1,
            strategy: [Strategy::Spread, Strategy::Pack][self.below(2)],
            ..Request::default()
        }
    }

    /// Nodes of one kind of GPU with which nothing is wrong.
    pub(super) fn plain_fleet(&mut self) -> Vec<Candidate> {
        let count = 1 + self.below(5);
        let fleet = (0..count).map(|number| {
            let mut node = good_node(number);
            node.gpus = (0..self.below(7)).map(|index| gpu(number, index, KINDS[0].0, 80, "9.0")).collect();
            node
        });
        fleet.collect()
    }

    /// Puts one thing in the way of a node that fits, and says what takes it away.
    pub(super) fn hinder(&mut self, plan: &Plan, node: &mut Candidate) -> &'static str {
        let shard = plan.shards.iter().find(|shard| shard.node == node.id).unwrap();
        let taken = |node: &mut Candidate, change: fn(&mut Gpu)| {
            node.gpus.iter_mut().filter(|gpu| shard.gpus.contains(&gpu.uuid)).for_each(change);
        };
        // Others that could be freed or mended would do as well.
        node.gpus.retain(|gpu| shard.gpus.contains(&gpu.uuid));
        match self.below(9) {
            0 => node.draining = true,
            8 => {
                node.engines.extend((0..32).map(|number| format!("e{number}")));
                return "end_engines";
            }
            1 => {
                node.loads = false;
                return "update_agent";
            }
            2 => {
                node.standing = Standing::Silent("offline", None);
                return "bring_online";
            }
            3 => {
                taken(node, |gpu| gpu.holder = Some("thief.r1".to_owned()));
                return "free_gpus";
            }
            4 => {
                taken(node, |gpu| gpu.condition = Condition::Mig);
                return "turn_mig_off";
            }
            5 => {
                node.runtimes.clear();
                return "install_engine";
            }
            6 => {
                node.room = Some(Room { free_bytes: 0, reserve_bytes: 5 * GIB });
                return "free_space";
            }
            _ => {
                taken(node, |gpu| gpu.foreign_bytes = gpu.memory_bytes);
                return "free_gpus";
            }
        }
        "undrain"
    }
}

pub(super) fn id(number: usize) -> NodeId {
    format!("00000000-0000-4000-8000-{number:012}").parse().unwrap()
}

pub(super) fn gpu(node: usize, index: usize, name: &str, gib: u64, capability: &str) -> Gpu {
    Gpu {
        uuid: format!("GPU-{node}-{index}"),
        index: index as u32,
        name: Arc::from(name),
        memory_bytes: gib * GIB,
        capability: Release::found(capability),
        condition: Condition::Ok,
        foreign_bytes: 0,
        holder: None,
    }
}

pub(super) fn good_node(number: usize) -> Candidate {
    Candidate {
        id: id(number),
        name: format!("node-{number}"),
        labels: BTreeMap::new(),
        fabric: BTreeMap::new(),
        models: BTreeSet::new(),
        standing: Standing::Here,
        settings_refused: None,
        eligible: true,
        engines: BTreeSet::new(),
        free_memory_bytes: None,
        draining: false,
        loads: true,
        acquires: true,
        runtimes: vec![Runtime { kind: "vllm".to_owned(), version: "0.11.0".to_owned() }],
        inventory: true,
        driver: Release::found("550.54.14"),
        gpus: Vec::new(),
        artifacts: BTreeSet::new(),
        room: None,
    }
}
