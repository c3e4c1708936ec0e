//! What an engine or a job failed for: every name of it that a node or an edge tells, and which may be over by themselves.
//!
//! Owns the names, for all tiers. Leaves sentences to whoever fails. Invariants: a node can tell no other name than one of
//! these; a name that is not known here (a newer node's) lasts, and is `other` where it would be a label.

/// The names: what each means, its spelling, and whether what failed for it may go well later without anybody's doing.
macro_rules! causes {
    ($($(#[$doc:meta])+ $name:ident $text:literal $passes:ident;)+) => {
        /// What an engine or a job failed for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Cause { $($(#[$doc])+ $name,)+ }

        impl Cause {
            /// All of them, in the order of their spellings.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// Its spelling, in capitals.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }

            /// Whether what failed for it may go well later without anybody's doing: the host, another process or the node's
            /// own work stands in the way, or it is fetched once more.
            #[must_use]
            pub const fn passes(self) -> bool {
                match self { $(Self::$name => causes!($passes)),+ }
            }
        }
    };
    (passes) => { true };
    (lasts) => { false };
}

causes! {
    /// The node's agent was stopped while it ran the job, and gives it back: that is no attempt.
    AgentStopped "AGENT_STOPPED" lasts;
    /// Files of the model are not where they should be, or damaged.
    ArtifactMissing "ARTIFACT_MISSING" passes;
    /// The files are what the document names, and the engine cannot use them.
    ArtifactUnfit "ARTIFACT_UNFIT" lasts;
    /// Whoever wanted it wants it no more.
    Cancelled "CANCELLED" lasts;
    /// The node's agent does not know this kind of work.
    CapabilityMissing "CAPABILITY_MISSING" lasts;
    /// The context that is wanted is more than the model or the engine has.
    Context "CONTEXT" lasts;
    /// An engine fell over again and again, or never got ready.
    CrashLoop "CRASH_LOOP" lasts;
    /// The driver, or a GPU under it, failed.
    CudaError "CUDA_ERROR" passes;
    /// The content is not what its digest says.
    DigestMismatch "DIGEST_MISMATCH" lasts;
    /// The disk does not do what it is told.
    Disk "DISK" lasts;
    /// An engine, or memory that it had, is still there after it was ended.
    DoesNotEnd "DOES_NOT_END" lasts;
    /// What runs under its name runs as something else, and is to be unloaded first.
    EngineDiffers "ENGINE_DIFFERS" passes;
    /// It serves other hosts past the edge, although it was told to listen on its own only.
    EngineExposed "ENGINE_EXPOSED" lasts;
    /// An engine failed for something that has no name of its own.
    Failed "FAILED" lasts;
    /// Another engine has the GPU.
    GpuInUse "GPU_IN_USE" passes;
    /// Memory of a GPU that a process which has ended held is not free yet.
    GpuMemoryHeld "GPU_MEMORY_HELD" passes;
    /// The node has no such GPU, or it does not answer.
    GpuMissing "GPU_MISSING" passes;
    /// The engine's own health check says no.
    HealthFailed "HEALTH_FAILED" lasts;
    /// The engine gave the fixed input no whole answer.
    InferenceFailed "INFERENCE_FAILED" lasts;
    /// A defect of the agent, whose log says more.
    Internal "INTERNAL" lasts;
    /// What the job says is not legal: its path names the field.
    Invalid "INVALID" lasts;
    /// An engine runs from the files.
    InUse "IN_USE" lasts;
    /// Something that an earlier run left is in the way.
    LeftOver "LEFT_OVER" passes;
    /// The host or its GPUs have less memory than it needs.
    Memory "MEMORY" passes;
    /// The engine does not list its model.
    ModelMissing "MODEL_MISSING" lasts;
    /// A name of a file that may lead somewhere else.
    NameRefused "NAME_REFUSED" lasts;
    /// The job's node was decommissioned.
    NodeGone "NODE_GONE" lasts;
    /// The node's own file does not permit this kind of engine.
    NotAllowed "NOT_ALLOWED" lasts;
    /// The engine is none of a deployment.
    NotDeployed "NOT_DEPLOYED" lasts;
    /// What is to be taken away is not there.
    NotFound "NOT_FOUND" lasts;
    /// A server that is not the node's to start does not answer.
    NotReachable "NOT_REACHABLE" passes;
    /// Memory of the host or of a GPU was not enough for it.
    OutOfMemory "OUT_OF_MEMORY" lasts;
    /// The engine takes no connections.
    PortNotOpen "PORT_NOT_OPEN" lasts;
    /// Another process listens where it should.
    PortTaken "PORT_TAKEN" passes;
    /// The engine's process has ended.
    ProcessExited "PROCESS_EXITED" lasts;
    /// The node's agent ended while it ran the job.
    ProcessLost "PROCESS_LOST" lasts;
    /// The engine's program is not installed, or cannot be run.
    ProgramMissing "PROGRAM_MISSING" lasts;
    /// The edge could not take the node's report of the job.
    ReportRefused "REPORT_REFUSED" lasts;
    /// The node's own file has no artifact root of this name.
    RootUnknown "ROOT_UNKNOWN" lasts;
    /// The source has a file in another size.
    SizeMismatch "SIZE_MISMATCH" lasts;
    /// The source's certificate has expired, or is not valid yet, by this host's clock.
    SourceCertificateExpired "SOURCE_CERTIFICATE_EXPIRED" passes;
    /// The source's certificate is for another host name than the node's own file has.
    SourceCertificateOtherName "SOURCE_CERTIFICATE_OTHER_NAME" lasts;
    /// The source's certificate is of no authority that is trusted here, or cannot be checked.
    SourceCertificateUntrusted "SOURCE_CERTIFICATE_UNTRUSTED" lasts;
    /// The source answers, and says no or something unusable.
    SourceRefused "SOURCE_REFUSED" lasts;
    /// The node's own file has no source of this name.
    SourceUnknown "SOURCE_UNKNOWN" lasts;
    /// No usable answer from the source, after several tries.
    SourceUnreachable "SOURCE_UNREACHABLE" lasts;
    /// Not enough room on the disk, with what is to stay free.
    Space "SPACE" lasts;
    /// The engine's process lives, and its requests do not get on.
    Stalled "STALLED" passes;
    /// The node's state directory cannot be written.
    StateNotWritable "STATE_NOT_WRITABLE" lasts;
    /// An engine of this name has not ended yet.
    StillLeaving "STILL_LEAVING" passes;
    /// A probe of this engine runs already.
    StillRuns "STILL_RUNS" lasts;
    /// It did not come about in time.
    TimedOut "TIMED_OUT" lasts;
    /// The node has as many engines, or an engine as many names, as it may.
    TooManyEngines "TOO_MANY_ENGINES" lasts;
    /// The node has no such engine.
    UnknownEngine "UNKNOWN_ENGINE" lasts;
    /// The engine was unloaded while it was loading.
    Unloaded "UNLOADED" passes;
}

/// The label of a name that is not known here.
pub const OTHER: &str = "other";

impl Cause {
    /// The one of this spelling.
    #[must_use]
    pub fn named(code: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|cause| cause.as_str() == code)
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether what failed for this may go well later without anybody's doing.
#[must_use]
pub fn passes(code: &str) -> bool {
    Cause::named(code).is_some_and(Cause::passes)
}

/// A name as it may be a label, whatever a node says.
#[must_use]
pub fn label(code: &str) -> &'static str {
    Cause::named(code).map_or(OTHER, Cause::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_spelled_once_and_stands_in_the_contract() {
        assert!(Cause::ALL.windows(2).all(|pair| matches!(pair, [a, b] if a.as_str() < b.as_str())));
        let contract = include_str!("../edge-node.md");
        let section = contract.split_once("### Causes\n").map_or("", |(_, rest)| rest);
        let section = section.split_once("\n### ").map_or(section, |(own, _)| own);
        let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
        let told: Vec<(&str, bool)> = rows
            .filter(|(code, _)| code.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_'))
            .map(|(code, rest)| (code, rest.ends_with("| yes |")))
            .collect();
        let known: Vec<(&str, bool)> =
            Cause::ALL.iter().map(|cause| (cause.as_str(), cause.passes())).collect();
        assert_eq!(told, known, "the table under \"Causes\" of edge-node.md");
        assert_eq!((Cause::named("SPACE"), label("OF_TOMORROW")), (Some(Cause::Space), OTHER));
    }
}
