//! What an ended engine leaves for a while: its port, and memory of GPUs that the driver has not given back.
//!
//! Owns waiting for both before the engine counts as gone; leaves whose memory it is to `gpu`, and the next start of the same
//! engine to its validation. Invariant: an agent that stops waits for neither.

use std::{
    net::Ipv4Addr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

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
    /// Waits until nothing holds what the engine had, or the agent ends. What does is told meanwhile.
    pub(super) async fn let_go(&mut self, stops: &mut watch::Receiver<Option<Stop>>) {
        let engine = Arc::clone(&self.engine);
        // One more demand to end it says nothing new, but that the agent may end.
        let agent_ends =
            async { while !engine.node_drains.load(Ordering::Acquire) && stops.changed().await.is_ok() {} };
        tokio::select! {
            biased;
            () = agent_ends => {}
            () = self.nothing_holds() => {}
        }
        self.host.unclaim(&self.engine.name);
    }

    async fn nothing_holds(&mut self) {
        if let Some(port) = self.port.take()
            && timeout(PORT, is_free(port)).await.is_err()
        {
            tracing::warn!(engine = %self.engine.name, port, "something listens at the port of an engine that has ended");
        }
        while let Err(hold) = self.host.holders.released(&self.ended).await {
            self.is_held(hold.to_string());
        }
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
