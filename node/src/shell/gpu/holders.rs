//! Which processes hold memory of GPUs, for whoever must wait until they do not.
//!
//! Owns the waiting; leaves looking to `watch`. Invariant: where nothing can be told nobody is held up longer than
//! [`RELEASE`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout_at},
};

use crate::{
    core::process_tree::{ProcessId, StartTime},
    shell::process,
};

/// A driver gives memory back some seconds after a process ended.
const RELEASE: Duration = Duration::from_secs(15);
/// Between two looks while somebody waits.
const AGAIN: Duration = Duration::from_millis(500);

/// The processes that the driver names, as of its last answer.
#[derive(Debug)]
pub(crate) struct Holders {
    told: watch::Sender<BTreeSet<i32>>,
    asked: Notify,
    /// The GPUs that answer; nothing as long as the driver has not said.
    answering: Mutex<Option<BTreeSet<String>>>,
    wanted: bool,
    patience: Duration,
}

impl Holders {
    /// `wanted`: GPUs are looked at on this host.
    pub(crate) fn new(wanted: bool) -> Self {
        let told = watch::Sender::new(BTreeSet::new());
        Self { told, asked: Notify::new(), answering: Mutex::default(), wanted, patience: RELEASE }
    }

    /// The driver answered: these GPUs do.
    pub(crate) fn answer(&self, gpus: BTreeSet<String>) {
        *self.answering.lock().unwrap_or_else(PoisonError::into_inner) = Some(gpus);
    }

    /// Why an engine cannot be started on these GPUs now: one of them is not there, or does not answer.
    pub(crate) fn missing(&self, gpus: &[String]) -> Option<String> {
        let answering = self.answering.lock().unwrap_or_else(PoisonError::into_inner);
        let gpu = match answering.as_ref() {
            _ if !self.wanted => return None,
            Some(answering) => gpus.iter().find(|gpu| !answering.contains(*gpu))?,
            None => gpus.first()?,
        };
        Some(format!("GPU_MISSING: GPU {gpu} does not answer; it is started when that does"))
    }

    /// The driver answered: these hold memory.
    pub(crate) fn tell(&self, holders: BTreeSet<i32>) {
        self.told.send_replace(holders);
    }

    /// Resolves when somebody waits for the next answer.
    pub(crate) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Waits until none of these ended processes holds memory of a GPU; one that still does after [`RELEASE`].
    pub(crate) async fn released(&self, ended: &BTreeMap<i32, StartTime>) -> Result<(), i32> {
        if !self.wanted || ended.is_empty() {
            return Ok(());
        }
        let until = Instant::now() + self.patience;
        let mut told = self.told.subscribe();
        // What was told before their end says nothing.
        told.mark_unchanged();
        let mut holder = None;
        loop {
            self.asked.notify_one();
            match timeout_at(until, told.changed()).await {
                Ok(Ok(())) => {}
                // No answer in time: a driver that hangs cannot keep an engine from its next start.
                Ok(Err(_)) | Err(_) => return holder.map_or(Ok(()), Err),
            }
            holder = told.borrow_and_update().iter().copied().find(|pid| is_one_of(ended, *pid));
            if holder.is_none() {
                return Ok(());
            }
            tokio::time::sleep_until((Instant::now() + AGAIN).min(until)).await;
        }
    }
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
        let ended = BTreeMap::from([(i32::MAX, StartTime(1))]);
        let answers = {
            let holders = Arc::clone(&holders);
            tokio::spawn(async move {
                for round in 0.. {
                    holders.asked().await;
                    holders.tell(if round < 3 { BTreeSet::from([i32::MAX]) } else { BTreeSet::new() });
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
                    holders.tell(BTreeSet::from([i32::MAX]));
                }
            })
        };
        assert_eq!(holders.released(&ended).await, Err(i32::MAX));
        answers.abort();
        // A driver that says nothing.
        assert_eq!(holders.released(&ended).await, Ok(()));
        assert_eq!(Holders::new(false).released(&ended).await, Ok(()));
    }

    /// Row 96: nothing is started on a GPU that does not answer, nor before the driver has said which do.
    #[test]
    fn row_96_a_gpu_that_does_not_answer_gets_no_engine() {
        let (holders, gpus) = (Holders::new(true), ["GPU-a".to_owned(), "GPU-b".to_owned()]);
        assert!(holders.missing(&gpus).is_some() && holders.missing(&[]).is_none());
        holders.answer(BTreeSet::from(["GPU-a".to_owned()]));
        assert!(holders.missing(&gpus).unwrap().starts_with("GPU_MISSING: GPU GPU-b does not answer"));
        holders.answer(gpus.iter().cloned().collect());
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
