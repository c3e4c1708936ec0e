//! The operation that explains placement: what it takes and gives.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::objects::PlacementObject;

/// Nodes that `placement.explain` tells of in full at most.
pub const EXPLAINED_MAX: u32 = 256;

/// `placement.explain`: of a deployment of the site, or of a document that nobody applies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlacementExplainArgs {
    /// The name of a deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 40))]
    pub deployment: Option<String>,
    /// A whole document as `deployment.apply` takes it; with `deployment` absent. A deployment of its name is taken for
    /// replaced by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<Map<String, Value>>,
    /// Nodes told of in full, at most 256; 32 unless said. The target selector says which they may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 256))]
    pub limit: Option<u32>,
}

/// `placement.explain`.
pub type PlacementExplainResult = PlacementObject;
