//! Handles of streams: the opener's and the answering side's.
//!
//! Invariant: whatever the application does or drops, each OPEN gets exactly one END and each buffer is freed.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;

use crate::error::{Code, Error};
use crate::io::handle::Connection;
use crate::session::answerer::StreamIn;
pub use crate::session::stream::Reset;
use crate::session::stream::Terminal;
use crate::session::table::Key;

/// The opener's side. Dropping it resets the stream unless its terminal came.
pub struct OutgoingStream {
    connection: Connection,
    key: Key,
}

impl OutgoingStream {
    pub(crate) fn new(connection: Connection, key: Key) -> Self {
        Self { connection, key }
    }

    /// The stream's id on the wire; 0 while OPEN is not written.
    pub fn id(&self) -> u64 {
        self.connection.with(|session| session.stream_id(self.key))
    }

    /// Sends a further part of the body; waits for buffer space and credit. Dropped half way, a prefix was sent.
    ///
    /// # Errors
    /// If the answering side wants no more of the body, has ended, or the connection is lost.
    pub async fn send_body(&self, part: &[u8]) -> Result<(), Error> {
        push(&self.connection, self.key, part).await
    }

    /// The body is complete.
    pub fn finish_body(&self) {
        self.connection.with(|session| session.finish_body(self.key));
    }

    /// Waits for HEAD and gives its typed message. The inline part is the first `data`.
    ///
    /// # Errors
    /// The terminal, if it came instead (or this side reset the stream).
    pub async fn head(&mut self) -> Result<Bytes, Terminal> {
        poll_fn(|cx| self.poll_head(cx)).await
    }

    /// The same, to be polled.
    pub fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Terminal>> {
        self.connection.with(|session| session.poll_head(self.key, cx))
    }

    /// What has arrived of the answer; `None` once the terminal came and everything was taken.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.connection.with(|session| session.poll_data(self.key, cx))
    }

    /// The same as a future.
    pub async fn data(&mut self) -> Option<Bytes> {
        poll_fn(|cx| self.poll_data(cx)).await
    }

    /// The terminal, once it came (or why this side gave the stream up).
    pub fn terminal(&self) -> Option<Terminal> {
        self.connection.with(|session| session.terminal(self.key))
    }

    /// Wants no more: what has arrived is thrown away, RESET goes ahead of data, the terminal still comes.
    pub fn reset(&self, error: Error) {
        self.connection.with(|session| session.abandon(self.key, error));
    }
}

impl Drop for OutgoingStream {
    fn drop(&mut self) {
        self.connection.with(|session| session.release(self.key));
    }
}

/// The answering side. Dropping it without `finish` or `fail` ends the stream with INTERNAL (CANCELLED after a
/// reset). `body`, `send` and `reset` may run at the same time, each in one place.
pub struct IncomingStream {
    connection: Connection,
    /// Taken by the END.
    key: Option<Key>,
    id: u64,
    method: u32,
    message: Vec<u8>,
    timeout: Duration,
}

impl IncomingStream {
    pub(crate) fn new(connection: Connection, stream: StreamIn) -> Self {
        Self {
            connection,
            key: Some(stream.key),
            id: stream.id,
            method: stream.method,
            message: stream.message,
            timeout: stream.timeout,
        }
    }

    /// The stream's id on the wire.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Number of the boundary's method.
    pub fn method(&self) -> u32 {
        self.method
    }

    /// The method's typed message.
    pub fn message(&self) -> &[u8] {
        &self.message
    }

    /// Time from OPEN until the opener gives up; zero means never.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The connection it came on.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// What has arrived of the body; `None` at its end.
    ///
    /// # Errors
    /// If the stream was reset or lost.
    pub async fn body(&self) -> Result<Option<Bytes>, Reset> {
        let Some(key) = self.key else { return Ok(None) };
        poll_fn(|cx| self.connection.with(|session| session.poll_body(key, cx))).await
    }

    /// The body is not wanted any further: what comes is thrown away, the opener is told to stop.
    pub fn refuse_body(&self) {
        let text = "the answering side wants no more of the body";
        if let Some(key) = self.key {
            let error = Error::new(Code::Cancelled, "BODY_NOT_WANTED", text);
            self.connection.with(|session| session.refuse_body(key, error));
        }
    }

    /// HEAD: a typed message of at most 16 KiB and the first part of the answer, at most 16 KiB. Once, before data.
    ///
    /// # Errors
    /// `TOO_LARGE`, or `CONFLICT` if HEAD or data was sent before. Nothing is sent then.
    pub fn send_head(&self, message: impl Into<Vec<u8>>, inline: &[u8]) -> Result<(), Error> {
        let Some(key) = self.key else { return Ok(()) };
        let message = message.into();
        self.connection.with(|session| session.send_head(key, message, inline))
    }

    /// Sends a part of the answer; waits for buffer space and credit. Dropped half way, a prefix was sent.
    ///
    /// # Errors
    /// If the stream was reset or lost.
    pub async fn send(&self, part: &[u8]) -> Result<(), Reset> {
        let Some(key) = self.key else { return Ok(()) };
        push(&self.connection, key, part).await.map_err(|error| Reset { error })
    }

    /// Resolves when the stream is reset by the opener, past its deadline, or lost.
    pub async fn reset(&self) -> Reset {
        let Some(key) = self.key else { return std::future::pending().await };
        poll_fn(|cx| self.connection.with(|session| session.poll_reset(key, cx))).await
    }

    /// The one END: success.
    pub fn finish(mut self, payload: &[u8]) {
        self.end(None, false, payload);
    }

    /// The one END: failure. What was sent before still arrives before it.
    pub fn fail(mut self, error: Error, not_processed: bool, payload: &[u8]) {
        self.end(Some(error), not_processed, payload);
    }

    fn end(&mut self, error: Option<Error>, not_processed: bool, payload: &[u8]) {
        if let Some(key) = self.key.take() {
            self.connection.with(|session| session.end(key, error, not_processed, payload));
        }
    }
}

impl Drop for IncomingStream {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let reset = self.connection.with(|session| session.reset_reason(key));
            self.end(Some(reset.map_or_else(Error::internal, |reset| reset.error)), false, &[]);
        }
    }
}

async fn push(connection: &Connection, key: Key, part: &[u8]) -> Result<(), Error> {
    let mut rest = part;
    loop {
        let count = poll_fn(|cx| connection.with(|session| session.poll_push(key, rest, cx))).await?;
        rest = rest.get(count..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(());
        }
    }
}
