//! Whose turn it is: what admission owes to those who wait, judged from what applications asked and were given.
//!
//! Owns a count of its own, of nothing but what was told. Leaves the decisions to admission. Figures begin anew with each
//! process of the edge; what a model's keys have used counts as long as somebody waits for it.

use std::collections::{BTreeMap, BTreeSet};

use umbel_edge::simulation::{ProviderView, RequestId, Turn, View, Wanted};

use super::invariants::{Found, must};
use super::world::World;

/// Bytes that make a request long at every model that has long ones.
pub(crate) const LONG: u64 = 40_000;

#[derive(Clone, Copy, Debug, Default)]
struct Used {
    tokens: u64,
    /// The most for one request.
    most: u64,
}

/// One model's.
#[derive(Debug, Default)]
struct Line {
    waiting: BTreeSet<RequestId>,
    used: BTreeMap<u32, Used>,
    /// By key that waits with a request that is not long: what each had used when it began to.
    since: BTreeMap<u32, BTreeMap<u32, Used>>,
}

/// What is known.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    asked: BTreeMap<RequestId, Wanted>,
    lines: BTreeMap<String, Line>,
    /// Of those that are passed over: how often anybody was until then, and leases that it had.
    passed_over: BTreeMap<String, (u64, BTreeSet<u64>)>,
}

fn is_long(wanted: &Wanted) -> bool {
    wanted.prompt_bytes >= LONG && wanted.model == "m0"
}

impl Turns {
    pub(crate) fn asks(&mut self, request: RequestId, wanted: &Wanted) {
        self.asked.insert(request, wanted.clone());
    }

    pub(crate) fn edge_died(&mut self) {
        *self = Self::default();
    }

    fn took(&mut self, turn: Turn) -> Found {
        let request = match &turn {
            Turn::Waits(request) | Turn::Gone(request) | Turn::Granted { request, .. } => *request,
        };
        let Some(wanted) = self.asked.get(&request).cloned() else { return Ok(()) };
        let line = self.lines.entry(wanted.model.clone()).or_default();
        match turn {
            Turn::Waits(_) => {
                line.waiting.insert(request);
                if !is_long(&wanted) {
                    let used = line.used.clone();
                    line.since.entry(wanted.key).or_insert(used);
                }
            }
            Turn::Gone(_) => line.leaves(request, &wanted, &self.asked),
            Turn::Granted { cost, .. } => {
                if line.waiting.contains(&request) {
                    line.is_in_turn(request, &wanted, cost, &self.asked)?;
                }
                if !line.waiting.is_empty() {
                    let used = line.used.entry(wanted.key).or_default();
                    used.tokens += cost;
                    used.most = used.most.max(cost);
                }
                line.leaves(request, &wanted, &self.asked);
            }
        }
        Ok(())
    }
}

impl Line {
    fn leaves(&mut self, request: RequestId, wanted: &Wanted, asked: &BTreeMap<RequestId, Wanted>) {
        self.waiting.remove(&request);
        let left =
            |one: &RequestId| asked.get(one).is_some_and(|other| other.key == wanted.key && !is_long(other));
        if !self.waiting.iter().any(left) {
            self.since.remove(&wanted.key);
        }
        if self.waiting.is_empty() {
            *self = Self::default();
        }
    }

    // By class first, then by what keys have used since they wait together.
    fn is_in_turn(
        &self,
        request: RequestId,
        wanted: &Wanted,
        cost: u64,
        asked: &BTreeMap<RequestId, Wanted>,
    ) -> Found {
        let others = self.waiting.iter().filter(|one| **one != request).filter_map(|one| asked.get(one));
        let fits = |other: &&Wanted| !is_long(other) || is_long(wanted);
        let before = others.filter(fits).find(|other| other.class < wanted.class);
        must(before.is_none(), "a higher class goes first", || {
            format!("{wanted:?} has a slot while {before:?} waits")
        })?;
        if is_long(wanted) {
            // One that was passed over for long goes before its turn.
            return Ok(());
        }
        let own = self.used.get(&wanted.key).copied().unwrap_or_default();
        for (key, since) in self.since.iter().filter(|(key, _)| **key != wanted.key) {
            let waits = self.waiting.iter().filter_map(|one| asked.get(one));
            let together = waits.filter(|one| one.key == *key && one.class == wanted.class && !is_long(one));
            if together.count() == 0 {
                continue;
            }
            let took = own.tokens - since.get(&wanted.key).map_or(0, |used| used.tokens);
            let other = self.used.get(key).copied().unwrap_or_default();
            // What the other used before counts against it, and a turn each is nobody's fault.
            let may = other.tokens + 2 * own.most.max(cost);
            must(took <= may, "keys take turns", || {
                format!("key {} used {took} since key {key} waits, which used {other:?}", wanted.key)
            })?;
        }
        Ok(())
    }
}

impl World {
    /// What happened at admission in one step of the edge, and what it has come to.
    pub(crate) fn turns_are_fair(&mut self, view: &View) -> Found {
        for turn in std::mem::take(&mut self.turned) {
            self.turns.took(turn)?;
        }
        let providers: BTreeMap<&str, (&str, &ProviderView)> = view
            .nodes
            .iter()
            .flat_map(|node| {
                let told = &node.snapshot.providers;
                let model =
                    |id: &str| told.iter().find(|one| one.provider_id == id).map(|one| one.model.as_str());
                node.dispatchable
                    .iter()
                    .map(move |one| (one.id.as_str(), (model(&one.id).unwrap_or(""), one)))
            })
            .collect();
        for request in &view.waiting {
            let Some(wanted) = self.turns.asked.get(request) else { continue };
            let fits = |(model, one): &&(&str, &ProviderView)| {
                let long = !is_long(wanted) || one.long_slots.1 < one.long_slots.0;
                *model == wanted.model && one.open && !one.ejected && one.slots.1 < one.slots.0 && long
            };
            let free = providers.values().find(fits);
            must(free.is_none(), "no waiter stands beside a slot that fits it", || {
                format!("{request} waits for {wanted:?}, free is {free:?}")
            })?;
        }
        for (id, (_, provider)) in &providers {
            let held = view.leases.iter().filter(|lease| lease.counted && lease.provider == *id);
            let long = |request: &RequestId| self.turns.asked.get(request).is_some_and(is_long);
            let longs = held.clone().filter(|lease| long(&lease.request)).count();
            must(
                longs <= provider.long_slots.0 as usize,
                "long requests stay within the long slots",
                || format!("{id} has {longs} of {:?}", provider.long_slots),
            )?;
            let leases: BTreeSet<u64> = held.map(|lease| lease.lease).collect();
            self.turns.is_tried(id, provider, &leases, view.passed_over)?;
        }
        self.turns.asked.retain(|request, _| {
            view.waiting.contains(request) || view.leases.iter().any(|lease| lease.request == *request)
        });
        Ok(())
    }
}

impl Turns {
    // Who is passed over has the requests that it had, and one more at a time.
    fn is_tried(&mut self, id: &str, provider: &ProviderView, leases: &BTreeSet<u64>, times: u64) -> Found {
        if !provider.ejected {
            self.passed_over.remove(id);
            return Ok(());
        }
        let anew = (times, leases.clone());
        let known = self.passed_over.entry(id.to_owned()).or_insert_with(|| anew.clone());
        if known.0 != times {
            *known = anew;
            return Ok(());
        }
        let more = leases.difference(&known.1).count();
        must(more <= 1, "who is passed over is tried by one request at a time", || {
            format!("{id} has {leases:?}, had {:?} when it was passed over", known.1)
        })
    }
}
