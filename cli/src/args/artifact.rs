//! The verbs of `ctl artifact`, with their arguments.
//!
//! Owns parsing only.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Clone, Args)]
pub(crate) struct ArtifactFilter {
    /// Only of this repository, as in Qwen/Qwen3-8B
    #[arg(long, value_name = "REPOSITORY")]
    pub(crate) repository: Option<String>,
    /// Only on these nodes
    #[arg(long, value_name = "SELECTOR")]
    pub(crate) node: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ArtifactVerb {
    /// List the files that are whole and in place on nodes, and which engines need them
    #[command(alias = "ls")]
    List {
        #[command(flatten)]
        filter: ArtifactFilter,
    },
    /// Have nodes fetch and check files ahead of time, and follow that
    #[command(after_help = ACQUIRE_EXAMPLES)]
    Acquire {
        /// A deployment's document, or the `[artifact]` that `resolve` prints; `-`: standard input
        file: PathBuf,
        /// Which nodes, as in gpu-3, label:rack=a or all
        #[arg(long, value_name = "SELECTOR")]
        node: String,
        /// The name of one of their roots [default: their first]
        #[arg(long, value_name = "NAME")]
        root: Option<String>,
        /// Leave so much free there, where that is more than the node's file says
        #[arg(long, value_name = "SIZE")]
        reserve: Option<umbel_contracts::config::ByteSize>,
    },
    /// Have nodes take files away; those that somebody needs stay
    Remove {
        /// As the list has it, with @REVISION where several are there
        artifact: String,
        /// Only from these nodes
        #[arg(long, value_name = "SELECTOR")]
        node: Option<String>,
    },
    /// Find the exact revision, sizes and digests of a model's files: the artifact table of a deployment
    #[command(after_help = RESOLVE_EXAMPLES)]
    Resolve(ArtifactResolve),
}

const ACQUIRE_EXAMPLES: &str = "Examples:
  umbel ctl artifact acquire qwen3.toml --node gpu-3
  umbel ctl artifact acquire qwen3.toml --node all --detach     prints the jobs' ids
  umbel ctl artifact resolve org/model v2 | umbel ctl artifact acquire - --node label:rack=a

What is there already, or half of it, is not fetched again. A deployment brings its files by itself.";

const RESOLVE_EXAMPLES: &str = "Examples:
  umbel ctl artifact resolve Qwen/Qwen3-0.6B --exclude '*.md'
  umbel ctl artifact resolve Qwen/Qwen3-8B-GGUF main --include '*Q4_K_M*' >>qwen3.toml
  umbel ctl artifact resolve org/model v2 --directory /srv/models/org/model --source disk

This host asks the hub; no site is asked or changed. Nodes fetch the files from the source of that name in
their own file, and take nothing whose size or SHA-256 is another.";

#[derive(Debug, Args)]
pub(crate) struct ArtifactResolve {
    /// ORG/NAME
    pub(crate) repository: String,
    /// A commit, or a branch or tag, which becomes the commit that it stands for now
    #[arg(default_value = "main")]
    pub(crate) revision: String,
    /// A hub with the layout of Hugging Face
    #[arg(long, value_name = "URL", default_value = "https://huggingface.co")]
    pub(crate) hub: String,
    /// A file with a token for the hub, 0600
    #[arg(long, value_name = "FILE")]
    pub(crate) hub_token_file: Option<PathBuf>,
    /// The CAs to trust of the hub, PEM [default: the system's]
    #[arg(long, value_name = "FILE")]
    pub(crate) hub_ca_file: Option<PathBuf>,
    /// List and hash the files of this folder instead of asking a hub; the revision stays as it is said
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["hub", "hub_token_file", "hub_ca_file"])]
    pub(crate) directory: Option<PathBuf>,
    /// Only files whose names match; may be repeated. `*` and `?`, in any case
    #[arg(long, value_name = "GLOB")]
    pub(crate) include: Vec<String>,
    /// Not those whose names match; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub(crate) exclude: Vec<String>,
    /// The name that the source has in the nodes' files
    #[arg(long, value_name = "NAME", default_value = "hub")]
    pub(crate) source: String,
}
