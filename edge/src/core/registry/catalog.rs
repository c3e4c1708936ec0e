//! Which descriptions of models stand where nodes contradict each other.
//!
//! Owns the one decision of it, for what people see and for admission alike: engines are taken in the order in which their
//! descriptions were stored, each must agree with those that stand, and one that does not stand claims nothing. Leaves the
//! descriptions themselves to the nodes. Invariant: the answer follows from what is declared and since when alone, not from
//! the order in which it was told, so that a restart changes nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use umbel_contracts::names::is_model;
use umbel_wire::NodeId;

use super::node::Declared;

/// An engine in the order of the descriptions: since when, its node, its name.
type Place = (i64, NodeId, String);

/// Names of models and aliases that can be known in all: metrics have a series each.
pub(crate) const NAMES_MAX: usize = 4_096;

/// What a description comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its provider may be given work.
    Stands,
    /// Another node described this model otherwise before.
    Mismatch { with: NodeId },
    /// A name of it means another model.
    NameTaken { name: String, model: String, with: Option<NodeId> },
    /// No model may be called so. Nodes refuse such names themselves; an older one does not.
    NotAName { name: String },
    /// The site knows too many names.
    TooMany,
}

/// The description that stands of one model.
#[derive(Debug)]
struct Standing {
    first: NodeId,
    threshold: u32,
    /// With the model's own.
    names: BTreeSet<String>,
}

/// What all nodes declare, by model and by name.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    models: HashMap<String, BTreeSet<Place>>,
    /// Models whose engines use a name, with how many do.
    users: HashMap<String, BTreeMap<String, usize>>,
    /// Names that the engines of a model use, with how many do: the same the other way round.
    names: HashMap<String, BTreeMap<String, usize>>,
    standing: HashMap<String, Standing>,
    /// Names of all that stands.
    owners: HashMap<String, String>,
}

impl Catalog {
    pub(super) fn add(&mut self, id: NodeId, engine: &Declared) {
        let place = (engine.since_unix_ms, id, engine.name.clone());
        self.models.entry(engine.model.clone()).or_default().insert(place);
        for name in names(engine) {
            *self.names.entry(engine.model.clone()).or_default().entry(name.clone()).or_default() += 1;
            *self.users.entry(name).or_default().entry(engine.model.clone()).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, id: NodeId, engine: &Declared) {
        if let Some(places) = self.models.get_mut(&engine.model) {
            places.remove(&(engine.since_unix_ms, id, engine.name.clone()));
            if places.is_empty() {
                self.models.remove(&engine.model);
            }
        }
        for name in names(engine) {
            less(&mut self.users, &name, &engine.model);
            less(&mut self.names, &engine.model, &name);
        }
    }

    /// The models that these engines' verdicts can matter to: their own, and those that share a name with them, and so on.
    pub(super) fn concerned<'a>(&self, engines: impl Iterator<Item = &'a Declared>) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut names_left: Vec<String> = engines.flat_map(names).collect();
        let mut seen: HashSet<String> = HashSet::new();
        while let Some(name) = names_left.pop() {
            if !seen.insert(name.clone()) {
                continue;
            }
            let Some(users) = self.users.get(&name) else { continue };
            for model in users.keys() {
                if found.insert(model.clone()) {
                    names_left.extend(self.names.get(model).into_iter().flat_map(BTreeMap::keys).cloned());
                }
            }
        }
        found
    }

    /// Judges the engines of these models anew; of a model on which nothing else changed only `engines`, those of the node
    /// `changed`, since thousands of nodes serve one model.
    pub(super) fn judge<'a>(
        &mut self,
        models: &BTreeSet<String>,
        (changed, engines): (NodeId, &'a [Declared]),
        declared: impl Fn(&NodeId, &str) -> Option<&'a Declared>,
    ) -> Vec<(NodeId, String, Verdict)> {
        let before: HashMap<&String, Standing> =
            models.iter().filter_map(|model| Some((model, self.take(model)?))).collect();
        let (alone, sharing): (Vec<&String>, Vec<&String>) =
            models.iter().partition(|model| self.is_alone(model));
        let mut verdicts = self.judge_together(&sharing, &declared);
        for model in alone {
            let Some((_, first, name)) = self.models.get(model).and_then(BTreeSet::first).cloned() else {
                continue;
            };
            // Where no name is shared the first one decides, whatever follows.
            if let Some(engine) = declared(&first, &name) {
                let _ = self.stand(first, engine);
            }
            let stands = self.standing.get(model).zip(before.get(model));
            if stands.is_some_and(|(now, was)| now.says_the_same(was)) {
                let own = engines.iter().filter(|engine| engine.model == *model);
                verdicts.extend(own.map(|engine| (changed, engine.name.clone(), self.verdict(engine))));
            } else {
                verdicts.extend(self.verdicts(model, &declared));
            }
        }
        verdicts
    }

    /// Models that share names, in the order of all their engines.
    fn judge_together<'a>(
        &mut self,
        models: &[&String],
        declared: &impl Fn(&NodeId, &str) -> Option<&'a Declared>,
    ) -> Vec<(NodeId, String, Verdict)> {
        let of = |model: &&String| self.models.get(*model).into_iter().flatten();
        let mut places: Vec<Place> = models.iter().flat_map(of).cloned().collect();
        places.sort_unstable();
        let mut blocked: HashMap<(NodeId, String), Verdict> = HashMap::new();
        for (_, id, name) in places {
            let Some(engine) = declared(&id, &name) else { continue };
            if !self.standing.contains_key(&engine.model)
                && let Err(verdict) = self.stand(id, engine)
            {
                blocked.insert((id, name), verdict);
            }
        }
        let mut verdicts: Vec<_> = models.iter().flat_map(|model| self.verdicts(model, declared)).collect();
        for (id, name, verdict) in &mut verdicts {
            // What kept it from standing says more than what stood after it.
            if let Some(first) = blocked.remove(&(*id, name.clone())) {
                *verdict = first;
            }
        }
        verdicts
    }

    /// What each engine of a model comes to, by what stands now.
    fn verdicts<'a>(
        &self,
        model: &str,
        declared: &impl Fn(&NodeId, &str) -> Option<&'a Declared>,
    ) -> Vec<(NodeId, String, Verdict)> {
        let places = self.models.get(model).into_iter().flatten();
        let judged = |(_, id, name): &Place| Some((*id, name.clone(), self.verdict(declared(id, name)?)));
        places.filter_map(judged).collect()
    }

    fn verdict(&self, engine: &Declared) -> Verdict {
        match self.standing.get(&engine.model) {
            Some(standing) if standing.agrees(engine) => Verdict::Stands,
            Some(standing) => Verdict::Mismatch { with: standing.first },
            None => self.fits(engine).err().unwrap_or(Verdict::TooMany),
        }
    }

    /// No other model uses a name of it.
    fn is_alone(&self, model: &str) -> bool {
        let mut names = self.names.get(model).into_iter().flat_map(BTreeMap::keys);
        names.all(|name| self.users.get(name).is_none_or(|users| users.len() <= 1))
    }

    /// Takes what stood of a model away.
    fn take(&mut self, model: &str) -> Option<Standing> {
        let standing = self.standing.remove(model)?;
        for name in &standing.names {
            self.owners.remove(name);
        }
        Some(standing)
    }

    /// Whether a description can be the first of its model that stands.
    fn fits(&self, engine: &Declared) -> Result<BTreeSet<String>, Verdict> {
        let names = names(engine);
        for name in &names {
            if !is_model(name) {
                return Err(Verdict::NotAName { name: name.escape_default().to_string() });
            }
            if let Some(model) = self.owners.get(name) {
                let with = self.standing.get(model).map(|one| one.first);
                return Err(Verdict::NameTaken { name: name.clone(), model: model.clone(), with });
            }
        }
        if self.owners.len() + names.len() > NAMES_MAX {
            return Err(Verdict::TooMany);
        }
        Ok(names)
    }

    fn stand(&mut self, first: NodeId, engine: &Declared) -> Result<(), Verdict> {
        let names = self.fits(engine)?;
        for name in &names {
            self.owners.insert(name.clone(), engine.model.clone());
        }
        let threshold = engine.long_context_threshold_tokens;
        self.standing.insert(engine.model.clone(), Standing { first, threshold, names });
        Ok(())
    }
}

impl Standing {
    fn says_the_same(&self, other: &Self) -> bool {
        self.threshold == other.threshold && self.names == other.names
    }

    fn agrees(&self, engine: &Declared) -> bool {
        self.threshold == engine.long_context_threshold_tokens && self.names == names(engine)
    }
}

/// One use less; what nobody uses is forgotten.
fn less(uses: &mut HashMap<String, BTreeMap<String, usize>>, of: &str, by: &str) {
    let Some(counts) = uses.get_mut(of) else { return };
    if let Some(count) = counts.get_mut(by) {
        *count -= 1;
        if *count == 0 {
            counts.remove(by);
        }
    }
    if counts.is_empty() {
        uses.remove(of);
    }
}

/// Every name that an engine is asked for by.
fn names(engine: &Declared) -> BTreeSet<String> {
    std::iter::once(&engine.model).chain(&engine.aliases).cloned().collect()
}
