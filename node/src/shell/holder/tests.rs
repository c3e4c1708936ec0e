//! Holders as real processes of this very test binary, with shells in the place of engines.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use super::*;
use crate::{
    core::process_tree::Born,
    shell::{engines, state::State},
};

const LIMIT: Duration = Duration::from_secs(20);
/// How this binary becomes a holder.
const HOLDER: &[&str] = &["--exact", "shell::holder::tests::holder_process", "--ignored", "--nocapture"];

/// Becomes a holder when started by one of the tests below.
#[test]
#[ignore = "a process that other tests start"]
fn holder_process() {
    if std::env::var_os(process::NONCE).is_some() {
        std::process::exit(i32::from(hold()));
    }
}

struct Bench {
    _folder: tempfile::TempDir,
    state: std::sync::Arc<State>,
    record: EngineRecord,
    held: Held,
}

fn instruction(state: &State, script: &str) -> Instruction {
    let mut random = [0; 8];
    umbel_wire::secret::random_bytes(&mut random);
    let nonce = data_encoding::HEXLOWER.encode(&random);
    let record = EngineRecord {
        name: "chat.r1".into(),
        engine: Born::NOBODY,
        boot_id: process::boot_id(),
        port: 1,
        nonce: nonce.clone(),
        program: "/bin/sh".into(),
        holder: Born::NOBODY,
        key: Some("secret-key".into()),
        profile_digest: String::new(),
        started: serde_json::Value::Null,
        started_at_unix_ms: 0,
        restarts: 0,
        gpu_memory_before: Default::default(),
        files: Vec::new(),
        end: None,
    };
    let folder = state.engines();
    let launch = Launch {
        program: "/bin/sh".into(),
        arguments: vec!["-c".into(), script.into()],
        environment: vec![
            ("PATH".into(), std::env::var_os("PATH").unwrap_or_default()),
            ("KEY".into(), "secret-key".into()),
        ],
        folder: folder.clone().into(),
        log: folder.join("chat.r1.log").into(),
        nonce,
    };
    state.set_engine(&record).unwrap();
    Instruction { record, folder, launch }
}

impl Bench {
    async fn start(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Longer than a socket's address may be.
        let state = State::open(&folder.path().join("x".repeat(120))).unwrap();
        let instruction = instruction(&state, script);
        let held = start(HOLDER, Instruction { record: instruction.record.clone(), ..instruction });
        let held = held.await.unwrap();
        let record = state.engine_records().remove(0);
        Self { _folder: folder, state: std::sync::Arc::new(state), record, held }
    }

    /// The record as it stands on the disk now.
    fn stands(&self) -> EngineRecord {
        self.state.engine_records().remove(0)
    }

    fn said(&self, file: &str) -> String {
        fs::read_to_string(self.state.engines().join(file)).unwrap_or_default()
    }
}

impl Drop for Bench {
    /// Whatever a test came to, nothing of it runs on.
    fn drop(&mut self) {
        let mut family = Family::new(&[self.record.holder, self.record.engine]);
        let end = Instant::now() + LIMIT;
        loop {
            let left = process::members(&mut family, &self.record.nonce, true);
            if left.is_empty() || Instant::now() > end {
                return;
            }
            process::signal(&left, Signal::KILL);
            std::thread::sleep(process::LOOK);
        }
    }
}

async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    timeout(LIMIT, work).await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

fn facts(born: Born) -> crate::core::process_tree::ProcessFacts {
    process::facts(born.pid).unwrap()
}

/// An engine has a session, a group and a parent of its own; the record names all of it, and the key stands nowhere else.
#[tokio::test]
async fn an_engine_is_held() {
    let bench = Bench::start("echo hello; echo at 127.0.0.1:80; exec sleep 1000").await;
    let (holder, engine) = (bench.held.holder(), bench.held.engine());
    assert_eq!((bench.record.holder, bench.record.engine), (holder, engine));
    let (of_holder, of_engine) = (facts(holder), facts(engine));
    assert_eq!((of_holder.session, of_engine.session), (holder.pid, holder.pid), "a session of its own");
    assert_eq!((of_engine.group, of_engine.parent), (engine.pid, holder.pid));
    let folder = bench.state.engines();
    for name in ["chat.r1.json", "chat.r1.sock", "chat.r1.log"] {
        let mode = fs::metadata(folder.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    for file in ["cmdline", "environ"] {
        let text = fs::read(format!("/proc/{}/{file}", holder.pid.0)).unwrap();
        assert!(!String::from_utf8_lossy(&text).contains("secret-key"), "{file} of the holder");
    }
    until("its output", || bench.said("chat.r1.log").contains("at 127")).await;
    let told = soon("its output", bench.held.output(Some(0), 9)).await.unwrap();
    assert_eq!((told.lines, told.next), (vec!["hello".to_owned(), "at [address]".into()], 2));
    // A signal of a terminal, and the end of a session, are nothing to it.
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT] {
        process::signal(&[of_holder], signal);
    }
    assert!(bench.held.answers().await && process::lives(engine));
}

/// Row 83: agents come and go; each finds the engine as it is, and its end is there for whoever comes.
#[tokio::test]
async fn row_83_agents_come_one_after_another() {
    let mut bench = Bench::start("echo up; while [ ! -e go ]; do sleep 0.01; done; echo last; exit 7").await;
    let engine = bench.held.engine();
    for _ in 0..3 {
        bench.held = attach(&bench.record, &bench.state.engines()).await.unwrap();
        assert_eq!(bench.held.engine(), engine);
    }
    // Somebody else's record finds nobody.
    let mut other = bench.record.clone();
    other.nonce = "other".into();
    assert_eq!(attach(&other, &bench.state.engines()).await.unwrap_err(), Lost);
    let mut found = engines::find_inherited(&bench.state).await;
    assert!(matches!(found.engines.remove("chat.r1").unwrap().left, engines::Left::Held(_)));
    fs::write(bench.state.engines().join("go"), b"").unwrap();
    assert_eq!(soon("its exit", bench.held.exited()).await, Ok(Exit::Code(7)));
    assert_eq!(soon("its end", bench.held.gone()).await, Ok("up\nlast".into()));
    // Durable before it is told.
    let end = bench.stands().end.unwrap();
    assert_eq!((end.exit, end.tail.as_str()), (Exit::Code(7), "up\nlast"));
    assert!(end.at_unix_ms > 0);
    assert!(process::lives(bench.held.holder()), "the agent has not said that it heard it");
    bench.held.release().await;
    until("the holder's end", || !process::lives(bench.record.holder)).await;
    assert!(!bench.state.engines().join("chat.r1.sock").exists());
    let found = engines::find_inherited(&bench.state).await.engines.remove("chat.r1").unwrap();
    assert!(matches!(found.left, engines::Left::Over(end) if end.exit == Exit::Code(7)));
}

/// Without any agent an engine's end is written down, and its holder goes.
#[tokio::test]
async fn an_end_that_nobody_sees_is_written_down() {
    let mut bench = Bench::start("while [ ! -e go ]; do sleep 0.01; done; kill -SEGV $$").await;
    let state = std::sync::Arc::clone(&bench.state);
    let holder = bench.record.holder;
    // The connection goes with the only one who has it.
    drop(std::mem::replace(&mut bench.held, Held::nobody()));
    fs::write(state.engines().join("go"), b"").unwrap();
    until("the holder's end", || !process::lives(holder)).await;
    assert_eq!(bench.stands().end.unwrap().exit, Exit::Signal(11));
}

/// Row 82: the engine's own process is killed, and what it started goes with it, wherever that went: into another group,
/// into a session of its own, away from its parent, without the nonce.
#[tokio::test]
async fn row_82_all_that_descends_ends() {
    let script = "sleep 1000 & setsid sleep 1000 & \
        (env -i setsid /bin/sh -c '(trap \"\" TERM; /bin/sleep 1000) & /bin/sleep 1000' &) ; \
        trap '' TERM; echo up; while :; do sleep 1; done";
    let bench = Bench::start(script).await;
    let below = || {
        let all = process::all();
        let mut found = vec![bench.record.holder.pid];
        let mut at = 0;
        while let Some(parent) = found.get(at).copied() {
            found.extend(
                all.iter().filter(|facts| facts.parent == parent && !facts.zombie).map(|facts| facts.id),
            );
            at += 1;
        }
        found.remove(0);
        found
    };
    until("its children", || below().len() >= 6).await;
    let mine = below();
    process::signal(&[facts(bench.held.engine())], Signal::KILL);
    assert_eq!(soon("its exit", bench.held.exited()).await, Ok(Exit::Signal(9)));
    soon("its end", bench.held.gone()).await.unwrap();
    let left: Vec<_> =
        mine.iter().filter_map(|id| process::facts(*id)).filter(|facts| !facts.zombie).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// SIGTERM first, and SIGKILL only after the grace; again with a shorter one, that counts.
#[tokio::test]
async fn an_end_is_asked_for() {
    let bench = Bench::start("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done").await;
    until("its trap", || bench.said("chat.r1.log").contains("up")).await;
    bench.held.end(Duration::from_secs(60));
    assert_eq!(soon("its exit", bench.held.exited()).await, Ok(Exit::Code(0)));
    let tail = soon("its end", bench.held.gone()).await.unwrap();
    assert!(tail.ends_with("bye"), "{tail}");

    let bench = Bench::start("trap '' TERM; echo up; while :; do sleep 0.01; done").await;
    until("its trap", || bench.said("chat.r1.log").contains("up")).await;
    bench.held.end(Duration::from_secs(3000));
    bench.held.end(Duration::ZERO);
    assert_eq!(soon("its exit", bench.held.exited()).await, Ok(Exit::Signal(9)));
    // SIGTERM to the holder is the same demand: a host that goes down sends it to everybody.
    let bench = Bench::start("trap 'exit 5' TERM; echo up; while :; do sleep 0.01; done").await;
    until("its trap", || bench.said("chat.r1.log").contains("up")).await;
    process::signal(&[facts(bench.held.holder())], Signal::TERM);
    assert_eq!(soon("its exit", bench.held.exited()).await, Ok(Exit::Code(5)));
}

/// Kill -9 of the holder: the agent learns it at once, and finds and ends the engine by its nonce.
#[tokio::test]
async fn a_lost_holder_takes_its_engine_along() {
    let bench = Bench::start("sleep 1000 & trap '' TERM; echo up; while :; do sleep 0.01; done").await;
    until("its trap", || bench.said("chat.r1.log").contains("up")).await;
    let engine = bench.held.engine();
    process::signal(&[facts(bench.held.holder())], Signal::KILL);
    assert_eq!(soon("the loss", bench.held.exited()).await, Err(Lost));
    assert!(process::lives(engine), "nobody has ended it yet");
    let found = engines::find_inherited(&bench.state).await.engines.remove("chat.r1").unwrap();
    assert!(matches!(found.left, engines::Left::Unheld));
    engines::end_inherited(&bench.state, found).await.unwrap();
    assert!(!process::lives(engine) && bench.state.engine_records().is_empty());
}

/// Callers of the same user that say nothing take no place from an agent, neither from one that comes nor from one that is there.
#[tokio::test]
async fn callers_that_say_nothing_make_room() {
    let bench = Bench::start("exec sleep 1000").await;
    let folder = bench.state.engines();
    let (_opened, path) = callers::short_path(&folder, "chat.r1.sock").unwrap();
    let idle = |count: usize| -> Vec<StdUnixStream> {
        let call = |n: usize| {
            let mut stream = StdUnixStream::connect(&path).unwrap();
            // Some begin to say something.
            io::Write::write_all(&mut stream, [&b""[..], b"{\"ask\":"][n % 2]).unwrap();
            stream
        };
        (0..count).map(call).collect()
    };
    let _idle = idle(100);
    let held = attach(&bench.record, &folder).await.unwrap();
    let _more = idle(100);
    let again = attach(&bench.record, &folder).await.unwrap();
    for agent in [&bench.held, &held, &again] {
        assert!(agent.answers().await && agent.engine() == bench.record.engine);
    }
}

/// A record of another start of the kernel names nobody: its numbers are other processes' now.
#[tokio::test]
async fn a_record_of_another_boot_is_forgotten() {
    let bench = Bench::start("exec sleep 1000").await;
    let mut record = bench.stands();
    (record.boot_id, record.name, record.nonce) = ("another".into(), "other".into(), "n".into());
    bench.state.set_engine(&record).unwrap();
    let found = engines::find_inherited(&bench.state).await;
    assert!(found.engines.keys().eq(["chat.r1"]) && found.strays.is_empty() && found.problem.is_none());
    assert_eq!(bench.state.engine_records().len(), 1);
    assert!(process::lives(bench.held.engine()), "nobody is ended by it");
}

/// A second holder of an engine never takes the socket of the first, and is told to nobody as the engine.
#[tokio::test]
async fn a_living_holders_socket_is_not_taken() {
    let bench = Bench::start("exec sleep 1000").await;
    let second = instruction(&bench.state, "exec sleep 1000");
    let why = start(HOLDER, second).await.unwrap_err();
    assert!(why.contains("another holder of this engine lives there"), "{why}");
    bench.state.set_engine(&bench.record).unwrap();
    let held = attach(&bench.record, &bench.state.engines()).await.unwrap();
    assert_eq!(held.engine(), bench.record.engine);
}

/// A holder whose record and socket are another's by now leaves both alone when its engine ends.
#[tokio::test]
async fn what_is_anothers_stays_anothers() {
    let mut bench = Bench::start("while [ ! -e go ]; do sleep 0.01; done").await;
    let folder = bench.state.engines();
    fs::remove_file(folder.join("chat.r1.sock")).unwrap();
    let second = instruction(&bench.state, "exec sleep 1000");
    let held = start(HOLDER, second).await.unwrap();
    let first = bench.record.clone();
    bench.record = bench.stands();
    assert_ne!(bench.record.nonce, first.nonce);
    fs::write(folder.join("go"), b"").unwrap();
    soon("its end", bench.held.gone()).await.unwrap();
    bench.held.release().await;
    until("the first holder's end", || !process::lives(first.holder)).await;
    assert_eq!(bench.stands(), bench.record);
    let again = attach(&bench.record, &folder).await.unwrap();
    assert_eq!(again.engine(), held.engine());
}

/// A record that was lost while the engine runs is written again by its holder; one that was damaged is set aside.
#[tokio::test]
async fn a_lost_record_is_written_again() {
    let bench = Bench::start("exec sleep 1000").await;
    let path = bench.state.engines().join("chat.r1.json");
    fs::remove_file(&path).unwrap();
    let found = engines::find_inherited(&bench.state).await;
    assert!(matches!(found.engines.get("chat.r1").unwrap().left, engines::Left::Held(_)));
    assert!(found.strays.is_empty());
    let says = found.problem.unwrap();
    assert!(says.starts_with("no record named a run of engine chat.r1; it ran"), "{says}");
    assert_eq!(bench.stands(), bench.record);
    fs::write(&path, b"{").unwrap();
    let found = engines::find_inherited(&bench.state).await;
    assert_eq!(found.engines.len(), 1);
    let says = found.problem.unwrap();
    assert!(says.contains("set aside as chat.r1.json.unreadable; the engine ran, and its holder"), "{says}");
    assert_eq!(bench.stands(), bench.record);
    assert_eq!(engines::find_inherited(&bench.state).await.problem, None, "told once");
}

/// Without record and socket it is found by where its holder works, and ended; also if it is the holder that is gone.
#[tokio::test]
async fn a_run_without_record_and_socket_is_ended() {
    for holder_lives in [true, false] {
        let mut bench =
            Bench::start("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done").await;
        until("its trap", || bench.said("chat.r1.log").contains("up")).await;
        for name in ["chat.r1.json", "chat.r1.sock"] {
            fs::remove_file(bench.state.engines().join(name)).unwrap();
        }
        if !holder_lives {
            process::signal(&[facts(bench.record.holder)], Signal::KILL);
            until("the holder's end", || !process::lives(bench.record.holder)).await;
        }
        // The agent that started it is gone.
        bench.held = Held::nobody();
        let found = engines::find_inherited(&bench.state).await;
        assert!(found.engines.is_empty() && found.strays.len() == 1);
        assert!(found.problem.as_ref().is_some_and(|says| says.contains("it is ended first")), "{found:?}");
        let left = engines::end_all_inherited(&bench.state, found).await;
        assert!(left.is_empty() && !process::lives(bench.record.engine), "{left:?}");
        assert!(!process::lives(bench.record.holder));
        assert_eq!(bench.said("chat.r1.log").contains("bye"), holder_lives, "with grace, through its holder");
        assert!(bench.state.engine_records().is_empty(), "its holder wrote no record");
        assert!(engines::find_inherited(&bench.state).await.is_empty());
    }
}

/// Row 86: 100 MB through the holder; it stays small, and so does the log.
#[tokio::test]
async fn row_86_a_flood_goes_through_the_holder() {
    let flood = "head -c 50000000 /dev/zero; yes 0123456789abcde | head -c 50000000; echo; echo the last line; exec sleep 1000";
    let bench = Bench::start(flood).await;
    until("the last line", || bench.said("chat.r1.log").ends_with("the last line\n")).await;
    let status = fs::read_to_string(format!("/proc/{}/status", bench.held.holder().pid.0)).unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    let kib: u64 = peak.split_ascii_whitespace().nth(1).unwrap().parse().unwrap();
    // Unoptimized code of a whole test binary; a shipped holder has a few MiB.
    assert!(kib < 40 * 1024, "{peak}");
    let logs = fs::read_dir(bench.state.engines()).unwrap();
    let size: u64 = logs.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(size < 20 * 1024 * 1024, "{size}");
}

/// What cannot be started is told as that, and nothing is left of the attempt.
#[tokio::test]
async fn what_cannot_be_started_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let state = State::open(folder.path()).unwrap();
    let mut instruction = instruction(&state, "");
    instruction.launch.program = "/nowhere/at/all".into();
    let why = start(HOLDER, instruction).await.unwrap_err();
    assert!(why.starts_with("cannot be started: "), "{why}");
    assert!(!socket_is_there(&state.engines()));
    // A program that is no holder, and one that is not there.
    for holder in [&["--exact", "nothing-of-this-name"][..]] {
        let why = start(holder, self::instruction(&state, "")).await.unwrap_err();
        assert!(why.contains("holder"), "{why}");
    }
}

fn socket_is_there(folder: &Path) -> bool {
    folder.join("chat.r1.sock").exists()
}
