//! Every bound of the store, with its reason.
//!
//! Owns numbers only. Invariant: nothing queued, kept or accepted by the store is without one of these.

use std::time::Duration;

/// Operations that may wait for the writer thread. A caller beyond it waits in its own task; the storm of
/// enrollments that follows a site's power cut fits at once.
pub const QUEUED_OPERATIONS: usize = 2_048;

/// Changes that are in force and wait for a store that can be written: above what people revoke and drain by hand
/// during an outage, and some megabytes.
pub const OWED_OPERATIONS: usize = 8_192;

/// Operations that share one transaction. One sync costs about as much as a thousand small rows, so a
/// larger batch would only delay the first answer.
pub const BATCH_OPERATIONS: usize = 1_024;

/// Bytes of values in one transaction, so that a batch cannot hold the process's memory.
pub const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// Longest table name, in bytes.
pub const TABLE_NAME: usize = 32;

/// Longest key, in bytes.
pub const KEY: usize = 512;

/// Longest value, in bytes: a stored command result is 8 KiB, a node row some tens.
pub const VALUE: usize = 1024 * 1024;

/// Effects and preconditions of one commit: what ends the credentials of 500 nodes at once.
pub const EFFECTS: usize = 1_536;

/// Positions that `changes_since` can still tell; older ones are gone and the reader loads anew.
pub const CHANGES_KEPT: u64 = 10_000;

/// Audit entries kept unless its user says otherwise: about 400 MiB.
pub const AUDIT_KEPT: u64 = 1_000_000;

/// How long audit entries are kept unless its user says otherwise: a year and a month, for a yearly review.
pub const AUDIT_KEPT_FOR: Duration = Duration::from_secs(400 * 24 * 3600);

/// Longest text of one audit field, in bytes; longer ones are cut.
pub const AUDIT_FIELD: usize = 1_024;

/// Most audit entries in one answer.
pub const AUDIT_PAGE: usize = 1_000;

/// redb's page cache. The hot state lives in its users' memory; the default of 1 GiB would be the process.
pub const PAGE_CACHE: usize = 8 * 1024 * 1024;

/// A store that could not be written is opened anew at most this often.
pub const REOPEN_EVERY: Duration = Duration::from_secs(1);

/// A file above this is compacted when it is opened, if it is mostly free.
pub const COMPACT_ABOVE: u64 = 32 * 1024 * 1024;

/// Pages of 4 KiB that a store opened on a full disk keeps in memory: the repairs of a large file, and no more.
pub const OVERLAY_PAGES: usize = 16_384;

/// Bytes written beside the store to see whether its disk takes any: a few pages, as the smallest commit does.
pub const PROBE: usize = 64 * 1024;

/// Old audit entries removed in one transaction; more would delay the answers in it.
pub const AUDIT_PRUNED: u64 = 1_000;

/// How often it is looked whether entries of the audit are too old.
pub const AUDIT_AGED_EVERY: Duration = Duration::from_secs(600);

/// Audit entries that one search looks at; the rest is asked for with the next page.
pub const AUDIT_SEARCHED: usize = 10_000;

/// Records that cannot be used and are told by name; further ones are counted.
pub const UNREADABLE_TOLD: usize = 32;

/// Rows copied at a time into a backup.
pub const COPIED_AT_ONCE: usize = 1_000;

/// Kinds of audit entries that are told apart within a minute; of more only the number of each action is kept.
pub const AUDIT_KINDS: usize = 16_384;

/// How long a read of the audit waits for what was told before it; on a slow disk it then shows what is there.
pub const AUDIT_PATIENCE: Duration = Duration::from_secs(1);
