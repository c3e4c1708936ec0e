//! The messages of `proto/umbel/wire/v1/wire.proto`: generated, committed, and compared with a fresh generation
//! by this module's test (`UMBEL_REGENERATE=1 cargo test -p umbel-wire --lib proto` writes it anew).
//!
//! Invariant: nothing here is edited by hand. A message whose fields have rules is turned into a type of this
//! crate before anyone relies on it.
#![allow(missing_docs, clippy::all, reason = "generated from the .proto file, whose comments it carries")]

include!("proto/umbel.wire.v1.rs");

// These carry message content, credentials or both: a log line may tell their size, never their bytes.
impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frame")
            .field("kind", &self.kind)
            .field("id", &self.id)
            .field("flags", &self.flags)
            .field("payload_bytes", &self.payload.len())
            .field("limit", &self.limit)
            .field("meta", &self.meta)
            .finish()
    }
}

impl std::fmt::Debug for frame::Meta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let part: &dyn std::fmt::Debug = match self {
            Self::Hello(part) => part,
            Self::Welcome(part) => part,
            Self::Reject(part) => part,
            Self::Request(part) => part,
            Self::Response(part) => part,
            Self::Event(part) => part,
            Self::Ack(part) => part,
            Self::Open(part) => part,
            Self::Head(part) => part,
            Self::End(part) => part,
            Self::Reset(part) => part,
            Self::Goaway(part) => part,
        };
        part.fmt(f)
    }
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open")
            .field("method", &self.method)
            .field("timeout_ms", &self.timeout_ms)
            .field("message_bytes", &self.message.len())
            .finish()
    }
}

impl std::fmt::Debug for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Head").field("message_bytes", &self.message.len()).finish()
    }
}

#[cfg(test)]
mod tests;
