//! `ctl model`: what a site should serve, and why it cannot.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum ModelVerb {
    /// Say where its replicas can run and why not elsewhere, with what would help; exit code 3 if one has no place
    Why {
        /// The deployment's name
        name: String,
        /// Tell in full only of these nodes: `node:NAME`, `label:KEY=VALUE`, `gpu:GLOB`
        #[arg(long, value_name = "SELECTOR")]
        nodes: Option<String>,
        /// Nodes told of in full
        #[arg(short = 'n', long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=256))]
        limit: u32,
    },
    /// Say where a document's replicas would run, without applying it; exit code 3 if they do not fit
    Plan {
        /// The document, TOML or JSON
        file: PathBuf,
        /// Tell in full only of these nodes: `node:NAME`, `label:KEY=VALUE`, `gpu:GLOB`
        #[arg(long, value_name = "SELECTOR")]
        nodes: Option<String>,
        /// Nodes told of in full
        #[arg(short = 'n', long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=256))]
        limit: u32,
    },
}
