//! What may never stand in a profile, with the reason: engines have options that no deployment may touch.
//!
//! Invariant: nothing of this list is a key of an engine that has a process (a test looks).

const BIND: &str = "where an engine listens is not a deployment's to say: it is bound to loopback on a free port by the node";
const KEY: &str = "the node makes the engine's key itself, for each start anew";
const CODE: &str = "code that comes with a model is never run";
const FREE: &str = "there are no free arguments or variables: a profile has the keys that its adapter knows";
const MODEL: &str = "model, names and files come from the deployment's own fields";
const CONTENT: &str = "what is asked and answered is never recorded";
const OUTSIDE: &str = "an engine reaches nothing outside of its host";

/// Keys of any engine that are refused by name.
pub(super) static REFUSED: &[(&str, &str)] = &[
    ("host", BIND),
    ("port", BIND),
    ("uds", BIND),
    ("reuse_port", BIND),
    ("grpc_port", BIND),
    ("nccl_port", BIND),
    ("root_path", BIND),
    ("api_prefix", BIND),
    ("ssl_keyfile", BIND),
    ("ssl_certfile", BIND),
    ("ssl_key_file", BIND),
    ("ssl_cert_file", BIND),
    ("allowed_origins", BIND),
    ("master_addr", BIND),
    ("master_port", BIND),
    ("dist_init_addr", BIND),
    ("data_parallel_address", BIND),
    ("data_parallel_rpc_port", BIND),
    ("rpc", BIND),
    ("api_key", KEY),
    ("api_key_file", KEY),
    ("admin_api_key", KEY),
    ("trust_remote_code", CODE),
    ("code_revision", CODE),
    ("middleware", CODE),
    ("worker_cls", CODE),
    ("worker_extension_cls", CODE),
    ("scheduler_cls", CODE),
    ("logits_processors", CODE),
    ("tool_parser_plugin", CODE),
    ("reasoning_parser_plugin", CODE),
    ("io_processor_plugin", CODE),
    ("enable_custom_logit_processor", CODE),
    ("trust_request_chat_template", CODE),
    ("tools", CODE),
    ("args", FREE),
    ("extra_args", FREE),
    ("arguments", FREE),
    ("options", FREE),
    ("env", FREE),
    ("environment", FREE),
    ("ld_preload", FREE),
    ("program", FREE),
    ("command", FREE),
    ("config", FREE),
    ("model", MODEL),
    ("model_path", MODEL),
    ("model_file", MODEL),
    ("model_url", MODEL),
    ("hf_repo", MODEL),
    ("served_model_name", MODEL),
    ("alias", MODEL),
    ("revision", MODEL),
    ("parallel", MODEL),
    ("device", MODEL),
    ("device_ids", MODEL),
    ("base_gpu_id", MODEL),
    ("enable_log_requests", CONTENT),
    ("enable_log_outputs", CONTENT),
    ("log_requests", CONTENT),
    ("log_prompts_dir", CONTENT),
    ("log_file", CONTENT),
    ("slot_save_path", CONTENT),
    ("download_dir", OUTSIDE),
    ("hf_token", OUTSIDE),
    ("otlp_traces_endpoint", OUTSIDE),
    ("allowed_local_media_path", OUTSIDE),
    ("media_path", OUTSIDE),
    ("tool_server", OUTSIDE),
    ("url", OUTSIDE),
];

/// Why a key may not stand in a profile, whichever way it is written.
pub(super) fn why(key: &str) -> Option<&'static str> {
    let plain = key.trim_start_matches('-').to_ascii_lowercase().replace('-', "_");
    REFUSED.iter().find(|(name, _)| *name == plain).map(|(_, why)| *why)
}
