//! Bounds of `umbel.node.v1`.

use super::length::{CERTIFICATE, DIGEST, ID, MODEL, NAME, PROVIDER, SENTENCE};
use super::{Bounded, Field, IN_FRAME, MOST_FIELDS, Shape, declare, many, numbers, one, text, texts};

/// A map's entry: key and value.
static LABEL: Shape =
    Shape { name: "label", largest: 520, fields: &[text(1, "key", 128), text(2, "value", 256)] };

const fn labels(number: u32, name: &'static str) -> Field {
    many(number, name, 64, &LABEL)
}

/// A report of a node: the contract's own bound.
const REPORT: usize = 32 * 1024;
/// Engines a node may declare.
const ENGINES: u32 = 64;
/// GPUs a node may have.
const GPUS: u32 = 64;
/// MIG instances of one GPU; NVIDIA allows 7.
const MIGS: u32 = 8;
/// Certificate authorities of one edge: the old one and the new one, with room.
const AUTHORITIES: u32 = 4;
/// Effective settings of one node.
const SETTINGS: u32 = 48 * 1024;
/// Storage roots a node may have.
const ROOTS: u32 = 32;
/// Headers of one request or answer, as common servers allow.
const HEADERS: u32 = 64;
/// Leases a node may carry: the streams of a connection, twice over.
const LEASES: u32 = 2048;

declare! { crate::proto::node;
    NODE_ENROLL_REQUEST NodeEnrollRequest 16 * 1024 => [
        text(1, "token_id", ID), text(2, "token_secret", 32), text(3, "signing_request", CERTIFICATE),
        text(4, "name", NAME), text(5, "software_version", NAME),
    ];
    NODE_ENROLL_RESPONSE NodeEnrollResponse IN_FRAME => [
        text(1, "node_id", ID), text(2, "edge_id", ID), text(3, "name", NAME),
        texts(4, "certificate_chain", 8, CERTIFICATE), text(5, "ca_certificate", CERTIFICATE),
    ];
    NODE_HELLO_REQUEST NodeHelloRequest IN_FRAME => [
        text(1, "node_id", ID), text(2, "agent_version", NAME), texts(3, "capabilities", 256, NAME),
        many(4, "runtimes", 64, &ENGINE_RUNTIME), many(7, "engines", ENGINES, &DECLARED_ENGINE),
        one(9, "inventory", &NODE_INVENTORY), labels(10, "labels"),
        texts(11, "trusted_ca_sha256", AUTHORITIES, 32), one(12, "settings", &NODE_SETTINGS_STATE),
    ];
    NODE_HELLO_RESPONSE NodeHelloResponse IN_FRAME => [
        text(1, "edge_id", ID), text(2, "name", NAME), texts(6, "ca_certificates", AUTHORITIES, CERTIFICATE),
    ];
    NODE_CREDENTIAL_REQUEST NodeCredentialRequest 8 * 1024 => [text(1, "signing_request", CERTIFICATE)];
    NODE_CREDENTIAL_RESPONSE NodeCredentialResponse IN_FRAME => [
        texts(1, "certificate_chain", 8, CERTIFICATE), texts(3, "ca_certificates", AUTHORITIES, CERTIFICATE),
    ];
    NODE_ROTATE NodeRotate 256 => [text(1, "cause", NAME)];
    NODE_ROTATE_ACK NodeRotateAck 16 => [];
    NODE_TRUST NodeTrust IN_FRAME => [texts(1, "ca_certificates", AUTHORITIES, CERTIFICATE)];
    NODE_TRUST_ACK NodeTrustAck 256 => [texts(1, "trusted_ca_sha256", AUTHORITIES, 32)];
    NODE_SETTINGS NodeSettings IN_FRAME => [text(2, "digest", 32), text(3, "settings_json", SETTINGS)];
    NODE_SETTINGS_RESULT NodeSettingsResult 16 * 1024 => [one(1, "state", &NODE_SETTINGS_STATE)];
    NODE_SETTINGS_STATE NodeSettingsState 16 * 1024 => [
        text(2, "applied_digest", 32), text(4, "refusal", SENTENCE), texts(6, "ignored_keys", 64, NAME),
        texts(7, "waits_for_restart", ENGINES, NAME),
    ];
    NODE_DECLARED NodeDeclared IN_FRAME => [many(1, "engines", ENGINES, &DECLARED_ENGINE), labels(2, "labels")];
    ENGINE_RUNTIME EngineRuntime 1024 => [
        text(1, "kind", NAME), text(2, "adapter_version", NAME), text(3, "engine_version", NAME),
        text(4, "digest", DIGEST),
    ];
    DECLARED_ENGINE DeclaredEngine 28 * 1024 => [
        text(1, "name", NAME), text(2, "kind", NAME), text(3, "model", MODEL), texts(4, "aliases", 64, MODEL),
        text(5, "category", NAME), one(10, "status", &ENGINE_STATUS),
    ];
    ENGINE_STATUS EngineStatus 10 * 1024 => [
        text(1, "name", NAME), text(3, "cause", SENTENCE), text(4, "output_tail", 4096),
        text(6, "profile_digest", DIGEST),
    ];
    NODE_ENGINES NodeEngines IN_FRAME => [many(1, "engines", ENGINES, &ENGINE_STATUS)];
    NODE_LEASES NodeLeases IN_FRAME => [numbers(1, "lease_ids", LEASES)];
    NODE_LEASES_ACK NodeLeasesAck IN_FRAME => [numbers(1, "cancel_lease_ids", LEASES)];
    NODE_HEARTBEAT NodeHeartbeat IN_FRAME => [
        many(5, "engines", ENGINES, &ENGINE_STATUS), many(6, "problems", 32, &NODE_PROBLEM),
        texts(7, "lost_gpus", GPUS, NAME), one(8, "settings", &NODE_SETTINGS_STATE),
    ];
    NODE_PROBLEM NodeProblem 5 * 1024 => [text(1, "code", NAME), text(2, "message", SENTENCE)];
    NODE_HEARTBEAT_ACK NodeHeartbeatAck 256 => [];
    NODE_INVENTORY NodeInventory REPORT => [
        text(3, "hostname", MODEL), text(4, "os", NAME), text(5, "kernel", NAME), text(6, "cpu_model", NAME),
        many(9, "storage", ROOTS, &STORAGE_ROOT), many(10, "gpus", GPUS, &GPU), labels(11, "fabric_labels"),
        text(13, "incomplete_reason", SENTENCE), text(14, "accelerator_mode", NAME), text(15, "driver_version", NAME),
        text(16, "cuda_version", NAME),
    ];
    STORAGE_ROOT StorageRoot 256 => [text(1, "name", NAME)];
    GPU Gpu 2 * 1024 => [
        text(1, "uuid", NAME), text(2, "name", NAME), text(4, "pci_address", NAME), many(7, "mig_instances", MIGS, &MIG_INSTANCE),
        text(8, "fabric_cluster", NAME), text(10, "compute_capability", NAME),
    ];
    MIG_INSTANCE MigInstance 320 => [text(1, "uuid", NAME), text(2, "profile", NAME)];
    NODE_TELEMETRY NodeTelemetry REPORT => [
        many(5, "storage", ROOTS, &STORAGE_FREE), many(6, "gpus", GPUS, &GPU_TELEMETRY),
    ];
    STORAGE_FREE StorageFree 256 => [text(1, "name", NAME)];
    GPU_TELEMETRY GpuTelemetry 2 * 1024 => [
        text(1, "uuid", NAME), texts(10, "throttle_reasons", 16, 64), many(15, "engines", ENGINES, &ENGINE_MEMORY),
    ];
    ENGINE_MEMORY EngineMemory 160 => [text(1, "engine", NAME)];
    HEADER Header 9 * 1024 => [text(1, "name", NAME), text(2, "value", 8 * 1024)];
    INFERENCE_OPEN InferenceOpen 32 * 1024 => [
        text(1, "provider_id", PROVIDER), text(4, "method", 16), text(5, "path", MODEL),
        many(6, "headers", HEADERS, &HEADER), text(10, "request_id", NAME),
    ];
    INFERENCE_HEAD InferenceHead 16 * 1024 => [many(2, "headers", HEADERS, &HEADER)];
    INFERENCE_END InferenceEnd 256 => [];
}
