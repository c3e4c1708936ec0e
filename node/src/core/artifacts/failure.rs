//! Why an artifact could not be brought or taken away.
//!
//! Owns the kinds and whether trying again makes sense. Invariant: the sentence has no address, path or secret of the host.

use umbel_contracts::causes::Cause;

/// What kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Not enough room, with what is to stay free.
    Space,
    /// The content is not what its digest says.
    DigestMismatch,
    /// The source has it in another size.
    SizeMismatch,
    /// The node's file has no source of that name.
    SourceUnknown,
    /// The source's certificate is not valid at this time.
    SourceCertificateExpired,
    /// The source's certificate is for another host name.
    SourceCertificateOtherName,
    /// The source's certificate is of no authority that is trusted, or cannot be checked.
    SourceCertificateUntrusted,
    /// The source answers, and says no or something unusable.
    SourceRefused,
    /// No usable answer from the source, after several tries.
    SourceUnreachable,
    /// A name that may lead somewhere else.
    NameRefused,
    /// The node's file has no root of that name, or none at all.
    RootUnknown,
    /// Whoever wanted it wants it no more.
    Cancelled,
    /// The disk does not do what it is told.
    Disk,
    /// An engine runs from it.
    InUse,
    /// It is not here.
    NotFound,
    /// The agent's own fault.
    Internal,
}

impl Reason {
    /// What is told.
    pub(crate) fn cause(self) -> Cause {
        match self {
            Self::Space => Cause::Space,
            Self::DigestMismatch => Cause::DigestMismatch,
            Self::SizeMismatch => Cause::SizeMismatch,
            Self::SourceUnknown => Cause::SourceUnknown,
            Self::SourceCertificateExpired => Cause::SourceCertificateExpired,
            Self::SourceCertificateOtherName => Cause::SourceCertificateOtherName,
            Self::SourceCertificateUntrusted => Cause::SourceCertificateUntrusted,
            Self::SourceRefused => Cause::SourceRefused,
            Self::SourceUnreachable => Cause::SourceUnreachable,
            Self::NameRefused => Cause::NameRefused,
            Self::RootUnknown => Cause::RootUnknown,
            Self::Cancelled => Cause::Cancelled,
            Self::Disk => Cause::Disk,
            Self::InUse => Cause::InUse,
            Self::NotFound => Cause::NotFound,
            Self::Internal => Cause::Internal,
        }
    }

    /// Whether it is about the source alone: another one may have what is wanted.
    pub(crate) fn is_of_source(self) -> bool {
        matches!(
            self,
            Self::SourceCertificateExpired
                | Self::SourceCertificateOtherName
                | Self::SourceCertificateUntrusted
                | Self::SourceRefused
                | Self::SourceUnreachable
                | Self::SizeMismatch
                | Self::DigestMismatch
        )
    }

    /// Whether the same again may go better: what depends on a person's hand or another list does not. Certificates are renewed
    /// and clocks set by themselves; whom to trust, and by which name, is in a file.
    fn retry(self) -> bool {
        matches!(
            self,
            Self::Space
                | Self::SourceCertificateExpired
                | Self::SourceUnreachable
                | Self::Disk
                | Self::InUse
                | Self::Internal
        )
    }
}

/// A failure that is told to the edge.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {says}", reason.cause())]
pub(crate) struct Failure {
    pub(crate) reason: Reason,
    /// One sentence, without an address or a path of this host.
    pub(crate) says: String,
}

impl Failure {
    pub(crate) fn new(reason: Reason, says: impl Into<String>) -> Self {
        Self { reason, says: says.into() }
    }

    /// Nobody wants it any more.
    pub(crate) fn cancelled() -> Self {
        Self::new(Reason::Cancelled, "cancelled; what came is kept for a while and used by the next try")
    }

    /// Whether the same again may go better.
    pub(crate) fn retry(&self) -> bool {
        self.reason.retry()
    }
}
