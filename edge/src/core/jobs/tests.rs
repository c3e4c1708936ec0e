//! Jobs: a table with its disk, and the cases that have a name.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::too_many_lines,
    reason = "tests"
)]

use umbel_contracts::causes::Cause;
use umbel_contracts::proto::node::job_complete::Report;
use umbel_contracts::proto::node::{
    ArtifactAcquire, ArtifactAcquireReport, ArtifactRemoveReport, JobFailure, JobRefusal, RunningJob,
    RuntimeHealth, RuntimeHealthReport,
};

use super::*;

mod model;

/// A table with its disk: rows are stored before they are applied, and a restart reads them.
struct World {
    jobs: Jobs,
    disk: HashMap<String, JobRow>,
    node: NodeId,
    now: Instant,
    wall: i64,
    leases: u64,
}

impl World {
    fn new() -> Self {
        let (jobs, disk) = (Jobs::default(), HashMap::new());
        Self { jobs, disk, node: NodeId::random(), now: Instant::now(), wall: 1_000, leases: 0 }
    }

    fn speaker(&self, instance: u64, generation: u64) -> Speaker {
        Speaker { node: self.node, instance: instance.to_string(), generation: Generation(generation) }
    }

    fn order(&self) -> Order {
        Order {
            id: None,
            node: self.node,
            body: Body::RuntimeHealth(RuntimeHealth::default()),
            owner: String::new(),
            actor: "ann".to_owned(),
            reason: String::new(),
        }
    }

    fn wall(&self) -> Wall {
        Wall(self.wall)
    }

    fn store(&mut self, id: &str, row: JobRow) {
        // What is stored is what is read again.
        let text = serde_json::to_string(&row).unwrap();
        let row: JobRow = serde_json::from_str(&text).unwrap();
        self.disk.insert(id.to_owned(), row.clone());
        self.jobs.apply(id, row, self.now);
    }

    fn submit(&mut self, id: &str) {
        let row = self.jobs.submit(self.order(), self.wall()).unwrap();
        self.store(id, row);
    }

    fn lease(&mut self, id: &str, speaker: &Speaker) -> Option<String> {
        self.leases += 1;
        let lease = LeaseRow {
            id: format!("l{}", self.leases),
            instance: speaker.instance.clone(),
            generation: speaker.generation.0,
        };
        let ran = self.jobs.is_held(id);
        let row = self.jobs.lease(id, lease.clone(), self.wall())?;
        self.store(id, row);
        self.jobs.leased(id, ran);
        Some(lease.id)
    }

    fn claim(&mut self, id: &str, speaker: &Speaker) -> String {
        let lease = self.lease(id, speaker).unwrap();
        self.jobs.claimed(id, &lease);
        lease
    }

    fn fail(&mut self, id: &str, lease: &str, code: &str, retry: bool) -> Result<(), Error> {
        let failure = JobFailure { code: code.to_owned(), retry, ..JobFailure::default() };
        if let Some(row) = self.jobs.fail(self.node, id, lease, &failure, self.wall())? {
            self.store(id, row);
        }
        Ok(())
    }

    fn complete(&mut self, id: &str, lease: &str) -> Result<(), Error> {
        let report = Report::RuntimeHealth(RuntimeHealthReport::default());
        if let Some(row) = self.jobs.complete(self.node, id, lease, report, self.wall())? {
            self.store(id, row);
        }
        Ok(())
    }

    fn restart(&mut self) {
        self.jobs = Jobs::default();
        for (id, row) in self.disk.clone() {
            self.jobs.apply(&id, row, self.now);
        }
    }

    fn state(&self, id: &str) -> JobState {
        self.jobs.view(id).unwrap().state
    }

    fn progress(&mut self, id: &str, lease: &str) -> Result<bool, Error> {
        let said = JobProgress {
            job_id: id.to_owned(),
            lease_id: lease.to_owned(),
            phase: "p".to_owned(),
            ..JobProgress::default()
        };
        self.jobs.progress(self.node, said, self.now)
    }

    fn ready(&mut self, speaker: &Speaker, running: &[(&str, u32, &str)]) -> Named {
        let running = running
            .iter()
            .map(|(id, attempt, lease)| RunningJob {
                job_id: (*id).to_owned(),
                attempt: *attempt,
                lease_id: (*lease).to_owned(),
                ended: false,
            })
            .collect();
        let named = self.jobs.ready(speaker, &JobReady { slots: 4, running });
        for id in &named.lost {
            if let Some(row) = self.jobs.lost(id, speaker, self.wall()) {
                self.store(id, row);
            }
        }
        named
    }
}

#[test]
fn a_job_goes_its_way() {
    let mut world = World::new();
    world.submit("a");
    assert_eq!(world.state("a"), JobState::Queued);
    let speaker = world.speaker(1, 1);
    assert_eq!(world.jobs.next(world.node, Generation(1)), None, "it has not said that it has room");
    world.ready(&speaker, &[]);
    assert_eq!(world.jobs.next(world.node, Generation(1)), Some("a"));
    assert_eq!(world.jobs.next(world.node, Generation(2)), None, "another connection");
    let lease = world.lease("a", &speaker).unwrap();
    assert_eq!(world.state("a"), JobState::Leased);
    assert_eq!(world.lease("a", &speaker), None, "it is given once");
    world.jobs.claimed("a", &lease);
    assert_eq!(world.state("a"), JobState::Running);
    assert!(!world.progress("a", &lease).unwrap());
    world.complete("a", &lease).unwrap();
    assert_eq!(world.state("a"), JobState::Succeeded);
    assert!(world.disk["a"].report().is_some() && world.jobs.view("a").unwrap().row.told.is_empty());
    // Its answer was lost: it may say so again, and nothing else.
    world.complete("a", &lease).unwrap();
    assert_eq!(world.fail("a", &lease, "X", true).unwrap_err().reason, "JOB_LEASE_OLD");
    assert_eq!(world.progress("a", &lease).unwrap_err().reason, "JOB_LEASE_OLD");
}

#[test]
fn another_nodes_work_and_other_work_are_refused() {
    let mut world = World::new();
    world.submit("a");
    let lease = world.claim("a", &world.speaker(1, 1));
    let before = world.disk.clone();
    let other = NodeId::random();
    let report = || Report::RuntimeHealth(RuntimeHealthReport::default());
    let refused = world.jobs.complete(other, "a", &lease, report(), Wall(1)).unwrap_err();
    assert_eq!((refused.code, &*refused.reason), (Code::PermissionDenied, "JOB_OF_ANOTHER_NODE"));
    let failure = JobFailure::default();
    assert_eq!(
        world.jobs.fail(other, "a", &lease, &failure, Wall(1)).unwrap_err().code,
        Code::PermissionDenied
    );
    let said = JobProgress { job_id: "a".into(), lease_id: lease.clone(), ..JobProgress::default() };
    assert_eq!(world.jobs.progress(other, said, world.now).unwrap_err().code, Code::PermissionDenied);
    let foreign = Report::ArtifactRemove(ArtifactRemoveReport::default());
    let refused = world.jobs.complete(world.node, "a", &lease, foreign, Wall(1)).unwrap_err();
    assert_eq!(refused.reason, "JOB_REPORT_OF_OTHER_WORK");
    assert_eq!(
        world.jobs.complete(world.node, "b", "l", report(), Wall(1)).unwrap_err().code,
        Code::NotFound
    );
    assert_eq!(world.disk, before);
    assert_eq!(world.state("a"), JobState::Running);
}

/// Row 20 and row 21: a holder that was silent has lost its lease, and what it says later under it changes nothing.
#[test]
fn a_lease_that_ends_without_news_is_no_attempt() {
    let mut world = World::new();
    world.submit("a");
    let speaker = world.speaker(1, 1);
    for _ in 0..5 {
        let lease = world.claim("a", &speaker);
        world.now += LEASE / 2;
        assert!(world.jobs.silent(world.now).is_empty());
        world.progress("a", &lease).unwrap();
        // From the last news, not from the last but one.
        world.now += LEASE - Duration::from_secs(1);
        assert!(world.jobs.silent(world.now).is_empty());
        world.now += Duration::from_secs(1);
        assert_eq!(world.jobs.silent(world.now), ["a"]);
        let row = world.jobs.expire("a", world.now, world.wall()).unwrap();
        world.store("a", row);
        assert_eq!(world.state("a"), JobState::Queued);
        assert_eq!(world.disk["a"].failures, 0);
        assert_eq!(world.complete("a", &lease).unwrap_err().reason, "JOB_LEASE_OLD");
        assert_eq!(world.state("a"), JobState::Queued);
    }
}

#[test]
fn what_still_runs_is_taken_up_under_a_new_lease_of_the_same_attempt() {
    let mut world = World::new();
    world.submit("a");
    world.submit("b");
    let first = world.speaker(1, 1);
    let lease = world.claim("a", &first);
    world.claim("b", &first);
    // The edge restarts, and the node comes back: the same process, which never got b.
    world.restart();
    let again = world.speaker(1, 70_000);
    let named = world.ready(&again, &[("a", 1, &lease), ("gone", 1, "l9")]);
    assert_eq!(named.cancel, ["gone"]);
    assert_eq!(world.state("b"), JobState::Queued);
    assert_eq!(world.disk["b"].failures, 0, "the process never got it");
    assert_eq!(world.jobs.next(world.node, Generation(70_000)), Some("a"), "it comes before the others");
    let newer = world.claim("a", &again);
    assert_eq!(world.disk["a"].attempt(), 1);
    assert_eq!(world.complete("a", &lease).unwrap_err().reason, "JOB_LEASE_OLD");
    world.complete("a", &newer).unwrap();
}

/// Pages of a list go on by it: two jobs of one command, neither stored when the other is made, are no pair for one page.
#[test]
fn jobs_that_are_asked_for_together_have_a_place_each() {
    let mut world = World::new();
    let rows: Vec<JobRow> = (0..3).map(|_| world.jobs.submit(world.order(), world.wall()).unwrap()).collect();
    for (id, row) in ["a", "b", "c"].into_iter().zip(rows) {
        world.store(id, row);
    }
    let places: Vec<u64> = world.jobs.list(|_| true).iter().map(|view| view.row.sequence).collect();
    assert_eq!(places, [3, 2, 1], "the newest first");
    world.restart();
    world.submit("d");
    assert_eq!(world.disk["d"].sequence, 4);
}

#[test]
fn with_its_process_an_attempt_is_lost_three_times_and_no_more() {
    let mut world = World::new();
    world.submit("a");
    for process in 1..=3 {
        let speaker = world.speaker(process, process);
        world.ready(&speaker, &[]);
        assert_eq!(world.disk["a"].failures, u32::try_from(process).unwrap() - 1);
        world.claim("a", &speaker);
    }
    let last = world.speaker(4, 4);
    world.ready(&last, &[]);
    assert_eq!(world.state("a"), JobState::Failed);
    assert_eq!(world.disk["a"].failures, ATTEMPTS);
    assert_eq!(world.disk["a"].failure().unwrap().code, "PROCESS_LOST");
}

/// A node that dies while it runs the job, and is away for longer than the lease, again and again: each time an attempt.
#[test]
fn a_lease_that_ends_before_its_process_is_known_to_be_lost_is_one_attempt() {
    let mut world = World::new();
    world.submit("a");
    world.submit("b");
    for process in 1..=3 {
        let speaker = world.speaker(process, process);
        world.ready(&speaker, &[]);
        assert_eq!(world.disk["a"].failures, u32::try_from(process).unwrap() - 1);
        world.claim("a", &speaker);
        world.now += LEASE;
        let row = world.jobs.expire("a", world.now, world.wall()).unwrap();
        world.store("a", row);
        if process == 2 {
            world.restart();
        }
        // Before the next process has said what it runs it is given nothing of it, and other work.
        assert_eq!(world.lease("a", &world.speaker(process + 1, process + 1)), None);
    }
    let last = world.speaker(4, 4);
    assert_eq!(world.ready(&last, &[]).lost, ["a"]);
    assert_eq!((world.state("a"), world.disk["a"].failures), (JobState::Failed, ATTEMPTS));
    assert_eq!(world.disk["a"].failure().unwrap().code, "PROCESS_LOST");
    assert_eq!(world.jobs.next(world.node, Generation(4)), Some("b"));
}

/// It ran on while nothing was heard of it, or was never begun: no attempt, then or later.
#[test]
fn what_a_process_says_of_a_lease_that_ended_stands() {
    let mut world = World::new();
    world.submit("runs");
    world.submit("never");
    let first = world.speaker(1, 1);
    world.ready(&first, &[]);
    let lease = world.claim("runs", &first);
    world.lease("never", &first).unwrap();
    world.now += LEASE;
    for id in world.jobs.silent(world.now) {
        let row = world.jobs.expire(&id, world.now, world.wall()).unwrap();
        world.store(&id, row);
    }
    assert_eq!(world.ready(&world.speaker(1, 2), &[("runs", 1, &lease)]).lost, ["never"]);
    assert_eq!(world.jobs.next(world.node, Generation(2)), Some("runs"));
    world.claim("runs", &world.speaker(1, 2));
    // The process ends now: what it had is lost with it, what it never had is not.
    world.ready(&world.speaker(2, 3), &[]);
    assert_eq!((world.disk["runs"].failures, world.disk["never"].failures), (1, 0));
}

/// Given back by an agent that stops in order, as often as that may be: no attempt, and said twice it changes nothing.
#[test]
fn a_job_that_is_given_back_has_lost_no_attempt() {
    let mut world = World::new();
    world.submit("a");
    for process in 1..=4 {
        let speaker = world.speaker(process, process);
        world.ready(&speaker, &[]);
        let lease = world.claim("a", &speaker);
        let failure = JobFailure { code: Cause::AgentStopped.as_str().to_owned(), ..JobFailure::default() };
        let row = world.jobs.fail(world.node, "a", &lease, &failure, world.wall()).unwrap().unwrap();
        assert_eq!((row.state, row.failures, row.failure.is_none()), (JobState::Queued, 0, true));
        world.store("a", row);
        assert!(world.jobs.fail(world.node, "a", &lease, &failure, world.wall()).unwrap().is_none());
    }
    assert_eq!(world.state("a"), JobState::Queued);
}

#[test]
fn what_is_under_way_when_the_node_says_what_it_runs_is_not_lost() {
    let mut world = World::new();
    world.submit("a");
    let speaker = world.speaker(1, 1);
    world.ready(&speaker, &[]);
    world.lease("a", &speaker).unwrap();
    assert_eq!(world.ready(&speaker, &[]), Named::default());
    assert_eq!(world.state("a"), JobState::Leased);
}

#[test]
fn a_failure_is_tried_again_only_where_that_makes_sense() {
    let mut world = World::new();
    world.submit("a");
    world.submit("b");
    let speaker = world.speaker(1, 1);
    for attempt in 1..=ATTEMPTS {
        let lease = world.claim("a", &speaker);
        assert_eq!(world.disk["a"].attempt(), attempt);
        world.fail("a", &lease, "SOURCE_UNREACHABLE", true).unwrap();
        // Told again, it is no further attempt.
        world.fail("a", &lease, "SOURCE_UNREACHABLE", true).unwrap();
        assert_eq!(world.disk["a"].failures, attempt);
    }
    assert_eq!(world.state("a"), JobState::Failed);
    let lease = world.claim("b", &speaker);
    world.fail("b", &lease, "NAME_REFUSED", false).unwrap();
    assert_eq!(world.state("b"), JobState::Failed);
    assert_eq!(world.disk["b"].failure().unwrap().code, "NAME_REFUSED");
}

/// Three attempts within a blink would all meet the same full disk.
#[test]
fn a_failed_attempt_is_followed_by_a_pause_that_grows() {
    let mut world = World::new();
    world.submit("a");
    world.submit("b");
    let speaker = world.speaker(1, 1);
    world.ready(&speaker, &[]);
    for seconds in [1, 5] {
        let lease = world.claim("a", &speaker);
        world.fail("a", &lease, "STATE_NOT_WRITABLE", true).unwrap();
        let end = world.now + Duration::from_secs(seconds);
        assert_eq!(world.jobs.first_pause_end(), Some(end));
        world.jobs.end_pauses(end - Duration::from_millis(1));
        assert_eq!(world.jobs.next(world.node, Generation(1)), Some("b"), "others do not wait for it");
        world.now = end;
        world.jobs.end_pauses(end);
        assert_eq!(world.jobs.next(world.node, Generation(1)), Some("a"), "it is the older one");
        assert_eq!(world.jobs.first_pause_end(), None);
    }
    let lease = world.claim("a", &speaker);
    world.fail("a", &lease, "STATE_NOT_WRITABLE", true).unwrap();
    assert_eq!((world.state("a"), world.jobs.first_pause_end()), (JobState::Failed, None));
}

/// Row 63: a cancelled job of a node that is cut off ends with its lease.
#[test]
fn a_job_is_cancelled_in_each_state() {
    let mut world = World::new();
    for id in ["queued", "running", "silent"] {
        world.submit(id);
    }
    let speaker = world.speaker(1, 1);
    let (running, _) = (world.claim("running", &speaker), world.claim("silent", &speaker));
    for id in ["queued", "running", "silent"] {
        let row = world.jobs.cancel(id, None, world.wall()).unwrap().unwrap();
        world.store(id, row);
        assert_eq!(world.jobs.cancel(id, None, world.wall()).unwrap(), None, "it was said before");
    }
    for id in ["running", "silent"] {
        for by in ["ann", "bob"] {
            let row = world.jobs.cancel(id, Some(by), world.wall()).unwrap().unwrap();
            world.store(id, row);
        }
        assert_eq!(world.jobs.cancel(id, None, world.wall()).unwrap(), None, "an operator wants it");
        let by = world.jobs.view(id).and_then(|view| view.row.cancelled_by.clone());
        assert_eq!(by.as_deref(), Some("bob"));
    }
    assert_eq!(world.state("queued"), JobState::Cancelled);
    assert!(world.progress("running", &running).unwrap(), "its node is told");
    world.fail("running", &running, "CANCELLED", false).unwrap();
    assert_eq!(world.state("running"), JobState::Cancelled);
    world.now += LEASE;
    for id in world.jobs.silent(world.now) {
        let row = world.jobs.expire(&id, world.now, world.wall()).unwrap();
        world.store(&id, row);
    }
    assert_eq!(world.state("silent"), JobState::Cancelled);
    world.submit("done");
    let lease = world.claim("done", &speaker);
    world.complete("done", &lease).unwrap();
    assert_eq!(world.jobs.cancel("done", Some("ann"), world.wall()).unwrap_err().reason, "JOB_ENDED");
    // The node that was cut off still runs it: it is told to end it.
    let named = world.ready(&world.speaker(1, 2), &[("silent", 1, "l2")]);
    assert_eq!(named.cancel, ["silent"]);
}

#[test]
fn a_node_that_refuses_gets_nothing_until_it_has_room_again() {
    let mut world = World::new();
    world.submit("a");
    let speaker = world.speaker(1, 1);
    world.ready(&speaker, &[]);
    let lease = world.lease("a", &speaker).unwrap();
    let row = world.jobs.refused("a", &lease, JobRefusal::NoRoom, String::new(), world.wall()).unwrap();
    world.store("a", row);
    assert_eq!((world.state("a"), world.disk["a"].failures), (JobState::Queued, 0));
    assert_eq!(world.jobs.next(world.node, Generation(1)), None);
    world.ready(&speaker, &[]);
    assert_eq!(world.jobs.next(world.node, Generation(1)), Some("a"));
    let lease = world.lease("a", &speaker).unwrap();
    let row = world.jobs.refused("a", &lease, JobRefusal::UnknownBody, "no".into(), world.wall()).unwrap();
    world.store("a", row);
    assert_eq!(world.state("a"), JobState::Failed);
}

/// The next attempt was given before the node had heard that the last one's end was taken; its word that it has room again comes
/// before its refusal is read.
#[test]
fn a_refusal_that_is_overtaken_by_the_word_of_room_holds_nothing_up() {
    let mut world = World::new();
    world.submit("a");
    let speaker = world.speaker(1, 1);
    world.ready(&speaker, &[]);
    let lease = world.claim("a", &speaker);
    world.fail("a", &lease, "SPACE", true).unwrap();
    let lease = world.lease("a", &speaker).unwrap();
    world.ready(&speaker, &[]);
    let refusal = JobRefusal::StillRuns;
    let row = world.jobs.refused("a", &lease, refusal, String::new(), world.wall()).unwrap();
    world.store("a", row);
    assert_eq!(world.jobs.next(world.node, Generation(1)), Some("a"));
}

#[test]
fn queues_and_what_is_kept_are_bounded() {
    let mut world = World::new();
    for n in 0..QUEUE {
        world.submit(&n.to_string());
    }
    assert_eq!(world.jobs.submit(world.order(), Wall(0)).unwrap_err().code, Code::ResourceExhausted);
    let speaker = world.speaker(1, 1);
    for n in 0..QUEUE {
        let lease = world.claim(&n.to_string(), &speaker);
        world.complete(&n.to_string(), &lease).unwrap();
    }
    assert!(world.jobs.submit(world.order(), Wall(0)).is_ok());
    assert!(world.jobs.overdue(world.wall()).is_empty());
    let later = world.wall() + KEPT_FOR + Duration::from_millis(1);
    let overdue = world.jobs.overdue(later);
    assert_eq!(overdue.len(), FORGOTTEN_AT_ONCE);
    for id in overdue {
        world.jobs.forget(&id);
    }
    assert_eq!(world.jobs.jobs.len(), QUEUE - FORGOTTEN_AT_ONCE);
    assert!(world.jobs.rooms.is_empty(), "nothing is left of a node without jobs");
}

/// Metrics count changes, each once, and no row that is only read.
#[test]
fn ends_and_failures_are_counted_with_the_change_that_makes_them() {
    let mut world = World::new();
    world.submit("a");
    let speaker = world.speaker(1, 1);
    let first = world.claim("a", &speaker);
    world.fail("a", &first, "OF_TOMORROW", true).unwrap();
    world.fail("a", &first, "OF_TOMORROW", true).unwrap();
    let second = world.claim("a", &speaker);
    assert_eq!(world.jobs.figures(), (0, 1));
    world.wall += 2_000;
    world.complete("a", &second).unwrap();
    world.complete("a", &second).unwrap();
    let tally = world.jobs.tally().clone();
    assert_eq!(tally.failures, [(("runtime.health", "other"), 1)].into());
    assert_eq!(tally.ended, [(("runtime.health", "succeeded"), 1)].into());
    let took = &tally.durations["runtime.health"];
    assert_eq!((took.counts.iter().sum::<u64>(), took.counts[3], took.sum), (1, 1, 2.0));
    world.restart();
    assert_eq!(world.jobs.tally(), &tally::Tally::default());
    assert_eq!((world.jobs.figures(), world.jobs.open(None, 10).len()), ((0, 0), 0));
}

/// What a load is told of files that their node has no room to tell of; known also to the next process.
#[test]
fn where_the_files_are_that_a_job_brought_is_remembered() {
    let mut world = World::new();
    let body = Body::ArtifactAcquire(ArtifactAcquire { repository: "a/b".into(), ..Default::default() });
    let order = Order { body, ..world.order() };
    let row = world.jobs.submit(order, world.wall()).unwrap();
    world.store("a", row);
    let lease = world.claim("a", &world.speaker(1, 1));
    let (root, path) = ("models".to_owned(), "a--b/r1.x".to_owned());
    let report = Report::ArtifactAcquire(ArtifactAcquireReport {
        root: root.clone(),
        path: path.clone(),
        ..Default::default()
    });
    let row = world.jobs.complete(world.node, "a", &lease, report, world.wall()).unwrap().unwrap();
    world.store("a", row);
    for _ in 0..2 {
        let at = FilesAt { root: root.clone(), path: path.clone() };
        assert_eq!(world.jobs.view("a").unwrap().row.brought, Some(at));
        world.restart();
    }
}

/// Sources that are slow hold up other downloads, and nothing else.
#[test]
fn downloads_leave_room_for_other_work() {
    let mut world = World::new();
    for n in 0..=DOWNLOADS {
        let body = Body::ArtifactAcquire(ArtifactAcquire::default());
        let order = Order { body, ..world.order() };
        let row = world.jobs.submit(order, world.wall()).unwrap();
        world.store(&format!("d{n}"), row);
    }
    world.submit("look");
    let speaker = world.speaker(1, 1);
    let running = [];
    world.jobs.ready(&speaker, &JobReady { slots: 16, running: running.into() });
    for n in 0..DOWNLOADS {
        let next = world.jobs.next(world.node, Generation(1)).unwrap().to_owned();
        assert_eq!(next, format!("d{n}"));
        world.claim(&next, &speaker);
    }
    assert_eq!(world.jobs.next(world.node, Generation(1)), Some("look"));
    world.claim("look", &speaker);
    assert_eq!(world.jobs.next(world.node, Generation(1)), None);
    let lease = world.disk["d0"].lease.clone().unwrap().id;
    world.fail("d0", &lease, "SOURCE_REFUSED", false).unwrap();
    assert_eq!(world.jobs.next(world.node, Generation(1)), Some(format!("d{DOWNLOADS}").as_str()));
}

#[test]
fn the_one_that_waits_longest_says_since_when_some_wait() {
    let mut world = World::new();
    assert!(world.jobs.queued_since().is_empty());
    for id in ["a", "b"] {
        world.submit(id);
        world.wall += 1_000;
    }
    assert_eq!(world.jobs.queued_since(), [("runtime.health", Wall(1_000))].into());
    let speaker = world.speaker(1, 1);
    world.lease("a", &speaker).unwrap();
    assert_eq!(world.jobs.queued_since(), [("runtime.health", Wall(2_000))].into());
}
