//! What the edge says of this node's credential, without touching the node's own connection.
//!
//! Owns the question: a hello without a protocol version, which an edge refuses for that alone when the credential is
//! good. Leaves what follows to whoever asks. Invariant: nothing is changed at the edge, and a connection that runs
//! goes on.

use std::{sync::Arc, time::Duration};

use umbel_wire::{
    CloseReason, Connection, DialError, DialStep, HelloOut, NoHandler, Purpose, VersionRange, Welcome,
    dial_once,
};

use super::{instance, target};
use crate::{
    StartError,
    core::identity::Identity,
    shell::{credential::client_config, state::State},
};

/// Lookup, TCP, TLS and hello have 5 s each.
const LIMIT: Duration = Duration::from_secs(25);

/// Proves name, TCP, TLS with the node's trust, and that the edge takes its credential. The inner error is the step that
/// failed, or the edge's refusal.
///
/// # Errors
/// If key or certificates on the disk cannot be used.
pub(crate) async fn ask(state: &State, identity: &Identity) -> Result<Result<(), DialError>, StartError> {
    let tls = client_config(state, identity)?;
    let hello = HelloOut {
        purpose: Purpose::Hello,
        versions: VersionRange::default(),
        instance: instance(),
        payload: Vec::new(),
    };
    let dialing =
        dial_once(target(identity, &tls), hello, |_: &Connection, _: &Welcome| Ok(Arc::new(NoHandler)));
    Ok(match tokio::time::timeout(LIMIT, dialing).await {
        // Refused for the missing version, as was meant; any other refusal is about this node.
        Ok(Err(error)) if error.rejection.as_ref().is_some_and(|said| said.verdict.is_some()) => Ok(()),
        Ok(Err(error)) => Err(error),
        Ok(Ok((connection, _))) => {
            connection.close(CloseReason::Shutdown);
            Ok(())
        }
        Err(_) => {
            let message = "no answer in time".into();
            Err(DialError { step: DialStep::Connect, message, rejection: None })
        }
    })
}
