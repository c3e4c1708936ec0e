//! The messages of both boundaries: `control` (control plane and edge) and `node` (edge and node), generated from
//! `proto/`, committed, and compared with a fresh generation by this module's test
//! (`UMBEL_REGENERATE=1 cargo test -p umbel-contracts --lib proto` writes them anew).
//!
//! Invariant: nothing below `proto/` is edited by hand.
#![allow(missing_docs, clippy::all, reason = "generated from the .proto files, whose comments it carries")]

/// `umbel.control.v1`: what an edge and a control plane say to each other.
pub mod control {
    include!("proto/umbel.control.v1.rs");

    // Holds a token's secret.
    impl std::fmt::Debug for EdgeEnrollRequest {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("EdgeEnrollRequest")
                .field("token_id", &self.token_id)
                .field("edge_id", &self.edge_id)
                .field("display_name", &self.display_name)
                .field("software_version", &self.software_version)
                .finish_non_exhaustive()
        }
    }
}

/// `umbel.node.v1`: what a node and its edge say to each other.
pub mod node {
    include!("proto/umbel.node.v1.rs");

    // Holds a token's secret.
    impl std::fmt::Debug for NodeEnrollRequest {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("NodeEnrollRequest")
                .field("token_id", &self.token_id)
                .field("name", &self.name)
                .field("software_version", &self.software_version)
                .finish_non_exhaustive()
        }
    }

    // A value can be anything that a client sent.
    impl std::fmt::Debug for Header {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Header").field("name", &self.name).finish_non_exhaustive()
        }
    }
}

#[cfg(test)]
mod tests;
