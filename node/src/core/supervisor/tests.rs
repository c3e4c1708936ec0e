//! The supervisor by hand-turned time.

use super::*;

struct Bench {
    now: Instant,
    supervisor: Supervisor,
    out: Vec<Output>,
}

impl Bench {
    fn new(supervised: bool) -> Self {
        let now = Instant::now();
        let traits = Traits { supervised, start_timeout: Duration::from_secs(60) };
        let (supervisor, out) = Supervisor::new(traits);
        Self { now, supervisor, out }
    }

    fn give(&mut self, input: Input) -> &[Output] {
        self.out = self.supervisor.handle(self.now, input);
        &self.out
    }

    fn wait(&mut self) -> Duration {
        let at = self.supervisor.next_deadline().unwrap();
        let waited = at.saturating_duration_since(self.now);
        self.now = self.now.max(at);
        self.give(Input::Tick);
        waited
    }

    fn until_loading(&mut self) {
        assert!(self.give(Input::Validated(Ok(()))).contains(&Output::Start));
        assert!(self.give(Input::Started(Ok(()))).contains(&Output::Probe));
        assert_eq!(self.supervisor.state(), State::Loading);
    }

    fn until_ready(&mut self) {
        self.until_loading();
        self.give(Input::Probed(Ok(())));
        assert_eq!(self.supervisor.state(), State::Ready);
    }

    /// The process dies; what is left of it is ended.
    fn die(&mut self, exit: Exit) {
        assert!(self.give(Input::Exited(exit)).contains(&Output::Kill));
        assert_eq!(self.supervisor.state(), State::Restarting);
        self.give(Input::Gone { tail: "last line".into() });
    }

    /// Waits for the next start; how long it took.
    fn again(&mut self) -> Duration {
        assert_eq!(self.supervisor.state(), State::Starting);
        let waited = self.wait();
        assert_eq!(self.supervisor.state(), State::Validating);
        waited
    }
}

#[test]
fn comes_up_and_is_watched() {
    let mut bench = Bench::new(true);
    assert_eq!(bench.out, [Output::Validate, Output::Report]);
    bench.until_loading();
    bench.give(Input::Probed(Err("port closed".into())));
    assert_eq!(bench.supervisor.cause(), "port closed");
    bench.wait();
    assert_eq!(bench.out, [Output::Probe]);
    bench.give(Input::Probed(Ok(())));
    assert_eq!(bench.supervisor.state(), State::Ready);
    bench.wait();
    assert_eq!(bench.out, [Output::Probe]);
}

#[test]
fn a_profile_that_does_not_fit_the_host_never_starts() {
    let mut bench = Bench::new(true);
    let why = "ARTIFACT_MISSING: model file is missing";
    let out = bench.give(Input::Validated(Err(why.into()))).to_vec();
    assert_eq!(out, [Output::Report]);
    assert_eq!(bench.supervisor.state(), State::Failed);
    assert_eq!(bench.supervisor.code(), Some(Cause::ArtifactMissing));
    bench.wait();
    assert_eq!(bench.out, [Output::Validate]);
    assert!(bench.give(Input::Validated(Err(why.into()))).is_empty());
    bench.wait();
    assert!(bench.give(Input::Validated(Ok(()))).contains(&Output::Start));
}

/// Row 89: short successes do not reset the counter; the wait grows; then it stays failed.
#[test]
fn row_89_short_successes_are_a_crash_loop() {
    let mut bench = Bench::new(true);
    let mut waits = Vec::new();
    for _ in 0..CRASHES - 1 {
        bench.until_ready();
        bench.now += Duration::from_secs(3);
        bench.die(Exit::Signal(11));
        waits.push(bench.again());
    }
    assert!(waits.windows(2).all(|pair| pair[0] < pair[1]), "{waits:?}");
    bench.until_ready();
    bench.now += Duration::from_secs(3);
    bench.die(Exit::Signal(11));
    assert_eq!(bench.supervisor.state(), State::Failed);
    assert!(bench.supervisor.cause().starts_with("CRASH_LOOP"), "{}", bench.supervisor.cause());
    assert_eq!(bench.supervisor.tail(), "last line");
    assert_eq!(bench.supervisor.next_deadline(), None);
}

/// Row 89, variant: exit 0 that nobody asked for counts like any other.
#[test]
fn row_89_exit_0_counts() {
    let mut bench = Bench::new(true);
    for _ in 0..CRASHES - 1 {
        bench.until_ready();
        bench.die(Exit::Code(0));
        assert!(bench.supervisor.cause().contains("without being asked"));
        bench.again();
    }
    bench.until_ready();
    bench.die(Exit::Code(0));
    assert_eq!(bench.supervisor.state(), State::Failed);
}

/// Row 89, variant: a slow start that always ends before ready is a loop too, however long each takes.
#[test]
fn row_89_never_ready_is_a_crash_loop() {
    let mut bench = Bench::new(true);
    for _ in 0..CRASHES - 1 {
        bench.until_loading();
        bench.now += Duration::from_secs(400);
        bench.die(Exit::Code(1));
        bench.again();
    }
    bench.until_loading();
    bench.now += Duration::from_secs(400);
    bench.die(Exit::Code(1));
    assert_eq!(bench.supervisor.state(), State::Failed);
}

#[test]
fn stable_uptime_resets_the_counter() {
    let mut bench = Bench::new(true);
    for _ in 0..20 {
        bench.until_ready();
        bench.now += CRASH_WINDOW + Duration::from_secs(1);
        bench.die(Exit::Code(1));
        assert_eq!(bench.again(), BACKOFF_FIRST);
    }
}

#[test]
fn an_engine_that_does_not_get_ready_is_ended_and_counts() {
    let mut bench = Bench::new(true);
    bench.until_loading();
    while bench.supervisor.state() == State::Loading {
        if bench.out.contains(&Output::Probe) {
            bench.give(Input::Probed(Err("HTTP 503".into())));
        } else {
            bench.wait();
        }
    }
    assert_eq!(bench.supervisor.state(), State::Restarting);
    assert!(bench.supervisor.cause().contains("not ready within 60 s: HTTP 503"));
    bench.give(Input::Gone { tail: String::new() });
    assert_eq!(bench.supervisor.state(), State::Starting);
}

#[test]
fn a_probe_that_hangs_is_not_waited_for() {
    let mut bench = Bench::new(true);
    bench.until_loading();
    bench.wait();
    assert_eq!(bench.supervisor.state(), State::Restarting);
    assert!(bench.out.contains(&Output::Terminate));
    let stop = Input::Stop { drain: GRACE, grace: Duration::ZERO };
    bench.give(stop);
    assert_eq!(bench.supervisor.state(), State::Stopping);
    assert_eq!(bench.wait(), Duration::ZERO);
    assert_eq!(bench.out, [Output::Kill]);
    bench.give(Input::Gone { tail: String::new() });
    assert!(bench.supervisor.is_over());
}

#[test]
fn stops_in_order() {
    let mut bench = Bench::new(true);
    bench.until_ready();
    let stop = Input::Stop { drain: Duration::from_secs(30), grace: Duration::from_secs(5) };
    assert_eq!(bench.give(stop), [Output::Report]);
    assert_eq!(bench.supervisor.state(), State::Draining);
    assert!(bench.give(Input::Drained).contains(&Output::Terminate));
    assert_eq!(bench.supervisor.state(), State::Stopping);
    assert!(bench.give(Input::Exited(Exit::Code(0))).is_empty());
    assert_eq!(bench.wait(), Duration::from_secs(5));
    assert_eq!(bench.out, [Output::Kill]);
    bench.give(Input::Gone { tail: String::new() });
    assert_eq!(bench.supervisor.state(), State::Stopped);
    assert!(bench.supervisor.is_over());
}

/// Row 93: a stop that comes while the process is being started leaves none behind.
#[test]
fn row_93_stop_during_start() {
    let mut bench = Bench::new(true);
    bench.give(Input::Validated(Ok(())));
    bench.give(Input::Stop { drain: Duration::ZERO, grace: GRACE });
    assert_eq!(bench.supervisor.state(), State::Stopping);
    assert!(bench.give(Input::Started(Ok(()))).contains(&Output::Terminate));
    bench.give(Input::Gone { tail: String::new() });
    assert_eq!(bench.supervisor.state(), State::Stopped);
}

#[test]
fn stop_while_waiting_for_the_next_start() {
    let mut bench = Bench::new(true);
    bench.until_ready();
    bench.die(Exit::Code(1));
    bench.give(Input::Stop { drain: GRACE, grace: GRACE });
    assert_eq!(bench.supervisor.state(), State::Stopped);
}

#[test]
fn an_external_engine_comes_and_goes() {
    let mut bench = Bench::new(false);
    bench.give(Input::Validated(Ok(())));
    assert_eq!(bench.supervisor.state(), State::Loading);
    while bench.supervisor.state() == State::Loading {
        if bench.out.contains(&Output::Probe) {
            bench.give(Input::Probed(Err("connection refused".into())));
        } else {
            bench.wait();
        }
    }
    assert_eq!(bench.supervisor.state(), State::Failed);
    bench.wait();
    assert_eq!(bench.out, [Output::Probe]);
    bench.give(Input::Probed(Ok(())));
    assert_eq!(bench.supervisor.state(), State::Ready);
    for _ in 0..PROBE_FAILURES {
        bench.wait();
        bench.give(Input::Probed(Err("connection refused".into())));
    }
    assert_eq!(bench.supervisor.state(), State::Loading);
    bench.give(Input::Stop { drain: GRACE, grace: GRACE });
    assert_eq!(bench.supervisor.state(), State::Stopped);
}

/// Row 81: what failed gets a new chance with what it shall be now, with all its crashes forgotten; what runs goes on.
#[test]
fn row_81_a_change_is_a_new_chance() {
    let mut bench = Bench::new(true);
    let traits = Traits { supervised: true, start_timeout: Duration::from_secs(5) };
    bench.until_ready();
    assert_eq!(bench.give(Input::Changed(traits)), []);
    assert_eq!(bench.supervisor.state(), State::Ready);
    for crash in 1..=CRASHES {
        bench.die(Exit::Code(1));
        if crash < CRASHES {
            bench.again();
            bench.until_loading();
        }
    }
    assert_eq!(bench.supervisor.state(), State::Failed);
    assert_eq!(bench.give(Input::Changed(traits)), [Output::Report, Output::Validate]);
    bench.until_loading();
    bench.die(Exit::Code(1));
    // One crash of the new one is not a loop, and a change shortens the wait.
    assert_eq!(bench.supervisor.state(), State::Starting);
    bench.give(Input::Changed(traits));
    assert_eq!(bench.again(), Duration::ZERO);
    bench.give(Input::Validated(Err("no such file".into())));
    assert_eq!(bench.supervisor.state(), State::Failed);
    bench.give(Input::Stop { drain: GRACE, grace: GRACE });
    assert_eq!(bench.give(Input::Changed(traits)), []);
    assert_eq!(bench.supervisor.state(), State::Stopped);
}

/// Row 90: a health route that says well is not the last word.
#[test]
fn row_90_what_is_unhealthy_is_started_anew() {
    let mut bench = Bench::new(true);
    bench.until_ready();
    assert!(bench.give(Input::Unhealthy("stalled".into())).contains(&Output::Terminate));
    assert_eq!(bench.supervisor.state(), State::Restarting);
    bench.give(Input::Exited(Exit::Signal(15)));
    bench.give(Input::Gone { tail: String::new() });
    assert!(
        bench.supervisor.cause().starts_with("stalled; started again in"),
        "{}",
        bench.supervisor.cause()
    );
    assert_eq!(bench.supervisor.restarts(), 1);
}

/// An operator's wish: running requests end first, a restart is no crash, and what was stopped stays so, and can be wanted
/// again or be wanted no more.
#[test]
fn an_operator_restarts_and_stops() {
    let drain = Duration::from_secs(30);
    let mut bench = Bench::new(true);
    bench.until_ready();
    bench.give(Input::Restart { drain });
    assert_eq!(
        (bench.supervisor.state(), bench.supervisor.cause()),
        (State::Draining, "restarted by an operator")
    );
    assert!(bench.give(Input::Drained).contains(&Output::Terminate));
    bench.give(Input::Exited(Exit::Code(0)));
    assert!(bench.give(Input::Gone { tail: String::new() }).contains(&Output::Validate));
    assert_eq!(bench.supervisor.restarts(), 0);
    bench.until_ready();
    bench.give(Input::Park { drain: Duration::ZERO });
    bench.give(Input::Gone { tail: String::new() });
    assert_eq!(
        (bench.supervisor.state(), bench.supervisor.cause()),
        (State::Stopped, "stopped by an operator")
    );
    assert!(!bench.supervisor.is_over() && bench.supervisor.next_deadline().is_none());
    assert!(bench.give(Input::Restart { drain }).contains(&Output::Validate));
    bench.until_ready();
    bench.give(Input::Park { drain });
    // Whoever wants it gone for good overrules.
    bench.give(Input::Stop { drain: Duration::ZERO, grace: Duration::from_secs(1) });
    bench.give(Input::Gone { tail: String::new() });
    assert!(bench.supervisor.is_over());
    // One that was stopped can go, too.
    let mut bench = Bench::new(false);
    bench.give(Input::Park { drain });
    assert!(!bench.supervisor.is_over());
    bench.give(Input::Stop { drain, grace: drain });
    assert!(bench.supervisor.is_over());
}

/// One that an earlier agent started is asked at once whether it is ready, and then watched as any other.
#[test]
fn an_adopted_one_is_not_started() {
    let traits = Traits { supervised: true, start_timeout: Duration::from_secs(60) };
    let now = Instant::now();
    let (supervisor, out) = Supervisor::adopting(now, traits, 3);
    assert_eq!(out, [Output::Report, Output::Probe]);
    assert_eq!(supervisor.restarts(), 3, "those of the engine, not of the agent");
    let mut bench = Bench { now, supervisor, out };
    bench.give(Input::Probed(Ok(())));
    assert_eq!(bench.supervisor.state(), State::Ready);
    bench.die(Exit::Code(1));
    assert_eq!(bench.again(), BACKOFF_FIRST);
}

/// Row 87: the engine's own last words stand in the cause from its first crash on, and in that of the loop.
#[test]
fn row_87_the_cause_has_the_last_words_and_a_name() {
    let mut bench = Bench::new(true);
    for _ in 0..CRASHES - 1 {
        bench.until_loading();
        bench.die(Exit::Code(1));
        assert!(bench.supervisor.cause().starts_with("exited with code 1: \"last line\"; started again in "));
        assert_eq!((bench.supervisor.code(), bench.supervisor.exit()), (None, Some(Exit::Code(1))));
        bench.again();
    }
    bench.until_loading();
    bench.give(Input::Exited(Exit::Code(1)));
    bench.give(Input::Gone { tail: "CUDA error: invalid device\nbye".into() });
    let cause = bench.supervisor.cause();
    assert!(cause.starts_with("CRASH_LOOP") && cause.ends_with("\"CUDA error: invalid device\""), "{cause}");
    assert_eq!(bench.supervisor.code(), Some(Cause::CudaError));
    assert!(!bench.supervisor.looks_again());
    bench.give(Input::Restart { drain: Duration::ZERO });
    assert_eq!(bench.supervisor.code(), None, "another start, another cause");
}

/// Row 95: one that may not run as it is ends once and stays so, until somebody changes something or wants it gone.
#[test]
fn row_95_one_that_is_refused_is_not_started_again() {
    let refused = || Input::Refused("ENGINE_EXPOSED: it listens".into());
    let mut bench = Bench::new(true);
    bench.until_loading();
    assert!(bench.give(refused()).contains(&Output::Terminate));
    assert_eq!(
        (bench.supervisor.state(), bench.supervisor.code()),
        (State::Stopping, Some(Cause::EngineExposed))
    );
    bench.give(Input::Exited(Exit::Signal(15)));
    bench.give(Input::Gone { tail: String::new() });
    assert_eq!(
        (bench.supervisor.state(), bench.supervisor.code()),
        (State::Failed, Some(Cause::EngineExposed))
    );
    assert_eq!((bench.supervisor.restarts(), bench.supervisor.next_deadline()), (0, None));
    assert!(bench.give(Input::Restart { drain: Duration::ZERO }).contains(&Output::Validate));
    bench.until_loading();
    bench.give(refused());
    bench.give(Input::Stop { drain: Duration::ZERO, grace: Duration::ZERO });
    bench.give(Input::Gone { tail: String::new() });
    assert!(bench.supervisor.is_over());
}
