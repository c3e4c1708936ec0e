//! Crews that say what the site serves: they apply, change, pause, restart, take away, and engines fall over meanwhile.
//!
//! They have chance of their own, so that the rest of a history hardly depends on them. Leaves judgement to `wishes`.

use std::time::Duration;

use serde_json::json;
use umbel_edge::simulation::{Operation, Wanted, Wish};

use super::luck::Luck;
use super::world::World;

/// Deployments, each with the model of its name.
pub(crate) const NAMES: [&str; 3] = ["da", "db", "dc"];
/// A commit, as hubs name them.
const REVISION: &str = "0123456789abcdef0123456789abcdef01234567";

/// Who they are.
pub(crate) struct Crews {
    pub(crate) next: Duration,
    luck: Luck,
}

impl Crews {
    pub(crate) fn new(seed: u64) -> Self {
        Self { next: Duration::from_secs(12), luck: Luck::new(seed ^ 0x0CE3_11AD) }
    }

    /// Nobody wants anything else.
    pub(crate) fn rest(&mut self) {
        self.next = Duration::MAX;
    }
}

/// A document. `files` is one of a few artifacts.
pub(crate) fn document(name: &str, replicas: u64, files: u64, capacity: u64, delay: u64) -> String {
    let sha256 = format!("{:064x}", 0xF11E_0000 + files);
    json!({
        "name": name,
        "replicas": replicas,
        "engine": { "kind": "vllm" },
        "gpus": { "count": 1 },
        "artifact": {
            "repository": "site/model", "revision": REVISION, "source": "hub",
            "files": [
                { "path": "config.json", "bytes": 700, "sha256": format!("{:064x}", 0xC0F1) },
                { "path": "model.safetensors", "bytes": 1_000_000_000_u64, "sha256": sha256 },
            ]
        },
        "capacity": capacity,
        "drain_deadline": format!("{}s", delay % 7),
        "replace_delay": format!("{delay}s"),
    })
    .to_string()
}

impl World {
    pub(crate) fn crews_act(&mut self) {
        let luck = &mut self.crews.luck;
        let wait = luck.between(500, 9_000);
        self.crews.next = self.time + Duration::from_millis(wait);
        let name = (*luck.pick(&NAMES)).to_owned();
        let number = luck.between(1, 4) as u32;
        let wish = match luck.between(0, 30) {
            0..=6 => {
                let (replicas, files) = (luck.between(0, 4), luck.between(0, 2));
                let (capacity, delay) = (luck.between(1, 4), luck.between(1, 40));
                return self.ask(Operation::Apply(document(&name, replicas, files, capacity, delay)), None);
            }
            7 | 8 => Wish::Load,
            9 => Wish::Unload,
            10 => Wish::Pause(true),
            11..=13 => Wish::Pause(false),
            14 => Wish::Restart,
            15 => Wish::Delete,
            16 => Wish::Leave(number),
            17 => Wish::Renew(number),
            18 => return self.cancel_a_job(),
            19..=22 => return self.engine_falls_over(),
            23 => {
                // Long enough that an edge without a guard would replace what is lost.
                let long = Duration::from_secs(luck.between(150, 300));
                let left = luck.between(0, self.hosts.len() as u64) as usize;
                // Who watches that changes nothing meanwhile: what is lost is still what is wanted.
                if luck.one_in(2) {
                    self.crews.next = self.time + long;
                }
                return self.cut_most(left, long);
            }
            _ => {
                let wanted =
                    Wanted { model: name, key: 0, class: 128, prompt_bytes: luck.between(40, 2_000) };
                if self.edge.process.is_some() && !self.edge.paused {
                    self.request_one(&wanted);
                }
                return;
            }
        };
        self.ask(Operation::Deployment(name, wish), None);
    }

    fn cancel_a_job(&mut self) {
        let open = self.edge.process.as_ref().map(|edge| edge.wishes().jobs).unwrap_or_default();
        let open: Vec<String> =
            open.into_iter().filter(|(_, job)| job.ended.is_none()).map(|(id, _)| id).collect();
        if !open.is_empty() {
            let job = self.crews.luck.pick(&open).clone();
            self.ask(Operation::CancelJob(job), None);
        }
    }

    fn engine_falls_over(&mut self) {
        let number = self.crews.luck.between(0, self.hosts.len() as u64) as usize;
        let now = self.now(self.hosts[number].clocks);
        let host = &mut self.hosts[number];
        let process = host.process.as_mut().map(|node| node.machine());
        if let Some(machine) = process.or(host.machine.as_mut()) {
            machine.crash(now);
            self.tell(format!("an engine of node {number} falls over"));
        }
    }
}
