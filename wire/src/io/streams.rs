//! Handles of streams: the opener's and the answering side's.
//!
//! Invariant: whatever the application does or drops, each OPEN gets exactly one END and each buffer is freed.

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;

use crate::error::Error;
use crate::io::handle::Terminal;

/// Why a stream is over for the answering side: the opener wants no more, its deadline passed, or the connection
/// is lost (`UNAVAILABLE`). Cancel the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// `CANCELLED`, `DEADLINE_EXCEEDED`, `UNAVAILABLE`, or what the opener said.
    pub error: Error,
}

/// The opener's side. Dropping it resets the stream unless its terminal came.
pub struct OutgoingStream(());

impl OutgoingStream {
    /// The stream's id on the wire; 0 while OPEN is not written.
    pub fn id(&self) -> u64 {
        unimplemented!()
    }

    /// Sends a further part of the body; waits for buffer space and credit.
    ///
    /// # Errors
    /// If the answering side wants no more of the body, has ended, or the connection is lost.
    pub async fn send_body(&self, part: &[u8]) -> Result<(), Error> {
        let _ = part;
        unimplemented!()
    }

    /// The body is complete.
    pub fn finish_body(&self) {
        unimplemented!()
    }

    /// Waits for HEAD and gives its typed message. The inline part is the first `data`.
    ///
    /// # Errors
    /// The terminal, if it came instead (or this side reset the stream).
    pub async fn head(&mut self) -> Result<Bytes, Terminal> {
        unimplemented!()
    }

    /// What has arrived of the answer; `None` once the terminal came and everything was taken.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let _ = cx;
        unimplemented!()
    }

    /// The same as a future.
    pub async fn data(&mut self) -> Option<Bytes> {
        std::future::poll_fn(|cx| self.poll_data(cx)).await
    }

    /// The terminal, once it came.
    pub fn terminal(&self) -> Option<Terminal> {
        unimplemented!()
    }

    /// Wants no more: what has arrived is thrown away, RESET goes ahead of data, the terminal still comes.
    pub fn reset(&self, error: Error) {
        let _ = error;
        unimplemented!()
    }
}

/// The answering side. Dropping it without `finish` or `fail` ends the stream with INTERNAL.
pub struct IncomingStream(());

impl IncomingStream {
    /// The stream's id on the wire.
    pub fn id(&self) -> u64 {
        unimplemented!()
    }

    /// Number of the boundary's method.
    pub fn method(&self) -> u32 {
        unimplemented!()
    }

    /// The method's typed message.
    pub fn message(&self) -> &[u8] {
        unimplemented!()
    }

    /// Time from OPEN until the opener gives up; zero means never.
    pub fn timeout(&self) -> Duration {
        unimplemented!()
    }

    /// What has arrived of the body; `None` at its end.
    ///
    /// # Errors
    /// If the stream was reset or lost.
    pub async fn body(&self) -> Result<Option<Bytes>, Reset> {
        unimplemented!()
    }

    /// The body is not wanted any further: what comes is thrown away, the opener is told to stop.
    pub fn refuse_body(&self) {
        unimplemented!()
    }

    /// HEAD: a typed message of at most 16 KiB and the first part of the answer, at most 16 KiB.
    ///
    /// # Errors
    /// `TOO_LARGE`, or `CONFLICT` if HEAD was sent before. Nothing is sent then.
    pub fn send_head(&self, message: &[u8], inline: &[u8]) -> Result<(), Error> {
        let _ = (message, inline);
        unimplemented!()
    }

    /// Sends a part of the answer; waits for buffer space and credit. Dropped half way, a prefix was sent.
    ///
    /// # Errors
    /// If the stream was reset or lost.
    pub async fn send(&self, part: &[u8]) -> Result<(), Reset> {
        let _ = part;
        unimplemented!()
    }

    /// Resolves when the stream is reset by the opener, past its deadline, or lost.
    pub async fn reset(&self) -> Reset {
        unimplemented!()
    }

    /// The one END: success.
    pub fn finish(self, payload: &[u8]) {
        let _ = payload;
        unimplemented!()
    }

    /// The one END: failure. What was sent before still arrives before it.
    pub fn fail(self, error: Error, not_processed: bool, payload: &[u8]) {
        let _ = (error, not_processed, payload);
        unimplemented!()
    }
}
