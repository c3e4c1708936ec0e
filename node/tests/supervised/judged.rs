//! Engines that are judged by their requests, followed by their output, and stopped by people.

use super::*;

/// Row 90: its health route is fine and each request fails: after some in a row, and one of the agent's own, it is started
/// anew, and told why.
#[tokio::test]
async fn row_90_an_engine_that_fails_each_request_is_started_anew() {
    let bench = Bench::start("sick").await;
    bench.edge.engine("own", EngineState::Ready).await;
    let first = bench.nonce();
    for _ in 0..5 {
        let (head, _, end) = bench.edge.open(Ask::new("own", "{}")).await.whole().await;
        assert_eq!((head.status, end.outcome), (500, Outcome::Complete));
    }
    until("another engine", async || (bench.record()?["nonce"] != first.as_str()).then_some(())).await;
    bench.told("failed 5 requests in a row").await;
}

/// Row 90: its health route is fine, and nothing comes to requests that wait: it is started anew, and they are told.
#[tokio::test]
async fn row_90_an_engine_that_stalls_is_started_anew() {
    let bench = Bench::with("mute", "stall_timeout = \"1s\"\n").await;
    bench.edge.engine("own", EngineState::Ready).await;
    let stream = bench.edge.open(Ask::new("own", "{}")).await;
    let (_, end) = stream.rest().await;
    assert_eq!(end.outcome, Outcome::EngineGone);
    bench.told("stalled: ").await;
    bench.edge.engine("own", EngineState::Ready).await;
}

/// Row 21: an engine that is paused while a request waits is found by its silence: the request has one end, and the engine is
/// ended, deaf as it is, and started anew.
#[tokio::test]
async fn row_21_a_paused_engine_is_found_and_replaced() {
    let bench = Bench::with("plain", "stall_timeout = \"1s\"\n").await;
    bench.edge.engine("own", EngineState::Ready).await;
    let (first, pid) = (bench.nonce(), bench.pid().await);
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    let stream = bench.edge.open(Ask::new("own", "{}")).await;
    let (_, end) = stream.rest().await;
    assert_eq!(end.outcome, Outcome::EngineGone);
    bench.told("stalled: ").await;
    until("another engine", async || (bench.record()?["nonce"] != first.as_str()).then_some(())).await;
    assert_eq!(marked(&first), [0; 0]);
    bench.edge.engine("own", EngineState::Ready).await;
    bench.serves().await;
}

/// What is told of an adopted engine is its own, not its agent's: since when it is ready, when its process began, how often it
/// was started again. What an operator stopped stays stopped with another agent.
#[tokio::test]
async fn an_adopted_engine_keeps_its_age() {
    let mut bench = Bench::start("plain").await;
    bench.edge.engine("own", EngineState::Ready).await;
    kill(bench.pid().await);
    let before = until("it is ready again", async || {
        bench.edge.heard(|heard| {
            let own = heard.engines.iter().find(|status| status.name == "own")?;
            (own.restarts == 1 && own.state() == EngineState::Ready).then(|| own.clone())
        })
    })
    .await;
    assert!(before.process_since_unix_ms > 0 && before.process_since_unix_ms <= before.since_unix_ms);
    // The agent's own word: what the edge has heard may be of the agent before.
    let shown = async |bench: &Bench| -> serde_json::Value {
        let status = bench.folder.status().await;
        let all = status["engines"].as_array().unwrap().clone();
        all.into_iter().find(|one| one["name"] == "own").unwrap()
    };
    let age = shown(&bench).await;
    assert_eq!((&age["state"], &age["restarts"]), (&"ready".into(), &1.into()));
    bench.agent.signal(Signal::KILL);
    bench.agent.ended().await;
    bench.again().await;
    let after = until("it is ready again", async || {
        let shown = shown(&bench).await;
        (shown["state"] == "ready").then_some(shown)
    })
    .await;
    assert_eq!((&after["since"], &after["restarts"]), (&age["since"], &age["restarts"]));
    until("the edge has heard it", async || {
        bench.edge.heard(|heard| {
            let own = heard.engines.iter().find(|status| status.name == "own")?;
            (own.process_since_unix_ms == before.process_since_unix_ms
                && own.since_unix_ms == before.since_unix_ms)
                .then_some(())
        })
    })
    .await;
    assert!(bench.edge.control("own", EngineAction::Stop).await.accepted);
    bench.edge.engine("own", EngineState::Stopped).await;
    bench.agent.signal(Signal::KILL);
    bench.agent.ended().await;
    bench.again().await;
    bench.edge.engine("own", EngineState::Stopped).await;
    assert!(bench.record().is_none());
    assert!(bench.edge.control("own", EngineAction::Restart).await.accepted);
    bench.edge.engine("own", EngineState::Ready).await;
}

/// Output is followed from where a reader stood, from one run into the next.
#[tokio::test]
async fn output_is_followed_over_runs() {
    let bench = Bench::start("traceback").await;
    let told = until("the last line", async || {
        let told = bench.edge.output("own", 3, "").await;
        told.lines.last().is_some_and(|line| line.contains("no such model")).then_some(told)
    })
    .await;
    assert!(told.lines.len() <= 3 && told.lines[0].contains("line 198"), "{:?}", told.lines);
    let next = until("the next run's lines", async || {
        let next = bench.edge.output("own", 3, &told.cursor).await;
        (!next.lines.is_empty()).then_some(next)
    })
    .await;
    assert!(!next.lines[0].contains("line 199"), "another run begins with its first line: {:?}", next.lines);
    assert!(next.cursor != told.cursor);
}

/// An operator stops an engine and starts it anew; neither counts as a crash.
#[tokio::test]
async fn an_operator_stops_and_restarts_an_engine() {
    let bench = Bench::start("plain").await;
    bench.edge.engine("own", EngineState::Ready).await;
    let first = bench.nonce();
    assert!(bench.edge.control("own", EngineAction::Restart).await.accepted);
    until("another engine", async || (bench.record()?["nonce"] != first.as_str()).then_some(())).await;
    assert_eq!(bench.edge.engine("own", EngineState::Ready).await.restarts, 0);
    let second = bench.nonce();
    assert!(bench.edge.control("own", EngineAction::Stop).await.accepted);
    let stopped = bench.edge.engine("own", EngineState::Stopped).await;
    assert_eq!(stopped.cause, "stopped by an operator");
    assert!(marked(&second).is_empty() && bench.record().is_none());
    assert!(bench.edge.control("own", EngineAction::Restart).await.accepted);
    bench.edge.engine("own", EngineState::Ready).await;
    let refused = bench.edge.control("nobody", EngineAction::Stop).await;
    assert!(!refused.accepted && !refused.message.is_empty());
}

/// A profile that cannot work is told in milliseconds and never started.
#[tokio::test]
async fn a_bad_profile_is_refused_before_the_start() {
    let bench = Bench::start("plain").await;
    bench.edge.engine("own", EngineState::Ready).await;
    std::fs::write(bench.folder.path("m.gguf"), b"not a model").unwrap();
    kill(bench.pid().await);
    let report = bench.edge.engine("own", EngineState::Failed).await;
    assert!(report.cause.contains("is not a GGUF file"), "{}", report.cause);
    std::fs::write(bench.folder.path("m.gguf"), b"GGUF0000").unwrap();
}

/// Row 95: an engine that listens to other hosts, although it was told not to, is not made ready: it is ended, once, and says why
/// by name. Mended, it is started by an operator.
#[tokio::test]
async fn row_95_an_engine_that_listens_to_other_hosts_is_refused() {
    let bench = Bench::start("exposed").await;
    let failed = bench.edge.engine("own", EngineState::Failed).await;
    assert_eq!((failed.code.as_str(), failed.restarts), ("ENGINE_EXPOSED", 0), "{}", failed.cause);
    assert!(
        failed.cause.contains("listens to other hosts") && failed.cause.contains("[programs]"),
        "{failed:?}"
    );
    let told = bench.edge.heard(|heard| {
        heard.states.iter().any(|(name, state, _)| name == "own" && *state == EngineState::Ready)
    });
    assert!(!told && bench.record().is_none(), "it never took a request, and nothing of it is left");
    program(bench.folder.path("").as_path(), "plain");
    assert!(bench.edge.control("own", EngineAction::Restart).await.accepted);
    bench.edge.engine("own", EngineState::Ready).await;
}

/// One that serves already when it is noticed goes on: an agent that comes new ends no engine. The node says so until it is over.
#[tokio::test]
async fn row_95_an_engine_that_serves_other_hosts_is_told() {
    let mut bench = Bench::start("opens").await;
    bench.edge.engine("own", EngineState::Ready).await;
    let pid = bench.pid().await;
    bench.agent.signal(Signal::KILL);
    bench.agent.ended().await;
    std::fs::write(bench.folder.path("state/engines/open"), b"").unwrap();
    bench.again().await;
    let exposed = async || bench.folder.status().await["problems"].to_string().contains("ENGINE_EXPOSED");
    until("the problem", async || exposed().await.then_some(())).await;
    bench.edge.engine("own", EngineState::Ready).await;
    assert_eq!(bench.pid().await, pid);
    kill(pid);
    std::fs::remove_file(bench.folder.path("state/engines/open")).unwrap();
    until("the problem's end", async || (!exposed().await).then_some(())).await;
}
