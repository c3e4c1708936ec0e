//! The generated type behind each message name, so that a test can go through all of them.

use prost::Message;
use umbel_contracts::bounds::{self, Bounded};

/// Decodes within bounds and encodes again.
type Bounds = fn(&[u8]) -> Result<Vec<u8>, umbel_wire::Error>;

/// What the tests need of a generated type.
#[derive(Clone, Copy)]
pub(crate) struct Codec {
    /// Full name.
    pub(crate) name: &'static str,
    /// Decodes and encodes again.
    pub(crate) again: fn(&[u8]) -> Result<Vec<u8>, prost::DecodeError>,
    /// Decodes within bounds and encodes again; `None` for the session's own messages.
    pub(crate) bounded: Option<Bounds>,
}

fn again<M: Message + Default>(bytes: &[u8]) -> Result<Vec<u8>, prost::DecodeError> {
    M::decode(bytes).map(|message| message.encode_to_vec())
}

fn bounded<M: Bounded>(bytes: &[u8]) -> Result<Vec<u8>, umbel_wire::Error> {
    bounds::decode::<M>(bytes).map(|message| message.encode_to_vec())
}

macro_rules! codecs {
    ($($package:literal, $module:path, $within:ident: $($message:ident)+;)+) => {
        /// Every generated message.
        pub(crate) const CODECS: &[Codec] = &[$($({
            use $module as types;
            Codec {
                name: concat!($package, ".", stringify!($message)),
                again: again::<types::$message>,
                bounded: codecs!($within types::$message),
            }
        }),+),+];
    };
    (bounded $message:path) => { Some(bounded::<$message>) };
    (session $message:path) => { None };
}

codecs! {
    "umbel.wire.v1", umbel_wire::proto, session:
        Frame Hello Welcome Limits Intervals VersionRange Reject Error Request Response Event Ack Open Head End Reset
        Goaway;
    "umbel.control.v1", umbel_contracts::proto::control, bounded:
        EdgeEnrollRequest EdgeEnrollResponse Operation EdgeHelloRequest EdgeHelloResponse EdgeHeartbeat
        EdgeHeartbeatAck AuditPlace Revision EdgeSummary EdgeFacts Problem EdgeStatusRequest EdgeStatusResponse EdgeNodeSnapshot
        NodeConfig InventorySummary GpuSummary TelemetrySummary ReadinessCheck ProviderSnapshot QueueSnapshot
        EdgeCommandRequest EdgeCommandResponse CommandError EdgeCommandEvent CommandProgress EdgeNodeEvent
        CredentialSummary DeploymentFigures DeploymentSummary JobFigures DeploymentSnapshot ReplicaSnapshot ReplicaJob
        JobStep JobSnapshot JobSetback NodeDetail RuntimeSummary ArtifactSummary StorageSummary MigSummary GpuFigures EngineMemorySummary EdgeCredentialRequest
        EdgeCredentialResponse;
    "umbel.node.v1", umbel_contracts::proto::node, bounded:
        NodeEnrollRequest NodeEnrollResponse NodeHelloRequest NodeHelloResponse EngineRuntime DeclaredEngine
        EngineStatus NodeEngines NodeLeases NodeLeasesAck NodeHeartbeat NodeProblem NodeHeartbeatAck NodeInventory
        StorageRoot Gpu NodeTelemetry StorageFree GpuTelemetry Header InferenceOpen InferenceHead InferenceEnd
        NodeCredentialRequest NodeCredentialResponse NodeRotate NodeRotateAck NodeTrust NodeTrustAck NodeSettings
        NodeSettingsResult NodeSettingsState NodeDeclared MigInstance EngineMemory JobLease JobLeaseAck JobReady
        RunningJob JobReadyAck JobProgress JobProgressAck JobComplete JobFail JobFailure JobEndAck Evidence
        ArtifactFile ArtifactAcquire ArtifactAcquireReport Artifact NodeArtifacts ArtifactRemove
        ArtifactRemoveReport EngineArtifact DeploymentLoad DeploymentLoadReport DeploymentHealth
        DeploymentHealthReport DeploymentDrain DeploymentDrainReport DeploymentUnload DeploymentUnloadReport
        RuntimeProbe RuntimeProbeReport RuntimeHealth RuntimeHealthReport EngineHealth RuntimeUnload
        RuntimeUnloadReport EngineOutputRequest EngineOutput EngineControl EngineControlAck;
}

/// The type behind a name.
pub(crate) fn codec(name: &str) -> Codec {
    *CODECS.iter().find(|codec| codec.name == name).unwrap_or_else(|| panic!("{name} is missing in codec.rs"))
}

#[test]
fn the_list_has_exactly_the_messages_of_the_descriptors() {
    let mut listed: Vec<_> = CODECS.iter().map(|codec| codec.name.to_owned()).collect();
    let mut described: Vec<_> =
        crate::descriptors::messages().map(|message| message.full_name().to_owned()).collect();
    listed.sort();
    described.sort();
    assert_eq!(listed, described);
}
