//! Every bound of the wire, with its reason. The relations between them are checked at compile time.
//!
//! Invariant: nothing a peer sends makes this side hold more than these.

use std::time::Duration;

const KIB: usize = 1024;

/// First frame of a peer whose key the registry does not hold: a hello or enrollment fits, little else does.
pub const FRAME_UNKNOWN_PEER: usize = 16 * KIB;
/// First frame of a known peer (its hello lists leases and engines), and every frame after WELCOME. Small, so
/// that decoding one can not amplify far and a control frame never waits long behind another.
pub const FRAME_MAX: usize = 64 * KIB;
/// What a later version may negotiate at most.
pub const FRAME_CEILING: usize = 1024 * KIB;
/// Payload of a DATA frame: what one stream may put ahead of a control frame at a time.
pub const DATA_MAX: usize = 16 * KIB;
/// Part of a body that travels inside OPEN or HEAD: most chat requests fit, so they cost one frame.
pub const INLINE_MAX: usize = 16 * KIB;
/// The typed message of HEAD: response headers, as large as common servers allow.
pub const HEAD_MESSAGE_MAX: usize = 16 * KIB;
/// Typed message of a REQUEST, RESPONSE, EVENT, END or handshake. Longer answers are called as streams.
pub const MESSAGE_MAX: usize = 60 * KIB;
/// The typed message of OPEN: request headers, or the arguments of a method whose answer may be long. What it takes of the frame
/// is not there for the body ([`inline_room`]).
pub const OPEN_MESSAGE_MAX: usize = MESSAGE_MAX;
/// Room a frame needs beside message and inline body: header, method, error texts.
pub const FRAME_OVERHEAD: usize = 4 * KIB;
/// Key of an event.
pub const EVENT_KEY_MAX: usize = 256;

/// Credit of a request body: 5 MB/s at 50 ms.
pub const REQUEST_WINDOW: usize = 256 * KIB;
/// Credit of an answer: 5,000 token chunks a second at 50 ms, and what a stalled client costs.
pub const RESPONSE_WINDOW: usize = 64 * KIB;
/// What a producer may have waiting in a stream's send buffer before it waits itself.
pub const SEND_BUFFER: usize = 16 * KIB;
/// Receive windows of all streams of this process together (an edge's worst case for its clients).
pub const RECEIVE_BUDGET: usize = 512 * KIB * KIB;

/// Streams open at once on one connection from edge to node.
pub const STREAMS_NODE: u32 = 1024;
/// The same from control plane to edge: status, settings and logs only.
pub const STREAMS_CONTROL: u32 = 64;
/// Requests in flight in one direction.
pub const REQUESTS_MAX: usize = 256;
/// Keys an unsent event may have; a sender uses a handful.
pub const EVENT_KEYS_MAX: usize = 256;
/// Events written whose acknowledgement is awaited; older ones are forgotten (nothing depends on one).
pub const EVENTS_UNACKED_MAX: usize = 256;
/// Acknowledgements waiting to be written; more are dropped and counted.
pub const ACKS_MAX: usize = 1024;
/// ENDs of refused openings waiting to be written. More means a peer that opens without reading.
pub const REFUSALS_MAX: usize = 4096;

/// Bytes of DATA in one batch: what a control frame waits for at most.
pub const BATCH_DATA: usize = 64 * KIB;
/// Bytes of one stream in one batch, so that many streams share a batch.
pub const QUANTUM: usize = 16 * KIB;
/// Bytes of responses, openings, heads and events in one batch, before DATA gets its turn.
pub const BATCH_MESSAGES: usize = 32 * KIB;
/// Read buffer of a thread: the beginning of a frame and two TLS records behind it.
pub const READ_BUFFER: usize = 112 * KIB;

/// Connections that have not said hello: in all.
pub const NEWCOMERS: usize = 256;
/// The same from one address.
pub const NEWCOMERS_PER_ADDRESS: usize = 16;
/// Accepted connections that wait for a place among those.
pub const NEWCOMERS_WAITING: usize = 1024;
/// A newcomer silent for longer gives its place to a later one from the same address.
pub const NEWCOMER_GRACE: Duration = Duration::from_secs(1);
/// Wrong enrollment tokens from one address within [`GUESS_WINDOW`]: a person who mistypes needs fewer.
pub const GUESSES: u32 = 10;
/// Tries of one spent token by one address within [`GUESS_WINDOW`]: rivals for one token are told that they came second,
/// a host that tries for ever waits.
pub const SPENT_TRIES: u32 = 100;
/// The time in which they are counted.
pub const GUESS_WINDOW: Duration = Duration::from_secs(60);
/// Addresses that are watched; beyond it the one whose window ends first is forgotten.
pub const GUESSERS_MAX: usize = 4_096;
/// TCP connect, TLS handshake and hello, each.
pub const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// A PING goes out when nothing else did for so long.
pub const PING_AFTER: Duration = Duration::from_secs(5);
/// A peer that sent nothing for so long is dead (three missed pings).
pub const DEAD_AFTER: Duration = Duration::from_secs(15);
/// A socket that accepted nothing for so long is dead.
pub const WRITE_STALL: Duration = Duration::from_secs(15);
/// The kernel's own view of unacknowledged data; later than ours, so that ours says why.
pub const USER_TIMEOUT: Duration = Duration::from_secs(20);
/// Unsent bytes the kernel takes: priorities mean nothing behind a deep socket buffer.
pub const NOT_SENT_LOW_WATER: u32 = 128 * 1024;
/// Received bytes the kernel holds for a reader: a PING waits behind them. Still 10 MB/s over a path of 50 ms.
pub const RECEIVE_CLAMP: u32 = 512 * 1024;
/// Nothing consumed by the application for so long resets the stream: a dead laptop must not hold a GPU slot.
pub const SLOW_READER: Duration = Duration::from_secs(60);
/// After a last frame: time for the peer to read it before the socket closes.
pub const FAREWELL: Duration = Duration::from_secs(2);
/// Bytes read and thrown away in that time.
pub const FAREWELL_BYTES: usize = 256 * KIB;
/// A request without a timeout of its own.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Drain of streams before they are reset.
pub const DRAIN_STREAMS: Duration = Duration::from_secs(600);
/// Pause after accept() failed, for instance at the descriptor limit.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Part of a body that fits into OPEN beside a message of `message` bytes, at most [`INLINE_MAX`].
#[must_use]
pub const fn inline_room(message: usize) -> usize {
    let room = (FRAME_MAX - FRAME_OVERHEAD).saturating_sub(message);
    if room < INLINE_MAX { room } else { INLINE_MAX }
}

const _: () = {
    assert!(FRAME_UNKNOWN_PEER <= FRAME_MAX && FRAME_MAX <= FRAME_CEILING);
    assert!(OPEN_MESSAGE_MAX + FRAME_OVERHEAD <= FRAME_MAX);
    assert!(HEAD_MESSAGE_MAX + INLINE_MAX + FRAME_OVERHEAD <= FRAME_MAX);
    assert!(MESSAGE_MAX + FRAME_OVERHEAD <= FRAME_MAX);
    assert!(INLINE_MAX <= RESPONSE_WINDOW / 2 && INLINE_MAX <= REQUEST_WINDOW / 2);
    assert!(DATA_MAX <= QUANTUM && QUANTUM <= BATCH_DATA);
    assert!(SEND_BUFFER >= QUANTUM);
    // A stalled stream: its window and the send buffer behind it.
    assert!(RESPONSE_WINDOW + SEND_BUFFER <= 80 * KIB);
    assert!(READ_BUFFER >= FRAME_MAX + 4 + 2 * 16 * KIB);
    assert!(DEAD_AFTER.as_secs() >= 3 * PING_AFTER.as_secs());
    assert!(USER_TIMEOUT.as_secs() > WRITE_STALL.as_secs());
    assert!(NEWCOMERS_PER_ADDRESS < NEWCOMERS);
    assert!(STREAMS_CONTROL <= STREAMS_NODE);
};
