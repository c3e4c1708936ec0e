//! Jobs against a model: whatever happens to a handful of them, the table and its disk are as a simple account says.

use quickcheck::{Arbitrary, Gen, quickcheck};

use super::*;

/// What may happen to a handful of jobs of one node.
#[derive(Clone, Debug)]
enum Step {
    Submit,
    Give(u8),
    Claim(u8),
    Progress(u8, bool),
    Complete(u8, bool),
    Fail(u8, bool, bool),
    Cancel(u8),
    Silence,
    /// The node's connection is a new one; the process too; it names those that it runs.
    Reconnect(bool),
    RestartEdge,
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let (job, yes) = (u8::arbitrary(g) % 4, bool::arbitrary(g));
        match u8::arbitrary(g) % 12 {
            0 | 1 => Self::Submit,
            2 | 3 => Self::Give(job),
            4 => Self::Claim(job),
            5 => Self::Progress(job, yes),
            6 => Self::Complete(job, yes),
            7 => Self::Fail(job, yes, bool::arbitrary(g)),
            8 => Self::Cancel(job),
            9 => Self::Silence,
            10 => Self::Reconnect(yes),
            _ => Self::RestartEdge,
        }
    }
}

/// The model: of each job its end, its attempts, its lease, and what its node runs.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    ended: Option<JobState>,
    failures: u32,
    lease: Option<(String, u64)>,
    old: Option<String>,
    cancel: bool,
    // Its lease ended without news, and its process has said nothing since.
    unheard: bool,
    // At the node: the lease that it has of it.
    runs: Option<String>,
}

struct Run {
    world: World,
    models: Vec<Model>,
    instance: u64,
    generation: u64,
}

impl Run {
    fn new() -> Self {
        Self { world: World::new(), models: Vec::new(), instance: 1, generation: 1 }
    }

    fn lease_of(&self, job: usize, right: bool) -> String {
        let model = &self.models[job];
        let lease = if right { model.lease.as_ref().map(|(id, _)| id) } else { model.old.as_ref() };
        lease.cloned().unwrap_or_else(|| "l0".to_owned())
    }

    fn end_attempt(model: &mut Model, retry: bool, counts: bool) {
        model.old = model.lease.take().map(|(id, _)| id);
        model.failures += u32::from(counts);
        if model.cancel {
            model.ended = Some(JobState::Cancelled);
        } else if !retry || model.failures >= ATTEMPTS {
            model.ended = Some(JobState::Failed);
        }
    }

    fn step(&mut self, step: &Step) {
        let speaker = self.world.speaker(self.instance, self.generation);
        let name = |job: u8| job.to_string();
        let count = self.models.len();
        let has = |job: u8| usize::from(job) < count;
        match *step {
            Step::Submit if self.models.len() < 4 => {
                self.world.submit(&self.models.len().to_string());
                self.models.push(Model::default());
            }
            Step::Give(job) if has(job) => {
                let given = self.world.lease(&name(job), &speaker);
                let model = &mut self.models[usize::from(job)];
                let waits = model.ended.is_none() && model.lease.is_none();
                // What its node runs and names is given anew; here the names came with the connection.
                if let Some(lease) = given {
                    let held = model.runs.is_some();
                    assert!(model.ended.is_none() && (waits || held), "{model:?}");
                    (model.lease, model.unheard) = (Some((lease, self.generation)), false);
                } else {
                    assert!(!waits, "{model:?}");
                }
            }
            Step::Claim(job) if has(job) => {
                let model = &mut self.models[usize::from(job)];
                if let Some((lease, generation)) = model.lease.clone()
                    && generation == self.generation
                {
                    self.world.jobs.claimed(&name(job), &lease);
                    model.runs = Some(lease);
                }
            }
            Step::Progress(job, right) if has(job) => {
                let lease = self.lease_of(usize::from(job), right);
                let model = &self.models[usize::from(job)];
                let in_force = model.lease.as_ref().is_some_and(|(id, _)| *id == lease);
                let answer = self.world.progress(&name(job), &lease);
                assert_eq!(answer.ok(), in_force.then_some(model.cancel));
            }
            Step::Complete(job, right) if has(job) => {
                let lease = self.lease_of(usize::from(job), right);
                let taken = self.world.complete(&name(job), &lease).is_ok();
                let model = &mut self.models[usize::from(job)];
                if model.lease.as_ref().is_some_and(|(id, _)| *id == lease) {
                    assert!(taken);
                    model.old = model.lease.take().map(|(id, _)| id);
                    (model.ended, model.runs) = (Some(JobState::Succeeded), None);
                } else {
                    let again =
                        model.ended == Some(JobState::Succeeded) && model.old.as_ref() == Some(&lease);
                    assert_eq!(taken, again, "{model:?}");
                }
            }
            Step::Fail(job, right, retry) if has(job) => {
                let lease = self.lease_of(usize::from(job), right);
                let taken = self.world.fail(&name(job), &lease, "X", retry).is_ok();
                let model = &mut self.models[usize::from(job)];
                if model.lease.as_ref().is_some_and(|(id, _)| *id == lease) {
                    assert!(taken);
                    model.runs = None;
                    Self::end_attempt(model, retry, true);
                } else {
                    let again =
                        model.ended != Some(JobState::Succeeded) && model.old.as_ref() == Some(&lease);
                    assert_eq!(taken, again, "{model:?}");
                }
            }
            Step::Cancel(job) if has(job) => {
                let id = name(job);
                if let Ok(Some(row)) = self.world.jobs.cancel(&id, None, self.world.wall()) {
                    self.world.store(&id, row);
                }
                let model = &mut self.models[usize::from(job)];
                if model.ended.is_none() {
                    model.cancel = true;
                    if model.lease.is_none() {
                        model.ended = Some(JobState::Cancelled);
                    }
                }
            }
            Step::Silence => {
                self.world.now += LEASE;
                for id in self.world.jobs.silent(self.world.now) {
                    let row = self.world.jobs.expire(&id, self.world.now, self.world.wall()).unwrap();
                    self.world.store(&id, row);
                    let model = &mut self.models[id.parse::<usize>().unwrap()];
                    (model.lease, model.unheard) = (None, !model.cancel);
                    if model.cancel {
                        model.ended = Some(JobState::Cancelled);
                    }
                }
            }
            Step::Reconnect(process) => self.reconnect(process),
            Step::RestartEdge => self.world.restart(),
            _ => {}
        }
    }

    fn reconnect(&mut self, process: bool) {
        self.generation += 1;
        if process {
            self.instance += 1;
            self.models.iter_mut().for_each(|model| model.runs = None);
        }
        let speaker = self.world.speaker(self.instance, self.generation);
        let runs: Vec<_> = self.models.iter().enumerate().collect();
        let runs: Vec<_> = runs
            .into_iter()
            .filter_map(|(job, model)| {
                model.runs.clone().map(|lease| (job.to_string(), model.failures + 1, lease))
            })
            .collect();
        let said: Vec<_> =
            runs.iter().map(|(id, attempt, lease)| (id.as_str(), *attempt, lease.as_str())).collect();
        let named = self.world.ready(&speaker, &said);
        for (job, model) in self.models.iter_mut().enumerate() {
            let cancelled = named.cancel.contains(&job.to_string());
            assert_eq!(cancelled, model.runs.is_some() && model.ended.is_some());
            if cancelled {
                model.runs = None;
            }
            let given = model.lease.is_some() || model.unheard;
            if model.ended.is_some() || model.runs.is_some() || !given {
                continue;
            }
            model.unheard = false;
            if process {
                Self::end_attempt(model, true, true);
            } else {
                model.lease = None;
                if model.cancel {
                    model.ended = Some(JobState::Cancelled);
                }
            }
        }
    }

    fn agrees(&self) -> bool {
        self.models.iter().enumerate().all(|(job, model)| {
            let id = job.to_string();
            let view = self.world.jobs.view(&id).unwrap();
            let lease = view.row.lease.as_ref().map(|lease| lease.id.clone());
            let ended = view.row.state.is_end().then_some(view.row.state);
            let agrees = ended == model.ended
                && view.row.failures == model.failures
                && lease == model.lease.as_ref().map(|(id, _)| id.clone())
                && view.row.failures <= ATTEMPTS
                && self.world.disk[&id].clone().in_memory() == *view.row;
            assert!(agrees, "job {job}: {view:?} is not {model:?}");
            agrees
        })
    }
}

quickcheck! {
    fn whatever_happens_the_table_is_as_the_model_says(steps: Vec<Step>) -> bool {
        let mut run = Run::new();
        steps.iter().all(|step| {
            run.step(step);
            run.agrees()
        })
    }
}
