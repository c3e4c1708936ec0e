//! What is done for the credential on one connection: whom to trust, and a rotation when one is wanted.
//!
//! Leaves steps and files to [`super::Credentials`]. Invariant: what the edge does not give is asked for again, more
//! and more slowly, and nothing else waits for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use umbel_wire::Connection;

use super::Credentials;

/// How often the certificate's age is looked at.
const LOOK: Duration = Duration::from_secs(600);
/// A rotation by this host's own clock is begun at most so often in one process: the clock may be wrong.
const BY_ITSELF: Duration = Duration::from_secs(24 * 3600);
/// After a failure: the first pause and the longest.
const AGAIN: Duration = Duration::from_secs(5);
const AGAIN_MAX: Duration = Duration::from_secs(900);

/// Runs as long as the connection lives. `wanted`: the edge said so in its answer to hello.
pub(crate) async fn talk(
    credentials: Arc<Credentials>,
    connection: Connection,
    bundle: Vec<Vec<u8>>,
    wanted: bool,
) {
    tokio::select! {
        _ = connection.closed() => {}
        () = keep(&credentials, &connection, bundle, wanted) => {}
    }
}

async fn keep(
    credentials: &Arc<Credentials>,
    connection: &Connection,
    bundle: Vec<Vec<u8>>,
    mut wanted: bool,
) {
    // An older edge names none.
    if !bundle.is_empty()
        && let Err(error) = credentials.trust(bundle).await
    {
        tracing::warn!(%error, "the edge's certificate authorities cannot be kept");
    }
    let mut pause = AGAIN;
    let mut by_itself: Option<Instant> = None;
    loop {
        if credentials.is_due() && by_itself.is_none_or(|at| at.elapsed() >= BY_ITSELF) {
            by_itself = Some(Instant::now());
            wanted = true;
        }
        // What a rotation left is always finished, wanted or not.
        let wait = match credentials.go_on(connection, wanted).await {
            Ok(shown_anew) => {
                if shown_anew {
                    credentials.anew.notify_one();
                }
                (wanted, pause) = (false, AGAIN);
                LOOK
            }
            Err(error) => {
                tracing::warn!(%error, retry_in = ?pause, "no new certificate");
                let wait = error.retry_after.unwrap_or_default().max(pause).min(AGAIN_MAX);
                pause = (pause * 2).min(AGAIN_MAX);
                wait
            }
        };
        tokio::select! {
            () = credentials.asked.notified() => wanted = true,
            () = sleep(wait) => {}
        }
    }
}
