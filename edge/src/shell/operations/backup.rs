//! `edge.backup`: a consistent copy of the store while it is written.

use std::sync::Arc;

use serde_json::Value;
use umbel_wire::Error;

use super::unknown;
use crate::core::commands::Request;
use crate::shell::commands::{Commands, Context};

/// What a change would do.
pub(super) async fn dry_run(_commands: &Arc<Commands>, request: &Request) -> Result<Value, Error> {
    Err(unknown(&request.operation))
}

pub(super) async fn start(context: &Context<'_>) -> Result<(), Error> {
    Err(unknown(&context.request.operation))
}
