//! A stream is carried from the moment that it was taken: heartbeats name its lease, and a stop waits for it.

use std::{path::Path, time::Duration};

use prost::Message;
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::sync::CancellationToken;
use umbel_contracts::{method, proto::node::InferenceOpen};
use umbel_wire::{
    BoxFuture, CloseReason, Connection, DialTarget, Door, Generation, Handler, HelloOut, IncomingStream,
    InstanceId, KeyHash, Newcomer, NoHandler, Open, Purpose, VersionRange, WelcomeOut,
    ca::{Authority, SERVER_VALIDITY},
    clock::Wall,
    dial_once, serve,
    tls::{Trust, wire_client, wire_server},
};

use super::super::*;
use crate::{
    config::Config,
    core::identity::FORMAT,
    shell::{gpu::Holders, state},
};

const LIMIT: Duration = Duration::from_secs(20);
const NAME: &str = "site-1.umbel";

/// What was carried right after a stream was taken: the leases, and whether nothing was.
type Seen = (Vec<u64>, usize, bool);

struct Taker(Arc<Relay>, mpsc::Sender<Seen>);

impl Handler for Taker {
    fn on_stream(&self, connection: &Connection, stream: IncomingStream) {
        let Self(relay, seen) = self;
        relay.take(stream, connection.generation(), connection.generation());
        let mut idle = Box::pin(relay.idle());
        let idle = idle.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop())).is_ready();
        seen.try_send((relay.leases(), relay.in_flight(), idle)).unwrap();
    }

    fn on_closed(&self, _connection: &Connection, _reason: &CloseReason) {}
}

struct Gate(mpsc::Sender<Connection>);

impl Door for Gate {
    fn knows(&self, _key: &KeyHash) -> bool {
        true
    }

    fn knock(&self, newcomer: Newcomer) -> BoxFuture<'static, ()> {
        let welcome =
            WelcomeOut { protocol: 1, generation: Generation(1), max_streams: 8, ..WelcomeOut::default() };
        self.0.try_send(newcomer.accept(welcome, Arc::new(NoHandler))).unwrap();
        Box::pin(std::future::ready(()))
    }
}

fn relay(folder: &Path) -> Arc<Relay> {
    let text = format!(
        "[node]\nname = \"test\"\nstate_dir = \"{}\"\naccelerator = \"cpu\"\nallow_sim = true\n\
         allow_volatile_state = true\n[[engine]]\nname = \"echo\"\nkind = \"sim\"\nmodel = \"echo\"\n",
        folder.display()
    );
    let config = Config::parse(&text, &folder.join("node.toml")).unwrap();
    let state = Arc::new(state::State::open(folder).unwrap());
    let engines = Engines::start(&config, &state, &Arc::new(Holders::new(false)), &[], Default::default());
    let identity = Identity {
        format: FORMAT,
        node_id: uuid::Uuid::new_v4(),
        edge_id: "site-1".into(),
        name: "test".into(),
        addresses: Vec::new(),
        certificate_chain: Vec::new(),
        ca_certificate: String::new(),
        ca_certificates: Vec::new(),
        key_file: String::new(),
        not_after_unix_ms: 0,
    };
    Arc::new(Relay::new(&identity, engines))
}

/// The edge's and the node's end of one connection.
async fn connected(folder: &Path, handler: Arc<dyn Handler>) -> (Connection, Connection) {
    let authority = Authority::create(&folder.join("ca"), "site-1", Wall::now()).unwrap();
    let server = authority.issue_server(&[NAME.to_owned()], Wall::now(), SERVER_VALIDITY).unwrap();
    let tls = wire_server(server.chain.clone(), server.key.private_key()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = DialTarget {
        addresses: vec![listener.local_addr().unwrap().to_string()],
        server_name: NAME.into(),
        tls: wire_client(Trust::Ca(vec![authority.certificate_der().clone()]), None).unwrap(),
    };
    let (gate, mut came) = mpsc::channel(1);
    tokio::spawn(serve(listener, tls, Arc::new(Gate(gate)), CancellationToken::new()));
    let hello = HelloOut {
        purpose: Purpose::Hello,
        versions: VersionRange::ONE,
        instance: InstanceId::random(),
        payload: Vec::new(),
    };
    let (node, _) = dial_once(target, hello, |_, _| Ok(handler)).await.unwrap();
    (came.recv().await.unwrap(), node)
}

#[tokio::test]
async fn a_stream_is_carried_from_its_taking_on() {
    let folder = tempfile::tempdir().unwrap();
    let relay = relay(folder.path());
    let mut changes = relay.engines.changes();
    while relay.engines.by_name("echo").unwrap().visit().is_err() {
        tokio::time::timeout(LIMIT, changes.changed()).await.expect("the engine is ready").unwrap();
    }
    let (seen, mut looks) = mpsc::channel(4);
    let (edge, _node) = connected(folder.path(), Arc::new(Taker(Arc::clone(&relay), seen))).await;
    let mut look = async |provider: String| {
        let message = InferenceOpen {
            provider_id: provider,
            lease_id: 7,
            generation: 1,
            method: "POST".into(),
            path: "/v1/completions".into(),
            ..InferenceOpen::default()
        };
        let open = Open {
            method: method::INFERENCE,
            message: message.encode_to_vec(),
            body: bytes::Bytes::new(),
            end: true,
            timeout: Duration::ZERO,
        };
        let (ended, end) = tokio::sync::oneshot::channel();
        let _stream = edge
            .open(open, move |_| {
                let _ = ended.send(());
            })
            .unwrap();
        let seen = tokio::time::timeout(LIMIT, looks.recv()).await.expect("it is taken").unwrap();
        tokio::time::timeout(LIMIT, end).await.expect("it ends").unwrap();
        seen
    };
    let taken = look(format!("{}echo", relay.prefix)).await;
    assert_eq!(taken, (vec![7], 1, false));
    tokio::time::timeout(LIMIT, relay.idle()).await.expect("it is over");
    // One that is refused leaves nothing.
    assert_eq!(look("another/echo".into()).await, (vec![], 0, true));
}
