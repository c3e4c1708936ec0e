//! A request's body as it comes.
//!
//! Owns where it ends, and that the client is told to send it. Leaves its bounds to [`super::body`]. Invariant: nothing
//! behind the body is taken for a part of it.

use std::task::{Context, Poll, ready};

use super::h1::{Announced, Chunked, Head, Malformed};
use super::socket::{Io, Socket};

/// The client left, or breaks the rules: nothing more comes of it, or goes to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone;

impl From<std::io::Error> for Gone {
    fn from(_: std::io::Error) -> Self {
        Self
    }
}

impl From<Malformed> for Gone {
    fn from(_: Malformed) -> Self {
        Self
    }
}

/// The body of one request.
pub(super) struct Incoming<'a, 'b, S: Socket> {
    io: &'a mut Io<'b, S>,
    left: Left,
    /// The client waits for a word before it sends.
    awaited: bool,
}

enum Left {
    Length(u64),
    Chunks(Chunked),
}

impl<'a, 'b, S: Socket> Incoming<'a, 'b, S> {
    pub(super) fn new(io: &'a mut Io<'b, S>, head: &Head) -> Self {
        let left = match head.announced {
            Announced::Length(length) => Left::Length(length),
            Announced::Chunked => Left::Chunks(Chunked::default()),
        };
        Self { io, left, awaited: head.expects_continue }
    }

    /// All of it was taken.
    pub(super) fn is_over(&self) -> bool {
        match &self.left {
            Left::Length(left) => *left == 0,
            Left::Chunks(chunked) => chunked.is_over(),
        }
    }

    /// Whether the client waits for a word before it sends, and has not got it.
    pub(super) fn is_awaited(&self) -> bool {
        self.awaited && !self.io.has_ahead()
    }

    /// What is still to come, where the client has said it.
    pub(super) fn left(&self) -> Option<u64> {
        match &self.left {
            Left::Length(left) => Some(*left),
            Left::Chunks(_) => None,
        }
    }

    /// What room a buffer for the next read should have: all that is still to come, where the client has said it; none
    /// where it is here already, or comes in chunks.
    pub(super) fn room(&self) -> u64 {
        if self.io.has_ahead() { 0 } else { self.left().unwrap_or(0) }
    }

    /// Appends what comes to `to`, as far as it has room; says how much, which is 0 once the body is over.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, to: &mut Vec<u8>) -> Poll<Result<usize, Gone>> {
        if self.is_over() {
            return Poll::Ready(Ok(0));
        }
        ready!(self.poll_go_on(cx))?;
        match &mut self.left {
            Left::Length(left) => {
                let most = usize::try_from(*left).unwrap_or(usize::MAX);
                let came = ready!(self.io.poll_take(cx, to, most))?;
                *left = left.saturating_sub(came as u64);
                Poll::Ready(if came == 0 { Err(Gone) } else { Ok(came) })
            }
            Left::Chunks(chunked) => loop {
                let before = to.len();
                let ended = ready!(self.io.poll_input(cx, |input| {
                    let mut rest = input;
                    let mut decode = || {
                        while let Some(data) = chunked.next(&mut rest)? {
                            to.extend_from_slice(data);
                        }
                        Ok::<_, Malformed>(input.is_empty())
                    };
                    let ended = decode();
                    (input.len() - rest.len(), ended)
                }))??;
                if ended {
                    return Poll::Ready(Err(Gone));
                }
                let came = to.len() - before;
                if came > 0 || chunked.is_over() {
                    return Poll::Ready(Ok(came));
                }
            },
        }
    }

    /// Tells the client to send, unless it did so unasked.
    fn poll_go_on(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        if std::mem::take(&mut self.awaited) && !self.io.has_ahead() {
            self.io.out().extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        ready!(self.io.poll_write(cx))?;
        Poll::Ready(Ok(()))
    }
}
