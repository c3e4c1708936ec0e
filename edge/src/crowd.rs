//! A crowd before the admission core, for measuring what a decision costs (`examples/decisions.rs`).
//!
//! Owns a busy site without tasks or connections: every slot taken, many requests of many keys waiting. Decides nothing.

#![allow(clippy::expect_used, reason = "a measurement ends at the first surprise")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use umbel_wire::ids::{Generation, NodeId};
use uuid::Uuid;

use crate::core::admission::{
    Admission, Ask, Category, Class, Decision, KeyNumber, LeaseId, Limits, ModelIndex, Output, Prefix,
    ProviderSpec, ProviderState,
};

const KEYS: u32 = 500;
const SLOTS: u32 = 8;

/// A site of so many providers with eight slots each, two of them long, and so many requests waiting.
#[derive(Debug)]
pub struct Crowd {
    admission: Admission,
    model: ModelIndex,
    now: Instant,
    leases: VecDeque<LeaseId>,
    prefixes: Vec<Prefix>,
    arrived: u64,
}

impl Crowd {
    /// `blocks`: KiB of each prompt's beginning that are looked up and remembered.
    ///
    /// # Panics
    /// If the core does not take the providers.
    #[must_use]
    pub fn new(providers: u128, waiting: usize, blocks: usize) -> Self {
        let now = Instant::now();
        let limits = Limits { waiting: 1 << 20, max_wait: Duration::from_secs(86_400), ..Limits::default() };
        let mut admission = Admission::new(limits, 1);
        for number in 0..providers {
            let node_id = NodeId(Uuid::from_u128(number + 1));
            let spec = ProviderSpec {
                provider_id: Arc::from(format!("{node_id}/e")),
                node_id,
                model: "m".to_owned(),
                aliases: Vec::new(),
                category: Category::LocalInference,
                capacity: SLOTS,
                // Two kinds of engines, so that not everybody fits everywhere.
                max_context_tokens: if number % 2 == 0 { 32_768 } else { 131_072 },
                long_context_threshold_tokens: 8_192,
                long_context_capacity: 2,
            };
            admission.node_eligible(now, node_id, true);
            admission.provider_up(now, spec, Generation(1), ProviderState::Available).expect("a provider");
            admission.node_ready(now, node_id, Generation(1), true);
        }
        let model = admission.resolve("m").expect("the model");
        let prompt = |seed: u64| Prefix::of(seed, &vec![0; blocks * 1_024]);
        let prefixes = (0..4_096).map(prompt).collect();
        let mut crowd = Self { admission, model, now, leases: VecDeque::new(), prefixes, arrived: 0 };
        while crowd.admission.lease_counts().waiting < u32::try_from(waiting).expect("fewer") {
            crowd.arrive();
        }
        crowd
    }

    /// One request arrives. True if it got a slot at once.
    pub fn arrive(&mut self) -> bool {
        self.arrived += 1;
        // Spread without a pattern that a cache could follow.
        let mixed = self.arrived.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24;
        let mut ask = Ask::new(self.model, KeyNumber((mixed % u64::from(KEYS)) as u32), Class::default());
        // One of ten is long, and a quarter of the slots takes long ones: every slot that comes free is handed over.
        ask.prompt_bytes = match (mixed >> 12) % 10 {
            0 | 1 => 400,
            2 => 1_000,
            3 | 4 => 2_000,
            5 => 4_000,
            6 => 8_000,
            7 => 16_000,
            8 => 30_000,
            _ => 60_000,
        };
        if let Some(prefix) = self.prefixes.get((mixed >> 16) as usize % self.prefixes.len()) {
            ask.prefix = prefix.clone();
        }
        ask.events = true;
        match self.admission.admit(self.now, &ask) {
            Decision::Granted(grant) => self.leases.push_back(grant.lease),
            Decision::Waiting(_) => return false,
            Decision::Refused(refusal) => panic_with(&refusal),
        }
        true
    }

    /// The oldest lease ends, and its slot goes to the best waiter that fits. False if there is none.
    pub fn release(&mut self) -> bool {
        let mut handed = false;
        self.now += Duration::from_micros(10);
        if let Some(lease) = self.leases.pop_front() {
            self.admission.end(self.now, lease);
        }
        while let Some(output) = self.admission.next_output() {
            if let Output::Granted(_, grant) = output {
                self.leases.push_back(grant.lease);
                handed = true;
            }
        }
        handed
    }

    /// Requests that wait.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.admission.lease_counts().waiting
    }
}

#[allow(clippy::panic, reason = "a measurement ends at the first surprise")]
fn panic_with(refusal: &dyn std::fmt::Debug) -> ! {
    panic!("refused: {refusal:?}")
}
