//! Streams to an engine, as the tests' edge opens them.

use super::*;
use crate::soon;

/// What to ask an engine.
pub(crate) struct Ask {
    pub(crate) engine: String,
    pub(crate) path: String,
    pub(crate) body: Bytes,
    pub(crate) headers: Vec<Header>,
    pub(crate) generation: Option<u64>,
    pub(crate) first_byte_timeout_ms: u32,
    pub(crate) idle_timeout_ms: u32,
}

impl Ask {
    pub(crate) fn new(engine: &str, body: impl Into<Bytes>) -> Self {
        Self {
            engine: engine.to_owned(),
            path: "/v1/chat/completions".into(),
            body: body.into(),
            headers: vec![Header { name: "content-type".into(), value: b"application/json".to_vec() }],
            generation: None,
            first_byte_timeout_ms: 0,
            idle_timeout_ms: 0,
        }
    }
}

/// A stream to an engine.
pub(crate) struct Stream {
    pub(super) stream: Option<OutgoingStream>,
    pub(super) terminal: Option<oneshot::Receiver<Terminal>>,
}

/// How a stream ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) outcome: InferenceOutcome,
    pub(crate) error: Option<Error>,
    pub(crate) not_processed: bool,
    pub(crate) told: InferenceEnd,
}

impl Stream {
    pub(crate) async fn head(&mut self) -> InferenceHead {
        let head = soon("the head", self.stream.as_mut().unwrap().head()).await.unwrap();
        InferenceHead::decode(head).unwrap()
    }

    pub(crate) async fn data(&mut self) -> Option<Bytes> {
        soon("data", self.stream.as_mut().unwrap().data()).await
    }

    /// Reads on until so many bytes are there.
    pub(crate) async fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < count {
            bytes.extend_from_slice(&self.data().await.expect("more data"));
        }
        bytes
    }

    /// Everything that is left, and the end.
    pub(crate) async fn rest(mut self) -> (Vec<u8>, End) {
        let mut bytes = Vec::new();
        while let Some(part) = self.data().await {
            bytes.extend_from_slice(&part);
        }
        (bytes, self.ended().await)
    }

    /// Head, everything and end.
    pub(crate) async fn whole(mut self) -> (InferenceHead, Vec<u8>, End) {
        let head = self.head().await;
        let (bytes, end) = self.rest().await;
        (head, bytes, end)
    }

    /// The edge wants no more.
    pub(crate) fn reset(&self) {
        self.stream.as_ref().unwrap().reset(Error::new(Code::Cancelled, "CANCELLED", "the client went away"));
    }

    /// The one terminal frame.
    pub(crate) async fn ended(&mut self) -> End {
        let terminal = soon("the end", self.terminal.take().unwrap()).await.unwrap();
        match terminal {
            Terminal::Ended { error, not_processed, payload } => {
                let told: InferenceEnd = bounds::decode(&payload).unwrap();
                End { outcome: told.outcome(), error, not_processed, told }
            }
            Terminal::Lost(reason) => panic!("lost: {reason}"),
        }
    }
}
