//! Connections that are kept: lost, drained, moved, rejected, and their stale ends.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use umbel_wire::{
    Attempt, CloseReason, Code, Connection, DialError, DialRole, DialTarget, Error, Generation, GoawayReason,
    Handler, HelloOut, Rejection, Welcome, WelcomeOut, keep_connected,
};

use crate::rig::{LIMIT, Proxy, Recorder, Server, echo, hello, nobody, target, until, within};

/// A role that notes what it hears.
struct Role {
    target: DialTarget,
    connections: Mutex<Vec<Connection>>,
    failures: Mutex<Vec<(Option<Rejection>, Duration)>>,
    losses: Mutex<Vec<CloseReason>>,
}

impl Role {
    fn new(target: DialTarget) -> Arc<Self> {
        Arc::new(Self {
            target,
            connections: Mutex::default(),
            failures: Mutex::default(),
            losses: Mutex::default(),
        })
    }

    fn count(&self) -> usize {
        self.connections.lock().unwrap().len()
    }

    fn latest(&self) -> Connection {
        self.connections.lock().unwrap().last().unwrap().clone()
    }
}

impl DialRole for Role {
    fn target(&self) -> DialTarget {
        self.target.clone()
    }

    fn hello(&self, attempt: Attempt) -> HelloOut {
        HelloOut { payload: attempt.0.to_be_bytes().to_vec(), ..hello() }
    }

    fn on_welcome(&self, connection: &Connection, welcome: &Welcome) -> Result<Arc<dyn Handler>, Error> {
        assert_eq!(connection.generation(), welcome.generation);
        self.connections.lock().unwrap().push(connection.clone());
        Ok(nobody())
    }

    fn on_failure(&self, error: &DialError, retry_in: Duration) {
        self.failures.lock().unwrap().push((error.rejection.clone(), retry_in));
    }

    fn on_lost(&self, reason: &CloseReason, _: Duration) {
        self.losses.lock().unwrap().push(reason.clone());
    }
}

fn keep(role: &Arc<Role>) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let shutdown = CancellationToken::new();
    (shutdown.clone(), tokio::spawn(keep_connected(role.clone(), shutdown)))
}

#[tokio::test]
async fn it_comes_back_and_leaves_cleanly() {
    let (server, mut accepted) = Server::accepting(Recorder::requests(echo)).await;
    let role = Role::new(server.target());
    let (shutdown, task) = keep(&role);
    let mut last = Generation(0);
    for round in 1..=3 {
        let connection = within("it connects", accepted.recv()).await.unwrap();
        assert!(connection.generation() > last);
        last = connection.generation();
        until("the role hears it", || role.count() == round).await;
        assert_eq!(role.latest().request(1, "x", LIMIT).await.unwrap(), "x");
        if round < 3 {
            connection.close(CloseReason::Stalled);
        } else {
            shutdown.cancel();
            within("it ends", task).await.unwrap();
            let CloseReason::ByPeer(goaway) = within("told", connection.closed()).await else {
                panic!("no farewell")
            };
            assert_eq!(goaway.reason, "shutdown");
            break;
        }
    }
    assert_eq!(role.losses.lock().unwrap().len(), 2);
    assert!(role.failures.lock().unwrap().is_empty());
}

/// `reconnect`: the new connection is made first, the old one finishes its streams and then closes.
#[tokio::test]
async fn a_move_makes_before_it_breaks() {
    let (server, mut accepted) = Server::accepting(Recorder::streams(crate::rig::echo_stream)).await;
    let role = Role::new(server.target());
    let (shutdown, task) = keep(&role);
    let old = within("first", accepted.recv()).await.unwrap();
    until("the role hears it", || role.count() == 1).await;
    let mut stream =
        role.latest().open(umbel_wire::Open { method: 3, ..Default::default() }, |_| ()).unwrap();
    within("head", stream.head()).await.unwrap();
    old.goaway(GoawayReason::Reconnect, "move over", None);
    let new = within("second", accepted.recv()).await.unwrap();
    assert!(!old.is_closed());
    stream.send_body(b"still").await.unwrap();
    stream.finish_body();
    assert_eq!(within("the rest", crate::rig::read_all(&mut stream)).await, b"still");
    drop(stream);
    within("the old one ends", old.closed()).await;
    assert!(!new.is_closed());
    shutdown.cancel();
    within("it ends", task).await.unwrap();
}

/// A rejection's hint is followed, and shown to the role.
#[tokio::test]
async fn a_rejection_says_when() {
    let hint = Duration::from_secs(30);
    let error = Error::new(Code::Conflict, "DUPLICATE_IDENTITY", "twice").with_retry_after(hint);
    let server = Server::rejecting(Rejection::new(error)).await;
    let role = Role::new(server.target());
    let (shutdown, task) = keep(&role);
    until("it hears it", || role.failures.lock().unwrap().len() == 1).await;
    let (rejection, retry_in) = role.failures.lock().unwrap()[0].clone();
    assert_eq!(rejection.unwrap().error.reason, "DUPLICATE_IDENTITY");
    assert!(retry_in >= hint);
    shutdown.cancel();
    within("it ends", task).await.unwrap();
}

/// The address that drains is left for the next one.
#[tokio::test]
async fn a_shutdown_sends_it_elsewhere() {
    let (first, mut accepted) = Server::accepting(nobody()).await;
    let (second, mut elsewhere) = Server::accepting(nobody()).await;
    let addresses = vec![first.address.to_string(), second.address.to_string()];
    // Two servers of one site share its CA; here the second simply has its own, so the dial fails at TLS and the
    // third attempt is back at the first: what is tested is that the second was tried next.
    let role = Role::new(DialTarget { addresses, ..first.target() });
    let (shutdown, task) = keep(&role);
    let old = within("first", accepted.recv()).await.unwrap();
    old.goaway(GoawayReason::Shutdown, "upgrade", Some(Duration::from_secs(60)));
    until("the second was tried", || !role.failures.lock().unwrap().is_empty()).await;
    assert!(elsewhere.try_recv().is_err());
    shutdown.cancel();
    within("it ends", task).await.unwrap();
}

/// A slot as an edge has one: the newest generation, cleared by compare only.
#[derive(Default)]
struct Slot {
    generation: AtomicU64,
    online: AtomicBool,
    offline_told: AtomicU64,
}

struct SlotHandler(Arc<Slot>);

impl Handler for SlotHandler {
    fn on_closed(&self, connection: &Connection, _: &CloseReason) {
        let mine = connection.generation().0;
        if self.0.generation.compare_exchange(mine, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.0.online.store(false, Ordering::SeqCst);
            self.0.offline_told.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Fault row 8: the late end of an old connection does not touch the one that replaced it. Row 9: the old one, behind a
/// black hole, is probed, found dead and closed as superseded; the newcomer is in at once.
#[tokio::test]
async fn a_late_end_harms_nobody() {
    let slot = Arc::new(Slot::default());
    let holder = Arc::new(Mutex::new(None::<Connection>));
    let (theirs, held) = (slot.clone(), holder.clone());
    let server = Server::start(move |newcomer, generation| {
        let (slot, held) = (theirs.clone(), held.clone());
        Box::pin(async move {
            let old = held.lock().unwrap().replace(newcomer.connection());
            if let Some(old) = &old {
                assert!(!old.probe(Duration::from_millis(50)).await);
            }
            slot.generation.store(generation, Ordering::SeqCst);
            slot.online.store(true, Ordering::SeqCst);
            let out = WelcomeOut { generation: Generation(generation), ..WelcomeOut::default() };
            newcomer.accept(out, Arc::new(SlotHandler(slot.clone())));
            if let Some(old) = old {
                old.close(CloseReason::Superseded);
            }
        })
    })
    .await;
    let mut ends = Vec::new();
    for round in 1..=40u64 {
        let proxy = Proxy::start(server.address).await;
        let dialed = umbel_wire::dial_once(target(proxy.address, &server.pki), hello(), |_, _| Ok(nobody()));
        let (connection, _) = within("it connects", dialed).await.unwrap();
        assert_eq!(connection.generation(), Generation(round));
        proxy.black_hole.store(true, Ordering::Relaxed);
        ends.push((connection, proxy));
    }
    for (connection, proxy) in ends.drain(..39) {
        connection.close(CloseReason::Shutdown);
        drop(proxy);
    }
    let current = holder.lock().unwrap().clone().unwrap();
    assert_eq!(slot.generation.load(Ordering::SeqCst), 40);
    assert!(slot.online.load(Ordering::SeqCst) && !current.is_closed());
    assert_eq!(slot.offline_told.load(Ordering::SeqCst), 0);
    current.close(CloseReason::Shutdown);
    until("the real end is told", || slot.offline_told.load(Ordering::SeqCst) == 1).await;
    assert!(!slot.online.load(Ordering::SeqCst));
}
