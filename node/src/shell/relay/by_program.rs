//! Streams on a program that is started for each: the request on its standard input, its text as the answer.
//!
//! Owns the process of one request; leaves the answer's shape to `engines/cli`. Invariants: no shell comes between, and no
//! value of the request is an argument; however the stream ends, and however the agent does, all that the program started ends; an answer ends well
//! only if the program did.

use std::{process::Stdio, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::Command,
    time::{Instant, timeout_at},
};
use umbel_contracts::proto::node::InferenceOutcome;
use umbel_wire::{Code, IncomingStream, clock::Wall};

use super::{Ended, Progress, by_rule::whole_body, open::Asked, pass_on, send_head};
use crate::{
    engines::cli::{self, Cli},
    shell::{engine_http::Head, leash::Leashed},
};

/// One read of the program's output.
const READ: usize = 16 * 1024;
/// Bytes of an answer that is given at once.
const ANSWER_MAX: usize = 16 * 1024 * 1024;
/// After its output has ended the program has to end.
const END: Duration = Duration::from_secs(10);

fn broke(reason: &'static str, message: impl Into<String>) -> Ended {
    Ended::failed(InferenceOutcome::EngineBroke, Code::BadGateway, reason, message)
}

/// The program's answer.
pub(super) async fn answer(
    stream: &IncomingStream,
    asked: &Asked,
    cli: &Cli,
    progress: &mut Progress,
) -> Result<(), Ended> {
    let body = whole_body(stream, asked).await?;
    let id = format!("cli-{}", asked.request_id);
    let created = Wall::now().unix_ms() / 1000;
    let mut answer = match cli.answer((asked.method, asked.path), &body, &id, created) {
        Ok(answer) => answer,
        Err((status, body)) => return whole(stream, status, &body, progress).await,
    };
    let deadline = Instant::now() + cli.timeout;
    let pipes = |command: &mut Command| {
        // What it says as an error may repeat the request.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    };
    let mut leashed = Leashed::start(cli.holder, &cli.program, &[], pipes).map_err(|error| {
        let says = format!("the program cannot be started: {}", error.kind());
        Ended::failed(InferenceOutcome::EngineRefused, Code::BadGateway, "PROGRAM_NOT_STARTED", says)
    })?;
    let (input, output) = (leashed.child.stdin.take(), leashed.child.stdout.take());
    let (Some(mut input), Some(mut output)) = (input, output) else {
        return Err(broke("PROGRAM_BROKE", "the program has no pipes"));
    };
    // It may answer before it has read all: both at once.
    let feeding = async move {
        // One that does not want its input may close it.
        let _ = input.write_all(&body).await;
        drop(input);
        std::future::pending::<()>().await;
    };
    tokio::pin!(feeding);
    let mut sent_head = false;
    let mut buffer = vec![0; READ];
    loop {
        let read = tokio::select! {
            read = timeout_at(deadline, output.read(&mut buffer)) => read,
            () = &mut feeding => continue,
        };
        let read = match read {
            Err(_) => {
                return Err(broke(
                    "PROGRAM_TIMEOUT",
                    format!("the program ran longer than {} s", cli.timeout.as_secs()),
                ));
            }
            Ok(Err(error)) => {
                return Err(broke("PROGRAM_BROKE", format!("its output cannot be read: {}", error.kind())));
            }
            Ok(Ok(0)) => break,
            Ok(Ok(read)) => read,
        };
        let out = answer.wrote(buffer.get(..read).unwrap_or_default());
        if answer.held() > ANSWER_MAX {
            return Err(broke("ANSWER_TOO_LARGE", "the program's answer is above 16 MiB"));
        }
        if !out.is_empty() {
            if !std::mem::replace(&mut sent_head, true) {
                send_head(stream, events(), &[], progress).await?;
            }
            pass_on(stream, &out, progress).await?;
        }
    }
    let ended = timeout_at(deadline.min(Instant::now() + END), leashed.ended()).await;
    let well = matches!(&ended, Ok(Ok(status)) if status.success());
    if !well {
        let says = match ended {
            Ok(Ok(status)) => format!("the program ended with {status}"),
            Ok(Err(_)) => "how the program ended cannot be told".to_owned(),
            Err(_) => "the program closed its output and does not end".to_owned(),
        };
        if sent_head {
            return Err(broke("PROGRAM_FAILED", says));
        }
        return whole(stream, 500, &cli::error(&says), progress).await;
    }
    let last = answer.ended();
    if !answer.streams {
        return whole(stream, 200, &last, progress).await;
    }
    if !sent_head {
        send_head(stream, events(), &[], progress).await?;
    }
    pass_on(stream, &last, progress).await
}

fn events() -> Head {
    Head { status: 200, headers: vec![("content-type", "text/event-stream".into())] }
}

async fn whole(
    stream: &IncomingStream,
    status: u16,
    body: &[u8],
    progress: &mut Progress,
) -> Result<(), Ended> {
    let head = Head { status, headers: vec![("content-type", "application/json".into())] };
    send_head(stream, head, body, progress).await
}
