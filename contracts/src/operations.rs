//! The operations that an edge can be asked for: names, classes, arguments and results.
//!
//! Owns: one type for the arguments and one for the result of each, and their JSON schemas. Leaves to others: doing
//! them (the edge), and who may ask (roles are compared with the class by control plane and edge).
//! Invariant: arguments with an unknown key are refused; results are only ever extended. No argument is a secret, a
//! shell string, a program path or an address.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::objects::{DeploymentObject, EngineObject, JobObject};
use crate::proto::control::OperationClass;

mod args;
mod artifacts;
mod audit;
mod authority;
mod deployments;
mod jobs;
mod keys;
mod nodes;
mod placement;
mod requests;
mod results;
mod settings;

pub use args::*;
pub use artifacts::*;
pub use audit::*;
pub use authority::*;
pub use deployments::*;
pub use jobs::*;
pub use keys::*;
pub use nodes::*;
pub use placement::*;
pub use requests::*;
pub use results::*;
pub use settings::*;

/// Longest selector, reason or confirmation in a command, in bytes.
pub const LONGEST_TEXT: usize = 1024;
/// Largest arguments of a command, in bytes of JSON: a document of [`crate::deployment::DOCUMENT_BYTES_MAX`] and what is beside
/// it fit into one message of the wire.
pub const LARGEST_ARGS: usize = 48 * 1024;
/// Tokens that one `enrollment.create` makes: as many as [`LARGEST_ARGS`] holds, whatever their names.
pub const TOKENS_AT_ONCE: usize = 128;
/// Largest result of a command, in bytes of JSON.
pub const LARGEST_RESULT: usize = 1024 * 1024;
/// Largest result that an edge stores with a command, in bytes of JSON.
pub const LARGEST_STORED_RESULT: usize = 8 * 1024;
/// Keys that a command's metadata may have; nothing else travels there.
pub const METADATA_KEYS: [&str; 4] = ["actor", "role", "correlation_id", "client"];
/// All keys and values of a command's metadata together, in bytes.
pub const LARGEST_METADATA: usize = 1024;

/// That arguments are no larger than a command carries.
///
/// # Errors
/// One sentence with the bound, and by its path the field that takes most of it.
pub fn check_size(args: &Map<String, Value>) -> Result<(), String> {
    let size = |value: &Value| serde_json::to_vec(value).map_or(usize::MAX, |text| text.len());
    let whole = serde_json::to_vec(args).map_or(usize::MAX, |text| text.len());
    if whole <= LARGEST_ARGS {
        return Ok(());
    }
    let (mut path, mut at, mut takes) = (String::new(), args, whole);
    // The innermost field that is more than half of it all.
    loop {
        let largest = at.iter().map(|(key, value)| (size(value), key, value)).max_by_key(|(size, ..)| *size);
        let Some((own, key, value)) = largest.filter(|(own, ..)| *own > whole / 2) else { break };
        // A key of a map may be anybody's text.
        let key: String = key.chars().take(64).flat_map(char::escape_default).collect();
        path = if path.is_empty() { key } else { format!("{path}.{key}") };
        takes = own;
        let Value::Object(within) = value else { break };
        at = within;
    }
    let bound = format!("args are {whole} bytes of JSON, and at most {LARGEST_ARGS} are allowed");
    Err(if path.is_empty() { bound } else { format!("{bound}: {path} takes {takes} of them") })
}

/// What an operation changes, and so who may ask for it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, serde::Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Nothing. Neither stored nor audited.
    Read,
    /// Running state.
    Operate,
    /// Tokens, credentials, keys, identities; and every operation whose class is not known.
    Admin,
}

impl Class {
    /// Its spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }

    /// From the wire's number; one that is not known needs the most.
    #[must_use]
    pub fn from_number(number: i32) -> Self {
        match OperationClass::try_from(number) {
            Ok(OperationClass::Read) => Self::Read,
            Ok(OperationClass::Operate) => Self::Operate,
            _ => Self::Admin,
        }
    }

    /// For the wire.
    #[must_use]
    pub const fn to_proto(self) -> OperationClass {
        match self {
            Self::Read => OperationClass::Read,
            Self::Operate => OperationClass::Operate,
            Self::Admin => OperationClass::Admin,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Not one of the three words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a class is read, operate or admin")]
pub struct UnknownClass;

impl FromStr for Class {
    type Err = UnknownClass;

    fn from_str(text: &str) -> Result<Self, UnknownClass> {
        [Self::Read, Self::Operate, Self::Admin]
            .into_iter()
            .find(|class| class.as_str() == text)
            .ok_or(UnknownClass)
    }
}

/// One operation as a type: its name, its class, what it takes and what it gives.
pub trait Operation {
    /// `node.drain`.
    const NAME: &'static str;
    /// Who may ask.
    const CLASS: Class;
    /// What its selector chooses.
    const TARGET: Target;
    /// Its arguments; unknown keys are refused.
    type Args: DeserializeOwned + Serialize + JsonSchema;
    /// What it gives when it succeeds.
    type Result: DeserializeOwned + Serialize + JsonSchema;
}

/// What the target selector of an operation chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// It has none; a selector is refused.
    Nothing,
    /// Nodes; an empty selector is refused, since "all" is to be said.
    Nodes,
    /// Nodes; an empty selector means all (reading only).
    AnyNodes,
}

/// What can be said of an operation without its types.
#[derive(Clone, Copy)]
pub struct Spec {
    /// `node.drain`.
    pub name: &'static str,
    /// Who may ask.
    pub class: Class,
    /// What its selector chooses.
    pub target: Target,
    args: fn(&mut SchemaGenerator) -> Schema,
    result: fn(&mut SchemaGenerator) -> Schema,
}

impl Spec {
    const fn of<O: Operation>() -> Self {
        Self {
            name: O::NAME,
            class: O::CLASS,
            target: O::TARGET,
            args: SchemaGenerator::subschema_for::<O::Args>,
            result: SchemaGenerator::subschema_for::<O::Result>,
        }
    }

    /// JSON schema of its arguments.
    #[must_use]
    pub fn args_schema(&self) -> Schema {
        inlined(self.args)
    }

    /// JSON schema of its result.
    #[must_use]
    pub fn result_schema(&self) -> Schema {
        inlined(self.result)
    }
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.class)
    }
}

fn inlined(schema: fn(&mut SchemaGenerator) -> Schema) -> Schema {
    let settings =
        schemars::generate::SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    schema(&mut settings.into_generator())
}

/// Declares the operations: the types and the table of them all.
macro_rules! operations {
    ($($(#[$about:meta])* $type:ident = $name:literal, $class:ident, $target:ident, $args:ty => $result:ty;)+) => {
        $(
            $(#[$about])*
            #[derive(Clone, Copy, Debug)]
            pub struct $type;

            impl Operation for $type {
                const NAME: &'static str = $name;
                const CLASS: Class = Class::$class;
                const TARGET: Target = Target::$target;
                type Args = $args;
                type Result = $result;
            }
        )+

        /// Every operation of this build, by name.
        pub const ALL: &[Spec] = &[$(Spec::of::<$type>()),+];
    };
}

operations! {
    /// Gives a page of the site's audit as it is chained.
    AuditExport = "audit.export", Read, Nothing, AuditExportArgs => AuditExportResult;
    /// Searches the site's audit.
    AuditQuery = "audit.query", Read, Nothing, AuditQueryArgs => AuditQueryResult;
    /// Reads the site's audit, newest last.
    AuditTail = "audit.tail", Read, Nothing, AuditTailArgs => AuditTailResult;
    /// Checks the chain of the site's audit.
    AuditVerify = "audit.verify", Read, Nothing, NoArgs => AuditVerifyResult;
    /// Makes an API key known by its hash.
    ApiKeyCreate = "apikey.create", Admin, Nothing, ApiKeyCreateArgs => ApiKeyObject;
    /// Lists API keys, without anything secret.
    ApiKeyList = "apikey.list", Read, Nothing, ListArgs => ApiKeyListResult;
    /// Ends an API key.
    ApiKeyRevoke = "apikey.revoke", Admin, Nothing, ApiKeyRevokeArgs => ApiKeyObject;
    /// Changes what an API key may do; its secret stays.
    ApiKeyUpdate = "apikey.update", Admin, Nothing, ApiKeyUpdateArgs => ApiKeyObject;
    /// Says what was used with each API key of each model.
    ApiKeyUsage = "apikey.usage", Read, Nothing, ApiKeyUsageArgs => ApiKeyUsageResult;
    /// Has nodes fetch and check an artifact; each is a job.
    ArtifactAcquire = "artifact.acquire", Operate, Nodes, ArtifactAcquireArgs => JobsResult;
    /// Lists the artifacts that are whole and in place on nodes.
    ArtifactList = "artifact.list", Read, AnyNodes, ArtifactListArgs => ArtifactListResult;
    /// Has nodes take an artifact away; each is a job, and one that an engine runs from stays.
    ArtifactRemove = "artifact.remove", Operate, Nodes, ArtifactRemoveArgs => JobsResult;
    /// Goes a step of a change of the site's certificate authority.
    CaRotate = "ca.rotate", Admin, Nothing, CaRotateArgs => CaResult;
    /// Shows the site's certificate authorities, and which nodes lack the newest.
    CaShow = "ca.show", Read, Nothing, NoArgs => CaResult;
    /// Cancels a command that runs.
    CommandCancel = "command.cancel", Operate, Nothing, CommandArgs => CommandStateResult;
    /// Says where a command stands.
    CommandShow = "command.show", Read, Nothing, CommandArgs => CommandStateResult;
    /// Has the site serve what a document says, or as it says from now on.
    DeploymentApply = "deployment.apply", Operate, Nothing, DeploymentApplyArgs => DeploymentObject;
    /// Takes a deployment away for good, its replicas first.
    DeploymentDelete = "deployment.delete", Operate, Nothing, DeploymentArgs => DeploymentObject;
    /// Takes replicas away once their running requests have ended.
    DeploymentDrain = "deployment.drain", Operate, Nothing, DeploymentDrainArgs => DeploymentObject;
    /// Lists deployments with their replicas.
    DeploymentList = "deployment.list", Read, Nothing, ListArgs => DeploymentListResult;
    /// Has a deployment's replicas come up again, those too that were given up.
    DeploymentLoad = "deployment.load", Operate, Nothing, DeploymentArgs => DeploymentObject;
    /// Has nothing begun for a deployment and nothing taken away, until that is taken back.
    DeploymentPause = "deployment.pause", Operate, Nothing, DeploymentPauseArgs => DeploymentObject;
    /// Replaces replicas one after the other.
    DeploymentRestart = "deployment.restart", Operate, Nothing, DeploymentReplicaArgs => DeploymentObject;
    /// Shows one deployment whole.
    DeploymentShow = "deployment.show", Read, Nothing, DeploymentArgs => DeploymentObject;
    /// Takes replicas away at once; their running requests are broken off.
    DeploymentUnload = "deployment.unload", Operate, Nothing, DeploymentReplicaArgs => DeploymentObject;
    /// Makes a consistent copy of the edge's store while it runs.
    EdgeBackup = "edge.backup", Admin, Nothing, EdgeBackupArgs => EdgeBackupResult;
    /// Lists engines.
    EngineList = "engine.list", Read, AnyNodes, ListArgs => EngineListResult;
    /// Gives the last lines of an engine's output, or what came since.
    EngineLogs = "engine.logs", Read, Nothing, EngineLogsArgs => EngineLogsResult;
    /// Has an engine's process start anew; a failed one is tried again.
    EngineRestart = "engine.restart", Operate, Nothing, EngineControlArgs => EngineObject;
    /// Shows one engine.
    EngineShow = "engine.show", Read, Nothing, EngineArgs => EngineObject;
    /// Ends an engine's process; it stays so until it is restarted.
    EngineStop = "engine.stop", Operate, Nothing, EngineControlArgs => EngineObject;
    /// Makes an enrollment token known by its hash.
    EnrollmentCreate = "enrollment.create", Admin, Nothing, EnrollmentCreateArgs => EnrollmentCreateResult;
    /// Lists enrollment tokens, without anything secret.
    EnrollmentList = "enrollment.list", Read, Nothing, ListArgs => EnrollmentListResult;
    /// Ends an enrollment token that was not used.
    EnrollmentRevoke = "enrollment.revoke", Admin, Nothing, EnrollmentRevokeArgs => EnrollmentObject;
    /// Asks for a job's end.
    JobCancel = "job.cancel", Operate, Nothing, JobArgs => JobObject;
    /// Lists jobs of nodes, those that run and those that ended.
    JobList = "job.list", Read, AnyNodes, JobListArgs => JobListResult;
    /// Shows one job with its report.
    JobShow = "job.show", Read, Nothing, JobArgs => JobObject;
    /// Lets in a node whose certificate is newer than the backup that the edge was restored from.
    CredentialApprove = "node.credential.approve", Admin, Nothing, CredentialApproveArgs => CredentialsResult;
    /// Ends nodes' credentials at once; each has to be enrolled anew with a token that replaces it.
    CredentialRevoke = "node.credential.revoke", Admin, Nodes, NoArgs => CredentialsResult;
    /// Has nodes make a new key and get a new certificate.
    CredentialRotate = "node.credential.rotate", Admin, Nodes, NoArgs => CredentialsResult;
    /// Retires a node for good.
    NodeDecommission = "node.decommission", Admin, Nodes, NodeDecommissionArgs => NodeDecommissionResult;
    /// Keeps nodes out until they are enabled again; they keep their identity.
    NodeDisable = "node.disable", Operate, Nodes, NoArgs => NodesResult;
    /// Ends new leases on nodes and waits for those that are held.
    NodeDrain = "node.drain", Operate, Nodes, NodeDrainArgs => NodesResult;
    /// Says whether nodes may get application traffic.
    NodeEligible = "node.eligible", Operate, Nodes, NodeEligibleArgs => NodesResult;
    /// Lets disabled nodes in again.
    NodeEnable = "node.enable", Operate, Nodes, NoArgs => NodesResult;
    /// Sets and takes away labels of nodes.
    NodeLabel = "node.label", Operate, Nodes, NodeLabelArgs => NodesResult;
    /// Lists nodes.
    NodeList = "node.list", Read, AnyNodes, NodeListArgs => NodeListResult;
    /// Says of exactly these nodes whether they can serve, each check with its next step.
    NodeReadinessCheck = "node.readiness", Read, Nodes, NoArgs => NodeReadinessResult;
    /// Gives one node another display name.
    NodeRename = "node.rename", Operate, Nodes, NodeRenameArgs => NodesResult;
    /// Shows nodes whole.
    NodeShow = "node.show", Read, Nodes, NoArgs => NodeListResult;
    /// Takes a drain back.
    NodeUndrain = "node.undrain", Operate, Nodes, NoArgs => NodesResult;
    /// Says where a deployment's replicas can run, and of each node why not.
    PlacementExplain = "placement.explain", Read, AnyNodes, PlacementExplainArgs => PlacementExplainResult;
    /// Shows the queue of each model.
    QueueShow = "queue.show", Read, Nothing, QueueShowArgs => QueueShowResult;
    /// Lists requests that run, and the last ones that ended.
    RequestList = "request.list", Read, Nothing, RequestListArgs => RequestListResult;
    /// Gives a lease free whose node never confirmed its end.
    RequestRelease = "request.release", Operate, Nothing, RequestReleaseArgs => RequestReleaseResult;
    /// Shows the requests of one correlation id.
    RequestShow = "request.show", Read, Nothing, RequestShowArgs => RequestShowResult;
    /// Has nodes look at their engines, layer by layer; each look is a job.
    RuntimeHealth = "runtime.health", Operate, Nodes, RuntimeHealthArgs => JobsResult;
    /// Has nodes start an engine beside those that serve, look at it, measure it and end it; each is a job.
    RuntimeProbe = "runtime.probe", Operate, Nodes, RuntimeProbeArgs => JobsResult;
    /// Has nodes end and forget an engine that no deployment wants any more; each is a job.
    RuntimeUnload = "runtime.unload", Operate, Nodes, RuntimeUnloadArgs => JobsResult;
    /// Compares two versions of the settings.
    SettingsDiff = "settings.diff", Read, Nothing, SettingsDiffArgs => SettingsDiffResult;
    /// Shows the site's settings, and how far they have got.
    SettingsGet = "settings.get", Read, Nothing, SettingsGetArgs => SettingsGetResult;
    /// Lists the versions of the settings.
    SettingsHistory = "settings.history", Read, Nothing, ListArgs => SettingsHistoryResult;
    /// Makes a new version that says what an older one said.
    SettingsRollback = "settings.rollback", Admin, Nothing, SettingsRollbackArgs => SettingsChangedResult;
    /// Changes the site's settings.
    SettingsSet = "settings.set", Admin, Nothing, SettingsSetArgs => SettingsChangedResult;
}

/// The operation of a name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Spec> {
    ALL.iter().find(|spec| spec.name == name)
}

#[cfg(test)]
mod tests;
