//! Streams on an engine that speaks HTTP: the request out, the answer back.
//!
//! Owns the order and what each failure means; leaves connections and framing to `engine_http`. Invariants: a request
//! goes out a second time only if the engine cannot have read all of it the first time, on a connection that it had kept
//! and closed meanwhile, and never if a byte of an answer came; what seldom happens is boxed, since a stream's future is
//! moved as a whole.

use std::{io, pin::pin, time::Duration};

use umbel_contracts::proto::node::InferenceOutcome;
use umbel_wire::{Code, IncomingStream, within};

use super::open::{self, Asked};
use super::{Ended, Progress, body_part, pass_on, send_head};
use crate::shell::{
    engine_http::{self, Answer, Bad, Link, Part, Written, says},
    engines::{HttpRoute, Verdict},
};

/// Where no time to the first byte was said: a long prompt on a busy engine.
const FIRST_BYTE: Duration = Duration::from_secs(600);
/// Where no time between bytes was said.
const BETWEEN: Duration = Duration::from_secs(300);
/// After a broken connection: time to learn that the engine's process has ended.
const GONE_WAIT: Duration = Duration::from_millis(200);

/// The request and its answer. `Ok`: the answer was complete.
pub(super) async fn answer(
    stream: &IncomingStream,
    asked: &Asked,
    http: &HttpRoute,
    progress: &mut Progress,
) -> Result<(), Ended> {
    let answered = carry(stream, asked, http, progress).await;
    http.traffic.ended(match &answered {
        Ok(status) => Verdict::of_status(*status),
        Err(ended) => match ended.outcome {
            InferenceOutcome::EngineBroke | InferenceOutcome::BadAnswer | InferenceOutcome::TimedOut => {
                Verdict::Failed
            }
            _ => Verdict::Open,
        },
    });
    answered.map(drop)
}

/// The same; the status of the complete answer.
async fn carry(
    stream: &IncomingStream,
    asked: &Asked,
    http: &HttpRoute,
    progress: &mut Progress,
) -> Result<u16, Ended> {
    let first_byte = open::limit(asked.first_byte_timeout_ms, FIRST_BYTE);
    // An engine that does not take the request is as silent as one that does not answer it.
    let between = open::limit(asked.idle_timeout_ms, BETWEEN);
    let sending = pin!(send_request(stream, asked, http));
    let mut sent = within(first_byte, sending).await.ok_or_else(timed_out)??;
    sent.link.may_take(first_byte, between);
    let mut first = Some(waited(http, first_part(&mut sent, asked, http)).await?);
    let (mut link, mut answer) = (sent.link, Answer::new());
    let status = loop {
        let read = match first.take() {
            Some(first) => first,
            None => waited(http, link.read()).await,
        };
        let mut part = judged(read, &mut answer, http).await?;
        if let Some((head, behind)) = answer.head(part.bytes()).map_err(bad)? {
            http.traffic.brought();
            link.begun();
            let (status, rest) = (head.status, part.bytes().get_mut(behind..).unwrap_or_default());
            let count = answer.body(rest);
            send_head(stream, head, rest.get(..count).unwrap_or_default(), progress).await?;
            break status;
        }
    };
    while !answer.is_complete() {
        // What came before it was broken has gone out.
        answer.check().map_err(bad)?;
        let read = waited(http, link.read()).await;
        if read.is_ok() {
            http.traffic.brought();
        }
        let mut part = judged(read, &mut answer, http).await?;
        if part.is_empty() {
            // An answer without a length ended with its connection.
            break;
        }
        let bytes = part.bytes();
        let count = answer.body(bytes);
        pass_on(stream, bytes.get(..count).unwrap_or_default(), progress).await?;
    }
    if answer.is_reusable() {
        http.pool.keep(link);
    }
    Ok(status)
}

/// Work of the engine that a stream waits for.
async fn waited<T>(http: &HttpRoute, work: impl Future<Output = T>) -> T {
    let _waiting = http.traffic.wait();
    work.await
}

/// What a read means for the answer; an empty part only if the engine may end it so.
async fn judged(part: io::Result<Part>, answer: &mut Answer, http: &HttpRoute) -> Result<Part, Ended> {
    let why = match part {
        Ok(part) if part.is_empty() => match answer.end() {
            // Its process may have died: then nobody knows whether that was the end.
            Ok(()) if http.gone.is_some() && Box::pin(is_gone(http)).await => "its process ended".to_owned(),
            Ok(()) => return Ok(part),
            Err(bad) => bad.to_string(),
        },
        Ok(part) => return Ok(part),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(timed_out()),
        Err(error) => says(&error),
    };
    Err(Box::pin(broke(http, &why)).await)
}

/// The first bytes that come back. A kept connection that the engine had closed before the request came to it is replaced
/// once by a new one.
async fn first_part(sent: &mut Sent, asked: &Asked, http: &HttpRoute) -> Result<io::Result<Part>, Ended> {
    let first = sent.link.read().await;
    let request = std::mem::take(&mut sent.request);
    let broke = match &first {
        Ok(part) => part.is_empty(),
        Err(error) => error.kind() != io::ErrorKind::TimedOut,
    };
    if !broke || !sent.link.is_reused() {
        return Ok(first);
    }
    http.pool.doubt();
    let had_ended = sent.came_late || (first.is_ok() && Box::pin(sent.link.had_ended()).await);
    if !had_ended || !asked.may_be_repeated() {
        return Ok(first);
    }
    if request.is_empty() {
        let message = "the engine had closed the connection that the request came on";
        return Err(Ended::refused(Code::Unavailable, "ENGINE_CLOSED", message));
    }
    let limits = sent.link.limits();
    sent.link = Box::pin(on_new_one(&request, http)).await?.0;
    sent.link.may_take(limits.0, limits.1);
    Ok(sent.link.read().await)
}

/// A request that went out.
struct Sent {
    link: Link,
    /// All of it, where it can be sent again.
    request: Vec<u8>,
    /// Writing it failed since the engine had closed the connection before.
    came_late: bool,
}

/// Sends head and body. A kept connection that turns out dead before the engine has a byte is replaced once.
async fn send_request(stream: &IncomingStream, asked: &Asked, http: &HttpRoute) -> Result<Sent, Ended> {
    let mut left = asked.body_bytes;
    let mut first = if left > 0 { body_part(stream, &mut left).await? } else { None };
    let mut request = asked.head(http);
    // Head and first part in one segment where they fit.
    if let Some(part) = first.take() {
        request.extend_from_slice(&part);
    }
    let mut came_late = false;
    // Sent once more, if it has to be, is what is here as a whole.
    let believing = left == 0 && asked.may_be_repeated();
    let on_kept = match http.pool.kept(believing) {
        None => None,
        Some(link) => match link.write(&request).await {
            Ok(written) => Some((link, matches!(written, Written::Early))),
            Err((_, 0)) => None,
            Err((error, _)) => {
                came_late = engine_http::came_late(&error);
                Some((link, true))
            }
        },
    };
    let (mut link, mut early) = match on_kept {
        Some(sent) => sent,
        None => Box::pin(on_new_one(&request, http)).await?,
    };
    if left > 0 && !early {
        // It is more than the first part: nobody here has all of it.
        request = Vec::new();
        (early, came_late) = Box::pin(send_rest(stream, &link, &mut left)).await?;
    }
    if left > 0 || early {
        stream.refuse_body();
        link.not_again();
    }
    if left > 0 || !link.is_reused() {
        request = Vec::new();
    }
    Ok(Sent { link, request, came_late })
}

/// A new connection with the request on it, and whether the engine answered before it had all.
async fn on_new_one(request: &[u8], http: &HttpRoute) -> Result<(Link, bool), Ended> {
    let mut link = connect(http).await?;
    match link.write(request).await {
        Ok(Written::All) => Ok((link, false)),
        Ok(Written::Early) => {
            link.not_again();
            Ok((link, true))
        }
        // Nothing arrived at the engine, but this connection was made for it: it does not want any.
        Err((error, _)) => Err(broke(http, &says(&error)).await),
    }
}

/// Sends what follows the first part of a body. Whether the engine wants no more, and whether that is since it had closed
/// the connection before.
async fn send_rest(stream: &IncomingStream, link: &Link, left: &mut u64) -> Result<(bool, bool), Ended> {
    while *left > 0 {
        let part = tokio::select! {
            biased;
            part = body_part(stream, left) => part?,
            // An engine that answers before it has the body does not want it.
            () = link.answers() => return Ok((true, false)),
        };
        let Some(part) = part else { break };
        match link.write(&part).await {
            Ok(Written::All) => {}
            Ok(Written::Early) => return Ok((true, false)),
            // It may have said why before it closed.
            Err((error, _)) => return Ok((true, engine_http::came_late(&error))),
        }
    }
    Ok((false, false))
}

async fn connect(http: &HttpRoute) -> Result<Link, Ended> {
    match http.pool.connect().await {
        Ok(link) => Ok(link),
        Err(_) if http.gone.is_some() && is_gone(http).await => {
            let mut ended = gone();
            ended.not_processed = true;
            Err(ended)
        }
        Err(error) => Err(Ended::refused(
            Code::Unavailable,
            "ENGINE_REFUSED",
            format!("the engine takes no connection: {}", says(&error)),
        )),
    }
}

fn bad(bad: Bad) -> Ended {
    let outcome = if bad == Bad::Short { InferenceOutcome::EngineBroke } else { InferenceOutcome::BadAnswer };
    Ended::failed(
        outcome,
        Code::BadGateway,
        "BAD_ANSWER",
        format!("the engine's answer cannot be used: {bad}"),
    )
}

fn timed_out() -> Ended {
    let message = "the engine sent nothing within the time allowed";
    Ended::failed(InferenceOutcome::TimedOut, Code::DeadlineExceeded, "ENGINE_TIMED_OUT", message)
}

fn gone() -> Ended {
    let message = "the engine's process ended; it is started again";
    Ended::failed(InferenceOutcome::EngineGone, Code::Unavailable, "ENGINE_GONE", message)
}

/// The connection broke: is the process gone, or did it only close?
async fn broke(http: &HttpRoute, why: &str) -> Ended {
    if is_gone(http).await {
        return gone();
    }
    let message = format!("the engine broke its answer off: {why}");
    Ended::failed(InferenceOutcome::EngineBroke, Code::BadGateway, "ENGINE_BROKE", message)
}

/// Whether the engine's process has ended. Its sockets close a little before that is known.
async fn is_gone(http: &HttpRoute) -> bool {
    let Some(mut gone) = http.gone.clone() else { return false };
    tokio::time::timeout(GONE_WAIT, gone.wait_for(|gone| *gone)).await.is_ok()
}
