//! Who holds memory of GPUs, for whoever must wait until it is given back.
//!
//! Owns the waiting; leaves looking to `watch`, and what a look says to `core/gpus`. Invariants: where nothing can be told nobody is
//! held up longer than [`RELEASE`]; in a container the driver names no process, so the figure of the memory counts as well.

use std::{collections::BTreeMap, time::Duration};

use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout_at},
};
use umbel_contracts::config::ByteSize;

use crate::{
    core::gpus::Said,
    core::process_tree::{ProcessId, StartTime},
    shell::process,
};

/// A driver gives memory back some seconds after a process ended.
const RELEASE: Duration = Duration::from_secs(15);
/// Between two looks while somebody waits.
const AGAIN: Duration = Duration::from_millis(500);

/// What nobody is waited for: less than this keeps no engine from its start, and a driver's own use of it changes a little.
const SLACK: u64 = 1 << 30;

/// What an engine that has ended had of GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Its processes.
    pub(crate) processes: BTreeMap<i32, StartTime>,
    /// By GPU: bytes that nobody had before it was started.
    pub(crate) before: BTreeMap<String, u64>,
}

/// What is not given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hold {
    /// A process that has ended still has memory.
    Process(i32),
    /// So many bytes more than before have nobody's name.
    Nobody { gpu: String, bytes: u64 },
}

impl std::fmt::Display for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Process(pid) => {
                write!(f, "GPU_MEMORY_HELD: gpu memory held by pid {pid}, which has ended")
            }
            Self::Nobody { gpu, bytes } => write!(
                f,
                "GPU_MEMORY_HELD: {} of GPU {gpu} are held since the engine ended, and the driver names no process that has them",
                ByteSize(*bytes).rounded()
            ),
        }
    }
}

/// What the driver said last of memory and of its GPUs.
#[derive(Debug)]
pub(crate) struct Holders {
    /// Nothing as long as it has not said anything.
    told: watch::Sender<Option<Said>>,
    asked: Notify,
    wanted: bool,
    patience: Duration,
}

impl Holders {
    /// `wanted`: GPUs are looked at on this host.
    pub(crate) fn new(wanted: bool) -> Self {
        Self { told: watch::Sender::default(), asked: Notify::new(), wanted, patience: RELEASE }
    }

    /// Why an engine cannot be started on these GPUs now: one of them is not there, or does not answer.
    pub(crate) fn missing(&self, gpus: &[String]) -> Option<String> {
        let told = self.told.borrow();
        let gpu = match told.as_ref() {
            _ if !self.wanted => return None,
            Some(said) => gpus.iter().find(|gpu| !said.answering.contains(*gpu))?,
            None => gpus.first()?,
        };
        Some(format!("GPU_MISSING: GPU {gpu} does not answer; it is started when that does"))
    }

    /// The driver answered.
    pub(crate) fn tell(&self, said: Said) {
        self.told.send_replace(Some(said));
    }

    /// By GPU: bytes that nobody has, as the driver said last. Of a part of a GPU nothing is known.
    pub(crate) fn unowned(&self, gpus: &[String]) -> BTreeMap<String, u64> {
        let told = self.told.borrow();
        let of = |gpu: &String| Some((gpu.clone(), *told.as_ref()?.unowned.get(gpu)?));
        gpus.iter().filter_map(of).collect()
    }

    /// Resolves when somebody waits for the next answer.
    pub(crate) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Waits until nothing holds what an ended engine had of GPUs; what still does after [`RELEASE`].
    pub(crate) async fn released(&self, ended: &Ended) -> Result<(), Hold> {
        if !self.wanted || *ended == Ended::default() {
            return Ok(());
        }
        let until = Instant::now() + self.patience;
        let mut told = self.told.subscribe();
        // What was told before their end says nothing.
        told.mark_unchanged();
        let mut hold = None;
        loop {
            self.asked.notify_one();
            match timeout_at(until, told.changed()).await {
                Ok(Ok(())) => {}
                // No answer in time: a driver that hangs cannot keep an engine from its next start.
                Ok(Err(_)) | Err(_) => return hold.map_or(Ok(()), Err),
            }
            hold = told.borrow_and_update().as_ref().and_then(|said| holds(said, ended));
            if hold.is_none() {
                return Ok(());
            }
            tokio::time::sleep_until((Instant::now() + AGAIN).min(until)).await;
        }
    }
}

fn holds(said: &Said, ended: &Ended) -> Option<Hold> {
    let process = said.holders.iter().copied().find(|pid| is_one_of(&ended.processes, *pid));
    let nobody = || {
        ended.before.iter().find_map(|(gpu, before)| {
            let bytes = said.unowned.get(gpu)?.saturating_sub(*before);
            (bytes > SLACK).then(|| Hold::Nobody { gpu: gpu.clone(), bytes })
        })
    };
    process.map(Hold::Process).or_else(nobody)
}

/// Whether the driver means one of these, and not a younger process with its number.
fn is_one_of(ended: &BTreeMap<i32, StartTime>, pid: i32) -> bool {
    ended
        .get(&pid)
        .is_some_and(|start| process::facts(ProcessId(pid)).is_none_or(|facts| facts.start == *start))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A process that is there, with another start time than the one that ended.
    fn own_pid() -> i32 {
        rustix::process::getpid().as_raw_nonzero().get()
    }

    #[tokio::test]
    async fn row_101_waits_for_release_and_not_for_ever() {
        let holders = Holders { patience: 4 * AGAIN, ..Holders::new(true) };
        let holders = Arc::new(holders);
        let ended = Ended { processes: BTreeMap::from([(i32::MAX, StartTime(1))]), ..Ended::default() };
        let held_by = |pids: &[i32]| Said { holders: pids.iter().copied().collect(), ..Said::default() };
        let answers = {
            let holders = Arc::clone(&holders);
            tokio::spawn(async move {
                for round in 0.. {
                    holders.asked().await;
                    holders.tell(held_by(if round < 3 { &[i32::MAX] } else { &[] }));
                }
            })
        };
        assert_eq!(holders.released(&ended).await, Ok(()));
        answers.abort();
        let answers = {
            let holders = Arc::clone(&holders);
            tokio::spawn(async move {
                loop {
                    holders.asked().await;
                    holders.tell(held_by(&[i32::MAX]));
                }
            })
        };
        assert_eq!(holders.released(&ended).await, Err(Hold::Process(i32::MAX)));
        answers.abort();
        // A driver that says nothing.
        assert_eq!(holders.released(&ended).await, Ok(()));
        assert_eq!(Holders::new(false).released(&ended).await, Ok(()));
    }

    /// Row 101: memory that nobody has, by the driver's word, is waited for as well: as far as it is more than before, and not as
    /// little as a driver takes for itself.
    #[test]
    fn row_101_memory_without_a_name_is_held() {
        let said =
            |bytes: u64| Said { unowned: BTreeMap::from([("GPU-a".into(), bytes)]), ..Said::default() };
        let before =
            |bytes: u64| Ended { before: BTreeMap::from([("GPU-a".into(), bytes)]), ..Ended::default() };
        let hold = holds(&said(70 << 30), &before(2 << 30)).unwrap();
        assert_eq!(hold, Hold::Nobody { gpu: "GPU-a".into(), bytes: 68 << 30 });
        assert!(hold.to_string().starts_with("GPU_MEMORY_HELD: 68.0 GiB of GPU GPU-a"), "{hold}");
        assert_eq!(holds(&said(3 << 30), &before(2 << 30)), None);
        assert_eq!(holds(&said(1 << 30), &before(2 << 30)), None, "somebody else's is gone as well");
        assert_eq!(holds(&Said::default(), &before(0)), None, "a GPU that says nothing");
        assert_eq!(holds(&said(70 << 30), &Ended::default()), None, "started by an agent that did not look");
        let holders = Holders::new(true);
        assert!(holders.unowned(&["GPU-a".into()]).is_empty());
        holders.tell(said(7));
        assert_eq!(holders.unowned(&["GPU-a".into(), "MIG-b".into()]), BTreeMap::from([("GPU-a".into(), 7)]));
    }

    /// Row 96: nothing is started on a GPU that does not answer, nor before the driver has said which do.
    #[test]
    fn row_96_a_gpu_that_does_not_answer_gets_no_engine() {
        let (holders, gpus) = (Holders::new(true), ["GPU-a".to_owned(), "GPU-b".to_owned()]);
        assert!(holders.missing(&gpus).is_some() && holders.missing(&[]).is_none());
        let answer = |gpus: &[String]| Said { answering: gpus.iter().cloned().collect(), ..Said::default() };
        holders.tell(answer(&gpus[..1]));
        assert!(holders.missing(&gpus).unwrap().starts_with("GPU_MISSING: GPU GPU-b does not answer"));
        holders.tell(answer(&gpus));
        assert_eq!(holders.missing(&gpus), None);
        assert_eq!(Holders::new(false).missing(&gpus), None);
    }

    #[test]
    fn a_number_that_was_given_out_again_is_another_process() {
        assert!(is_one_of(&BTreeMap::from([(i32::MAX, StartTime(1))]), i32::MAX));
        assert!(!is_one_of(&BTreeMap::from([(own_pid(), StartTime(1))]), own_pid()));
        assert!(!is_one_of(&BTreeMap::new(), i32::MAX));
    }
}
