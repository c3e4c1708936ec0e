//! The store boundary: what an edge or a control plane must not forget.
//!
//! Owns the file, its one writer thread with group commit, its reader, the audit chain, positions, high-water marks,
//! backups and what is done about damage.
//! Leaves the meaning of rows to its users: a row is a table name, a key and bytes. No redb type leaves
//! this crate. Invariant: an answered commit is durable, and one whose preconditions failed changed nothing.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use umbel_store::{AuditRecord, Commit, Store};
//! let store = Store::open("/var/lib/umbel/edge/store.redb".as_ref(), "edge")?;
//! let commit = Commit::new()
//!     .require_absent("nodes", "n1")
//!     .put("nodes", "n1", b"row".to_vec())
//!     .audit(AuditRecord::new("node.enroll", "n1", "succeeded"));
//! let position = store.commit(commit).await?;
//! assert_eq!(store.load("nodes").await?.len(), 1);
//! # let _ = position; Ok(()) }
//! ```

mod audit;
mod backend;
mod backup;
mod chain;
mod commit;
mod core;
mod error;
mod fold;
mod handle;
pub mod limits;
mod locks;
mod marks;
mod memory;
mod observed;
mod offline;
mod opening;
mod outage;
mod overlay;
mod owed;
mod reader;
mod reading;
mod redb_file;
mod rescue;
mod restore;
#[cfg(feature = "simulation")]
pub mod simulation;
mod switch;
mod times;
mod told;
mod writer;

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod safety;
#[cfg(test)]
mod tests;

pub use audit::{AuditAt, AuditBroken, AuditCheck, AuditEntry, AuditHead, AuditLine, AuditRecord, verify};
pub use backup::{Backup, BackupError};
pub use commit::{Change, Commit, Effect, Expected, Position, Precondition, Row};
pub use error::{CommitError, Gone, OpenError, ReadError, RestoreError};
pub use handle::{Health, Store};
pub use marks::HighWater;
pub use observed::Observed;
pub use offline::{BackedUp, BackupFolder, Offline, OfflineError, Over, PutBack};
pub use opening::Origin;
pub use owed::{Amend, Owed, Settled};
pub use restore::{Restored, Restoring};
pub use switch::WriteSwitch;
pub use times::{COMMIT_BUCKETS, CommitTimes};
pub use told::Unreadable;
