//! The keys of each adapter's profile, as a type and as a table made of the same words.
//!
//! Owns names, bounds and one sentence each. Invariant: what stands in the table stands in the type, since one macro
//! writes both.

use serde::{Deserialize, Serialize};

use super::kinds::{Counts, Figure, Holds, Key, NumberOrWord};
use crate::config::{ByteSize, HumanDuration};

/// A profile: `key: Type = bounds` a line, with its sentence before it.
macro_rules! profile {
    ($(#[doc = $about:literal])* $name:ident { $($(#[doc = $says:literal])+ $key:ident: $type:ty = $holds:expr,)* }) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($(#[doc = $says])+ #[serde(skip_serializing_if = "Option::is_none")] pub $key: Option<$type>,)*
        }

        impl $name {
            /// Its keys.
            pub const KEYS: &'static [Key] = &[
                $(Key { name: stringify!($key), holds: $holds, says: concat!($($says),+) },)*
            ];
        }
    };
}

const SECOND: u64 = 1_000;
const HOUR: u64 = 3_600 * SECOND;
const MIB: u64 = 1024 * 1024;
const TIB: u64 = 1024 * 1024 * MIB;
/// Longest context of a model: none has more.
const CONTEXT_MAX: u32 = 16 * 1024 * 1024;
/// Parts that a model is divided into: GPUs of a replica.
const PARTS_MAX: u32 = 512;
/// Requests at once inside of an engine.
const REQUESTS_MAX: u32 = 8192;
/// From start to ready: a terabyte of weights over a slow network takes hours.
const START: Holds = Holds::Duration(SECOND, 12 * HOUR);
/// Number formats of weights.
const DTYPE: Holds = Holds::Word(&["auto", "half", "float16", "bfloat16", "float", "float32"]);
/// Number formats of llama.cpp's cache.
const CACHE_TYPE: Holds =
    Holds::Word(&["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]);

profile! {
    /// The profile of vLLM's server.
    VllmProfile {
        /// From start to ready; 30 minutes if not said.
        start_timeout: HumanDuration = START,
        /// Seconds that running requests get when it is told to end; 8 if not said.
        shutdown_timeout: u32 = Holds::Number(0, 600),
        /// GPUs that each layer is divided over; the GPUs of the replica if not said.
        tensor_parallel_size: u32 = Holds::Number(1, PARTS_MAX),
        /// Groups of GPUs that the layers are divided over.
        pipeline_parallel_size: u32 = Holds::Number(1, PARTS_MAX),
        /// Copies of the model inside of one engine.
        data_parallel_size: u32 = Holds::Number(1, PARTS_MAX),
        /// Divide experts over the GPUs instead of each expert's layers.
        enable_expert_parallel: bool = Holds::Flag,
        /// Longest prompt and answer in tokens; the model's own if not said.
        max_model_len: u32 = Holds::Number(1, CONTEXT_MAX),
        /// Share of each GPU's memory that it takes.
        gpu_memory_utilization: Figure = Holds::Figure(50, 990),
        /// Memory of the KV cache a GPU, in place of the share.
        kv_cache_memory_bytes: ByteSize = Holds::Size(MIB, TIB),
        /// Weights that stay in the host's memory, GiB a GPU.
        cpu_offload_gb: Figure = Holds::Figure(0, 4_096_000),
        /// Number format of weights and activations.
        dtype: String = DTYPE,
        /// How the weights are quantized; the model's own word if not said.
        quantization: String = Holds::Name,
        /// Number format of the KV cache.
        kv_cache_dtype: String = Holds::Name,
        /// How the weights are read.
        load_format: String = Holds::Word(&["auto", "safetensors", "fastsafetensors", "gguf", "mistral", "bitsandbytes", "dummy"]),
        /// Requests computed at once; the deployment's capacity if not said.
        max_num_seqs: u32 = Holds::Number(1, REQUESTS_MAX),
        /// Tokens computed in one step.
        max_num_batched_tokens: u32 = Holds::Number(1, CONTEXT_MAX),
        /// Keep what was computed of a prompt's beginning.
        enable_prefix_caching: bool = Holds::Flag,
        /// Divide long prompts over several steps.
        enable_chunked_prefill: bool = Holds::Flag,
        /// Prepare a step while the one before runs.
        async_scheduling: bool = Holds::Flag,
        /// Which request goes first.
        scheduling_policy: String = Holds::Word(&["fcfs", "priority"]),
        /// Tokens of one block of the KV cache.
        block_size: u32 = Holds::Number(1, 1024),
        /// No CUDA graphs: starts sooner, computes slower.
        enforce_eager: bool = Holds::Flag,
        /// How much is compiled before it is ready.
        optimization_level: u32 = Holds::Number(0, 3),
        /// Which kernels compute attention.
        attention_backend: String = Holds::Name,
        /// Do without the own all-reduce between GPUs.
        disable_custom_all_reduce: bool = Holds::Flag,
        /// Seed of everything random.
        seed: u32 = Holds::Number(0, u32::MAX),
        /// How the tokenizer is read.
        tokenizer_mode: String = Holds::Word(&["auto", "slow", "mistral"]),
        /// Where default sampling parameters come from: the model's file, or vLLM's own.
        generation_config: String = Holds::Word(&["auto", "vllm"]),
        /// A chat template among the artifact's files, in place of the model's.
        chat_template: String = Holds::File,
        /// Which parser takes tool calls out of an answer.
        tool_call_parser: String = Holds::Name,
        /// Let the model decide whether it calls a tool.
        enable_auto_tool_choice: bool = Holds::Flag,
        /// Which parser takes the reasoning out of an answer.
        reasoning_parser: String = Holds::Name,
        /// Pictures, videos and sounds that one prompt may have.
        limit_mm_per_prompt: Counts = Holds::Counts(&["image", "video", "audio"], 1024),
        /// Log probabilities that a request may ask for.
        max_logprobs: u32 = Holds::Number(0, 1024),
        /// Tokens that are sent at once in a stream.
        stream_interval: u32 = Holds::Number(1, 1024),
        /// How tokens are guessed ahead, without a second model.
        spec_method: String = Holds::Name,
        /// Tokens guessed ahead.
        spec_tokens: u32 = Holds::Number(1, 64),
    }
}

profile! {
    /// The profile of SGLang's server.
    SglangProfile {
        /// From start to ready; 30 minutes if not said.
        start_timeout: HumanDuration = START,
        /// GPUs that each layer is divided over; the GPUs of the replica if not said.
        tp_size: u32 = Holds::Number(1, PARTS_MAX),
        /// Groups of GPUs that the layers are divided over.
        pp_size: u32 = Holds::Number(1, PARTS_MAX),
        /// Copies of the model inside of one engine.
        dp_size: u32 = Holds::Number(1, PARTS_MAX),
        /// GPUs that experts are divided over.
        ep_size: u32 = Holds::Number(1, PARTS_MAX),
        /// Longest prompt and answer in tokens; the model's own if not said.
        context_length: u32 = Holds::Number(1, CONTEXT_MAX),
        /// Share of each GPU's memory for weights and KV cache.
        mem_fraction_static: Figure = Holds::Figure(50, 990),
        /// Number format of weights and activations.
        dtype: String = DTYPE,
        /// How the weights are quantized; the model's own word if not said.
        quantization: String = Holds::Name,
        /// Number format of the KV cache.
        kv_cache_dtype: String = Holds::Name,
        /// How the weights are read.
        load_format: String = Holds::Word(&["auto", "safetensors", "gguf", "dummy"]),
        /// Requests computed at once; the deployment's capacity if not said.
        max_running_requests: u32 = Holds::Number(1, REQUESTS_MAX),
        /// Tokens of the KV cache.
        max_total_tokens: u32 = Holds::Number(1, u32::MAX),
        /// Tokens of a prompt computed in one step.
        chunked_prefill_size: u32 = Holds::Number(1, CONTEXT_MAX),
        /// Tokens of all prompts computed in one step.
        max_prefill_tokens: u32 = Holds::Number(1, CONTEXT_MAX),
        /// Compute prompts and answers in one step.
        enable_mixed_chunk: bool = Holds::Switch,
        /// Which request goes first.
        schedule_policy: String = Holds::Word(&["lpm", "random", "fcfs", "dfs-weight", "lof", "priority"]),
        /// How carefully requests are let in: above 1 more so.
        schedule_conservativeness: Figure = Holds::Figure(10, 10_000),
        /// Do not keep what was computed of a prompt's beginning.
        disable_radix_cache: bool = Holds::Switch,
        /// Tokens of one page of the KV cache.
        page_size: u32 = Holds::Number(1, 1024),
        /// Which kernels compute attention.
        attention_backend: String = Holds::Name,
        /// Which kernels choose tokens.
        sampling_backend: String = Holds::Name,
        /// Seed of everything random.
        random_seed: u32 = Holds::Number(0, i32::MAX.unsigned_abs()),
        /// How the tokenizer is read.
        tokenizer_mode: String = Holds::Word(&["auto", "slow"]),
        /// A chat template among the artifact's files, in place of the model's.
        chat_template: String = Holds::File,
        /// Which parser takes tool calls out of an answer.
        tool_call_parser: String = Holds::Name,
        /// Which parser takes the reasoning out of an answer.
        reasoning_parser: String = Holds::Name,
        /// Use the model's other senses, where it has some.
        enable_multimodal: bool = Holds::Switch,
        /// Tokens that are sent at once in a stream.
        stream_interval: u32 = Holds::Number(1, 1024),
        /// Seconds of one step after which it ends itself.
        watchdog_timeout: u32 = Holds::Number(10, 86_400),
    }
}

profile! {
    /// The profile of llama.cpp's server.
    LlamaServerProfile {
        /// From start to ready; 10 minutes if not said.
        start_timeout: HumanDuration = START,
        /// Tokens of the whole context; it is divided by the capacity, unless `kv_unified`. The model's own if not said.
        ctx_size: u32 = Holds::Number(1, CONTEXT_MAX),
        /// Threads that compute answers.
        threads: u32 = Holds::Number(1, 1024),
        /// Threads that compute prompts.
        threads_batch: u32 = Holds::Number(1, 1024),
        /// Tokens taken at once.
        batch_size: u32 = Holds::Number(1, 1024 * 1024),
        /// Tokens computed at once.
        ubatch_size: u32 = Holds::Number(1, 1024 * 1024),
        /// Layers in the GPUs' memory.
        gpu_layers: NumberOrWord = Holds::NumberOr(0, 9999, &["auto", "all"]),
        /// How several GPUs divide the model.
        split_mode: String = Holds::Word(&["none", "layer", "row"]),
        /// The GPU that has the whole model, or the results: its number among those of the replica.
        main_gpu: u32 = Holds::Number(0, 63),
        /// Flash attention.
        flash_attn: String = Holds::Word(&["on", "off", "auto"]),
        /// Number format of cached keys.
        cache_type_k: String = CACHE_TYPE,
        /// Number format of cached values.
        cache_type_v: String = CACHE_TYPE,
        /// One cache for all slots.
        kv_unified: bool = Holds::Flag,
        /// The KV cache in the GPUs' memory.
        kv_offload: bool = Holds::Flag,
        /// Prompts and answers of several slots in one step.
        cont_batching: bool = Holds::Flag,
        /// Drop the oldest tokens when the context is full.
        context_shift: bool = Holds::Flag,
        /// Tokens of an earlier prompt that are worth reusing.
        cache_reuse: u32 = Holds::Number(0, 1024 * 1024),
        /// The whole cache of models with sliding windows.
        swa_full: bool = Holds::Switch,
        /// Experts stay in the host's memory.
        cpu_moe: bool = Holds::Switch,
        /// Experts of so many layers stay in the host's memory.
        n_cpu_moe: u32 = Holds::Number(0, 9999),
        /// Map the model's file instead of reading it.
        mmap: bool = Holds::Flag,
        /// How memory is spread over processors.
        numa: String = Holds::Word(&["distribute", "isolate", "numactl"]),
        /// Seed of everything random.
        seed: u32 = Holds::Number(0, u32::MAX),
        /// Longest answer in tokens where a request names none.
        n_predict: u32 = Holds::Number(1, CONTEXT_MAX),
        /// How positions are stretched.
        rope_scaling: String = Holds::Word(&["none", "linear", "yarn"]),
        /// How far positions are stretched.
        rope_scale: Figure = Holds::Figure(1, 1_000_000),
        /// Base of the positions' frequencies.
        rope_freq_base: Figure = Holds::Figure(1, 1_000_000_000_000),
        /// The context that the model was trained with.
        yarn_orig_ctx: u32 = Holds::Number(0, CONTEXT_MAX),
        /// Use the model's own chat template.
        jinja: bool = Holds::Flag,
        /// A chat template among the artifact's files.
        chat_template_file: String = Holds::File,
        /// What becomes of a model's reasoning.
        reasoning_format: String = Holds::Word(&["none", "deepseek", "deepseek-legacy", "auto"]),
        /// The file among the artifact's that sees pictures.
        mmproj: String = Holds::File,
        /// Only embeddings.
        embedding: bool = Holds::Switch,
        /// Only ranking.
        reranking: bool = Holds::Switch,
        /// How an embedding is made of its tokens.
        pooling: String = Holds::Word(&["none", "mean", "cls", "last", "rank"]),
    }
}

profile! {
    /// The profile of a server that is already there.
    ExternalProfile {
        /// Its name in `[endpoints]` of the node's own file.
        endpoint: String = Holds::Name,
    }
}

profile! {
    /// The profile of a program that is started once a request.
    CliProfile {
        /// Its name in `[programs.cli]` of the node's own file.
        program: String = Holds::Name,
        /// Longest run of one request; 10 minutes if not said.
        timeout: HumanDuration = Holds::Duration(SECOND, 12 * HOUR),
    }
}

profile! {
    /// The profile of the built-in engine.
    SimProfile {
        /// Before the first token.
        first_token_delay: HumanDuration = Holds::Duration(0, HOUR),
        /// Between tokens.
        token_delay: HumanDuration = Holds::Duration(0, HOUR),
        /// Tokens of an answer when the request names no limit; 16 if not said.
        tokens: u32 = Holds::Number(1, 1_000_000),
    }
}
