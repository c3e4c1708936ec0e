//! What an ended engine leaves for a while: its port, and memory of GPUs that the driver has not given back.
//!
//! Owns waiting for both before the engine counts as gone; leaves whose memory it is to `gpu`, and the next start of the same
//! engine to its validation. Invariant: an agent that stops waits for neither.

use std::{net::Ipv4Addr, sync::atomic::Ordering, time::Duration};

use tokio::{
    net::TcpStream,
    sync::watch,
    time::{sleep, timeout},
};

use super::{Driver, Stop};
use crate::shell::process;

/// The kernel closes a port with the last process that has it; what still listens then is a stranger's.
const PORT: Duration = Duration::from_secs(5);

impl Driver {
    /// Waits until nothing holds what the engine had. What does is told meanwhile.
    pub(super) async fn let_go(&mut self, stops: &mut watch::Receiver<Option<Stop>>) {
        if let Some(port) = self.port.take()
            && timeout(PORT, is_free(port)).await.is_err()
        {
            tracing::warn!(engine = %self.engine.name, port, "something listens at the port of an engine that has ended");
        }
        while !self.engine.node_drains.load(Ordering::Acquire) {
            tokio::select! {
                released = self.host.holders.released(&self.ended) => match released {
                    Ok(()) => break,
                    Err(hold) => self.is_held(hold.to_string()),
                },
                // A demand to end it says nothing new; that the agent ends is looked at above.
                Ok(()) = stops.changed() => {}
            }
        }
        self.host.unclaim(&self.engine.name);
    }

    fn is_held(&self, cause: String) {
        tracing::warn!(engine = %self.engine.name, "{cause}");
        self.engine.lock().held = Some(cause);
        self.changed.send_modify(|version| *version += 1);
    }
}

async fn is_free(port: u16) {
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok() {
        sleep(process::LOOK).await;
    }
}
