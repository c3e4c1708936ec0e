//! The numbers that REQUEST, OPEN and EVENT frames carry, by boundary, and the protocol ranges of this build.
//!
//! Invariant: each is the number of the proto enum (a test compares them); numbers are never reused.

use umbel_wire::VersionRange;

/// Protocol between control plane and edge that this build speaks.
pub const CONTROL_PROTOCOL: VersionRange = VersionRange { min: 1, max: 1 };
/// Protocol between edge and node that this build speaks.
pub const NODE_PROTOCOL: VersionRange = VersionRange { min: 1, max: 1 };

/// Methods of requests and streams.
pub mod method {
    /// Request, edge to control plane: `EdgeHeartbeat` -> `EdgeHeartbeatAck`.
    pub const EDGE_HEARTBEAT: u32 = 1;
    /// Stream, control plane to edge: `EdgeStatusRequest` -> `EdgeStatusResponse`*.
    pub const EDGE_STATUS: u32 = 2;
    /// Stream, control plane to edge: `EdgeCommandRequest` -> `EdgeCommandResponse`.
    pub const EDGE_COMMAND: u32 = 3;
    /// Request, edge to control plane: `EdgeCredentialRequest` -> `EdgeCredentialResponse`.
    pub const EDGE_CREDENTIAL: u32 = 4;

    /// Request, node to edge: `NodeHeartbeat` -> `NodeHeartbeatAck`.
    pub const NODE_HEARTBEAT: u32 = 1;
    /// Request, node to edge: `NodeLeases` -> `NodeLeasesAck`.
    pub const NODE_LEASES: u32 = 2;
    /// Stream, edge to node: `InferenceOpen` and body -> `InferenceHead`, data, `InferenceEnd`.
    pub const INFERENCE: u32 = 3;
    /// Request, node to edge: `NodeCredentialRequest` -> `NodeCredentialResponse`.
    pub const NODE_CREDENTIAL: u32 = 4;
    /// Request, edge to node: `NodeSettings` -> `NodeSettingsResult`.
    pub const NODE_SETTINGS: u32 = 5;
    /// Request, edge to node: `NodeRotate` -> `NodeRotateAck`.
    pub const NODE_ROTATE: u32 = 6;
    /// Request, edge to node: `NodeTrust` -> `NodeTrustAck`.
    pub const NODE_TRUST: u32 = 7;
    /// Request, node to edge: `JobReady` -> `JobReadyAck`.
    pub const NODE_JOB_READY: u32 = 8;
    /// Request, edge to node: `JobLease` -> `JobLeaseAck`.
    pub const NODE_JOB_LEASE: u32 = 9;
    /// Request, node to edge: `JobProgress` -> `JobProgressAck`.
    pub const NODE_JOB_PROGRESS: u32 = 10;
    /// Request, node to edge: `JobComplete` -> `JobEndAck`.
    pub const NODE_JOB_COMPLETE: u32 = 11;
    /// Request, node to edge: `JobFail` -> `JobEndAck`.
    pub const NODE_JOB_FAIL: u32 = 12;
    /// Request, edge to node: `EngineOutputRequest` -> `EngineOutput`.
    pub const NODE_ENGINE_OUTPUT: u32 = 13;
    /// Request, edge to node: `EngineControl` -> `EngineControlAck`.
    pub const NODE_ENGINE_CONTROL: u32 = 14;
}

/// Events.
pub mod event {
    /// Edge to control plane: `EdgeNodeEvent`.
    pub const EDGE_NODE: u32 = 1;
    /// Edge to control plane: `EdgeCommandEvent`.
    pub const EDGE_COMMAND: u32 = 2;

    /// Node to edge: `NodeInventory`.
    pub const NODE_INVENTORY: u32 = 1;
    /// Node to edge: `NodeTelemetry`.
    pub const NODE_TELEMETRY: u32 = 2;
    /// Node to edge: `NodeEngines`.
    pub const NODE_ENGINES: u32 = 3;
    /// Node to edge: `NodeDeclared`.
    pub const NODE_DECLARED: u32 = 4;
    /// Node to edge: `NodeArtifacts`.
    pub const NODE_ARTIFACTS: u32 = 5;
}

#[cfg(test)]
mod tests {
    use super::{event, method};
    use crate::proto::{control, node};

    #[test]
    fn numbers_are_those_of_the_protocol() {
        assert_eq!(method::EDGE_HEARTBEAT, control::Method::EdgeHeartbeat as u32);
        assert_eq!(method::EDGE_STATUS, control::Method::EdgeStatus as u32);
        assert_eq!(method::EDGE_CREDENTIAL, control::Method::EdgeCredential as u32);
        assert_eq!(method::EDGE_COMMAND, control::Method::EdgeCommand as u32);
        assert_eq!(method::NODE_HEARTBEAT, node::Method::NodeHeartbeat as u32);
        assert_eq!(method::NODE_LEASES, node::Method::NodeLeases as u32);
        assert_eq!(method::INFERENCE, node::Method::Inference as u32);
        assert_eq!(method::NODE_CREDENTIAL, node::Method::NodeCredential as u32);
        assert_eq!(method::NODE_SETTINGS, node::Method::NodeSettings as u32);
        assert_eq!(method::NODE_ROTATE, node::Method::NodeRotate as u32);
        assert_eq!(method::NODE_TRUST, node::Method::NodeTrust as u32);
        assert_eq!(method::NODE_JOB_READY, node::Method::NodeJobReady as u32);
        assert_eq!(method::NODE_JOB_LEASE, node::Method::NodeJobLease as u32);
        assert_eq!(method::NODE_JOB_PROGRESS, node::Method::NodeJobProgress as u32);
        assert_eq!(method::NODE_JOB_COMPLETE, node::Method::NodeJobComplete as u32);
        assert_eq!(method::NODE_JOB_FAIL, node::Method::NodeJobFail as u32);
        assert_eq!(method::NODE_ENGINE_OUTPUT, node::Method::NodeEngineOutput as u32);
        assert_eq!(method::NODE_ENGINE_CONTROL, node::Method::NodeEngineControl as u32);
        assert_eq!(event::EDGE_NODE, control::Event::EdgeNode as u32);
        assert_eq!(event::EDGE_COMMAND, control::Event::EdgeCommand as u32);
        assert_eq!(event::NODE_INVENTORY, node::Event::NodeInventory as u32);
        assert_eq!(event::NODE_TELEMETRY, node::Event::NodeTelemetry as u32);
        assert_eq!(event::NODE_ENGINES, node::Event::NodeEngines as u32);
        assert_eq!(event::NODE_DECLARED, node::Event::NodeDeclared as u32);
        assert_eq!(event::NODE_ARTIFACTS, node::Event::NodeArtifacts as u32);
    }
}
