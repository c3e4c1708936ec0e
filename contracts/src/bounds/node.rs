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
/// Jobs that a node runs, with those whose end it has not told yet.
const JOBS: u32 = 64;
/// Artifacts that a node may name: with its engines and its inventory they fit into a hello.
const ARTIFACTS: u32 = 128;
/// Files of one artifact: the largest models have some hundred, and a lease is one frame.
const FILES: u32 = 512;
/// A file's path in an artifact, or an artifact's folder.
const PATH: u32 = 512;
/// An engine's profile in its canonical form.
const PROFILE: u32 = 16 * 1024;
/// An engine's last lines: 200 or 32 KiB.
const TAIL: u32 = 32 * 1024;
/// One line of an engine's output.
const LINE: u32 = 4096;
/// Lines of one answer.
const LINES: u32 = 1000;
/// Layers of one check of an engine: there are five.
const LAYERS: u32 = 8;
/// One word.
const WORD: u32 = 32;

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
        many(13, "jobs", JOBS, &RUNNING_JOB), many(14, "artifacts", ARTIFACTS, &ARTIFACT),
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
    NODE_DECLARED NodeDeclared IN_FRAME => [
        many(1, "engines", ENGINES, &DECLARED_ENGINE), labels(2, "labels"), many(3, "runtimes", 64, &ENGINE_RUNTIME),
    ];
    ENGINE_RUNTIME EngineRuntime 1024 => [
        text(1, "kind", NAME), text(2, "adapter_version", NAME), text(3, "engine_version", NAME),
        text(4, "digest", DIGEST),
    ];
    DECLARED_ENGINE DeclaredEngine 38 * 1024 => [
        text(1, "name", NAME), text(2, "kind", NAME), text(3, "model", MODEL), texts(4, "aliases", 64, MODEL),
        text(5, "category", NAME), one(10, "status", &ENGINE_STATUS), text(11, "deployment", NAME),
        texts(15, "gpu_uuids", GPUS, NAME), text(16, "artifact_digest", DIGEST), text(17, "profile_digest", DIGEST),
    ];
    ENGINE_STATUS EngineStatus 10 * 1024 => [
        text(1, "name", NAME), text(3, "cause", SENTENCE), text(4, "output_tail", 4096),
        text(6, "profile_digest", DIGEST), text(9, "code", ID),
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
    JOB_LEASE JobLease IN_FRAME => [
        text(1, "job_id", ID), text(2, "lease_id", ID), one(10, "artifact_acquire", &ARTIFACT_ACQUIRE),
        one(11, "artifact_remove", &ARTIFACT_REMOVE), one(12, "runtime_probe", &RUNTIME_PROBE),
        one(13, "runtime_health", &RUNTIME_HEALTH), one(14, "runtime_unload", &RUNTIME_UNLOAD),
        one(15, "deployment_load", &DEPLOYMENT_LOAD), one(16, "deployment_health", &DEPLOYMENT_HEALTH),
        one(17, "deployment_drain", &DEPLOYMENT_DRAIN), one(18, "deployment_unload", &DEPLOYMENT_UNLOAD),
    ];
    JOB_LEASE_ACK JobLeaseAck 5 * 1024 => [text(3, "message", SENTENCE)];
    JOB_READY JobReady 16 * 1024 => [many(2, "running", JOBS, &RUNNING_JOB)];
    RUNNING_JOB RunningJob 192 => [text(1, "job_id", ID), text(3, "lease_id", ID)];
    JOB_READY_ACK JobReadyAck 8 * 1024 => [texts(1, "cancel_job_ids", JOBS, ID)];
    JOB_PROGRESS JobProgress 4 * 1024 => [
        text(1, "job_id", ID), text(2, "lease_id", ID), text(3, "phase", WORD), text(6, "unit", WORD),
        text(7, "message", 3 * 1024),
    ];
    JOB_PROGRESS_ACK JobProgressAck 64 => [];
    JOB_COMPLETE JobComplete IN_FRAME => [
        text(1, "job_id", ID), text(2, "lease_id", ID), one(10, "artifact_acquire", &ARTIFACT_ACQUIRE_REPORT),
        one(11, "artifact_remove", &ARTIFACT_REMOVE_REPORT), one(12, "runtime_probe", &RUNTIME_PROBE_REPORT),
        one(13, "runtime_health", &RUNTIME_HEALTH_REPORT), one(14, "runtime_unload", &RUNTIME_UNLOAD_REPORT),
        one(15, "deployment_load", &DEPLOYMENT_LOAD_REPORT),
        one(16, "deployment_health", &DEPLOYMENT_HEALTH_REPORT),
        one(17, "deployment_drain", &DEPLOYMENT_DRAIN_REPORT),
        one(18, "deployment_unload", &DEPLOYMENT_UNLOAD_REPORT),
    ];
    JOB_FAIL JobFail IN_FRAME => [
        text(1, "job_id", ID), text(2, "lease_id", ID), one(3, "failure", &JOB_FAILURE),
    ];
    JOB_FAILURE JobFailure 56 * 1024 => [
        text(1, "code", ID), text(2, "message", SENTENCE), text(3, "output_tail", TAIL),
        many(5, "layers", LAYERS, &EVIDENCE), text(6, "path", MODEL),
    ];
    JOB_END_ACK JobEndAck 16 => [];
    EVIDENCE Evidence 1280 => [text(1, "layer", WORD), text(3, "detail", 1024)];
    ARTIFACT_FILE ArtifactFile 640 => [text(1, "path", PATH), text(3, "sha256", 32)];
    ARTIFACT_ACQUIRE ArtifactAcquire 56 * 1024 => [
        text(1, "repository", MODEL), text(2, "revision", NAME), many(3, "files", FILES, &ARTIFACT_FILE),
        text(4, "source", ID), text(5, "root", ID),
    ];
    ARTIFACT_ACQUIRE_REPORT ArtifactAcquireReport 1024 => [
        text(4, "digest", DIGEST), text(5, "path", PATH), text(6, "root", ID),
    ];
    ARTIFACT Artifact 1280 => [
        text(1, "repository", MODEL), text(2, "revision", NAME), text(3, "digest", DIGEST), text(5, "root", ID),
        text(6, "path", PATH),
    ];
    NODE_ARTIFACTS NodeArtifacts IN_FRAME => [many(1, "artifacts", ARTIFACTS, &ARTIFACT)];
    ARTIFACT_REMOVE ArtifactRemove 1024 => [
        text(1, "repository", MODEL), text(2, "revision", NAME), text(3, "digest", DIGEST), text(4, "root", ID),
    ];
    ARTIFACT_REMOVE_REPORT ArtifactRemoveReport 64 => [];
    ENGINE_ARTIFACT EngineArtifact 2 * 1024 => [
        text(1, "repository", MODEL), text(2, "revision", NAME), text(3, "digest", DIGEST), text(4, "root", ID),
        text(5, "path", PATH), text(6, "main_file", PATH),
    ];
    DEPLOYMENT_LOAD DeploymentLoad 48 * 1024 => [
        text(1, "deployment", ID), text(5, "engine", NAME), text(6, "kind", NAME), text(7, "profile_json", PROFILE),
        text(8, "profile_digest", DIGEST), text(9, "model", MODEL), texts(10, "aliases", 64, MODEL),
        text(11, "category", NAME), one(12, "artifact", &ENGINE_ARTIFACT), texts(13, "gpu_uuids", GPUS, NAME),
    ];
    DEPLOYMENT_LOAD_REPORT DeploymentLoadReport 512 => [text(1, "engine", NAME), text(2, "profile_digest", DIGEST)];
    DEPLOYMENT_HEALTH DeploymentHealth 256 => [text(1, "engine", NAME)];
    DEPLOYMENT_HEALTH_REPORT DeploymentHealthReport 24 * 1024 => [one(1, "health", &ENGINE_HEALTH)];
    DEPLOYMENT_DRAIN DeploymentDrain 256 => [text(1, "engine", NAME)];
    DEPLOYMENT_DRAIN_REPORT DeploymentDrainReport 256 => [text(1, "engine", NAME)];
    DEPLOYMENT_UNLOAD DeploymentUnload 256 => [text(1, "engine", NAME)];
    DEPLOYMENT_UNLOAD_REPORT DeploymentUnloadReport 256 => [text(1, "engine", NAME)];
    RUNTIME_PROBE RuntimeProbe 54 * 1024 => [one(1, "load", &DEPLOYMENT_LOAD), text(2, "input", SENTENCE)];
    RUNTIME_PROBE_REPORT RuntimeProbeReport 24 * 1024 => [
        many(1, "layers", LAYERS, &EVIDENCE), text(6, "engine_version", NAME),
    ];
    RUNTIME_HEALTH RuntimeHealth 256 => [text(1, "engine", NAME)];
    RUNTIME_HEALTH_REPORT RuntimeHealthReport 56 * 1024 => [many(1, "engines", ENGINES, &ENGINE_HEALTH)];
    ENGINE_HEALTH EngineHealth 22 * 1024 => [text(1, "engine", NAME), many(3, "layers", LAYERS, &EVIDENCE)];
    RUNTIME_UNLOAD RuntimeUnload 256 => [text(1, "engine", NAME)];
    RUNTIME_UNLOAD_REPORT RuntimeUnloadReport 256 => [text(1, "engine", NAME)];
    ENGINE_OUTPUT_REQUEST EngineOutputRequest 512 => [text(1, "engine", NAME), text(3, "cursor", ID)];
    ENGINE_OUTPUT EngineOutput IN_FRAME => [texts(1, "lines", LINES, LINE), text(2, "cursor", ID)];
    ENGINE_CONTROL EngineControl 256 => [text(1, "engine", NAME)];
    ENGINE_CONTROL_ACK EngineControlAck 5 * 1024 => [text(2, "message", SENTENCE)];
}
