//! A simulated host's processes: engines that outlive their agent, each with its holder.
//!
//! Owns when one is ready, falls over and is gone. Leaves who starts and ends them to [`super::engines`], and how an end is
//! gone on with to `core/holding`. Invariant: only a loss of power takes them along with everything else.

use std::time::{Duration, Instant};

use umbel_wire::simulation::Chance;

use crate::core::holding::{Act, Holding};
use crate::core::supervisor::Exit;

/// Between two looks of a holder at an engine that ends.
const LOOK: Duration = Duration::from_millis(500);

/// An engine's process.
#[derive(Debug)]
pub struct Process {
    /// The engine's name.
    pub name: String,
    /// The GPUs that it was started on.
    pub gpus: Vec<String>,
    pub(super) nonce: u64,
    ready_at: Instant,
    /// It falls over by itself, or what it was sent ends it.
    exits_at: Option<Instant>,
    exit: Option<Exit>,
    told_exit: bool,
    holding: Holding,
    look_at: Option<Instant>,
    /// It does not hear SIGTERM.
    stubborn: bool,
}

/// What became of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    Exited(u64, Exit),
    Gone(u64),
}

/// All of them.
#[derive(Debug)]
pub struct Machine {
    processes: Vec<Process>,
    started: u64,
    calm: bool,
    luck: Chance,
}

impl Machine {
    /// A host on which nothing runs.
    #[must_use]
    pub fn new(luck: u64) -> Self {
        Self { processes: Vec::new(), started: 0, calm: false, luck: Chance::new(luck) }
    }

    /// The power is gone, and with it everything.
    pub fn loses_power(&mut self) {
        self.processes.clear();
    }

    /// From now on what is started gets ready, and sources send what they are asked for.
    pub fn calm(&mut self) {
        self.calm = true;
    }

    /// Another agent reads how what it finds has ended.
    pub(super) fn taken_up(&mut self) {
        self.processes.iter_mut().for_each(|one| one.told_exit = false);
    }

    pub(super) fn is_calm(&self) -> bool {
        self.calm
    }

    /// Engines whose process lives.
    pub fn living(&self, now: Instant) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(move |one| one.exit.is_none() && one.exits_at.is_none_or(|at| at > now))
    }

    /// One of them falls over.
    pub fn crash(&mut self, now: Instant) {
        let count = self.processes.len().max(1);
        let which = usize::try_from(self.luck.draw()).unwrap_or_default() % count;
        if let Some(process) = self.processes.get_mut(which) {
            process.exits_at = Some(now);
        }
    }

    pub(super) fn start(&mut self, name: &str, gpus: &[String], now: Instant) -> u64 {
        self.started += 1;
        let takes = Duration::from_millis(500 + self.luck.draw() % 9_000);
        // One in six never gets ready.
        let falls = self.luck.draw().is_multiple_of(6) && !self.calm;
        self.processes.push(Process {
            name: name.to_owned(),
            gpus: gpus.to_vec(),
            nonce: self.started,
            ready_at: now + takes,
            exits_at: falls.then(|| now + takes / 2),
            exit: None,
            told_exit: false,
            holding: Holding::default(),
            look_at: None,
            stubborn: self.luck.draw().is_multiple_of(5),
        });
        self.started
    }

    pub(super) fn by_name(&self, name: &str) -> Option<&Process> {
        self.processes.iter().find(|one| one.name == name)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter()
    }

    pub(super) fn is_ready(&self, nonce: u64, now: Instant) -> bool {
        self.living(now).any(|one| one.nonce == nonce && one.ready_at <= now)
    }

    /// SIGTERM now, SIGKILL after the grace.
    pub(super) fn end(&mut self, nonce: u64, grace: Duration, now: Instant) {
        let takes = Duration::from_millis(50 + self.luck.draw() % 3_000);
        let Some(process) = self.processes.iter_mut().find(|one| one.nonce == nonce) else { return };
        let act = process.holding.end(now, grace);
        process.does(act, now, takes);
        process.look_at = Some(now + LOOK);
    }

    /// When something of it is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let due = |one: &Process| {
            let exit = one.exits_at.filter(|_| one.exit.is_none());
            exit.into_iter().chain(one.look_at).min()
        };
        self.processes.iter().filter_map(due).min()
    }

    /// What happened until now.
    pub(super) fn advance(&mut self, now: Instant) -> Vec<News> {
        let mut news = Vec::new();
        for process in &mut self.processes {
            if process.exit.is_none() && process.exits_at.is_some_and(|at| at <= now) {
                process.exit = Some(Exit::Code(1));
                let act = process.holding.exited(now);
                process.does(act, now, Duration::ZERO);
                process.look_at = Some(now + LOOK / 5);
            }
            if process.look_at.is_some_and(|at| at <= now) {
                let act = process.holding.looked(now, usize::from(process.exit.is_none()));
                process.does(act, now, Duration::ZERO);
                process.look_at = (!process.holding.is_gone()).then(|| now + LOOK);
            }
            if let Some(exit) = process.exit.filter(|_| !process.told_exit) {
                process.told_exit = true;
                news.push(News::Exited(process.nonce, exit));
            }
            if process.holding.is_gone() {
                news.push(News::Gone(process.nonce));
            }
        }
        self.processes.retain(|one| !one.holding.is_gone());
        news
    }
}

impl Process {
    fn does(&mut self, act: Option<Act>, now: Instant, takes: Duration) {
        let at = match act {
            Some(Act::Terminate) if !self.stubborn => now + takes,
            Some(Act::Kill) => now,
            _ => return,
        };
        self.exits_at = Some(self.exits_at.map_or(at, |before| before.min(at)));
    }
}
