//! Bounds of `umbel.control.v1`.

use super::length::{CERTIFICATE, DIGEST, ID, MODEL, NAME, PROVIDER, SENTENCE};
use super::{Bounded, Field, IN_FRAME, IN_STREAM, MOST_FIELDS, Shape, declare, many, one, text, texts};
use crate::operations;

/// A map's entry: key and value.
static LABEL: Shape =
    Shape { name: "label", largest: 520, fields: &[text(1, "key", 128), text(2, "value", 256)] };
/// A reason and how often.
static COUNT: Shape = Shape { name: "count", largest: 80, fields: &[text(1, "key", 64)] };
static METADATA: Shape = Shape {
    name: "metadata",
    largest: operations::LARGEST_METADATA + 16,
    fields: &[text(1, "key", 64), text(2, "value", operations::LARGEST_METADATA as u32)],
};

const fn labels(number: u32, name: &'static str) -> Field {
    many(number, name, 64, &LABEL)
}

declare! { crate::proto::control;
    EDGE_ENROLL_REQUEST EdgeEnrollRequest 16 * 1024 => [
        text(1, "token_id", ID), text(2, "token_secret", 32), text(3, "edge_id", ID),
        text(4, "signing_request", CERTIFICATE), text(5, "display_name", NAME), text(6, "software_version", NAME),
    ];
    EDGE_ENROLL_RESPONSE EdgeEnrollResponse IN_FRAME => [
        text(1, "edge_id", ID), text(2, "control_plane_id", NAME), texts(3, "certificate_chain", 8, CERTIFICATE),
        text(4, "ca_certificate", CERTIFICATE),
    ];
    OPERATION Operation 256 => [text(1, "name", NAME)];
    EDGE_HELLO_REQUEST EdgeHelloRequest IN_FRAME => [
        text(1, "edge_id", ID), text(2, "display_name", NAME), text(3, "software_version", NAME),
        many(4, "operations", 512, &OPERATION), texts(5, "features", 256, NAME),
    ];
    EDGE_HELLO_RESPONSE EdgeHelloResponse IN_FRAME => [text(1, "control_plane_id", NAME), text(2, "fleet_name", NAME)];
    EDGE_CREDENTIAL_REQUEST EdgeCredentialRequest 8 * 1024 => [text(1, "signing_request", CERTIFICATE)];
    EDGE_CREDENTIAL_RESPONSE EdgeCredentialResponse IN_FRAME => [texts(1, "certificate_chain", 8, CERTIFICATE)];
    EDGE_HEARTBEAT EdgeHeartbeat IN_FRAME => [
        one(3, "summary", &EDGE_SUMMARY), one(4, "audit_witnessed", &AUDIT_PLACE),
    ];
    AUDIT_PLACE AuditPlace 64 => [text(2, "hash", 32)];
    EDGE_HEARTBEAT_ACK EdgeHeartbeatAck 256 => [];
    REVISION Revision 256 => [text(1, "incarnation", ID)];
    EDGE_SUMMARY EdgeSummary 16 * 1024 => [
        one(1, "revision", &REVISION), one(2, "facts", &EDGE_FACTS), many(11, "problems", 32, &PROBLEM),
        text(14, "audit_hash", 32), one(15, "deployments", &DEPLOYMENT_FIGURES), one(16, "jobs", &JOB_FIGURES),
    ];
    DEPLOYMENT_FIGURES DeploymentFigures 16 * 1024 => [
        text(6, "held", SENTENCE), many(7, "listed", 512, &DEPLOYMENT_SUMMARY),
    ];
    DEPLOYMENT_SUMMARY DeploymentSummary 512 => [text(1, "name", NAME), text(2, "model", MODEL)];
    JOB_FIGURES JobFigures 64 => [];
    EDGE_FACTS EdgeFacts 1024 => [text(1, "software_version", NAME)];
    PROBLEM Problem 5 * 1024 => [
        text(1, "code", NAME), text(2, "message", SENTENCE), text(4, "subject", PROVIDER),
    ];
    EDGE_STATUS_REQUEST EdgeStatusRequest IN_FRAME => [
        text(1, "request_id", ID), text(2, "node_selector", operations::LONGEST_TEXT as u32),
        texts(3, "sections", 16, NAME), one(5, "known_revision", &REVISION),
    ];
    EDGE_STATUS_RESPONSE EdgeStatusResponse IN_STREAM => [
        text(1, "request_id", ID), text(2, "edge_id", ID), one(3, "revision", &REVISION),
        one(6, "summary", &EDGE_SUMMARY), many(7, "nodes", 1024, &EDGE_NODE_SNAPSHOT),
        many(8, "queues", 4096, &QUEUE_SNAPSHOT), many(9, "deployments", 1024, &DEPLOYMENT_SNAPSHOT),
        many(10, "jobs", 1024, &JOB_SNAPSHOT),
    ];
    DEPLOYMENT_SNAPSHOT DeploymentSnapshot 896 * 1024 => [
        text(1, "name", NAME), text(2, "model", MODEL), texts(3, "aliases", 64, MODEL), text(4, "engine_kind", NAME),
        text(6, "message", SENTENCE), text(10, "digest", DIGEST), text(15, "applied_by", SENTENCE),
        many(17, "replicas", 1024, &REPLICA_SNAPSHOT),
    ];
    REPLICA_SNAPSHOT ReplicaSnapshot 24 * 1024 => [
        text(1, "engine", NAME), text(3, "node_id", ID), text(4, "node_name", NAME), texts(5, "gpu_uuids", 64, NAME),
        text(6, "state", NAME), text(8, "cause", SENTENCE), one(13, "job", &REPLICA_JOB),
    ];
    REPLICA_JOB ReplicaJob 6 * 1024 => [text(1, "job_id", ID), text(2, "kind", NAME), one(3, "step", &JOB_STEP)];
    JOB_STEP JobStep 5 * 1024 => [text(1, "phase", NAME), text(4, "unit", NAME), text(5, "message", SENTENCE)];
    JOB_SNAPSHOT JobSnapshot 32 * 1024 => [
        text(1, "job_id", ID), text(2, "kind", NAME), text(3, "subject", SENTENCE), text(4, "node_id", ID),
        text(5, "node_name", NAME), text(6, "owner", MODEL), text(7, "actor", SENTENCE), text(8, "reason", SENTENCE),
        one(13, "step", &JOB_STEP), one(17, "failure", &JOB_SETBACK),
    ];
    JOB_SETBACK JobSetback 10 * 1024 => [
        text(1, "code", NAME), text(2, "message", SENTENCE), text(3, "path", SENTENCE),
    ];
    EDGE_NODE_SNAPSHOT EdgeNodeSnapshot 512 * 1024 => [
        text(1, "node_id", ID), text(2, "name", NAME), labels(3, "labels"), text(11, "agent_version", NAME),
        text(13, "protocol_verdict", NAME), one(14, "config", &NODE_CONFIG), one(15, "inventory", &INVENTORY_SUMMARY),
        one(16, "telemetry", &TELEMETRY_SUMMARY), many(17, "providers", 256, &PROVIDER_SNAPSHOT),
        texts(18, "capabilities", 256, NAME), many(19, "problems", 64, &PROBLEM),
        many(20, "readiness", 16, &READINESS_CHECK), one(23, "credential", &CREDENTIAL_SUMMARY),
        one(29, "detail", &NODE_DETAIL),
    ];
    NODE_DETAIL NodeDetail 256 * 1024 => [
        many(1, "runtimes", 64, &RUNTIME_SUMMARY), many(2, "artifacts", 256, &ARTIFACT_SUMMARY),
        many(3, "jobs", 256, &JOB_SNAPSHOT),
    ];
    RUNTIME_SUMMARY RuntimeSummary 512 => [
        text(1, "kind", NAME), text(2, "engine_version", NAME), text(3, "adapter_version", NAME),
    ];
    ARTIFACT_SUMMARY ArtifactSummary 2 * 1024 => [
        text(1, "repository", MODEL), text(2, "revision", NAME), text(3, "digest", DIGEST), text(6, "root", NAME),
        text(7, "folder", MODEL),
    ];
    CREDENTIAL_SUMMARY CredentialSummary 256 => [];
    NODE_CONFIG NodeConfig 24 * 1024 => [
        text(3, "digest", DIGEST), text(4, "refusal", SENTENCE), texts(7, "ignored_keys", 64, NAME),
        texts(8, "waits_for_restart", 64, NAME),
    ];
    INVENTORY_SUMMARY InventorySummary 128 * 1024 => [
        text(1, "hostname", MODEL), text(2, "os", NAME), text(3, "kernel", NAME), text(4, "cpu_model", NAME),
        many(7, "gpus", 64, &GPU_SUMMARY), text(9, "incomplete_reason", SENTENCE), text(11, "accelerator_mode", NAME),
        text(12, "driver_version", NAME), text(13, "cuda_version", NAME), labels(14, "fabric_labels"),
        many(15, "storage", 32, &STORAGE_SUMMARY),
    ];
    STORAGE_SUMMARY StorageSummary 256 => [text(1, "name", NAME)];
    GPU_SUMMARY GpuSummary 8 * 1024 => [
        text(1, "uuid", NAME), text(2, "name", NAME), text(7, "pci_address", NAME),
        many(9, "mig_instances", 8, &MIG_SUMMARY), text(10, "compute_capability", NAME), text(12, "fabric_cluster", NAME),
        one(14, "figures", &GPU_FIGURES),
    ];
    MIG_SUMMARY MigSummary 320 => [text(1, "uuid", NAME), text(2, "profile", NAME)];
    GPU_FIGURES GpuFigures 4 * 1024 => [
        texts(9, "throttle_reasons", 16, 64), many(14, "engines", 64, &ENGINE_MEMORY_SUMMARY),
    ];
    ENGINE_MEMORY_SUMMARY EngineMemorySummary 160 => [text(1, "engine", NAME)];
    TELEMETRY_SUMMARY TelemetrySummary 256 => [];
    READINESS_CHECK ReadinessCheck 10 * 1024 => [
        text(1, "name", NAME), text(3, "message", SENTENCE), text(4, "next_step", SENTENCE),
    ];
    PROVIDER_SNAPSHOT ProviderSnapshot 24 * 1024 => [
        text(1, "provider_id", PROVIDER), text(2, "model", MODEL), texts(3, "aliases", 64, MODEL),
        text(4, "category", NAME), text(5, "engine_kind", NAME), text(15, "cause", SENTENCE),
        text(16, "deployment", NAME),
    ];
    QUEUE_SNAPSHOT QueueSnapshot 4 * 1024 => [text(1, "model", MODEL), many(21, "rejections", 64, &COUNT)];
    EDGE_COMMAND_REQUEST EdgeCommandRequest IN_FRAME => [
        text(1, "command_id", ID), text(2, "operation", NAME),
        text(3, "target_selector", operations::LONGEST_TEXT as u32),
        text(4, "args_json", operations::LARGEST_ARGS as u32), text(5, "reason", operations::LONGEST_TEXT as u32),
        text(7, "confirm", operations::LONGEST_TEXT as u32),
        many(8, "metadata", operations::METADATA_KEYS.len() as u32, &METADATA),
    ];
    EDGE_COMMAND_RESPONSE EdgeCommandResponse IN_STREAM => [
        text(1, "command_id", ID), one(3, "error", &COMMAND_ERROR),
        text(4, "result_json", operations::LARGEST_RESULT as u32),
    ];
    COMMAND_ERROR CommandError 5 * 1024 => [text(1, "code", NAME), text(2, "reason", NAME), text(3, "message", SENTENCE)];
    EDGE_COMMAND_EVENT EdgeCommandEvent IN_FRAME => [
        text(1, "command_id", ID), text(4, "message", SENTENCE), one(5, "progress", &COMMAND_PROGRESS),
        one(6, "error", &COMMAND_ERROR), text(7, "result_json", operations::LARGEST_STORED_RESULT as u32),
    ];
    COMMAND_PROGRESS CommandProgress 256 => [text(3, "unit", NAME)];
    EDGE_NODE_EVENT EdgeNodeEvent 8 * 1024 => [
        text(1, "edge_id", ID), text(4, "kind", NAME), text(5, "node_id", ID), text(6, "provider_id", PROVIDER),
        text(8, "message", SENTENCE), text(9, "deployment", NAME), text(10, "job_id", ID),
    ];
}
